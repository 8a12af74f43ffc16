"""Missing ledger entries: articles that orders have taken out of carts without an entry.

An order whose message was consumed has an entry in its customer's ledger. Without an entry, the cart may be
unchanged: it then agrees with the ledger, and the message must be delivered again. Or the entry is missing:
the cart then holds less than the ledger says, by the quantities that the order took out. A deficit is
therefore attributed to the customer's orders without an entry before any others.

Rules:
- Orders whose every article is missing in the cart come first, oldest message first. The others follow while
  deficits are left, because an order takes out no more than the cart has held.
- No order explains more than was ordered, and all together explain no more than the deficit.

Limitation: if one of two orders of the same articles was consumed without effect, the older one gets the
missing entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

UNWRITTEN: Final = pa.schema([
    ("order_id", pa.string()),
    ("customer_id", pa.string()),
    ("sku", pa.string()),
    ("quantity", pa.int64()),
])  # fmt: skip

Quantities = dict[str, int]
"""Quantity by article."""


def unwritten(differences: DataFrame, unledgered: DataFrame) -> DataFrame:
    """Return a row of `UNWRITTEN` per article that an order took out without an entry.

    `carts` describes `differences`. `unledgered` are orders without an entry: order_id, customer_id,
    committed_offset, lines.
    """
    deficits = differences.filter(F.col("cart") < F.col("ledger"))
    listed = deficits.select("customer_id", "sku", (F.col("ledger") - F.col("cart")).alias("quantity"))
    lines = unledgered.select("order_id", "customer_id", "committed_offset", F.inline("lines"))
    ordered = lines.join(listed.select("customer_id").distinct(), "customer_id", "left_semi")
    both = ordered.unionByName(listed, allowMissingColumns=True).repartition("customer_id")
    sorted_rows = both.sortWithinPartitions(
        "customer_id", F.col("committed_offset").asc_nulls_first(), "order_id"
    )
    return sorted_rows.mapInArrow(_rows, from_arrow_schema(UNWRITTEN))


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of `UNWRITTEN`. A customer's deficits come first, as rows without an order."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for customer_id, its in groupby(rows, itemgetter("customer_id")):
        deficits: Quantities = {}
        orders: dict[str, Quantities] = {}
        for row in its:
            of = deficits if row["order_id"] is None else orders.setdefault(row["order_id"], {})
            of[row["sku"]] = of.get(row["sku"], 0) + max(0, row["quantity"] or 0)
        found = [
            {"order_id": order_id, "customer_id": customer_id, "sku": sku, "quantity": quantity}
            for order_id, taken in explained(deficits, orders.items()).items()
            for sku, quantity in taken.items()
        ]
        if found:
            yield pa.RecordBatch.from_pylist(found, UNWRITTEN)


def explained(deficits: Quantities, orders: Iterable[tuple[str, Quantities]]) -> dict[str, Quantities]:
    """Return by order the part of a customer's deficits that it explains. `orders` must be oldest first.

    Orders that explain nothing are omitted.
    """
    left = dict(deficits)
    found: dict[str, Quantities] = {}
    others: list[tuple[str, Quantities]] = []
    for order_id, ordered in orders:
        is_whole = any(ordered.values()) and all(left.get(sku, 0) >= count for sku, count in ordered.items())
        if is_whole:
            found[order_id] = _taken(left, ordered)
        else:
            others.append((order_id, ordered))
    for order_id, ordered in others:
        if taken := _taken(left, ordered):
            found[order_id] = taken
    return found


def _taken(left: Quantities, ordered: Quantities) -> Quantities:
    """Take the ordered quantities out of `left` as far as possible, and return them."""
    taken = {sku: min(count, left.get(sku, 0)) for sku, count in ordered.items()}
    for sku, count in taken.items():
        left[sku] = left.get(sku, 0) - count
    return {sku: count for sku, count in taken.items() if count > 0}


def with_entries(differences: DataFrame, written: DataFrame) -> DataFrame:
    """Return the differences that remain after adding the missing entries to the ledger."""
    missing = written.groupBy("customer_id", "sku").agg(F.sum("quantity").alias("missing"))
    ledger = F.col("ledger") - F.coalesce("missing", F.lit(0))
    joined = differences.join(missing, ["customer_id", "sku"], "left").withColumn("ledger", ledger)
    return joined.drop("missing").filter(F.col("cart") != F.col("ledger"))


def by_order(written: DataFrame) -> DataFrame:
    """Return per order the articles with missing entries, as array<struct<sku, quantity>>."""
    article = F.struct("sku", "quantity")
    return written.groupBy("order_id").agg(F.sort_array(F.collect_list(article)).alias("unwritten"))
