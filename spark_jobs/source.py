"""The PySpark data source "tidewheel": the records of a store's log as a DataFrame.

    spark.dataSource.register(TidewheelSource)
    spark.read.format("tidewheel").schema("topic string, keys string, store_ms long").load(store)

Columns, options and datasets: docs/spark.md. Ask for few columns with `.schema(...)`: the API does not
prune by itself. A stream reads the same rows as they become durable (see `LogStreamReader`).

Never add `pushFilters`: in pyspark 4.1 and 4.3 its state is shared by all uses of one DataFrame, so one
use's filter silently drops rows of another. Choose rows by option, on a load of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from commitlog.errors import StoreError
from commitlog.published_log import holes, open_log, read_durable
from commitlog.recovery import Damage
from spark_jobs.datasets import ACK_COLUMNS, ACKS, dataset, ranges
from spark_jobs.log.decode import ALL, DEFAULT, SCHEMA, TIMESTAMP, Wanted
from spark_jobs.log.kept import kept_parts
from spark_jobs.log.parts import Part, part_batches
from spark_jobs.log.properties import MAP
from spark_jobs.log.queue_index import Index, open_index
from spark_jobs.log.ranges import Range, range_of
from spark_jobs.log.slices import SLICE_BYTES_DEFAULT, slices
from spark_jobs.log.walk import Check
from tidewheel.errors import UnknownChoice

FORMAT: Final = "tidewheel"
_SQL_TYPES: Final = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.binary(): "binary",
    TIMESTAMP: "timestamp",
    MAP: "map<string,string>",
}


def _sql(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {_SQL_TYPES[field.type]}" for field in schema)


COLUMNS: Final = _sql(SCHEMA)
"""Every column there is, for `.schema(...)`."""


class TidewheelSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """Return the name to give to `spark.read.format`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of a load that names none."""
        is_acks = self.options.get("dataset") == "acks"
        return _sql(ACKS if is_acks else pa.schema([SCHEMA.field(name) for name in DEFAULT]))

    def reader(self, schema: StructType) -> LogReader:
        """Return the reader of the columns of `schema` from the store at the given path."""
        return LogReader(self.options, tuple(schema.fieldNames()))

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802
        """Return the reader of a stream of the columns of `schema`."""
        return LogStreamReader(self.options, tuple(schema.fieldNames()))


@dataclass
class Task(InputPartition):
    """What one task reads."""

    part: Part


class Rows:
    """The rows that the options ask for, from any part of the log."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        """Raise `UnknownChoice`."""
        self.is_acks = options.get("dataset") == "acks"
        known = ACKS if self.is_acks else SCHEMA
        unknown = [name for name in columns if name not in known.names]
        if unknown:
            raise UnknownChoice(f"A log has no column {unknown[0]!r}; it has {', '.join(known.names)}.")
        self.schema = pa.schema([known.field(name) for name in columns])
        chosen = dataset(options.get("dataset", "records"))
        topics = _topics(options.get("topics", "*"))
        self.wanted = Wanted(
            ACK_COLUMNS if self.is_acks else columns,
            topics=chosen.topics if topics == ALL or self.is_acks else topics,
            bodies=ALL if self.is_acks else _topics(options.get("bodies", "")),
            check=_check(options.get("verify", "record")),
            kinds=chosen.kinds,
            only_of_halves=chosen.only_of_halves,
        )

    def of(self, part: Part, within: Range | None) -> Iterator[Any]:
        """Return the rows of one part, those of a range of time only if it is one."""
        wanted = replace(self.wanted, stored_ms=within.stored_ms if within else None)
        found = part_batches(part, wanted)
        return (ranges(batch, self.schema) for batch in found) if self.is_acks else found


class LogReader(DataSourceReader):
    """Plans and reads one log; what cannot be read as records becomes rows with `damage`."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        durable = options.get("durable")
        store = Path(options["path"])
        self._slice_bytes = int(options.get("slice_bytes", SLICE_BYTES_DEFAULT))
        self._log = open_log(store, None if durable is None else int(durable))
        self._rows = Rows(options, columns)
        self._range = range_of(self._log, options.get("from"), options.get("to"))
        is_whole = not options.get("from", "").isdigit()
        self._kept = kept_parts(store, self._log) if is_whole else []
        self._index = self._opened_index(store, options.get("index", "auto"))

    def partitions(self) -> list[InputPartition]:
        """Return one per slice, or per segment that the index leads to, and one for all holes if there are
        any.
        """
        first_offset, end_offset = self._range.first_offset, self._range.end_offset
        parts: list[InputPartition] = []
        if self._index is not None:
            parts += [Task(part) for part in self._index.parts(self._log, self._range)]
            first_offset = max(first_offset, min(self._index.until, end_offset))
        parts += [Task(part) for part in slices(self._log, self._slice_bytes, first_offset, end_offset)]
        parts += [Task(part) for part in self._kept]
        missing = tuple(holes(self._log, self._range.first_offset, end_offset))
        return [*parts, Task(missing)] if missing else parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the record batches of one partition."""
        assert isinstance(partition, Task)
        return self._rows.of(partition.part, self._range)

    def _opened_index(self, store: Path, use: str) -> Index | None:
        if use not in ("auto", "never"):
            raise UnknownChoice(f"index={use!r} is none of auto, never.")
        if use == "never" or self._rows.wanted.topics == ALL or self._rows.is_acks:
            return None
        return open_index(store, self._log, self._rows.wanted.topics)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as it grows. An offset is a log offset, and a batch the records that start between two of them.

    So a batch that is read again has the same rows: nothing below the durable offset changes, and a record
    belongs to the batch in which it starts, wherever the cut falls. A batch ends where the published durable
    offset was, or sooner by `max_bytes_per_trigger`. Segments that begin meanwhile need no notice.
    """

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        self._store = Path(options["path"])
        self._slice_bytes = int(options.get("slice_bytes", SLICE_BYTES_DEFAULT))
        self._bytes_max = int(options.get("max_bytes_per_trigger", 0))
        self._first = options.get("from")
        self._stop_offset: int | None = None
        self._rows = Rows(options, columns)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where `from` says, else where the log begins."""
        try:
            log = open_log(self._store)
        except StoreError:
            return {"offset": 0}
        return {"offset": range_of(log, self._first, None).first_offset if self._first else log.first_offset}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return so many bytes of log in one batch, if there is a limit."""
        return ReadMaxBytes(self._bytes_max) if self._bytes_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the log ends now: a query with that trigger ends there."""
        self._stop_offset = read_durable(self._store) or 0

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the durable offset, or what the limit allows."""
        durable_offset = self._stop_offset
        if durable_offset is None:
            durable_offset = read_durable(self._store) or 0
        end_offset = max(durable_offset, start["offset"])
        if isinstance(limit, ReadMaxBytes):
            end_offset = min(end_offset, start["offset"] + limit.max_bytes)
        return {"offset": end_offset}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the slices between two offsets."""
        if start["offset"] >= end["offset"]:
            return []
        log = open_log(self._store)
        if log.end_offset < end["offset"]:
            raise StoreError(
                f"{self._store} tells of {log.end_offset} bytes of log, and this batch ends at "
                f"{end['offset']}: a node that was started again has not taken that in yet. Run the query "
                "again in some seconds."
            )
        missing = tuple(holes(log, start["offset"], end["offset"]))
        if start["offset"] < log.first_offset:
            missing = (Damage(start["offset"], min(log.first_offset, end["offset"])), *missing)
        parts: list[InputPartition] = [
            Task(part) for part in slices(log, self._slice_bytes, start["offset"], end["offset"])
        ]
        return [*parts, Task(missing)] if missing else parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the record batches of one partition."""
        assert isinstance(partition, Task)
        return self._rows.of(partition.part, None)


def _topics(listed: str) -> frozenset[str]:
    return ALL if listed == "*" else frozenset(topic.strip() for topic in listed.split(",") if topic.strip())


def _check(name: str) -> Check:
    try:
        return Check(name)
    except ValueError as error:
        choices = ", ".join(check.value for check in Check)
        raise UnknownChoice(f"verify={name!r} is none of {choices}.") from error
