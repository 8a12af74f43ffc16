"""Log bytes -> Arrow columns: against RocketMQ's golden bytes and against the broker's own codec."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitlog.log.published_log import Segment
from commitlog.records import properties
from commitlog.records import record as codec
from commitlog.records.kinds import kind_of
from commitlog.records.message import Host
from commitlog.records.record import Record
from spark_jobs.log.columns.records import FIXED
from spark_jobs.log.scan import decode
from spark_jobs.log.scan.decode import ALL, PROPERTIES, SCHEMA, TIMES, Wanted, batches
from spark_jobs.log.scan.slices import Slice
from spark_jobs.log.scan.walk import Check
from tidewheel import property_names

Row = dict[str, Any]
ReadLog = Callable[..., list[Row]]
WriteLog = Callable[..., Path]

VECTORS = json.loads((Path(__file__).parents[4] / "vectors" / "rocketmq.json").read_text())
GOLDEN = [vector for vector in VECTORS if vector["kind"] == "commitlog_record"]
NUMBERS = ("physical_offset", *FIXED)


def row_of(record: Record, body: bytes | None = None) -> Row:
    """What the audit must see of a record, by way of the slow codec."""
    pairs = properties.decode(record.properties)
    row: Row = {name: getattr(record, name) for name in NUMBERS}
    row |= {"topic": record.topic, "body": record.body if body is None else body, "damage": None}
    row["record_bytes"] = len(codec.encode(record))
    for column, (name, kind) in PROPERTIES.items():
        value = pairs.get(name, "")
        is_number = value.isascii() and value.isdigit()
        row[column] = (value or None) if str(kind) == "string" else (int(value) if is_number else None)
    row |= {column: time_of(row[name]) for column, name in TIMES.items()}
    row |= {"born_host": host_text(record.born_host), "store_host": host_text(record.store_host)}
    row["delivery_attempt"] = record.reconsume_times + 1
    row["user_properties"] = [one for one in pairs.items() if one[0] not in property_names.RESERVED]
    keys = properties.keys_of(pairs)
    row["first_key"], row["key_list"] = keys[0] if keys else None, list(keys)
    row["kind"] = kind_of(record)
    return row


def time_of(ms: int | None) -> datetime | None:
    return None if ms is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def host_text(host: Host) -> str:
    return f"[{host[0]}]:{host[1]}" if ":" in host[0] else f"{host[0]}:{host[1]}"


@pytest.mark.parametrize("check", [Check.BODY, Check.NONE])
@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["name"])
def test_golden_bytes_read_as_the_record_codec_reads_them(vector: Row, check: Check, tmp_path: Path) -> None:
    golden = bytes.fromhex(vector["hex"])
    path = tmp_path / "segment"
    path.write_bytes(golden)
    part = Slice(Segment(str(path), vector["input"]["phy"], len(golden)), 0, len(golden), len(golden), False)
    (batch,) = batches(part, Wanted(bodies=ALL, check=check))
    expected = codec.decode(golden)
    stored = zlib.decompress(expected.body) if expected.sys_flag & codec.COMPRESSED else expected.body
    (row,) = batch.to_pylist()
    assert row == row_of(expected, stored) | {"record_bytes": len(golden)}


names = st.sampled_from([name for name, kind in PROPERTIES.values() if str(kind) == "string"])
texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12)
stored_pairs = st.lists(st.tuples(names | texts, texts), max_size=6).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
records = st.builds(
    Record,
    topic=st.text("abcXYZ%_-09", min_size=1, max_size=200),
    body=st.binary(max_size=60),
    properties=stored_pairs | st.binary(max_size=12).filter(lambda raw: b"__CRC32#" not in raw),
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=st.integers(0, 2**62),
    sys_flag=st.sampled_from([0, 8, 12]),
    born_ms=st.integers(0, 2**45),
    born_host=st.tuples(st.sampled_from(["10.0.0.1", "fe80::1"]), st.integers(0, 65535)),
    store_ms=st.integers(0, 2**45),
    store_host=st.tuples(st.sampled_from(["10.0.0.1", "2001:db8::9"]), st.integers(0, 65535)),
    half_offset=st.integers(0, 2**62),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(records, min_size=1, max_size=12), st.sampled_from([512, 1024, 1 << 20]))
def test_whatever_the_broker_writes_is_read_back(
    write_log: WriteLog, read_log: ReadLog, written: list[Record], slice_bytes: int
) -> None:
    store = write_log(written, segment_bytes=8192)
    columns = tuple(
        name for name in SCHEMA.names if name not in ("real_queue_id", "due_ms", "due_time", "timer_offset")
    )
    rows = read_log(store, Wanted(columns, bodies=ALL), slice_bytes)
    expected = [row_of(codec.decode(codec.encode(record))) for record in written]
    for row in (*rows, *expected):
        row["user_properties"] = sorted(row["user_properties"])
    assert rows == [{name: row[name] for name in columns} for row in expected]


def order(number: int, **fields: Any) -> Record:
    given_fields = {"topic": "order-created", "body": b"{}", "properties": b""} | fields
    return Record(queue_offset=number, store_ms=1_700_000_000_000 + number, **given_fields)


def test_numbers_in_properties_that_are_none_are_null(write_log: WriteLog, read_log: ReadLog) -> None:
    values = ["1700000000000", "soon", "-5", "9" * 30, "١٢"]
    rows = read_log(
        write_log(
            order(number, properties=properties.encode({"TIMER_OUT_MS": value, "REAL_QID": value}))
            for number, value in enumerate(values)
        )
    )
    assert [row["due_ms"] for row in rows] == [1700000000000, None, -5, None, None]
    assert [row["real_queue_id"] for row in rows] == [None, None, -5, None, None]


def test_a_property_without_its_closing_byte_does_not_change_its_neighbours(
    write_log: WriteLog, read_log: ReadLog
) -> None:
    odd = [
        b"KEYS\x01a\x02",
        b"KEYS\x01b\x02\x02stray",
        b"KEYS\x01first\x02KEYS\x01last",
        b"\xff\xfe\x01x\x02",
    ]
    rows = read_log(write_log(order(number, properties=raw) for number, raw in enumerate(odd)))
    assert [row["keys"] for row in rows] == ["a", "b", "last", None]


@pytest.mark.parametrize("compress", [zlib.compress, gzip.compress])
def test_compressed_bodies_are_inflated(
    write_log: WriteLog, read_log: ReadLog, compress: Callable[[bytes], bytes]
) -> None:
    body = b'{"order_id":"1"}' * 50
    packed = order(0, body=compress(body), sys_flag=codec.COMPRESSED)
    not_packed = order(1, body=b"not zlib", sys_flag=codec.COMPRESSED)
    assert [row["body"] for row in read_log(write_log([packed, not_packed]))] == [body, b"not zlib"]


def test_topics_and_bodies_are_chosen_by_option(write_log: WriteLog, read_log: ReadLog) -> None:
    store = write_log(
        order(number, topic=topic, body=topic.encode()) for number, topic in enumerate(["a", "b", "c", "a"])
    )
    wanted = Wanted(("topic", "body"), topics=frozenset({"a", "b"}), bodies=frozenset({"b"}))
    rows = read_log(store, wanted)
    assert [(row["topic"], row["body"]) for row in rows] == [("a", None), ("b", b"b"), ("a", None)]


def test_a_time_that_no_timestamp_holds_is_null() -> None:
    largest, least = (1 << 63) - 1, -(1 << 63)
    found = decode._timestamps(pa.array([0, None, least, largest, 9_000_000_000_000_000, -1_000], pa.int64()))
    assert found.cast(pa.int64()).to_pylist() == [0, None, None, None, None, -1_000_000]
