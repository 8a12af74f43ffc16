"""Carts that are not what their ledgers say, and the orders to which they are put down."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

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
    """Return the differences (see `carts`) with `order_id`: the customer's newest order of the article, else
    null.

    `orphans` are orders that only the log knows: order_id, customer_id, placed_ms, lines.
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
    """Return per order the articles of which its customer's cart holds more or less than it should."""
    article = F.struct("sku", "cart", "ledger")
    return (
        attributed_differences.filter(F.col("order_id").isNotNull())
        .groupBy("order_id")
        .agg(F.sort_array(F.collect_list(article)).alias("surplus"))
    )


def overtaken(repeated: DataFrame, order_lines: DataFrame) -> DataFrame:
    """Return per order the articles of which its entries in the ledger took out more than was ordered, as
    `OVERTAKEN`; `repeated` see `carts`. An order without lines is not known, and left out.
    """
    wanted = repeated.select("order_id").distinct()
    mine = order_lines.join(F.broadcast(wanted), "order_id", "left_semi")
    ordered = mine.groupBy("order_id", "sku").agg(F.sum("quantity").alias("ordered"))
    known = repeated.join(mine.select("order_id").distinct(), "order_id", "left_semi")
    taken = known.withColumnRenamed("quantity", "taken").join(ordered, ["order_id", "sku"], "left")
    taken = taken.withColumn("ordered", F.coalesce("ordered", F.lit(0))).filter("taken > ordered")
    article = F.struct(*(name for name, _ in _TAKEN))
    return taken.groupBy("order_id").agg(F.sort_array(F.collect_list(article)).alias("overtaken"))
