"""Events of some orders, for results that need more than mergeable numbers: exact facts and timelines.

The events are read from the staged files (`lookups`). An event without an ID belongs to the order whose half
or timer it refers to.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.staging.lookups import (
    IDS_PER_TURN,
    ORDER_EVENTS,
    ORDER_IDS,
    events_in,
    of_parts,
    orders_of_timers,
    unnamed_cancels,
)
from spark_jobs.staging.staged import Staged

Event = dict[str, Any]
OfOrder = Callable[[list[Event]], dict[str, Any]]
"""Returns the columns of an order from its events in log order."""

OfOrders = Callable[[pa.Table], pa.Table]
"""Returns the rows of several whole orders from their events, sorted by order and then in log order."""

_ROWS_PER_BATCH: Final = 5_000
_EVENTS_PER_TURN: Final = 100_000


def events_of_orders(spark: SparkSession, staged: Staged, ids: DataFrame, id_count: int) -> DataFrame:
    """Return all events of the orders in `ids` (order_id) as `ORDER_EVENTS`.

    The IDs, about `id_count`, are written to Parquet at once. The events are looked up again for each action
    on the DataFrame.
    """
    wanted = Path(tempfile.mkdtemp(prefix="wanted-", dir=staged.folder)) / "ids"
    ids.select("order_id").coalesce(1 + id_count // IDS_PER_TURN).write.parquet(str(wanted))
    return of_parts(spark, staged, "facts", lambda names: events_in(staged, names, wanted), ORDER_EVENTS)


def orders_of_unnamed_cancels(spark: SparkSession, staged: Staged) -> DataFrame:
    """Return the IDs of the orders whose deadline was cancelled by a record that does not name the order."""
    if not len(unnamed_cancels(staged)):
        return spark.createDataFrame([], from_arrow_schema(ORDER_IDS))

    def find(names: Sequence[str]) -> Iterator[pa.Table]:
        return orders_of_timers(staged, names, unnamed_cancels(staged))

    return of_parts(spark, staged, "facts", find, ORDER_IDS)


def by_order(events: DataFrame, make: OfOrder, schema: pa.Schema) -> DataFrame:
    """Return a row of `schema` per order: its order_id, and the columns that `make` returns."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        listed = (row for batch in batches for row in batch.to_pylist())
        made = (
            {"order_id": order_id, **make(list(its))}
            for order_id, its in groupby(listed, itemgetter("order_id"))
        )
        while turn := list(islice(made, _ROWS_PER_BATCH)):
            yield pa.RecordBatch.from_pylist(turn, schema)

    return _by_order(events).mapInArrow(rows, from_arrow_schema(schema))


def of_whole_orders(events: DataFrame, make: OfOrders, schema: pa.Schema) -> DataFrame:
    """Return the rows of `schema` that `make` returns for all orders, several orders per call."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for whole in whole_orders(batches, _EVENTS_PER_TURN):
            yield from make(whole).to_batches()

    return _by_order(events).mapInArrow(rows, from_arrow_schema(schema))


def whole_orders(batches: Iterable[pa.RecordBatch], event_count: int) -> Iterator[pa.Table]:
    """Yield tables of whole orders, with at least `event_count` events in all but the last one.

    The batches must be sorted by order.
    """
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if not len(batch):
            continue
        ids = batch.column("order_id")
        begun = pc.index(ids, ids[-1]).as_py()  # the last order may continue in the next batch
        if begun and sum(map(len, held)) + begun >= event_count:
            yield pa.Table.from_batches([*held, batch.slice(0, begun)])
            held, batch = [], batch.slice(begun)
        held.append(batch)
    if held:
        yield pa.Table.from_batches(held)


def _by_order(events: DataFrame) -> DataFrame:
    return events.repartition("order_id").sortWithinPartitions("order_id", "physical_offset", "code")
