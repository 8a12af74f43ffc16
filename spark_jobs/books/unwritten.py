"""Ledger entries that are missing: what orders have taken out of carts without an entry.

The idea: an order whose message was consumed has an entry in its customer's ledger. If it has none, either
the cart was not changed (then cart and ledger agree, and the message is to be delivered again), or the entry
is missing: then the cart holds less than its ledger says, by what the order took out. So a deficit is put
down to the customer's orders without an entry before any other order is suspected.

Rules:
- First come the orders of which every article is missing in the cart, the oldest message first; then the
  others, as far as deficits are left: an order takes out no more than the cart has held.
- No order explains more than it has ordered, and all orders together no more than the deficit.

Weak spot: of two orders of the same articles, of which one was consumed without effect, the older one is said
to have the missing entry.
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
"""Article -> how many."""


def unwritten(differences: DataFrame, unledgered: DataFrame) -> DataFrame:
    """Return a row of `UNWRITTEN` for each article that an order has taken out without an entry.

    `differences` see `carts`; `unledgered` are orders without an entry: order_id, customer_id,
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
    """Yield rows of `UNWRITTEN`; a customer's deficits come first, as rows without an order."""
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
    """Return what each order has taken out, of a customer's deficits; `orders` have what was ordered, the
    oldest first. An order that explains nothing is left out.
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
    """Take what was ordered out of what is left, as far as it goes; return it."""
    taken = {sku: min(count, left.get(sku, 0)) for sku, count in ordered.items()}
    for sku, count in taken.items():
        left[sku] = left.get(sku, 0) - count
    return {sku: count for sku, count in taken.items() if count > 0}


def with_entries(differences: DataFrame, written: DataFrame) -> DataFrame:
    """Return the differences that are left once the missing entries are in the ledger."""
    missing = written.groupBy("customer_id", "sku").agg(F.sum("quantity").alias("missing"))
    ledger = F.col("ledger") - F.coalesce("missing", F.lit(0))
    joined = differences.join(missing, ["customer_id", "sku"], "left").withColumn("ledger", ledger)
    return joined.drop("missing").filter(F.col("cart") != F.col("ledger"))


def by_order(written: DataFrame) -> DataFrame:
    """Return per order the articles, array<struct<sku, quantity>>, whose entries are missing."""
    article = F.struct("sku", "quantity")
    return written.groupBy("order_id").agg(F.sort_array(F.collect_list(article)).alias("unwritten"))
