"""Carts that differ from their ledgers, and the orders that may explain this."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.inputs.schemas import ORDER

_TAKEN: Final = [
    ("sku", pa.string()),
    ("entries", pa.int64()),
    ("taken", pa.int64()),
    ("ordered", pa.int64()),
]
OVERTAKEN: Final = pa.schema([("order_id", pa.string()), ("overtaken", pa.list_(pa.struct(_TAKEN)))])


def attributed(
    differences: DataFrame, orders: DataFrame, order_lines: DataFrame, orphans: DataFrame
) -> DataFrame:
    """Return the differences (see `carts`) with the customer's newest order of the article, or null.

    `orphans` are orders that are only in the log: order_id, customer_id, placed_ms, lines.
    """
    customers = F.broadcast(differences.select("customer_id").distinct())
    mine = orders.select("order_id", "customer_id", "placed_ms").join(customers, "customer_id", "left_semi")
    rows = mine.join(order_lines.select("order_id", "sku"), "order_id")
    messages = orphans.select("order_id", "customer_id", "placed_ms", F.explode("lines.sku").alias("sku"))
    newest = Window.partitionBy("customer_id", "sku").orderBy(
        F.desc_nulls_last("placed_ms"), F.desc("order_id")
    )
    holders = (
        rows.unionByName(messages)
        .join(differences, ["customer_id", "sku"], "left_semi")
        .withColumn("place", F.row_number().over(newest))
        .filter(F.col("place") == 1)
        .select("customer_id", "sku", "order_id")
    )
    return differences.join(holders, ["customer_id", "sku"], "left")


def surpluses(attributed_differences: DataFrame) -> DataFrame:
    """Return per order the articles of which the customer's cart holds too many or too few."""
    article = F.struct("sku", "cart", "ledger")
    return (
        attributed_differences.filter(F.col("order_id").isNotNull())
        .groupBy("order_id")
        .agg(F.sort_array(F.collect_list(article)).alias("surplus"))
    )


def taken_entries(ledger: DataFrame) -> DataFrame:
    """Return the quantities that ledger entries of orders took out.

    The columns are customer_id, order_id, sku, entries (their number), and quantity.
    """
    is_told = F.col("entry_id").isNotNull() & F.col("sku").isNotNull()
    keys = ("customer_id", F.col("entry_id").alias("order_id"), "sku")
    sums = (F.count("*").alias("entries"), F.sum("quantity").alias("quantity"))
    return ledger.filter((F.col("entry") == ORDER) & is_told).groupBy(*keys).agg(*sums)


def compared(taken: DataFrame, order_lines: DataFrame) -> DataFrame:
    """Return per order the articles that its entries took out beyond its lines, and `is_comparable`.

    The columns are those of `OVERTAKEN`, and `is_comparable`.

    `is_comparable` is whether its lines have any article of its entries. If they have none, the order is not
    judged: the lines may be archived, or have other names of articles. Comparable orders that took out no
    more than ordered are omitted.
    """
    ordered = order_lines.groupBy("order_id", "sku").agg(F.sum("quantity").alias("ordered"))
    both = taken.withColumnRenamed("quantity", "taken").join(ordered, ["order_id", "sku"], "left")
    counted = {
        "is_ordered": F.col("ordered").isNotNull(),
        "ordered": F.coalesce("ordered", F.lit(0)),
    }
    both = both.withColumns(counted)
    article = F.when(F.col("taken") > F.col("ordered"), F.struct(*(name for name, _ in _TAKEN)))
    beyond = F.sort_array(F.collect_list(article)).alias("overtaken")
    found = both.groupBy("order_id").agg(F.max("is_ordered").alias("is_comparable"), beyond)
    return found.filter(~F.col("is_comparable") | (F.size("overtaken") > 0))


def overtaken(beyond: DataFrame, told: DataFrame) -> DataFrame:
    """Return the orders of `compared` whose message does not confirm the quantity, as `OVERTAKEN`.

    `told` holds order_id and lines (null if unknown) of the message that the cart service has processed.
    Lines in the database may have changed since.
    """
    said = told.select("order_id", F.inline("lines")).groupBy("order_id", "sku")
    lines = said.agg(F.sum("quantity").alias("told"))
    article = F.struct(*(name for name, _ in _TAKEN))
    both = beyond.select("order_id", F.inline("overtaken")).join(lines, ["order_id", "sku"], "left")
    both = both.filter(F.col("taken") > F.coalesce("told", F.lit(0)))
    return both.groupBy("order_id").agg(F.sort_array(F.collect_list(article)).alias("overtaken"))
