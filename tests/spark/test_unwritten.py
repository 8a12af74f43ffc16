"""Missing entries of ledgers as Spark finds them: put down to their orders, and no longer to the newest."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_jobs.books.differences import attributed, surpluses
from spark_jobs.books.unwritten import by_order, unwritten, with_entries

DIFFERENCES = "customer_id string, sku string, cart bigint, ledger bigint"
LINES = "lines array<struct<sku:string,quantity:bigint>>"


def test_what_missing_entries_explain_is_nobodys_else(spark: SparkSession) -> None:
    differences = spark.createDataFrame(
        [("c", "apple", 0, 2), ("c", "pear", 3, 1), ("d", "apple", 0, 1)], DIFFERENCES
    )
    unledgered = spark.createDataFrame(
        [("first", "c", 10, [("apple", 1)]), ("else", "e", 20, [("apple", 1)]), ("none", "d", 30, None)],
        f"order_id string, customer_id string, committed_offset bigint, {LINES}",
    )
    written = unwritten(differences, unledgered).cache()
    found = {row["order_id"]: row["unwritten"] for row in by_order(written).collect()}
    assert {one: [tuple(article) for article in its] for one, its in found.items()} == {
        "first": [("apple", 1)]
    }
    orders = spark.createDataFrame(
        [("first", "c", 1), ("second", "c", 2), ("third", "d", 3)],
        "order_id string, customer_id string, placed_ms bigint",
    )
    lines = spark.createDataFrame(
        [("first", "apple"), ("second", "apple"), ("third", "apple")], "order_id string, sku string"
    )
    orphans = spark.createDataFrame(
        [("orphan", "c", 5, [("pear", 2)])],
        f"order_id string, customer_id string, placed_ms bigint, {LINES}",
    )
    left = surpluses(attributed(with_entries(differences, written), orders, lines, orphans)).collect()
    assert {row["order_id"]: [tuple(article) for article in row["surplus"]] for row in left} == {
        "second": [("apple", 0, 1)],
        "third": [("apple", 0, 1)],
        "orphan": [("pear", 3, 1)],
    }
