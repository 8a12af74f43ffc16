"""What tests of the stream work with: a log that is written beside it, and a query with a checkpoint.

`Query` is one of a real session, `Steps` takes a reader through the same steps without Spark, in no time.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.log.log import CommitLog
from commitlog.records.record import Record, encode
from spark_jobs.streams import LogStreamReader

SEGMENT_BYTES = 2048
COLUMNS = "physical_offset bigint, queue_offset bigint, record_bytes bigint, store_ms bigint, damage string"


class Writer:
    """A broker's log that is appended to; no two of its records are alike, whatever becomes of its files."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.count = 0
        self._begin()

    def _begin(self) -> None:
        self.store.mkdir()
        (self.store / layout.FORMAT).write_text("tidewheel 1\n")
        self.open(0)

    def open(self, offset: int) -> None:
        self.disk = RealDisk(self.store)
        self.log = CommitLog(self.disk, SEGMENT_BYTES, offset, offset)

    def append(self, count: int, store_ms: int = 0) -> None:
        """Append records and make them durable; `store_ms` is that of each."""
        for _ in range(count):
            body = b"x" * (60 + self.count % 7)
            self.log.append(Record(topic="t", body=body, queue_offset=self.count, store_ms=store_ms))
            self.count += 1
        flush = self.log.take_flush()
        assert flush is not None
        flush.write()
        self.log.complete_flush(flush)

    def killed_and_restarted(self) -> None:
        """Die with half a record written behind the durable offset; the next run writes over it."""
        offset = layout.read_durable(self.disk)
        torn = encode(
            Record(topic="t", body=b"never answered", queue_offset=self.count, physical_offset=offset)
        )
        self.disk.write(
            layout.segment_path(offset // SEGMENT_BYTES * SEGMENT_BYTES), offset % SEGMENT_BYTES, torn[:60]
        )
        self.disk.close()
        self.open(offset)

    def wipe(self) -> None:
        """Empty the store and begin a log anew, as a broker with an empty folder does."""
        self.disk.close()
        shutil.rmtree(self.store)
        self._begin()

    def copy(self, name: str) -> Path:
        """Return a copy of the store as it is now."""
        return Path(shutil.copytree(self.store, self.store.with_name(name)))

    def put_back(self, copy: Path) -> None:
        """Let the store be what it was at the time of the copy, and go on from there."""
        self.disk.close()
        shutil.rmtree(self.store)
        shutil.copytree(copy, self.store)
        self.open(layout.read_durable(RealDisk(self.store)))

    def retain(self, segment_count: int) -> int:
        """Delete all but the last segments, as retention does; return where the log begins now."""
        offsets = layout.segment_offsets(self.disk)
        for offset in offsets[:-segment_count]:
            (self.store / layout.segment_path(offset)).unlink()
        self.log.cut(offsets[-segment_count])
        return offsets[-segment_count]


class Arrivals:
    """What has arrived with a query."""

    def rows(self) -> list[Row]:
        """Return all rows."""
        raise NotImplementedError

    def arrived(self) -> list[int]:
        """Return the queue offsets of what has arrived, ascending."""
        return sorted(row.queue_offset for row in self.rows() if row.damage is None)

    def damage(self) -> list[Row]:
        """Return the rows that say what is gone, by log offset."""
        return sorted((row for row in self.rows() if row.damage), key=lambda row: row.physical_offset)

    def damage_texts(self) -> list[str]:
        """Return what these rows say."""
        return [row.damage for row in self.rows() if row.damage]


@dataclass
class Query(Arrivals):
    """A query with a checkpoint and a file sink below `folder`, which is run again and again."""

    spark: SparkSession
    folder: Path

    def drain(self, store: Path, columns: str = COLUMNS, /, **options: object) -> None:
        """Run the query until it has read all that is there."""
        frame = self.spark.readStream.format("tidewheel").schema(columns).options(**options)  # type: ignore[arg-type]
        query = (
            frame.load(str(store))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.folder / "out"))
        )
        query.awaitTermination()

    def forget_last_batch(self) -> None:
        """Let the last batch be planned and not committed: the reader died behind its write."""
        commits, written = self.folder / "checkpoint" / "commits", self.folder / "out" / "_spark_metadata"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for folder in (commits, written):
            for path in (folder / str(last), folder / f".{last}.crc"):
                path.unlink(missing_ok=True)

    def rows(self) -> list[Row]:
        """Return what has arrived."""
        out = self.folder / "out"
        return self.spark.read.parquet(str(out)).collect() if out.exists() else []


@dataclass
class Steps(Arrivals):
    """A query of the same verbs, without Spark: a reader is asked what Spark asks, and offsets are JSON.

    `planned` is what the checkpoint's folder `offsets` holds, the ends of batches, of which `committed` have
    run. Until the first is committed, Spark asks each time where the query begins.
    """

    planned: list[str] = field(default_factory=list)
    committed: int = 0
    batches: list[list[Row]] = field(default_factory=list)

    def drain(self, store: Path, columns: str = COLUMNS, /, **options: object) -> None:
        """Read until a reader, made anew, has nothing more."""
        names = tuple(column.split()[0] for column in columns.split(","))
        given = CaseInsensitiveDict(path=str(store)) | {name: str(one) for name, one in options.items()}
        reader = LogStreamReader(given, names)
        reader.prepareForTriggerAvailableNow()
        while True:
            start = self._start(reader)
            if self.committed == len(self.planned):
                end = json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit()))
                if end == json.dumps(start):
                    return
                self.planned.append(end)
            parts = reader.partitions(start, json.loads(self.planned[self.committed]))
            found = [batch.to_pylist() for part in parts for batch in reader.read(part)]
            self.batches.append([Row(**row) for rows in found for row in rows])
            self.committed += 1

    def _start(self, reader: LogStreamReader) -> dict[str, Any]:
        ended = self.planned[self.committed - 1] if self.committed else json.dumps(reader.initialOffset())
        return dict(json.loads(ended))

    def forget_last_batch(self) -> None:
        """Let the last batch be planned and not committed: the reader died behind its write."""
        self.committed -= 1
        self.batches.pop()

    def rows(self) -> list[Row]:
        """Return what has arrived."""
        return [row for rows in self.batches for row in rows]
