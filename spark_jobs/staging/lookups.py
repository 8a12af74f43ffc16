"""Lookups of a few rows in the files of a staged log (see `staged`).

Files of the same name in all data sets belong to one part of the log. The `order_row` of an order's event is
a row of the facts of the same part. A lookup is therefore split by file name: `of_parts` distributes the
names to tasks, and no task needs the result of another one. A task reads the filter column of a file first,
and the other columns only for row groups with a match. Row groups whose range in the Parquet statistics
contains no wanted value are not read.

The wanted IDs are in Parquet files that all tasks read, a batch at a time. The memory of a task is therefore
that of the IDs in the facts of its parts and of one batch, for any number of wanted orders.

Limitation: events without an ID can refer to any part, so each task reads the `unnamed` files of all parts
once for its anchors. These events are few, unless operators cancel most of the timers.

Cost: 60 million events of 10 million orders take 3 to 6 s of CPU time for 300 to 20,000 orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.log.columns.ragged import Integers
from spark_jobs.staging.events import TIMEOUTS, Code
from spark_jobs.staging.order_facts import CANCELS_OF_TIMERS
from spark_jobs.staging.staged import EVENTS, Staged

ORDER_EVENTS: Final = pa.schema([
    ("order_id", pa.string()), *(field for field in EVENTS if field.name != "order_row")
])  # fmt: skip
"""Events with the ID of their order."""
ORDER_IDS: Final = pa.schema([("order_id", pa.string())])

OfParts = Callable[[Sequence[str]], Iterator[pa.Table]]
"""Returns the rows found in the parts whose files have these names."""

IDS_PER_TURN: Final = 500_000
_PARTS_PER_TASK_MAX: Final = 16
"""16 parts of 256 MB have about 1.5 million orders. Each task reads all the wanted IDs."""
_TASKS_PER_CORE_MIN: Final = 2


class Rows(NamedTuple):
    """Numbers of order rows, ascending, and the IDs of the orders."""

    numbers: Integers
    ids: pa.Array

    def ids_of(self, numbers: Integers) -> pa.Array:
        """Return the IDs of these rows, all of which must be in `self.numbers`."""
        return self.ids.take(pa.array(np.searchsorted(self.numbers, numbers)))


def of_parts(spark: SparkSession, staged: Staged, name: str, find: OfParts, schema: pa.Schema) -> DataFrame:
    """Return the rows of `schema` that `find` returns for all parts with a file in the data set `name`."""
    names, cores = names_of(staged, name), spark.sparkContext.defaultParallelism
    turns = max(_TASKS_PER_CORE_MIN, -(-len(names) // (_PARTS_PER_TASK_MAX * cores)))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for found in find([names[place] for place in batch.column(0).to_pylist()]):
                yield from found.select(schema.names).to_batches()

    return spark.range(0, len(names), 1, cores * turns).mapInArrow(read, from_arrow_schema(schema))


def names_of(staged: Staged, name: str) -> list[str]:
    """Return the sorted names of the finished files of a data set. Unfinished ones begin with a dot."""
    return sorted(path.name for path in staged.path(name).glob("[!.]*.parquet"))


def events_in(staged: Staged, names: Sequence[str], ids: Path) -> Iterator[pa.Table]:
    """Yield the events in some parts of the orders in `ids` (Parquet: order_id), as `ORDER_EVENTS`.

    Then yield the events without an ID, from all parts, that refer to a half or timer found in these parts.
    """
    rows, anchors = _rows_of(staged, names, ids), []
    for name in names:
        for found in rows_where(staged.path("events") / name, "order_row", rows.numbers, EVENTS.names):
            named = found.append_column("order_id", rows.ids_of(found["order_row"].to_numpy()))
            is_anchor = pc.is_in(named["code"], value_set=_ANCHORS)
            anchors.append(named.select(["physical_offset", "order_id", "topic"]).filter(is_anchor))
            yield named
    if anchors:
        yield from _referring(staged, pa.concat_tables(anchors))


def _referring(staged: Staged, anchors: pa.Table) -> Iterator[pa.Table]:
    """Yield the events without an ID that refer to a half or timer of `anchors`, with its order and topic."""
    anchors = anchors.sort_by("physical_offset")
    offsets = anchors["physical_offset"].to_numpy()
    columns = [field.name for field in EVENTS if field.name not in ("order_row", "topic")]
    for name in names_of(staged, "unnamed"):
        for found in rows_where(staged.path("unnamed") / name, "ref", offsets, columns):
            about = anchors.take(pa.array(np.searchsorted(offsets, found["ref"].to_numpy())))
            yield found.append_column("order_id", about["order_id"]).append_column("topic", about["topic"])


def unnamed_cancels(staged: Staged) -> Integers:
    """Return the ascending offsets of deadline timers cancelled by records that do not name their order."""
    is_cancel = ds.field("code").isin([*map(int, CANCELS_OF_TIMERS)]) & (ds.field("topic") == TIMEOUTS)
    rows = ds.dataset(staged.path("unnamed"), EVENTS, format="parquet").to_table(["ref"], filter=is_cancel)
    refs: Integers = np.unique(rows["ref"].to_numpy())
    return refs


def orders_of_timers(staged: Staged, names: Sequence[str], offsets: Integers) -> Iterator[pa.Table]:
    """Yield the orders in some parts whose deadlines are at these ascending log offsets, as `ORDER_IDS`."""
    is_deadline = (pc.field("code") == int(Code.TIMER)) & (pc.field("topic") == TIMEOUTS)
    columns = ["order_row", "code", "topic"]
    for name in names:
        for found in rows_where(staged.path("events") / name, "physical_offset", offsets, columns):
            rows = np.unique(found.filter(is_deadline)["order_row"].to_numpy())
            yield from rows_where(staged.path("facts") / name, "order_row", rows, ORDER_IDS.names)


def rows_where(path: Path, column: str, wanted: Integers, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a file whose `column` is in `wanted` (ascending). Yield nothing without the file."""
    if not len(wanted) or not path.exists():
        return
    with pq.ParquetFile(path) as file:
        place = file.schema_arrow.get_field_index(column)
        for group in range(file.num_row_groups):
            near = _near(wanted, file.metadata.row_group(group).column(place).statistics)
            if not len(near):
                continue
            numbers = file.read_row_group(group, [column], use_threads=False)[column].to_numpy()
            is_wanted = np.isin(numbers, near)
            if is_wanted.any():
                yield file.read_row_group(group, columns, use_threads=False).filter(pa.array(is_wanted))


def _near(wanted: Integers, statistics: Any) -> Integers:
    """Return the part of `wanted` (ascending) within the range of a row group's statistics."""
    if statistics is None or not statistics.has_min_max:
        return wanted
    first = np.searchsorted(wanted, statistics.min)
    return wanted[first : np.searchsorted(wanted, statistics.max, side="right")]


def _rows_of(staged: Staged, names: Sequence[str], ids: Path) -> Rows:
    """Return the rows in some parts of the orders in `ids`."""
    files = [staged.path("facts") / name for name in names]
    facts = pa.concat_tables([columns_of(file, ["order_id", "order_row"]) for file in files])
    rows = facts.filter(are_in(facts["order_id"], ids, "order_id")).sort_by("order_row")
    return Rows(rows["order_row"].to_numpy(), rows["order_id"].combine_chunks())


def columns_of(file: Path, columns: Sequence[str]) -> pa.Table:
    """Return some columns of a file."""
    with pq.ParquetFile(file) as opened:
        return opened.read(columns, use_threads=False)


def are_in(values: pa.ChunkedArray, folder: Path, column: str) -> pa.Array:
    """Return which values are in a column of the Parquet files in `folder`, which is read in batches."""
    flags = np.zeros(len(values), np.bool_)
    for turn in _turns(folder, column):
        flags |= pc.is_in(values, value_set=turn).to_numpy()
    return pa.array(flags)


def _turns(folder: Path, column: str) -> Iterator[pa.ChunkedArray]:
    held: list[pa.Array] = []
    schema = pa.schema([(column, pa.string())])
    for batch in ds.dataset(folder, schema, format="parquet").to_batches(use_threads=False):
        held.append(batch.column(0))
        if sum(map(len, held)) >= IDS_PER_TURN:
            yield pa.chunked_array(held)
            held = []
    if held:
        yield pa.chunked_array(held)


_ANCHORS: Final = pa.array([int(Code.HALF), int(Code.TIMER)], pa.int8())
"""Codes of the events whose log offsets other events refer to."""
