"""The PySpark data source "tidewheel": the records of a store's log as a DataFrame.

    spark.dataSource.register(TidewheelSource)
    spark.read.format("tidewheel").schema("topic string, keys string, store_ms long").load(store)

Columns, options and datasets: docs/spark.md. Select few columns with `.schema(...)`, since the API does not
prune columns. A stream reads the rows of the log as they become durable (see `streams`).

Never add `pushFilters`: in pyspark 4.1 and 4.3 its state is shared by all uses of one DataFrame, so the
filter of one use silently drops rows of another. Rows are selected by options, on a separate load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from commitlog.errors import NoRecords
from commitlog.log.published_log import StoreLog, holes, is_node, open_log
from spark_jobs.datasets import ACKS
from spark_jobs.errors import StreamLost
from spark_jobs.log.columns.keys import KEY_LIST
from spark_jobs.log.columns.properties import MAP
from spark_jobs.log.index.queue_index import Index, open_index
from spark_jobs.log.index.ranges import place, range_of
from spark_jobs.log.kept.kept import kept_parts
from spark_jobs.log.parts import Part
from spark_jobs.log.scan.decode import ALL, DEFAULT, SCHEMA, TIMESTAMP
from spark_jobs.log.scan.slices import SLICE_BYTES_DEFAULT, slices
from spark_jobs.rows import NOTHING, Rows, Task
from spark_jobs.source_options import BATCH, bytes_of, check_names, path_of
from spark_jobs.streams import LogStreamReader

FORMAT: Final = "tidewheel"
_SQL_TYPES: Final = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.binary(): "binary",
    TIMESTAMP: "timestamp",
    MAP: "map<string,string>",
    KEY_LIST: "array<string>",
}


def _sql(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {_SQL_TYPES[field.type]}" for field in schema)


COLUMNS: Final = _sql(SCHEMA)
"""All columns, for `.schema(...)`."""


class TidewheelSource(DataSource):
    """The data source; see the module."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raise `UnknownChoice` for an unknown option."""
        check_names(options)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of a load without a schema."""
        is_acks = self.options.get("dataset") == "acks"
        return _sql(ACKS if is_acks else pa.schema([SCHEMA.field(name) for name in DEFAULT]))

    def reader(self, schema: StructType) -> LogReader:
        """Return the batch reader of the columns of `schema`."""
        return LogReader(self.options, tuple(schema.fieldNames()))

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802
        """Return the stream reader of the columns of `schema`."""
        return LogStreamReader(self.options, tuple(schema.fieldNames()))


class LogReader(DataSourceReader):
    """Reader of one log; bytes that are no records become rows with `damage`."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        check_names(options, BATCH)
        self._slice_bytes = bytes_of(options, "slice_bytes", SLICE_BYTES_DEFAULT)
        self._rows = Rows(options, columns)
        store, durable = path_of(options), bytes_of(options, "durable", -1, least=0)
        first = place(options, "from", "startingTimestamp")
        end = place(options, "to", "endingTimestamp")
        self._log = _opened(store, None if durable < 0 else durable)
        self._range = range_of(self._log, first, end)
        self._kept = kept_parts(store, self._log, self._range.outlived_until)
        self._index = self._opened_index(store)

    def partitions(self) -> list[InputPartition]:
        """Return one partition per slice, indexed segment and set of kept records, and one for all holes.

        Return one empty partition if there is none.
        """
        first_offset, end_offset = self._range.first_offset, self._range.end_offset
        parts: list[Part] = []
        if self._index is not None:
            parts += self._index.parts(self._log, self._range, self._slice_bytes)
            first_offset = max(first_offset, min(self._index.until, end_offset))
        parts += slices(self._log, self._slice_bytes, first_offset, end_offset)
        parts += self._kept
        missing = tuple(holes(self._log, self._range.first_offset, end_offset))
        parts += [missing] if missing else []
        return [Task(part, self._range.stored_ms) for part in parts or [NOTHING]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a partition; raise `StreamLost` if its segment has been deleted."""
        try:
            yield from self._rows.of(partition)
        except FileNotFoundError as error:
            raise StreamLost(
                f"{error.filename} was deleted while it was read, as by retention. Read it again: the rows "
                "begin where the log does now."
            ) from error

    def _opened_index(self, store: Path) -> Index | None:
        topics = self._rows.wanted.topics
        if topics == ALL or self._rows.is_acks or not self._rows.has_index or not self._log.segments:
            return None
        return open_index(store, self._log, topics)


def _opened(store: Path, durable_offset: int | None) -> StoreLog:
    """Return the log of a store, or an empty log if the store has no records; raise `StoreError`.

    Raise `NoRecords` for a cluster node that has not published an offset: it may have records.
    """
    try:
        return open_log(store, durable_offset)
    except NoRecords:
        if is_node(store):
            raise
        return StoreLog((), 0, ours=True)
