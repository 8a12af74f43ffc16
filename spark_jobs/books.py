"""One row per order with all that the stores say of it: database, log, ledger, cart.

    has_row, customer_id, status, total_pence, placed_ms, ...    the database's row
    half_offset, committed_offset, ...                           the log (`order_facts.ORDER_FACTS`)
    is_consumed                                                  acknowledged by the group that acts on it
    open_half_*, twice_*, open_timer_*, ...                      the log event by event (`exact.EXACT`) where
                                                                 an order's numbers do not come out
    fifo_gap_offset                                              a place in a queue that was passed over
    cleared_ms, cleared_customer_first, cleared_customer_last    the ledger's entries of the order
    surplus                                                      articles whose cart is not as the ledger says
    books_offset, covered_from_ms, as_of_ms, ..._ms              of the whole audit, the same in every row

The stores are not read at one instant while a shop runs. They are read in the order databases, log, carts;
`books_offset` is where the log ended just before. So a message newer than that may be too new for the
database, and is in flight; every other difference is real.

Cost: what only a few orders need is worked out first, from one pass over the counts; then one pass over
everything, in which each order crosses the shuffle once from each side.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Final

import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.acknowledged import BLOCK_BITS, WORD_BITS, Places
from spark_jobs.differences import attributed, surpluses
from spark_jobs.events import CREATED, PUSHES, TIMEOUTS
from spark_jobs.exact import EXACT, exact_facts
from spark_jobs.fifo import gaps
from spark_jobs.log_bodies import contents
from spark_jobs.mapping import Mapping
from spark_jobs.options import AuditOptions
from spark_jobs.order_events import orders_of_unnamed_cancels
from spark_jobs.order_facts import COUNTS, MARKS, ORDER_FACTS, PUSH_FACTS, is_regular, merged
from spark_jobs.segments import StoreLog
from spark_jobs.staging import Staged

ORDER_ENTRY: Final = "order"
LIMITS: Final = ("grace_ms", "undecided_limit_ms", "late_limit_ms", "unconsumed_limit_ms")
_BLOCKS: Final = "block bigint, words array<bigint>"


@dataclass(frozen=True, slots=True)
class Horizon:
    """What the whole audit can see, the same for every order.

    books_offset     where the log ended before the database was read
    covered_from_ms  when the first record that is left was stored; 0 if nothing was deleted
    as_of_ms         the "now" of the judgement
    """

    books_offset: int
    covered_from_ms: int
    as_of_ms: int


@dataclass(frozen=True, slots=True)
class Sides:
    """The staged log, the exported stores below `folder`, and where working tables may go."""

    folder: Path
    staged: Staged
    log: StoreLog
    mapping: Mapping

    def exported(self, spark: SparkSession, name: str) -> DataFrame:
        """One of the exported tables."""
        return spark.read.parquet(str(self.folder / f"{name}.parquet"))

    def row_count(self, name: str) -> int:
        """How many rows that table has."""
        return int(ds.dataset(self.folder / f"{name}.parquet", format="parquet").count_rows())

    def is_exported(self, name: str) -> bool:
        """Whether that table was exported."""
        return (self.folder / f"{name}.parquet").exists()


@dataclass(frozen=True, slots=True)
class Working:
    """A frame that was worked out and written once, and how many rows it has."""

    frame: DataFrame
    rows: int


class Books:
    """The books of one audit. Making one works out what only a few orders need."""

    def __init__(self, spark: SparkSession, sides: Sides, horizon: Horizon, options: AuditOptions) -> None:
        self._spark, self._sides, self._options = spark, sides, options
        self._horizon = asdict(horizon) | {name: getattr(options, name) for name in LIMITS}
        topics = (CREATED, TIMEOUTS, PUSHES)
        self.acknowledged = {topic: sides.staged.acknowledged(topic) for topic in topics}
        special = self.written("special", self._specials())
        self._orphans = self.written("orphans", self._read_orphans(special.frame))
        self.differences = self.written("attributed", self._attributed())
        self._exact = self.written("exact", self._exactly(special))

    def orders(self) -> DataFrame:
        """One row per order."""
        facts = merged(self._sides.staged.frame(self._spark, "facts"), ORDER_FACTS)
        rows = self._sides.exported(self._spark, "orders").withColumn("has_row", F.lit(True))
        both = facts.join(rows.hint("shuffle_hash"), "order_id", "full_outer")
        joined = both.join(self._cleared().hint("shuffle_hash"), "order_id", "left")
        joined = reduce(_with_few, (self._exact, *self._of_few_orders()), joined)
        consumed = self._with_acknowledged(joined, CREATED, "is_consumed")
        return self._completed(consumed).filter(_is_order()).filter(self._is_asked_for())

    def pushes(self) -> DataFrame:
        """One row per push of the ledger, with what the log says of it; order_id is the push's id."""
        facts = merged(self._sides.staged.frame(self._spark, "pushes"), PUSH_FACTS)
        facts = facts.withColumnRenamed("delivered_ms", "logged_ms")
        rows = self._sides.exported(self._spark, "pushes").withColumnRenamed("push_id", "order_id")
        joined = rows.join(facts, "order_id", "left")
        return self._with_horizon(self._with_acknowledged(joined, PUSHES, "is_acknowledged"))

    def _specials(self) -> DataFrame:
        """Orders to look at closely: their numbers do not come out, or the database does not know them."""
        wanted = [fact for fact in ORDER_FACTS if fact.name in (*COUNTS, "committed_offset")]
        names = [fact.name for fact in wanted]
        seen = self._sides.staged.frame(self._spark, "facts").select("order_id", *names)
        rows = self._sides.exported(self._spark, "orders").select("order_id")
        marked = seen.unionByName(rows.withColumn("rows", F.lit(1)), allowMissingColumns=True)
        marked = marked.withColumn("unnamed", F.lit(None).cast("int"))
        if self._sides.staged.has("unnamed"):
            cancelled = orders_of_unnamed_cancels(self._spark, self._sides.staged)
            marked = marked.unionByName(cancelled.withColumn("unnamed", F.lit(1)), allowMissingColumns=True)
        whole = merged(marked, (*wanted, *MARKS))
        is_orphan = F.col("rows").isNull() & F.col("committed_offset").isNotNull()
        found = whole.select(
            "order_id",
            "committed_offset",
            (is_regular() & F.col("unnamed").isNull()).alias("is_regular"),
            is_orphan.alias("is_orphan"),
        )
        return found.filter(~F.col("is_regular") | F.col("is_orphan"))

    def _read_orphans(self, special: DataFrame) -> DataFrame:
        """What the messages of orders that only the log knows say."""
        return contents(special.filter("is_orphan"), self._sides.log, self._sides.mapping.bodies)

    def _attributed(self) -> DataFrame:
        """The differences of carts, each with the order that explains it, if any does."""
        differences = self._sides.exported(self._spark, "differences")
        if not self._sides.row_count("differences"):
            return differences.withColumn("order_id", F.lit(None).cast("string"))
        orders = self._sides.exported(self._spark, "orders")
        lines = self._sides.exported(self._spark, "order_lines")
        return attributed(differences, orders, lines, self._orphans.frame)

    def _exactly(self, special: Working) -> DataFrame:
        """The exact facts of the orders whose numbers do not come out."""
        if not special.rows:
            return self._spark.createDataFrame([], from_arrow_schema(EXACT))
        irregular = special.frame.filter(~F.col("is_regular")).select("order_id")
        return exact_facts(self._spark, self._sides.staged, irregular, special.rows, self.acknowledged)

    def _of_few_orders(self) -> tuple[Working, ...]:
        """What some orders have beside: wrong articles, a place that was passed over, an unknown sender."""
        senders = self._orphans.frame.select(
            "order_id",
            F.col("customer_id").alias("message_customer_id"),
            F.col("placed_ms").alias("message_placed_ms"),
        )
        passed = gaps(self._sides.staged.frame(self._spark, "grouped"), self.acknowledged)
        return (
            Working(surpluses(self.differences.frame), self.differences.rows),
            Working(passed, int(self._sides.staged.has("grouped"))),
            Working(senders, self._orphans.rows),
        )

    def _cleared(self) -> DataFrame:
        """The orders that the ledger knows; one whose entry has no time was cleared all the same."""
        entries = self._sides.exported(self._spark, "ledger").filter(F.col("entry") == ORDER_ENTRY)
        return entries.groupBy(F.col("entry_id").alias("order_id")).agg(
            F.coalesce(F.min("at_ms"), F.lit(0)).alias("cleared_ms"),
            F.min("customer_id").alias("cleared_customer_first"),
            F.max("customer_id").alias("cleared_customer_last"),
        )

    def _with_acknowledged(self, frame: DataFrame, topic: int, name: str) -> DataFrame:
        """Adds whether the place in its queue is acknowledged."""
        blocks = _blocks(self._spark, self.acknowledged[topic])
        place = F.col("queue_place")
        joined = frame.join(F.broadcast(blocks), F.shiftright(place, BLOCK_BITS) == F.col("block"), "left")
        word = F.shiftright(place.bitwiseAND((1 << BLOCK_BITS) - 1), WORD_BITS).cast("int")
        bit = F.getbit(F.get("words", word), place.bitwiseAND((1 << WORD_BITS) - 1).cast("int"))
        return joined.withColumn(name, F.coalesce(bit == 1, F.lit(False))).drop("block", "words")

    def _completed(self, frame: DataFrame) -> DataFrame:
        """Adds what follows from the row itself, and the horizon."""
        is_open_timer = (F.col("timers") == 1) & (F.col("timer_ends") == 0)
        is_exact = F.col("has_open_created").isNotNull()
        filled = {
            "has_row": F.coalesce("has_row", F.lit(False)),
            "customer_id": F.coalesce("customer_id", "message_customer_id"),
            "is_consumed": F.coalesce("is_acknowledged", "is_consumed"),
            "half_end": _half_end(),
            "open_timer_due_ms": F.when(is_exact, F.col("open_timer_due_ms")).when(
                is_open_timer, F.col("timer_due_ms")
            ),
            "open_timer_offset": F.when(is_exact, F.col("open_timer_offset")).when(
                is_open_timer, F.col("timer_offset")
            ),
        }
        return self._with_horizon(frame.withColumns(filled))

    def _with_horizon(self, frame: DataFrame) -> DataFrame:
        return frame.withColumns({name: F.lit(value).cast("bigint") for name, value in self._horizon.items()})

    def _is_asked_for(self) -> Column:
        """Whether the order was placed in the range that is audited."""
        at_ms = F.coalesce("placed_ms", "message_placed_ms", "half_ms", "committed_ms")
        begins = F.lit(True) if self._options.from_ms is None else at_ms >= self._options.from_ms
        ends = F.lit(True) if self._options.to_ms is None else at_ms < self._options.to_ms
        return F.coalesce(begins & ends, F.lit(True))

    def written(self, name: str, frame: DataFrame) -> Working:
        """A frame, worked out once."""
        path = self._sides.folder / f"working-{name}"
        frame.write.parquet(str(path))
        rows = ds.dataset(path, format="parquet").count_rows()
        return Working(self._spark.read.schema(frame.schema).parquet(str(path)), rows)


def _with_few(frame: DataFrame, few: Working) -> DataFrame:
    """The columns that only a few orders have; all null where none has them."""
    if few.rows:
        return frame.join(F.broadcast(few.frame), "order_id", "left")
    lacking = [field for field in few.frame.schema.fields if field.name != "order_id"]
    return frame.withColumns({field.name: F.lit(None).cast(field.dataType) for field in lacking})


def _is_order() -> Column:
    """A rolled back half alone is no order: nothing has come of it."""
    said = F.coalesce("committed_offset", "paid_offset", "cancelled_offset", "open_half_offset")
    return F.col("has_row") | said.isNotNull()


def _half_end() -> Column:
    return (
        F.when(F.col("committed_offset").isNotNull(), F.lit("commit"))
        .when(F.col("rollback_offset").isNotNull(), F.lit("rollback"))
        .when(F.col("expired_offset").isNotNull(), F.lit("expired"))
    )


def _blocks(spark: SparkSession, places: Places) -> DataFrame:
    return spark.createDataFrame(places.blocks(), _BLOCKS)
