"""Reads order lines in the format of the "Online Retail" data set and groups them into invoices.

Real data contains errors. A row that is not a valid order line is refused with its line number and one
reason, and reading continues. The reasons are checked in this order:

| reason | condition |
|---|---|
| not UTF-8 | a cell has another encoding, so `Müller` and `Möller` would become the same customer |
| number in scientific notation | digits are missing: 1.785E+04 may have been 17850 or 17852 |
| unreadable row | a cell is missing, superfluous (2,55), or not a valid number, date or name |
| price with parts of a penny | the price has more than two decimal places |
| missing customer | the customer is missing |
| quantity of zero or less | not allowed unless the invoice is a cancellation (a number with the prefix C) |
| price of zero or less | not allowed unless the invoice is a cancellation |
| another customer | the first accepted row of the invoice has a different customer |

Times are in ISO 8601 format or in the month/day/year format of the UCI file. Times with a time zone are
converted to UTC. A file with inconsistent dates is refused, for example if it contains 13/12/2010 and
02/12/2010, or times with and without a time zone. A file is also refused if a column name occurs twice, or if
a quotation mark is not closed, since the following rows would become part of the cell.

The rows of an invoice can be anywhere in the file. The time of an invoice is the earliest time of its rows,
including refused rows. If a SKU occurs twice in an invoice, the quantities are added and the first price is
used. An invoice without accepted rows is refused.

Cost: about 1 kB of memory per invoice.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING

from services.settings.errors import InputUnreadable
from services.shop.orders.new_order import Line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SCIENTIFIC = re.compile(r"[+-]?[0-9]+([.,][0-9]*)?[eE][+-][0-9]+")
"""The format of spreadsheets. The article `15E2` is a name."""
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)")
WHOLE = re.compile(r"([0-9]+)\.0+")
SLASHES = re.compile(r"([0-9]{1,2})/([0-9]{1,2})/")
MONTHS = 12
COLUMNS = ("InvoiceNo", "StockCode", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID")
CANCELLATION_MARK = "C"
NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
NUMBER_MAX = 10**9
DATE_FORMAT_OF_UCI = "%m/%d/%Y %H:%M"
SURPLUS = "\n"
"""The key of cells without a column name."""

Row = dict[str, str]
"""A row of the file by column. Cells may be missing. `SURPLUS` contains extra cells."""


class Reason(StrEnum):
    """The reason for which a row was refused."""

    ENCODING = "not UTF-8"
    SCIENTIFIC = "number in scientific notation"
    UNREADABLE = "unreadable row"
    PENNY = "price with parts of a penny"
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
    """A refused row with its line number and the reason."""

    line_number: int
    invoice: str
    reason: Reason


@dataclass(slots=True)
class Invoice:
    """The rows of an invoice, which is an order or the cancellation of an order."""

    number: str
    at: datetime
    customer_id: str = ""
    lines: dict[str, Line] = field(default_factory=dict)

    @property
    def is_cancellation(self) -> bool:
        """Return whether the invoice is a cancellation."""
        return self.number.startswith(CANCELLATION_MARK)

    @property
    def is_refused(self) -> bool:
        """Return whether all rows of the invoice were refused."""
        return not self.lines

    def take(self, customer_id: str, line: Line) -> None:
        """Add a valid row.

        Raises:
            Refused: If the row has a different customer than the previous rows.
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
    """The content of a file: its invoices in chronological order, and its refused rows."""

    invoices: list[Invoice]
    refused_rows: list[RefusedRow]

    def first(self, count: int) -> Reading:
        """Return the first `count` invoices and their refused rows."""
        kept = self.invoices[:count]
        numbers = {invoice.number for invoice in kept}
        return Reading(kept, [row for row in self.refused_rows if row.invoice in numbers])

    def refused_by_reason(self) -> dict[Reason, int]:
        """Return the number of refused rows by reason."""
        return dict(Counter(row.reason for row in self.refused_rows).most_common())


def read_file(path: Path) -> Reading:
    """Read a CSV file.

    Raises:
        InputUnreadable: If the file cannot be opened, is not a CSV file, has no rows, lacks a column or has
            it twice, or contains inconsistent dates.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reading = read_rows(rows_of(path, file), str(path))
    except (OSError, csv.Error) as error:
        raise InputUnreadable(f"{path}: {error}. Give a CSV file with {', '.join(COLUMNS)}.") from error
    if not reading.invoices:
        raise InputUnreadable(f"{path} holds no invoice. Give a CSV file with {', '.join(COLUMNS)}.")
    return reading


def rows_of(path: Path, file: Iterable[str]) -> Iterator[tuple[int, Row]]:
    """Yield the numbered rows of a file. The first line contains the column names.

    Raises:
        InputUnreadable: If a column name is missing or occurs twice, or a quotation mark is not closed.
    """
    reader = csv.DictReader(file, restkey=SURPLUS, strict=True)
    named = Counter(reader.fieldnames or ())
    for column in COLUMNS:
        if named[column] != 1:
            many = "several columns" if named[column] else "no column"
            raise InputUnreadable(
                f"{path} has {many} {column}. Its first line must name {', '.join(COLUMNS)}, each once."
            )
    last_line = reader.line_num
    try:
        for row in reader:
            last_line = reader.line_num
            cells = row.pop(SURPLUS, ())
            yield last_line, row | ({SURPLUS: " ".join(cells)} if any(map(str.strip, cells)) else {})
    except csv.Error as error:
        raise InputUnreadable(
            f"{path}: the row that begins in line {last_line + 1} cannot be told from the next ({error}). "
            "Correct its quotation marks."
        ) from error


def read_rows(rows: Iterable[tuple[int, Row]], shown: str = "The input") -> Reading:
    """Group numbered rows into invoices. A row without an invoice number is refused.

    Raises:
        InputUnreadable: If the dates are inconsistent. The message names the file in `shown`.
    """
    invoices: dict[str, Invoice] = {}
    refused: list[RefusedRow] = []
    dates = Dates()
    for line_number, row in rows:
        number = cell(row, "InvoiceNo")
        try:
            dates.note(line_number, cell(row, "InvoiceDate"))
            refuse_cut(row)
            if not NAME.fullmatch(number):
                raise Refused(Reason.UNREADABLE)
            invoice = invoices.setdefault(number, Invoice(number, datetime.max))
            invoice.at = min(invoice.at, date_of(row))
            invoice.take(*line_of(row))
        except Refused as refusal:
            refused.append(RefusedRow(line_number, as_utf8(number), refusal.reason))
    dates.refuse_contradiction(shown)
    in_time = sorted(invoices.values(), key=lambda invoice: (invoice.at, invoice.number))
    return Reading(in_time, refused)


class Dates:
    """The first line of each time format in a file."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, str]] = {}

    def note(self, line_number: int, text: str) -> None:
        """Record the format of a time. An invalid time is ignored."""
        form = form_of(text)
        if form:
            self._first.setdefault(form, (line_number, text))

    def refuse_contradiction(self, shown: str) -> None:
        """Raise `InputUnreadable` if the file contains inconsistent time formats."""
        for one, other, why in CONTRADICTIONS:
            if one in self._first and other in self._first:
                first, second = (f"line {line} has {text!r}" for line, text in sorted(self._of(one, other)))
                raise InputUnreadable(
                    f"{shown}: {first}, {second}: {why}. Write all times as 2010-12-01 08:26:00."
                )

    def _of(self, *forms: str) -> list[tuple[int, str]]:
        return [self._first[form] for form in forms]


CONTRADICTIONS = (
    ("day first", "month first", "one has the day first, the other is read as month/day"),
    ("zone", "no zone", "one has a zone, the other has none"),
    ("zone", "month first", "one has a zone, the other has none"),
)


def form_of(text: str) -> str:
    """Return the format of a time, or an empty string if the time is invalid."""
    if slashes := SLASHES.match(text):
        first, second = map(int, slashes.groups())
        is_day_first = first > MONTHS and 0 < second <= MONTHS
        return "day first" if is_day_first else "month first" if first and second else ""
    try:
        return "no zone" if datetime.fromisoformat(text).tzinfo is None else "zone"
    except ValueError:
        return ""


def refuse_cut(row: Row) -> None:
    """Refuse a row with a wrong encoding, a number in scientific notation, or too many cells."""
    cells = [cell(row, column) for column in COLUMNS]
    if any(as_utf8(text) != text for text in cells):
        raise Refused(Reason.ENCODING)
    if any(SCIENTIFIC.fullmatch(text) for text in cells):
        raise Refused(Reason.SCIENTIFIC)
    if SURPLUS in row:
        raise Refused(Reason.UNREADABLE)


def as_utf8(text: str) -> str:
    """Return a text with undecodable bytes as escape sequences."""
    return text.encode(errors="backslashreplace").decode()


def line_of(row: Row) -> tuple[str, Line]:
    """Return the customer's id and the order line of a row.

    Raises:
        Refused: With the first reason that applies.
    """
    sku = name_of(cell(row, "StockCode"))
    quantity, price = number_of(row, "Quantity"), number_of(row, "UnitPrice")
    if quantity != int(quantity):
        raise Refused(Reason.UNREADABLE)
    pence = price * 100
    if pence != int(pence):
        raise Refused(Reason.PENNY)
    customer_id = customer_of(row)
    if not cell(row, "InvoiceNo").startswith(CANCELLATION_MARK):
        refuse_unsold(quantity, price)
    return (customer_id, Line(sku, int(quantity), int(pence)))


def refuse_unsold(quantity: Decimal, price: Decimal) -> None:
    """Refuse a line whose quantity or price is not positive."""
    if quantity <= 0:
        raise Refused(Reason.QUANTITY)
    if price <= 0:
        raise Refused(Reason.PRICE)


def cell(row: Row, column: str) -> str:
    """Return a stripped cell. A missing cell is empty."""
    return (row.get(column) or "").strip()


def name_of(text: str) -> str:
    """Return a valid name of up to 60 bytes."""
    if not text.isprintable() or not 0 < len(text.encode(errors="replace")) <= 60:
        raise Refused(Reason.UNREADABLE)
    return text


def number_of(row: Row, column: str) -> Decimal:
    """Return a number within the permitted range."""
    text = cell(row, column)
    if not NUMBER.fullmatch(text) or abs(Decimal(text)) > NUMBER_MAX:
        raise Refused(Reason.UNREADABLE)
    return Decimal(text)


def date_of(row: Row) -> datetime:
    """Return the time of the invoice. A time with a time zone is converted to UTC."""
    text = cell(row, "InvoiceDate")
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)
    except ValueError:
        pass
    except OverflowError:  # the first or the last representable day
        raise Refused(Reason.UNREADABLE) from None
    try:
        return datetime.strptime(text, DATE_FORMAT_OF_UCI)
    except ValueError:
        raise Refused(Reason.UNREADABLE) from None


def customer_of(row: Row) -> str:
    """Return the customer's id. Spreadsheets write 12923 as `12923.0`."""
    text = cell(row, "CustomerID")
    if whole := WHOLE.fullmatch(text):
        text = whole[1]
    if text.lower() in ("", "nan"):
        raise Refused(Reason.MISSING_CUSTOMER)
    return name_of(text)
