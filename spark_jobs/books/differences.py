"""Carts that are not what their ledgers say, and the orders to which they are put down."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


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
