"""The PySpark data source "tidewheel": the records of a store's log as a DataFrame.

    spark.dataSource.register(TidewheelSource)
    spark.read.format("tidewheel").schema("topic string, keys string, store_ms long").load(store)

Columns (ask for few with `.schema(...)`, the API does not prune by itself; all by `COLUMNS`):

    physical_offset, record_bytes long       where the record lies in the log
    topic string, queue_id int, queue_offset long
    flag, sys_flag, reconsume_times int      see `commitlog.record`
    born_ms, store_ms long                   milliseconds since 1970, by the producer's and the broker's clock
    half_offset long                         of committed, outcome and check records: their half
    body binary                              inflated if stored compressed; null unless asked for
    message_id, tag, keys, producer_group, real_topic, outcome, verb, cancels, dead_letter_topic,
    dead_letter_message_id string            properties; null where a record has none
    real_queue_id int, due_ms, timer_offset, replaces long
    damage string                            why these bytes are no record; then only the first two are set

Options:

    topics       only records of these topics, by comma (default: all)
    bodies       topics whose bodies are wanted, by comma, or * (default: none)
    verify       record, body or none (see `spark_jobs.walk`); default: record in a store of ours, else body
    durable      stop at this log offset instead of the published one, to read a growing store twice alike
    slice_bytes  how much of a segment one task reads (default 128 MiB)

Never add `pushFilters`: in pyspark 4.1 and 4.3 its state is shared by all uses of one DataFrame, so one
use's filter silently drops rows of another. Choose rows by option, on a load of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from commitlog.errors import UnknownChoice
from commitlog.recovery import Damage
from spark_jobs.decode import ALL, SCHEMA, TIMESTAMP, Wanted, batches, damage_batch
from spark_jobs.properties import MAP
from spark_jobs.segments import SLICE_BYTES_DEFAULT, Slice, StoreLog, holes, open_log, slices
from spark_jobs.walk import Check

FORMAT: Final = "tidewheel"
_SQL_TYPES: Final = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.binary(): "binary",
    TIMESTAMP: "timestamp",
    MAP: "map<string,string>",
}
COLUMNS: Final = ", ".join(f"{field.name} {_SQL_TYPES[field.type]}" for field in SCHEMA)


class TidewheelSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """The name to give to `spark.read.format`."""
        return FORMAT

    def schema(self) -> str:
        """All columns."""
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns of `schema`."""
        return LogReader(self.options, tuple(schema.names))


@dataclass
class Part(InputPartition):
    """What one task reads: a slice, or the ranges that no segment covers."""

    part: Slice | tuple[Damage, ...]


class LogReader(DataSourceReader):
    """Plans the slices once and reads each in a task, as Arrow record batches."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        durable = options.get("durable")
        self._slice_bytes = int(options.get("slice_bytes", SLICE_BYTES_DEFAULT))
        self._log = open_log(Path(options["path"]), None if durable is None else int(durable))
        self._wanted = wanted(options, columns, self._log)

    def partitions(self) -> list[InputPartition]:
        """One per slice, and one for all holes if there are any."""
        missing = tuple(holes(self._log))
        parts: list[InputPartition] = [Part(part) for part in slices(self._log, self._slice_bytes)]
        return [*parts, Part(missing)] if missing else parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one partition."""
        assert isinstance(partition, Part)
        if isinstance(partition.part, Slice):
            return batches(partition.part, self._wanted)
        return iter([damage_batch(partition.part, self._wanted.schema, "no segment file covers these bytes")])


def wanted(options: Mapping[str, str], columns: tuple[str, ...], log: StoreLog) -> Wanted:
    """What the options ask for; raises `UnknownChoice`."""
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown:
        raise UnknownChoice(f"A log has no column {unknown[0]!r}; it has {', '.join(SCHEMA.names)}.")
    return Wanted(
        columns,
        topics=_topics(options.get("topics", "*")),
        bodies=_topics(options.get("bodies", "")),
        check=_check(options.get("verify", "record" if log.ours else "body")),
    )


def _topics(listed: str) -> frozenset[str]:
    return ALL if listed == "*" else frozenset(topic.strip() for topic in listed.split(",") if topic.strip())


def _check(name: str) -> Check:
    try:
        return Check(name)
    except ValueError as error:
        choices = ", ".join(check.value for check in Check)
        raise UnknownChoice(f"verify={name!r} is none of {choices}.") from error
