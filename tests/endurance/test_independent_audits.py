"""One shop audited in several ways: cases, sentences and digests do not depend on partitions, on how many
processors there are, or on the order of rows.

    TIDEWHEEL_LONG=1 .venv/bin/python -m pytest tests/endurance/test_independent_audits.py -s

The shop is made up, with every planted fault (`benchmarks/audit_shop.py`); the ways are those of `WAYS`. What
is compared: each order's whole row with its case, its sentence and all columns, each finding with its
timeline, and a seal's digests of every window.
"""

from __future__ import annotations

import importlib
import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from spark_jobs import main
from spark_jobs.inputs import sources as inputs_sources
from spark_jobs.layout import RunFolders
from spark_jobs.main import Sources, compare
from spark_jobs.options import AuditOptions
from spark_jobs.runs import run_of
from spark_jobs.seals.seals import seal
from spark_jobs.session import spark_session
from spark_jobs.staging import staged

pytestmark = pytest.mark.skipif(
    "TIDEWHEEL_LONG" not in os.environ, reason="audits for minutes: make endurance"
)
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ORDERS = 50_000
PLANTS_PER_CASE = 5
WINDOW_MS = 3_600_000


class Way(NamedTuple):
    """How an audit is run: on so many cores, buckets and partitions, slices of so many bytes."""

    cores: int
    buckets: int
    partition_bytes: int
    slice_bytes: int
    is_shuffled: bool = False
    """Whether the rows of the databases lie in another order."""


WAYS = {
    "one core": Way(1, 2, 64 << 20, 256 << 20),
    "four cores": Way(4, 2, 64 << 20, 256 << 20),
    "many buckets, small slices": Way(2, 24, 1 << 20, 3 << 20),
    "rows in another order": Way(2, 6, 8 << 20, 16 << 20, is_shuffled=True),
}


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[Any]:
    """`benchmarks(name)` is a module of the benchmarks, which find each other by their bare names."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


def shuffle(shop: Path, chance: random.Random) -> None:
    """Write the rows of each table anew, in another order."""
    for database in shop.glob("*.db"):
        with sqlite3.connect(database) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (table,) in tables:
                rows = connection.execute(f"SELECT * FROM {table}").fetchall()
                chance.shuffle(rows)
                connection.execute(f"DELETE FROM {table}")
                for row in rows:
                    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        connection.close()
    for path in (shop / "carts").rglob("*.parquet"):
        rows = pq.read_table(path)
        pq.write_table(rows.take(chance.sample(range(len(rows)), len(rows))), path)


def ordered(path: Path, *, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    table: pa.Table = ds.dataset(path, format="parquet").to_table()
    kept = table.drop_columns([name for name in without if name in table.column_names])
    return sorted(kept.to_pylist(), key=repr)


def audited(shop: Path, folder: Path, way: Way, inputs: Any) -> dict[str, Any]:
    run = RunFolders(folder / "out", "run")
    run.folder.mkdir(parents=True)
    (folder / "exported").mkdir()
    with spark_session(folder, folder / "spark.log", quick=True, master=f"local[{way.cores}]") as spark:
        exported = Sources(shop / "store", inputs).export(folder / "exported")
        compare(spark, exported, shop / "store", run, AuditOptions("run"), lambda _: None)
    done = run_of(run.out, "run")
    sealed = seal(run.out, done, WINDOW_MS, 60_000).seal
    assert sealed is not None
    return {
        "orders": ordered(run.orders),
        "findings": ordered(run.findings),
        "cases": done.summary["cases"],
        "windows": {start: dict(stages) for start, stages in sealed.windows.items()},
    }


def test_an_audit_does_not_depend_on_how_it_is_run(
    benchmarks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, truth = tmp_path / "shop", benchmarks("parts.audit.truth")
    benchmarks("audit_shop").build(shop, ORDERS, PLANTS_PER_CASE)
    first: dict[str, Any] = {}
    for name, way in WAYS.items():
        monkeypatch.setattr(inputs_sources, "bucket_count", lambda _, count=way.buckets: count)
        monkeypatch.setattr(main, "_BYTES_PER_SHUFFLE_PARTITION", way.partition_bytes)
        monkeypatch.setattr(staged, "SLICE_BYTES", way.slice_bytes)
        here = shop
        if way.is_shuffled:
            here = Path(shutil.copytree(shop, tmp_path / "shuffled"))
            shuffle(here, random.Random(44))
        (tmp_path / name).mkdir()
        found = audited(here, tmp_path / name, way, truth.inputs_of(here))
        first = first or found
        print(f"{name}: {len(found['orders'])} orders, {len(found['findings'])} findings", flush=True)
        assert found.keys() == first.keys()
        for part, value in found.items():
            assert value == first[part], f"{name}: {part}"
    assert len(first["findings"]) > 50
