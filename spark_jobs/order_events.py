"""The events of some orders, for what cannot be said by numbers alone: exact facts and timelines.

Orders are found by the rows that they have in the parts of the log, so that events, which are many, are
joined by a number. Events without an id belong to the order whose half or timer they name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.events import TIMEOUTS, Code
from spark_jobs.staging import Staged

Event = dict[str, Any]
OfOrder = Callable[[list[Event]], dict[str, Any]]
"""What is to be said of an order, made of its events in log order."""

EVENT_COLUMNS: Final = ("order_id", "code", "topic", "physical_offset", "store_ms", "ref", "due_ms", "queue")
BROADCAST_ORDERS_MAX: Final = 1_000_000
"""The rows of so many orders fit into the memory of every task."""

_ROWS_PER_BATCH: Final = 5_000


def events_of_orders(spark: SparkSession, staged: Staged, ids: DataFrame, id_count: int) -> DataFrame:
    """All events of the orders in `ids` (order_id), with the id."""
    near = F.broadcast if id_count <= BROADCAST_ORDERS_MAX else _as_it_is
    rows = staged.frame(spark, "facts").select("order_id", "order_row")
    rows = rows.join(near(ids), "order_id", "left_semi")
    named = staged.frame(spark, "events").join(near(rows), "order_row").select(*EVENT_COLUMNS)
    return (
        named.unionByName(_referring(staged.frame(spark, "unnamed"), named))
        if staged.has("unnamed")
        else named
    )


def orders_of_unnamed_cancels(spark: SparkSession, staged: Staged) -> DataFrame:
    """The ids of the orders whose deadline was cancelled by a record that does not name them."""
    is_cancel = (F.col("code") == Code.CANCEL) & (F.col("topic") == TIMEOUTS)
    refs = staged.frame(spark, "unnamed").filter(is_cancel).select("ref")
    is_timer = (F.col("code") == Code.TIMER) & (F.col("topic") == TIMEOUTS)
    timers = staged.frame(spark, "events").filter(is_timer)
    set_at = timers.select(F.col("physical_offset").alias("ref"), "order_row")
    rows = set_at.join(refs, "ref", "left_semi").select("order_row")
    return staged.frame(spark, "facts").join(rows, "order_row", "left_semi").select("order_id")


def by_order(events: DataFrame, make: OfOrder, schema: pa.Schema) -> DataFrame:
    """A row of `schema` for each order: its order_id, and what `make` says."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        listed = (row for batch in batches for row in batch.to_pylist())
        made = (
            {"order_id": order_id, **make(list(its))}
            for order_id, its in groupby(listed, itemgetter("order_id"))
        )
        while turn := list(islice(made, _ROWS_PER_BATCH)):
            yield pa.RecordBatch.from_pylist(turn, schema)

    together = events.repartition("order_id").sortWithinPartitions("order_id", "physical_offset", "code")
    return together.mapInArrow(rows, from_arrow_schema(schema))


def _referring(unnamed: DataFrame, named: DataFrame) -> DataFrame:
    """The events without an id that name one of these orders' halves or timers."""
    anchors = named.filter(F.col("code").isin(int(Code.HALF), int(Code.TIMER))).select(
        F.col("physical_offset").alias("ref"), "order_id", F.col("topic").alias("about")
    )
    referring = unnamed.drop("order_row", "topic").join(anchors, "ref")
    return referring.withColumnRenamed("about", "topic").select(*EVENT_COLUMNS)


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame
