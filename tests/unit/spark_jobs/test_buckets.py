"""Rows dealt into buckets: each comes back once, in its own bucket, also from files of fewer buckets."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.buckets import BUCKETS_MAX, bucket_count, bucket_of, finer, read_bucket, write_dealt

SCHEMA = pa.schema([("order_id", pa.string()), ("number", pa.int64())])


def table(ids: list[str]) -> pa.Table:
    return pa.table([ids, range(len(ids))], schema=SCHEMA)


@given(st.lists(st.text(max_size=12)), st.integers(1, 9))
def test_equal_ids_have_one_bucket_whatever_lies_before_them(ids: list[str], count: int) -> None:
    whole = pa.array(["something", *ids], pa.string())
    buckets = bucket_of(whole.slice(1), count).tolist()
    assert all(bucket < count for bucket in buckets)
    assert [int(bucket_of(pa.array([one]), count)[0]) for one in ids] == buckets


@pytest.mark.parametrize("files", [(4,), (1, 2, 4)])
def test_every_row_is_read_once_and_equal_ids_together(tmp_path: Path, files: tuple[int, ...]) -> None:
    ids = [f"order-{number % 50}" for number in range(200)]
    for own in files:
        write_dealt(tmp_path / f"{own}.parquet", table(ids), own)
    buckets = [read_bucket(tmp_path, SCHEMA, bucket, 4) for bucket in range(4)]
    found = [row for bucket in buckets for row in bucket.to_pylist()]
    assert sorted(row["number"] for row in found) == sorted(list(range(200)) * len(files))
    assert all(ids[row["number"]] == row["order_id"] for row in found)
    in_buckets = [set(bucket["order_id"].to_pylist()) for bucket in buckets]
    assert sum(map(len, in_buckets)) == 50 == len(set().union(*in_buckets))


def test_buckets_without_rows_and_folders_without_files_are_empty(tmp_path: Path) -> None:
    assert read_bucket(tmp_path, SCHEMA, 0, 2).num_rows == 0
    write_dealt(tmp_path / "one.parquet", table(["a"]), 8)
    assert sum(read_bucket(tmp_path, SCHEMA, bucket, 8).num_rows for bucket in range(8)) == 1


def test_some_columns_are_read(tmp_path: Path) -> None:
    write_dealt(tmp_path / "one.parquet", table(["a", "b"]), 1)
    assert read_bucket(tmp_path, SCHEMA, 0, 2, ["order_id"]).column_names == ["order_id"]


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 40))
def test_more_rows_are_dealt_into_a_multiple(log_bytes: int, rows: int) -> None:
    count = bucket_count(log_bytes)
    assert 2 <= count <= BUCKETS_MAX
    assert finer(count, rows) % count == 0
    assert finer(count, rows) * 1_000_000 >= rows
