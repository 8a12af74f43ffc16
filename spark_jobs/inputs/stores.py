"""The stores other than the log: their URLs, the mapping of their names, and their export to Parquet.

    orders     an SQLAlchemy URL
    carts      redis://..., an SQLAlchemy URL, or parquet:FOLDER (the files of an earlier export), or None
    pushes     an SQLAlchemy URL, or None
    mapping    the names of the user's tables and topics (`mapping`)

An audit (`sources`) exports them in this order, and reads the end of the log before the orders and after the
pushes. Therefore the cause of every effect that was read has been read too (see `main`).

    opened = inputs.open()                checks everything before any slow work
    opened.export_orders(folder)          orders.parquet
    opened.export_pushes(folder)          pushes.parquet
    opened.export_carts(folder)           carts.parquet, ledger.parquet, differences.parquet;
                                          repeated.parquet of a database or folder
    opened.export_order_lines(folder)     order_lines.parquet; orders_in_question.parquet if carts differ
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs.carts import open_carts
from spark_jobs.inputs.databases import Database, noted
from spark_jobs.inputs.mapping import SHOP, Mapping
from spark_jobs.inputs.schemas import ORDER_LINES
from spark_jobs.inputs.tables import RowCounts, RowWriter, part_name, parts_of

__all__ = ["Inputs", "OpenInputs", "RowCounts"]

SINGLE_ORDERS_MAX: Final = 200_000
"""Maximum number of orders whose lines are read by id; for more orders the whole table is read."""

COMPARED_ORDERS_MAX: Final = 2_000_000
"""Maximum number of orders for which all lines are read and compared with the ledger; for more orders, only
the lines that a difference or a repeated entry requires."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The URLs of the stores other than the log, and the mapping of their names."""

    orders: str
    carts: str | None = None
    pushes: str | None = None
    mapping: Mapping = SHOP

    @property
    def has_lines(self) -> bool:
        """Return whether the lines of orders are read, which show the order that explains a cart."""
        return self.carts is not None and self.mapping.order_lines.is_there

    def open(self) -> OpenInputs:
        """Connect to all stores and check that all tables and columns exist; raise `DatabaseUnreadable`."""
        return OpenInputs(self)


class OpenInputs:
    """The stores of one audit, opened and checked. Every export raises `DatabaseUnreadable`."""

    def __init__(self, inputs: Inputs) -> None:
        mapping, pushes = inputs.mapping, inputs.pushes
        self._has_lines = inputs.has_lines
        tables = [mapping.orders, *([mapping.order_lines] if inputs.has_lines else [])]
        problems: list[str] = []
        with noted(problems):
            self._orders = Database(inputs.orders, "--orders", *tables)
        with noted(problems):
            self._pushes = Database(pushes, "--pushes", mapping.pushes) if pushes else None
        with noted(problems):
            self._carts = open_carts(inputs.carts, mapping)
        if problems:
            raise DatabaseUnreadable(" ".join(problems))

    def export_orders(self, folder: Path, bucket_count: int = 1) -> RowCounts:
        """Write `orders.parquet`: one row per order, dealt into a multiple of `bucket_count` `buckets`.

        Statuses that are none of ours are refused, and so are distinct keys of one text.
        """
        counts = self._orders.export("orders", folder, bucket_count)
        self._orders.refuse_mixed("orders", folder)
        self._orders.refuse_unknown("orders", folder)
        return counts

    def export_carts(self, folder: Path) -> list[str]:
        """Write carts, ledger and differences (see `carts`); return the unreadable fields."""
        return self._carts(folder)

    def export_order_lines(self, folder: Path) -> RowCounts:
        """Write `order_lines.parquet`; call it after the export of the orders and the carts.

        It has all lines, or, for more than `COMPARED_ORDERS_MAX` orders, those of customers whose cart
        differs from its ledger, and of orders with several ledger entries for an article. If these are more
        than `SINGLE_ORDERS_MAX` orders, it has all lines. Without carts or a table of lines it is empty.
        """
        order_ids = list(dict.fromkeys([*_orders_in_question(folder), *_repeated_orders(folder)]))
        if not self._has_lines:
            self._orders.close()
            with RowWriter(parts_of(folder, "order_lines") / part_name(0), ORDER_LINES):
                return RowCounts()
        try:
            if are_compared(folder) or len(order_ids) > SINGLE_ORDERS_MAX:
                return self._orders.export("order_lines", folder)
            return self._orders.export_rows_of("order_lines", order_ids, folder)
        finally:
            self._orders.close()

    def export_pushes(self, folder: Path, bucket_count: int = 1) -> RowCounts | None:
        """Write `pushes.parquet`, dealt into buckets like the orders; return None without a push database."""
        if self._pushes is None:
            return None
        try:
            counts = self._pushes.export("pushes", folder, bucket_count)
            self._pushes.refuse_mixed("pushes", folder)
            return counts
        finally:
            self._pushes.close()


def are_compared(folder: Path) -> bool:
    """Return whether the exported orders are few enough to compare all of their lines with the ledger."""
    return int(ds.dataset(folder / "orders.parquet", format="parquet").count_rows()) <= COMPARED_ORDERS_MAX


def _repeated_orders(folder: Path) -> list[str]:
    """Return the ids of the orders with several ledger entries for an article."""
    if not (folder / "repeated.parquet").exists():
        return []
    found = ds.dataset(folder / "repeated.parquet", format="parquet").to_table(columns=["order_id"])
    ids: list[str] = found["order_id"].to_pylist()
    return ids


def _orders_in_question(folder: Path) -> list[str]:
    """Return the ids of the orders of customers with differences; write `orders_in_question.parquet`."""
    differing = ds.dataset(folder / "differences.parquet", format="parquet")
    customers = pc.unique(differing.to_table(columns=["customer_id"])["customer_id"])
    if not len(customers):
        return []
    orders = ds.dataset(folder / "orders.parquet", format="parquet")
    columns = ["order_id", "customer_id", "placed_ms"]
    theirs = orders.to_table(columns=columns, filter=pc.field("customer_id").isin(customers))
    pq.write_table(theirs, folder / "orders_in_question.parquet")
    found: list[str] = theirs["order_id"].to_pylist()
    return found
