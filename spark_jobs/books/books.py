"""One row per order with all data of the stores: database, log, ledger, cart.

    has_row, customer_id, status, total_pence, placed_ms, ...    the database's row
    half_offset, committed_offset, ...                           the log (`order_facts.ORDER_FACTS`)
    is_consumed                                                  acknowledged by the acting group
    open_half_*, twice_*, open_timer_*, ...                      the events in the log (`exact.EXACT`) if the
                                                                 numbers of the order are inconsistent
    fifo_gap_offset                                              the queue offset of a skipped message
    cleared_ms, cleared_customer_first, cleared_customer_last    the ledger's entries of the order
    unwritten                                                    articles taken out without such an entry
    surplus                                                      articles whose cart differs from the ledger
    overtaken                                                    articles of which the order's entries took
                                                                 out more than was ordered
    books_offset, covered_from_ms, as_of_ms, ..._ms              of the whole audit, the same in every row
    hold_ms, released_ms, release_done_ms                        the hold of the deadlines' topic, in rows of
                                                                 pushes that of theirs (`holds.TopicHold`);
                                                                 the same in every row
    created_topic, ..., placed_status, ...                       the user's names of these, for sentences

The stores of a running shop are not read at the same instant. `main` describes the order of reading, and the
reason that a difference is real unless a message follows `books_offset`.

Rules:
- Each ID in the database, a log fact, or a ledger entry has a row. `is_left_out` marks rows that are not an
  order, or not in the audited range.
- A log fact is a number that can be merged (`order_facts`). If the numbers of an order are consistent, they
  are enough. Otherwise its events are read, and the exact facts take precedence.
- A cart difference is first attributed to a missing ledger entry, and the rest to the customer's newest order
  of the article. Without such an order, the difference is a separate finding.

The large sides are joined without Spark rows (`book_rows`). Data that only a few orders need is computed from
the result, and joined while the orders are judged. This single pass shuffles nothing for up to
`BROADCAST_ORDERS_MAX` such orders.

Limitation: if most orders are irregular, the events of nearly all orders are read and shuffled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Final

import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spark_jobs.books.book_rows import SPECIAL, BookRows, Sides, Working
from spark_jobs.books.differences import (
    OVERTAKEN,
    attributed,
    compared,
    overtaken,
    surpluses,
    taken_entries,
)
from spark_jobs.books.exact import EXACT, exact_facts, foreign_cancels
from spark_jobs.books.fifo import gaps
from spark_jobs.books.unwritten import UNWRITTEN, by_order, unwritten, with_entries
from spark_jobs.cases.columns import STATUS_WORDS, TOPIC_WORDS
from spark_jobs.inputs.mapping import Mapping as Names
from spark_jobs.inputs.stores import are_compared
from spark_jobs.options import AuditOptions
from spark_jobs.staging.events import CREATED, PUSHES, TIMEOUTS
from spark_jobs.staging.log_bodies import contents
from spark_jobs.staging.order_events import orders_of_unnamed_cancels

BROADCAST_ORDERS_MAX: Final = 1_000_000
"""Maximum number of orders whose additional data fits into the memory of every task."""

LIMITS: Final = ("grace_ms", "undecided_limit_ms", "late_limit_ms", "unconsumed_limit_ms")


@dataclass(frozen=True, slots=True)
class Horizon:
    """The horizon of the audit, the same for every order.

    books_offset     the end of the log before the database was read
    covered_from_ms  the time from which the log covers placed orders, or 0 without a log
    as_of_ms         the time of the judgement
    has_carts        1 if carts and their ledger were read, else 0
    read_ms          the time at which the end of the log was noted, before the carts were read, by the clock
                     of this machine
    """

    books_offset: int
    covered_from_ms: int
    as_of_ms: int
    has_carts: int = 1
    read_ms: int = 0


class Books:
    """The books of an audit. The constructor joins them and computes the data that only a few orders need."""

    def __init__(self, spark: SparkSession, sides: Sides, horizon: Horizon, options: AuditOptions) -> None:
        self._spark, self._sides, self._options = spark, sides, options
        self._horizon = asdict(horizon) | {name: getattr(options, name) for name in LIMITS}
        self._words = _words(sides.mapping)
        self._holds = {
            topic: sides.staged.hold(topic, sides.mapping.topics.all[topic])._asdict()
            for topic in (TIMEOUTS, PUSHES)
        }
        topics = (CREATED, TIMEOUTS, PUSHES)
        self.acknowledged = {topic: sides.staged.acknowledged(topic) for topic in topics}
        self._rows = BookRows(spark, sides, self.acknowledged)
        special = self._rows.specials()
        self._orphans = self.written("orphans", self._read_orphans(special.frame))
        self._exact = self.written("exact", self._exactly(special))
        self.unwritten = self.written("unwritten", self._without_entry(special.frame))
        self.differences = self.written("attributed", self._attributed())
        self.unjudged: list[str] = []
        """A sentence for each comparison that was not possible."""
        self._overtaken = self.written("overtaken", self._taken_too_much())

    def orders(self) -> DataFrame:
        """Return one row per order.

        `is_few` marks orders with additional data. `is_left_out` marks rows that are not an order, or not in
        the audited range.
        """
        whole = self._completed(_with_few(self._rows.orders(), self._few()))
        return whole.withColumn("is_left_out", ~(_is_order() & self._is_asked_for()))

    def write_orders(self, judged: DataFrame, columns: Mapping[str, str], to: Path) -> Working:
        """Write all orders to the folder `to`, and return `judged` as written.

        `judged` must contain the orders with additional data, the rows left out, and the orders of a case.
        `columns` has the SQL types of the columns by name.
        """
        handed = self.written("judged", judged)
        schema = to_arrow_schema(handed.frame.select(*columns).schema)
        self._rows.write_orders(self._sides.working("judged"), schema, to)
        return handed

    def pushes(self) -> DataFrame:
        """Return one row per push of the ledger with its log facts. order_id is the push ID."""
        return self._with_horizon(self._rows.pushes(), PUSHES)

    def explained_by(self, orders: DataFrame) -> DataFrame:
        """Return the cart differences that missing entries of these orders explain, with `order_id`."""
        missing = self.unwritten.frame.join(F.broadcast(orders.select("order_id")), "order_id", "left_semi")
        first = missing.groupBy("customer_id", "sku").agg(F.min("order_id").alias("order_id"))
        return self._sides.exported(self._spark, "differences").join(first, ["customer_id", "sku"])

    def _read_orphans(self, special: DataFrame) -> DataFrame:
        """Return the orders that are only in the log, from their messages, as `CONTENTS`."""
        return contents(special.filter("is_orphan"), self._sides.log, self._sides.mapping.bodies)

    def _without_entry(self, special: DataFrame) -> DataFrame:
        """Return the articles that orders took out of carts without a ledger entry, as `UNWRITTEN`."""
        if not self._sides.row_count("differences"):
            return self._spark.createDataFrame([], from_arrow_schema(UNWRITTEN))
        differences = self._sides.exported(self._spark, "differences")
        customers = differences.filter(F.col("cart") < F.col("ledger")).select("customer_id").distinct()
        suspects = special.filter("is_unledgered").join(F.broadcast(customers), "customer_id", "left_semi")
        unledgered = suspects.unionByName(special.filter("is_unledgered AND customer_id IS NULL"))
        exact = self._exact.frame.select("order_id", "is_acknowledged", "is_redelivered")
        is_done = F.coalesce("is_acknowledged", "is_consumed") & (
            F.col("dead_letter_offset").isNull() | F.coalesce("is_redelivered", F.lit(False))
        )
        consumed = unledgered.join(exact, "order_id", "left").filter(is_done)
        return unwritten(differences, self._told(consumed))

    def _told(self, special: DataFrame) -> DataFrame:
        """Return the contents of the orders' messages as `CONTENTS`, with committed_offset.

        If a message lacks the customer or the lines, those of the database are used.
        """
        bodies = self._sides.mapping.bodies
        told = contents(special, self._sides.log, bodies)
        row_customer = F.col("customer_id").alias("row_customer_id")
        rows = special.select("order_id", "committed_offset", row_customer)
        customer = F.coalesce("customer_id", "row_customer_id")
        known = told.join(rows, "order_id").withColumn("customer_id", customer).drop("row_customer_id")
        if not self._sides.is_exported("order_lines"):
            return known
        ids = F.broadcast(special.select("order_id"))
        lines = self._sides.exported(self._spark, "order_lines").join(ids, "order_id", "left_semi")
        listed = F.collect_list(F.struct("sku", "quantity")).alias("row_lines")
        told_lines = F.when(F.size("lines") > 0, F.col("lines")).otherwise(F.col("row_lines"))
        both = known.join(lines.groupBy("order_id").agg(listed), "order_id", "left")
        return both.withColumn("lines", told_lines).drop("row_lines")

    def _attributed(self) -> DataFrame:
        """Return the cart differences that no missing entry explains, with the order that does, if any."""
        differences = self._sides.exported(self._spark, "differences")
        if self.unwritten.rows:
            differences = with_entries(differences, self.unwritten.frame)
        if not self._sides.row_count("differences"):
            return differences.withColumn("order_id", F.lit(None).cast("string"))
        orders = self._sides.exported(self._spark, "orders_in_question")
        lines = self._sides.exported(self._spark, "order_lines")
        return attributed(differences, orders, lines, self._orphans.frame)

    def _taken_too_much(self) -> DataFrame:
        """Return the orders whose ledger entries took out more than was ordered, as `OVERTAKEN`.

        Note how many could not be compared.
        """
        taken = self._taken()
        if taken is not None:
            lines = self._sides.exported(self._spark, "order_lines")
            found = self.written("compared", compared(taken, lines)).frame
            self._leave(
                "their lines have none of those articles: archived, or named in another way",
                found.filter("NOT is_comparable").count(),
            )
            beyond = self.written("beyond", found.filter("is_comparable"))
            if beyond.rows:
                return overtaken(beyond.frame, self._told_of(beyond))
        return self._spark.createDataFrame([], from_arrow_schema(OVERTAKEN))

    def _taken(self) -> DataFrame | None:
        """Return the quantities that entries of orders with known lines took out, or None without any."""
        sides = self._sides
        if not sides.has_carts:
            return None
        if not sides.mapping.order_lines.is_there:
            self._leave("[order_lines] names no table with what was ordered", self._cleared_count())
            return None
        if are_compared(sides.folder):
            return taken_entries(sides.exported(self._spark, "ledger"))
        self._leave("there are too many; give views of fewer orders", self._cleared_count())
        return sides.exported(self._spark, "repeated") if sides.is_exported("repeated") else None

    def _told_of(self, beyond: Working) -> DataFrame:
        """Return the contents of the orders' messages, as `CONTENTS`."""
        ids = F.broadcast(beyond.frame.select("order_id"))
        known = self._rows.orders().join(ids, "order_id", "left_semi").filter("committed_offset IS NOT NULL")
        return contents(known, self._sides.log, self._sides.mapping.bodies)

    def _cleared_count(self) -> int:
        return self._rows.orders().filter("cleared_ms IS NOT NULL").count()

    def _leave(self, why: str, count: int) -> None:
        """Note that the entries of `count` orders were not compared with the ordered quantities."""
        if count:
            entries = f"the ledger's entries of {count:,} order{'s' if count > 1 else ''}"
            self.unjudged.append(f"Not judged: whether {entries} took out what was ordered; {why}.")

    def _exactly(self, special: Working) -> DataFrame:
        """Return the exact facts of orders whose numbers are not consistent."""
        self._find_foreign_cancels(special)
        irregular = special.frame.filter(~F.col("is_regular")).select("order_id")
        if self._sides.staged.has("unnamed"):
            cancelled = orders_of_unnamed_cancels(self._spark, self._sides.staged)
            irregular = irregular.union(cancelled).distinct()
        ids = self.written("irregular", irregular)
        if not ids.rows:
            return self._spark.createDataFrame([], from_arrow_schema(EXACT))
        return exact_facts(self._spark, self._sides.staged, ids.frame, ids.rows, self.acknowledged)

    def _find_foreign_cancels(self, special: Working) -> None:
        """Add the cancels of other orders' deadlines to the events without an order."""
        rows = ds.dataset(self._sides.working("special"), SPECIAL, format="parquet")
        count = rows.count_rows(filter=ds.field("may_cancel_others"))
        if count:
            ids = special.frame.filter("may_cancel_others").select("order_id")
            found = foreign_cancels(self._spark, self._sides.staged, ids, count)
            if len(found):
                self._sides.staged.add_unnamed("foreign", found)

    def _few(self) -> Working:
        """Return the additional data of a few orders.

        These are exact facts, articles of wrong carts or ledger entries, skipped messages, and senders.
        """
        senders = self._orphans.frame.select(
            "order_id",
            F.col("customer_id").alias("message_customer_id"),
            F.col("placed_ms").alias("message_placed_ms"),
        )
        parts = (
            self._exact,
            Working(surpluses(self.differences.frame), self.differences.rows),
            Working(by_order(self.unwritten.frame), self.unwritten.rows),
            self._overtaken,
            self.written("passed", gaps(self._spark, self._sides.staged, self.acknowledged)),
            Working(senders, self._orphans.rows),
        )
        there = [part.frame for part in parts if part.rows] or [self._exact.frame]
        few = reduce(lambda one, other: one.join(other, "order_id", "full_outer"), there)
        lacking = [part.frame for part in parts if not part.rows]
        return self.written("few", reduce(_with_nulls, lacking, few))

    def _completed(self, frame: DataFrame) -> DataFrame:
        """Add the columns that follow from the row itself, and the horizon."""
        is_open_timer = (F.col("timers") == 1) & (F.col("timer_ends") == 0)
        is_exact = F.col("has_open_created").isNotNull()
        exactly = partial(_or_fact, is_exact)
        half_ms = F.when(F.col("deadline_half_ms") <= F.col("timer_ms"), F.col("deadline_half_ms"))
        filled = {
            "has_row": F.coalesce("has_row", F.lit(False)),
            "customer_id": F.coalesce("customer_id", "message_customer_id"),
            "is_consumed": F.coalesce("is_acknowledged", "is_consumed"),
            "open_timer_due_ms": F.when(is_exact, F.col("open_timer_due_ms")).when(
                is_open_timer, F.col("timer_due_ms")
            ),
            "open_timer_offset": F.when(is_exact, F.col("open_timer_offset")).when(
                is_open_timer, F.col("timer_offset")
            ),
            "open_timer_ms": exactly("open_timer_ms", F.when(is_open_timer, F.col("timer_ms"))),
            "timer_cancel_offset": F.coalesce("timer_cancel_offset", "last_cancel_offset"),
            "last_delivered_ms": exactly("last_delivered_ms", F.col("delivered_ms")),
            "late_timer_offset": exactly("late_timer_offset", F.col("timer_offset")),
            "late_due_ms": exactly("late_due_ms", F.col("timer_due_ms")),
            "late_half_ms": exactly("late_half_ms", half_ms),
            "late_armed_ms": exactly("late_armed_ms", F.col("timer_ms")),
            "late_delivered_ms": exactly(
                "late_delivered_ms", F.when(F.col("late_ms_max").isNotNull(), F.col("delivered_ms"))
            ),
        }
        return self._with_horizon(frame.withColumns(filled), TIMEOUTS)

    def _with_horizon(self, frame: DataFrame, topic: int) -> DataFrame:
        """Add the columns that are the same in every row. The hold is that of the topic."""
        known = self._horizon | self._holds[topic]
        numbers = {name: F.lit(value).cast("bigint") for name, value in known.items()}
        return frame.withColumns(numbers | {name: F.lit(word) for name, word in self._words.items()})

    def _is_asked_for(self) -> Column:
        """Return whether the order was placed in the audited range. True if its time is unknown."""
        entry_ms = F.nullif("cleared_ms", F.lit(0))
        at_ms = F.coalesce("placed_ms", "message_placed_ms", "half_ms", "committed_ms", entry_ms)
        begins = F.lit(True) if self._options.from_ms is None else at_ms >= self._options.from_ms
        ends = F.lit(True) if self._options.to_ms is None else at_ms < self._options.to_ms
        return F.coalesce(begins & ends, F.lit(True))

    def written(self, name: str, frame: DataFrame) -> Working:
        """Write a frame to Parquet, so that it is computed once. Return it as read back."""
        path = self._sides.working(name)
        frame.write.parquet(str(path))
        rows = ds.dataset(path, format="parquet").count_rows()
        return Working(self._spark.read.schema(frame.schema).parquet(str(path)), rows)


def _or_fact(is_exact: Column, name: str, fact: Column) -> Column:
    """Return a column of the exact facts, or `fact` for orders with consistent numbers."""
    return F.when(is_exact, F.col(name)).otherwise(fact)


def _words(mapping: Names) -> dict[str, str]:
    """Return the user's names of topics and statuses, by the columns that sentences use."""
    theirs = mapping.orders.constants.get("status", {})
    statuses = {
        word: " or ".join(name for name, ours in theirs.items() if ours == status) or status
        for status, word in STATUS_WORDS.items()
    }
    return {word: getattr(mapping.topics, topic) for topic, word in TOPIC_WORDS.items()} | statuses


def _with_few(frame: DataFrame, few: Working) -> DataFrame:
    """Add the columns that only a few orders have, all null if none has them."""
    if not few.rows:
        return _with_nulls(frame, few.frame).withColumn("is_few", F.lit(False))
    near = F.broadcast(few.frame) if few.rows <= BROADCAST_ORDERS_MAX else few.frame
    joined = frame.join(near.withColumn("is_few", F.lit(True)), "order_id", "left")
    return joined.withColumn("is_few", F.coalesce("is_few", F.lit(False)))


def _with_nulls(frame: DataFrame, of: DataFrame) -> DataFrame:
    """Add the columns of another frame, all null."""
    lacking = [field for field in of.schema.fields if field.name not in frame.columns]
    return frame.withColumns({field.name: F.lit(None).cast(field.dataType) for field in lacking})


def _is_order() -> Column:
    """Return whether a row is an order. A rolled-back half without any consequence is not."""
    said = F.coalesce("committed_offset", "paid_offset", "cancelled_offset", "open_half_offset")
    return F.col("has_row") | said.isNotNull() | F.col("cleared_ms").isNotNull()
