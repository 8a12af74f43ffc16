"""A made-up shop with known faults: its log is as a real shop's, and the audit finds them and no more."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from commitlog.log.published_log import open_log
from spark_jobs.cases.names import CART_DIFFERENCE, FINDINGS, PUSHES_DO_NOT_SUM
from spark_jobs.layout import RunFolders
from spark_jobs.log.index.queue_index import open_index
from spark_jobs.log.scan.decode import SCHEMA
from spark_jobs.main import Sources, compare
from spark_jobs.options import AuditOptions
from spark_jobs.source import LogReader

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ORDERS = 2_000
PLANTS_PER_CASE = 3
OTHER_KINDS = ("topic", "group", "lease", "ack")


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[Any]:
    """`benchmarks(name)` is a module of the benchmarks, which find each other by their bare names."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def seeded(benchmarks: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a made-up shop."""
    folder = tmp_path_factory.mktemp("seeded")
    benchmarks("audit_shop").build(folder, ORDERS, PLANTS_PER_CASE)
    return folder


def rows_of(store: Path) -> list[dict[str, Any]]:
    reader = LogReader({"path": str(store), "verify": "record"}, tuple(SCHEMA.names))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return rows


def shapes(rows: list[dict[str, Any]]) -> set[Any]:
    """What tells records of different kinds apart: which columns and user properties they have."""
    return {
        (
            row["kind"],
            row["topic"],
            row["real_topic"],
            frozenset(name for name, value in row.items() if value is not None),
            frozenset(name for name, _ in row["user_properties"]),
            row["sys_flag"],
            row["half_offset"] > 0,
        )
        for row in rows
        if row["kind"] not in OTHER_KINDS
    }


def test_its_records_have_the_columns_of_a_real_shops(seeded: Path, traded: Any) -> None:
    made_up, real = rows_of(seeded / "store"), rows_of(traded.store)
    assert shapes(real) <= shapes(made_up)
    assert "damage" not in {row["kind"] for row in made_up}


def test_what_refers_to_a_record_finds_it_before_itself_and_of_the_same_order(seeded: Path) -> None:
    rows = {row["physical_offset"]: row for row in rows_of(seeded / "store")}
    assert [row["store_ms"] for row in rows.values()] == sorted(row["store_ms"] for row in rows.values())
    referred = 0
    for row in rows.values():
        cancelled = int(row["cancels"].split()[0]) if row["cancels"] else None
        for offset, kind in (
            (row["half_offset"] or None, "half"),
            (row["timer_offset"], "timer"),
            (row["replaces"], "timer"),
            (cancelled, "timer"),
        ):
            if offset is not None:
                assert rows[offset]["kind"] == kind
                assert offset < row["physical_offset"]
                assert row["keys"] in (None, rows[offset]["keys"])
                referred += 1
    assert referred > 3 * ORDERS


def test_its_queue_files_lead_to_what_a_scan_finds(seeded: Path) -> None:
    topics = frozenset(("order-created", "pushes"))
    assert open_index(seeded / "store", open_log(seeded / "store"), topics) is not None
    found = []
    for index in ("auto", "never"):
        options = {"path": str(seeded / "store"), "topics": "order-created,pushes", "index": index}
        reader = LogReader(options, ("physical_offset", "topic", "queue_id", "queue_offset"))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        found.append(pa.Table.from_batches(batches).sort_by("physical_offset"))
    assert found[0] == found[1]
    queues: dict[Any, list[int]] = {}
    for row in found[0].to_pylist():
        queues.setdefault((row["topic"], row["queue_id"]), []).append(row["queue_offset"])
    assert all(offsets == list(range(len(offsets))) for offsets in queues.values())


def test_a_log_of_many_segments_has_the_same_records(benchmarks: Any, tmp_path: Path) -> None:
    """The end of a segment falls somewhere among the records of open orders."""
    shop = benchmarks("audit_shop")
    shop.build(tmp_path / "whole", 500)
    shop.build(tmp_path / "parted", 500, segment_bytes=100_000)
    assert len(list((tmp_path / "parted" / "store" / "commitlog").iterdir())) > 10
    kept = [
        [
            (row["kind"], row["keys"], row["queue_offset"])
            for row in rows_of(tmp_path / name / "store")
            if row["kind"] != "ack"  # which begin anew with each segment
        ]
        for name in ("whole", "parted")
    ]
    assert kept[0] == kept[1]


def test_every_planted_fault_is_found_under_its_case_and_nothing_else(
    benchmarks: Any, seeded: Path, spark: SparkSession, tmp_path: Path
) -> None:
    truth = benchmarks("parts.audit.truth")
    run = RunFolders(tmp_path, "run")
    for folder in (run.folder, tmp_path / "exported"):
        folder.mkdir(parents=True)
    exported = Sources(seeded / "store", truth.inputs_of(seeded)).export(tmp_path / "exported")
    summary = compare(spark, exported, seeded / "store", run, AuditOptions("run"), lambda _: None)
    scores = truth.scores(truth.findings_in(seeded / "truth.parquet"), truth.findings_in(run.findings))
    assert truth.is_perfect(scores), scores
    assert set(scores) == {*FINDINGS, PUSHES_DO_NOT_SUM, CART_DIFFERENCE}
    assert sum(summary.cases.values()) == summary.totals["orders"]
    assert summary.cases["in-flight"] == 0
