"""A real log on disk, written by the broker's own log and read by the audit's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog.layout import COMMITLOG, DURABLE, FORMAT
from commitlog.log.log import CommitLog
from commitlog.log.published_log import holes, open_log
from commitlog.records.record import Record
from spark_jobs.log.scan.decode import ALL, Wanted, batches, damage_batch
from spark_jobs.log.scan.slices import SLICE_BYTES_DEFAULT, slices
from tests.memory_disk import MemoryDisk

Row = dict[str, Any]


@pytest.fixture
def write_log(tmp_path: Path) -> Callable[..., Path]:
    """`write_log(records, segment_bytes)` writes them as the broker does; returns the store."""

    numbers = itertools.count()

    def write(records: Iterable[Record], segment_bytes: int = 64 * 1024) -> Path:
        disk = MemoryDisk()
        disk.write(FORMAT, 0, b"tidewheel 1\n")
        log = CommitLog(disk, segment_bytes, 0, 0)
        for record in records:
            log.append(record)
        flush = log.take_flush()
        assert flush is not None
        flush.write()
        log.complete_flush(flush)
        return copy(disk, tmp_path / f"store-{next(numbers)}")

    return write


@pytest.fixture
def read_log() -> Callable[..., list[Row]]:
    """`read_log(store, wanted, slice_bytes)` is every row of the log, in order of slices."""

    def read(store: Path, wanted: Wanted | None = None, slice_bytes: int = SLICE_BYTES_DEFAULT) -> list[Row]:
        chosen = wanted or Wanted(bodies=ALL)
        log = open_log(store)
        found = [batch for part in slices(log, slice_bytes) for batch in batches(part, chosen)]
        found.append(damage_batch(holes(log), chosen.schema, "no segment"))
        return list(pa.Table.from_batches(found, chosen.schema).to_pylist())

    return read


def copy(disk: MemoryDisk, store: Path) -> Path:
    """The files of `disk` under `store`: spares a property test thousands of disk syncs."""
    (store / COMMITLOG).mkdir(parents=True)
    for path in [FORMAT, DURABLE, *(f"{COMMITLOG}/{name}" for name in disk.list(COMMITLOG))]:
        (store / path).write_bytes(bytes(disk.view(path)))
    return store
