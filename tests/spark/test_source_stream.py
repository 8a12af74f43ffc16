"""The log as a stream: reader and writer stop and go on, segments roll, and each record arrives once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from commitlog import layout
from commitlog.log import CommitLog
from commitlog.real_disk import RealDisk
from commitlog.record import Record, encode

SEGMENT_BYTES = 2048
COLUMNS = "physical_offset bigint, queue_offset bigint, record_bytes bigint, damage string"


class Writer:
    """A broker's log that is appended to, and may be killed between a write and its answer."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.count = 0
        store.mkdir()
        (store / layout.FORMAT).write_text("1\n")
        self.open(0)

    def open(self, offset: int) -> None:
        self.disk = RealDisk(self.store)
        self.log = CommitLog(self.disk, SEGMENT_BYTES, offset, offset)

    def append(self, count: int) -> None:
        """Appends records and makes them durable."""
        for _ in range(count):
            self.log.append(Record(topic="t", body=b"x" * (60 + self.count % 7), queue_offset=self.count))
            self.count += 1
        flush = self.log.take_flush()
        assert flush is not None
        flush.write()
        self.log.flushed(flush)

    def killed_and_restarted(self) -> None:
        """Dies with half a record written behind the durable offset; the next run writes over it."""
        offset = layout.read_durable(self.disk)
        torn = encode(
            Record(topic="t", body=b"never answered", queue_offset=self.count, physical_offset=offset)
        )
        self.disk.write(
            layout.segment_path(offset // SEGMENT_BYTES * SEGMENT_BYTES), offset % SEGMENT_BYTES, torn[:60]
        )
        self.disk.close()
        self.open(offset)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "store")


Drain = Callable[..., None]


@pytest.fixture
def drain(spark: SparkSession, tmp_path: Path) -> Drain:
    """`drain(store, option=value, ...)` runs a query until it has read all; each is a new query."""

    def run(store: Path, **options: object) -> None:
        frame = spark.readStream.format("tidewheel").schema(COLUMNS).options(**options).load(str(store))  # type: ignore[arg-type]
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()

    return run


def offsets(spark: SparkSession, folder: Path) -> list[int]:
    rows = spark.read.parquet(str(folder / "out")).collect()
    assert [row for row in rows if row.damage] == []
    return sorted(row.queue_offset for row in rows)


def test_each_record_arrives_once_across_restarts_of_both_sides_and_rolls(
    spark: SparkSession, writer: Writer, drain: Drain, tmp_path: Path
) -> None:
    writer.append(5)
    drain(writer.store)
    assert offsets(spark, tmp_path) == list(range(5))
    writer.append(20)
    writer.killed_and_restarted()
    drain(writer.store)
    assert offsets(spark, tmp_path) == list(range(25))
    writer.append(30)
    drain(writer.store, max_bytes_per_trigger=1000)
    assert offsets(spark, tmp_path) == list(range(55))
    assert len(layout.segment_offsets(writer.disk)) > 4


def test_a_batch_that_was_planned_but_not_committed_is_read_again_alike(
    spark: SparkSession, writer: Writer, drain: Drain, tmp_path: Path
) -> None:
    writer.append(10)
    drain(writer.store)
    commits = tmp_path / "checkpoint" / "commits"
    for path in (commits / "0", commits / ".0.crc"):
        path.unlink(missing_ok=True)  # the reader died behind its write, before it could say so
    shutil.rmtree(tmp_path / "out" / "_spark_metadata")
    for path in (tmp_path / "out").glob("*.parquet"):
        path.unlink()
    writer.append(10)
    drain(writer.store)
    drain(writer.store)
    assert offsets(spark, tmp_path) == list(range(20))
