"""The stores beside the log: where they are, what they are called, and their export to Parquet.

    orders     an SQLAlchemy URL
    carts      redis://..., an SQLAlchemy URL, or parquet:FOLDER (the files of an earlier export)
    pushes     an SQLAlchemy URL, or None
    mapping    what a user's own tables and topics are called (`mapping`)

An audit exports them in this order, taking the log's end before the first and after the orders, so that an
effect that was read has its cause in what was read:

    opened = inputs.open()                checks everything before anything slow begins
    opened.export_orders(folder)          orders.parquet
    opened.export_carts(folder)           carts.parquet, ledger.parquet, differences.parquet
    opened.export_order_lines(folder)     order_lines.parquet
    opened.export_pushes(folder)          pushes.parquet
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from spark_jobs.carts import Carts
from spark_jobs.databases import ORDER_LINES, ORDERS, PUSHES, Database
from spark_jobs.mapping import SHOP, Mapping


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where the stores beside the log are."""

    orders: str
    carts: str
    pushes: str | None = None
    mapping: Mapping = SHOP

    def open(self) -> OpenInputs:
        """Connects to all and looks whether every table and column is there; raises `DatabaseUnreadable`."""
        return OpenInputs(self)


@dataclass(frozen=True, slots=True)
class RowCounts:
    """What an export of a table has met; a row that repeats a key is left out, the first one stays."""

    rows: int
    duplicates: int = 0
    duplicate_keys: list[str] = field(default_factory=list)
    """The first of them."""


class OpenInputs:
    """The stores of one audit, opened and checked. Every export raises `DatabaseUnreadable`."""

    def __init__(self, inputs: Inputs) -> None:
        self._orders = Database(inputs.orders, "--orders", {"orders": ORDERS})
        self._lines = Database(inputs.orders, "--orders", {"order_lines": ORDER_LINES})
        self._pushes = Database(inputs.pushes, "--pushes", {"pushes": PUSHES}) if inputs.pushes else None
        self._carts = Carts(inputs.carts)

    def export_orders(self, folder: Path) -> RowCounts:
        """Writes `orders.parquet`: one row per order."""
        return RowCounts(self._orders.export(folder)["orders"])

    def export_order_lines(self, folder: Path) -> RowCounts:
        """Writes `order_lines.parquet`: of the orders of customers whose cart is not as its ledger says; goes
        after `export_carts`."""
        return RowCounts(self._lines.export(folder)["order_lines"])

    def export_carts(self, folder: Path) -> list[str]:
        """Writes carts, ledger and differences (see `carts`); returns the fields that could not be read."""
        return self._carts.export(folder)

    def export_pushes(self, folder: Path) -> RowCounts | None:
        """Writes `pushes.parquet`; None without a push database."""
        return None if self._pushes is None else RowCounts(self._pushes.export(folder)["pushes"])
