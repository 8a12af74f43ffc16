"""Writes the result of the books: every order with its case, every finding with its evidence.

Nearly all orders balance, and only their columns are written. Therefore Spark first selects the remarkable
orders, and then judges these again, with sentences and `also`. The others are copied from the files of the
books, column by column (`books.order_files`).

Rules:
- An order is remarkable if any case holds, if it has additional data, or if it is left out.
- The evidence of a finding is the order's columns; at most `TIMELINES_MAX` findings also have a timeline.
- Findings of all kinds are appended to one data set with one schema; columns that do not apply are null.

Cost: the cases of remarkable orders are computed twice, which pays off while they are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.books.book_rows import Sides, Working
from spark_jobs.books.books import Books
from spark_jobs.books.timelines import TIMELINES_MAX, timelines
from spark_jobs.cases import pushes
from spark_jobs.cases.columns import says
from spark_jobs.cases.names import CART_DIFFERENCE, FINDINGS, OTHER_FINDINGS, PUSHES_DO_NOT_SUM
from spark_jobs.cases.table import holds_any, judged, verdicts
from spark_jobs.cases.waiting import is_entry_alone
from spark_jobs.layout import FINDING_COLUMNS, ORDER_COLUMNS, RunFolders
from spark_jobs.report.flow import Flow, flow
from spark_jobs.report.summary import CART_DIFFERENCES_MAX, Window
from spark_jobs.staging.order_events import events_of_orders


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of orders by case, status, stage and window of event time, and of other findings by case."""

    orders: Flow
    windows: list[Window]
    others: dict[str, int]


def write_orders(books: Books, run: RunFolders) -> Working:
    """Write every order with its verdict; return the remarkable orders (see the module).

    They are selected first, and judged again with sentences in a second pass. One pass would be a generated
    method too large for Java, and would compute the sentences of a few orders at the cost of all.
    """
    orders = books.orders()
    is_remarkable = F.col("is_left_out") | F.col("is_few") | holds_any()
    found = books.written("remarkable", judged(orders).filter(is_remarkable).select(*orders.columns))
    kept = _shaped(
        verdicts(found.frame).withColumn("cleared_ms", _cleared_ms()),
        {**ORDER_COLUMNS, "book_row": "bigint", "is_left_out": "boolean"},
    )
    return books.write_orders(kept, ORDER_COLUMNS, run.orders)


def _cleared_ms() -> Column:
    """Return when an order was cleared; null for an entry without an order, which is in no sealed window."""
    return F.when(~is_entry_alone(), F.col("cleared_ms"))


def write_findings(
    spark: SparkSession, books: Books, remarkable: Working, sides: Sides, run: RunFolders
) -> None:
    """Write the findings about orders, with their timelines, and about carts and pushes."""
    is_finding = F.col("case").isin(*FINDINGS) & ~F.col("is_left_out")
    found = books.written("findings", remarkable.frame.filter(is_finding))
    if found.rows:
        ids = found.frame.select("order_id").limit(TIMELINES_MAX)
        near = events_of_orders(spark, sides.staged, ids, min(found.rows, TIMELINES_MAX))
        events = books.written("timeline-events", near).frame
        told = timelines(events, sides.staged, sides.mapping)
        named = {"subject": F.lit("order"), "subject_id": F.col("order_id")}
        _append(found.frame.join(told, "order_id", "left").withColumns(named), run)
    else:
        _append(found.frame, run)
    if books.differences.rows or books.unwritten.rows:
        _append(_cart_findings(_unexplained(books, remarkable)), run)
    if sides.is_exported("pushes"):
        _append(_push_findings(books), run)


def append_others(spark: SparkSession, case: str, found: Iterable[tuple[str, str]], run: RunFolders) -> None:
    """Append findings of a case that is about no order, from pairs of (subject_id, why)."""
    rows = [(OTHER_FINDINGS[case], subject_id, case, why) for subject_id, why in found]
    if rows:
        columns = "subject string, subject_id string, case string, why string"
        _append(spark.createDataFrame(rows, columns), run)


def count(run: RunFolders, window_ms: int) -> Counted:
    """Return the counts of the written orders and findings."""
    findings = ds.dataset(run.findings, format="parquet")
    others = findings.to_table(["case"], filter=ds.field("subject") != "order")["case"]
    counts = {one["values"]: one["counts"] for one in others.value_counts().to_pylist()}
    orders = flow(run.orders, window_ms)
    return Counted(orders, orders.windows(window_ms), counts)


def cart_differences(books: Books, remarkable: Working) -> list[dict[str, Any]]:
    """Return up to `CART_DIFFERENCES_MAX` cart differences that no judged order explains."""
    if not (books.differences.rows or books.unwritten.rows):
        return []
    found = _unexplained(books, remarkable).limit(CART_DIFFERENCES_MAX)
    return [row.asDict() for row in found.collect()]


def _unexplained(books: Books, remarkable: Working) -> DataFrame:
    """Return the differences that no order explains, or only one that is left out.

    An order that was placed outside of the audited range is left out, and reported nowhere else.
    """
    left_out = remarkable.frame.filter("is_left_out").select("order_id", "is_left_out")
    known = books.differences.frame.join(F.broadcast(left_out), "order_id", "left")
    found = known.filter(F.col("order_id").isNull() | F.col("is_left_out")).drop("is_left_out")
    if not books.unwritten.rows:
        return found
    entries = books.explained_by(left_out).join(found, ["customer_id", "sku"], "left_anti")
    return found.unionByName(entries)


def _cart_findings(differences: DataFrame) -> DataFrame:
    held = "The cart of customer %s holds %d of article %s, by its ledger %d; "
    numbers = ("customer_id", "cart", "sku", "ledger")
    why = F.when(F.col("order_id").isNull(), says(held + "no order explains it.", *numbers)).otherwise(
        says(
            held + "the order that explains it, %s, was placed outside of the range that is audited.",
            *numbers,
            "order_id",
        )
    )
    subject_id = F.concat_ws(" ", "customer_id", "sku")
    article = F.array(F.struct("sku", "cart", "ledger"))
    named = {"subject": F.lit("cart"), "subject_id": subject_id, "case": F.lit(CART_DIFFERENCE), "why": why}
    return differences.withColumns(named | {"surplus": article}).drop("order_id")


def _push_findings(books: Books) -> DataFrame:
    ledger = books.pushes()
    judged = pushes.pushes_do_not_sum(ledger).filter(F.col(PUSHES_DO_NOT_SUM).isNotNull())
    evidence = ("status", "due_ms", "delivered_offset", "delivered_ms", "dead_letter_offset")
    is_consumed = F.col("is_acknowledged").alias("is_consumed")
    single = judged.select(
        F.col("order_id").alias("subject_id"), F.col(PUSHES_DO_NOT_SUM).alias("why"), *evidence, is_consumed
    )
    summed = pushes.sums(ledger).select(F.col("schedule").alias("subject_id"), "why")
    return single.unionByName(summed, allowMissingColumns=True).withColumns({
        "subject": F.lit("push"), "case": F.lit(PUSHES_DO_NOT_SUM)
    })  # fmt: skip


def _append(findings: DataFrame, run: RunFolders) -> None:
    _shaped(findings, FINDING_COLUMNS).write.mode("append").parquet(str(run.findings))


def _shaped(frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Return the frame with exactly these columns and types; those that it does not have are null."""
    there = set(frame.columns)
    return frame.select(
        *(
            (F.col(name) if name in there else F.lit(None)).cast(kind).alias(name)
            for name, kind in columns.items()
        )
    )
