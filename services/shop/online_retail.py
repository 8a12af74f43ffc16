"""Reads order lines with the columns of the "Online Retail" data set and groups them into invoices.

Real data is dirty. A row that cannot become an order line is refused, with its line number and one reason; it
never stops the reading. The reasons, tried in this order:

| reason | the row |
|---|---|
| unreadable row | lacks a cell, or holds one that is no number, date or name |
| missing customer | names nobody |
| quantity of zero or less | would sell nothing (cancellations, whose number starts with C, may) |
| price of zero or less | would cost nothing (cancellations may) |
| another customer | names somebody else than the invoice's first accepted row |

An invoice is made of its accepted rows, wherever they stand in the file; its time is the earliest of its
rows, accepted or not. The same SKU twice in an invoice becomes one line: quantities add up, the first price
stays. An invoice without accepted rows is a refused invoice.

Cost: the accepted lines are held in memory, about 1 kB per invoice.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import TYPE_CHECKING

from services.settings.errors import InputUnreadable
from services.shop.new_order import Line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

COLUMNS = ("InvoiceNo", "StockCode", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID")
CANCELLATION_MARK = "C"
NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
NUMBER_MAX = 10**9
DATE_FORMAT_OF_UCI = "%m/%d/%Y %H:%M"

Row = dict[str, str]
"""One line of the file by column; a cell may be missing."""


class Reason(StrEnum):
    """Why a row was refused."""

    UNREADABLE = "unreadable row"
    MISSING_CUSTOMER = "missing customer"
    QUANTITY = "quantity of zero or less"
    PRICE = "price of zero or less"
    OTHER_CUSTOMER = "another customer"


class Refused(Exception):
    """Raised inside this module only: the row cannot become an order line."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True, frozen=True)
class RefusedRow:
    """A row that was not taken: where it stands, and why."""

    line_number: int
    invoice: str
    reason: Reason


@dataclass(slots=True)
class Invoice:
    """Rows of one number: an order, or the cancellation of one."""

    number: str
    at: datetime
    customer_id: str = ""
    lines: dict[str, Line] = field(default_factory=dict)

    @property
    def is_cancellation(self) -> bool:
        """Return whether the invoice cancels an order instead of being an order."""
        return self.number.startswith(CANCELLATION_MARK)

    @property
    def is_refused(self) -> bool:
        """Return whether none of its rows was accepted."""
        return not self.lines

    def take(self, customer_id: str, line: Line) -> None:
        """Add a readable row.

        Raises:
            Refused: when it names another customer than the rows before.
        """
        if self.lines and customer_id != self.customer_id:
            raise Refused(Reason.OTHER_CUSTOMER)
        self.customer_id = customer_id
        known = self.lines.get(line.sku)
        if known is not None:
            line = Line(line.sku, known.quantity + line.quantity, known.unit_price_pence)
        self.lines[line.sku] = line


@dataclass(slots=True)
class Reading:
    """What a file holds: invoices in the order of time, and the rows that were refused."""

    invoices: list[Invoice]
    refused_rows: list[RefusedRow]

    def first(self, count: int) -> Reading:
        """Return the first `count` invoices and what was refused among their rows."""
        kept = self.invoices[:count]
        numbers = {invoice.number for invoice in kept}
        return Reading(kept, [row for row in self.refused_rows if row.invoice in numbers])

    def refused_by_reason(self) -> dict[Reason, int]:
        """Return how many rows were refused for each reason."""
        return dict(Counter(row.reason for row in self.refused_rows).most_common())


def read_file(path: Path) -> Reading:
    """Read a CSV file.

    Raises:
        InputUnreadable: when it cannot be opened, is no CSV, or lacks a column or all rows.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reading = read_rows(rows_of(path, file))
    except (OSError, csv.Error) as error:
        raise InputUnreadable(f"{path}: {error}. Give a CSV file with {', '.join(COLUMNS)}.") from error
    if not reading.invoices:
        raise InputUnreadable(f"{path} holds no invoice. Give a CSV file with {', '.join(COLUMNS)}.")
    return reading


def rows_of(path: Path, file: Iterable[str]) -> Iterator[tuple[int, Row]]:
    """Yield the numbered rows of a file whose first line names the columns."""
    reader = csv.DictReader(file)
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise InputUnreadable(
            f"{path} has no column {missing[0]}. Its first line must name {', '.join(COLUMNS)}."
        )
    for row in reader:
        yield reader.line_num, row


def read_rows(rows: Iterable[tuple[int, Row]]) -> Reading:
    """Group numbered rows into invoices; rows without an invoice number belong to none."""
    invoices: dict[str, Invoice] = {}
    refused: list[RefusedRow] = []
    for line_number, row in rows:
        number = cell(row, "InvoiceNo")
        try:
            if not NAME.fullmatch(number):
                raise Refused(Reason.UNREADABLE)
            invoice = invoices.setdefault(number, Invoice(number, datetime.max))
            invoice.at = min(invoice.at, date_of(row))
            invoice.take(*line_of(row))
        except Refused as refusal:
            refused.append(RefusedRow(line_number, number, refusal.reason))
    in_time = sorted(invoices.values(), key=lambda invoice: (invoice.at, invoice.number))
    return Reading(in_time, refused)


def line_of(row: Row) -> tuple[str, Line]:
    """Return the customer's id and the order line of a row.

    Raises:
        Refused: with the first reason that fits.
    """
    sku = name_of(cell(row, "StockCode"))
    quantity, price = number_of(row, "Quantity"), number_of(row, "UnitPrice")
    if quantity != int(quantity):
        raise Refused(Reason.UNREADABLE)
    customer_id = customer_of(row)
    if not cell(row, "InvoiceNo").startswith(CANCELLATION_MARK):
        refuse_unsold(quantity, price)
    return (customer_id, Line(sku, int(quantity), round(price * 100)))


def refuse_unsold(quantity: Decimal, price: Decimal) -> None:
    """Refuse what sells nothing or costs nothing."""
    if quantity <= 0:
        raise Refused(Reason.QUANTITY)
    if price <= 0:
        raise Refused(Reason.PRICE)


def cell(row: Row, column: str) -> str:
    """Return a cell without the blanks around it; empty when the row is too short."""
    return (row.get(column) or "").strip()


def name_of(text: str) -> str:
    """Return a name that a message, a key and a database can carry."""
    if not text.isprintable() or not 0 < len(text.encode(errors="replace")) <= 60:
        raise Refused(Reason.UNREADABLE)
    return text


def number_of(row: Row, column: str) -> Decimal:
    """Return a number of believable size."""
    try:
        number = Decimal(cell(row, column))
    except InvalidOperation:
        raise Refused(Reason.UNREADABLE) from None
    if not number.is_finite() or abs(number) > NUMBER_MAX:
        raise Refused(Reason.UNREADABLE)
    return number


def date_of(row: Row) -> datetime:
    """Return the invoice's time, as ISO 8601 or in the form of the UCI file."""
    text = cell(row, "InvoiceDate")
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        pass
    try:
        return datetime.strptime(text, DATE_FORMAT_OF_UCI)
    except ValueError:
        raise Refused(Reason.UNREADABLE) from None


def customer_of(row: Row) -> str:
    """Return the customer's id; spreadsheets write 12923 as `12923.0`."""
    text = cell(row, "CustomerID").removesuffix(".0")
    if text.lower() in ("", "nan"):
        raise Refused(Reason.MISSING_CUSTOMER)
    return name_of(text)
