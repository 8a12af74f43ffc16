"""Reads order lines with the columns of the "Online Retail" data set and groups them into invoices.

Real data is dirty. A row that cannot become an order line is refused, with its line number and one reason; it
never stops the reading. The reasons, tried in this order:

| reason | the row |
|---|---|
| not UTF-8 | has a cell in another encoding: `Müller` and `Möller` would become one customer |
| number in scientific notation | lacks digits: 1.785E+04 may have been 17850 or 17852 |
| unreadable row | lacks a cell, has one too many (2,55), or holds one that is no number, date or name |
| price with parts of a penny | has more than two decimals: 0.001 would be nothing |
| missing customer | names nobody |
| quantity of zero or less | would sell nothing (cancellations, whose number starts with C, may) |
| price of zero or less | would cost nothing (cancellations may) |
| another customer | names somebody else than the invoice's first accepted row |

Times are ISO 8601, or month/day/year as in the UCI file. With a zone they become UTC. A file whose dates
contradict each other is refused as a whole: 13/12/2010 beside 02/12/2010, which then is no 12th of February,
or times with a zone beside times without. So is one that names a column twice, or has a quotation mark that
nothing closes: it would take the rows behind it into its cell.

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
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING

from services.settings.errors import InputUnreadable
from services.shop.new_order import Line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SCIENTIFIC = re.compile(r"[+-]?[0-9]+([.,][0-9]*)?[eE][+-][0-9]+")
"""As spreadsheets write it; the article `15E2` is a name."""
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
"""The column of the cells for which the first line has no name."""

Row = dict[str, str]
"""One line of the file by column; a cell may be missing. `SURPLUS` is there where there are too many."""


class Reason(StrEnum):
    """Why a row was refused."""

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
        InputUnreadable: when it cannot be opened, is no CSV, lacks a column or all rows, has one twice, or
            has dates that contradict each other.
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
    """Yield the numbered rows of a file whose first line names the columns.

    Raises:
        InputUnreadable: when it names them otherwise, or a quotation mark is not closed.
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
    """Group numbered rows into invoices; rows without an invoice number belong to none.

    Raises:
        InputUnreadable: when the dates contradict each other; `shown` names the file.
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
    """The first line of each form in which a file writes its times."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, str]] = {}

    def note(self, line_number: int, text: str) -> None:
        """Remember the form of a time; one that is none has none."""
        form = form_of(text)
        if form:
            self._first.setdefault(form, (line_number, text))

    def refuse_contradiction(self, shown: str) -> None:
        """Raise `InputUnreadable` where two forms cannot both be read right."""
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
    """Return in which form a time is written; nothing of what is none."""
    if slashes := SLASHES.match(text):
        first, second = map(int, slashes.groups())
        is_day_first = first > MONTHS and 0 < second <= MONTHS
        return "day first" if is_day_first else "month first" if first and second else ""
    try:
        return "no zone" if datetime.fromisoformat(text).tzinfo is None else "zone"
    except ValueError:
        return ""


def refuse_cut(row: Row) -> None:
    """Refuse a row with a cell that lost what it was: in its encoding, in a spreadsheet, at a comma."""
    cells = [cell(row, column) for column in COLUMNS]
    if any(as_utf8(text) != text for text in cells):
        raise Refused(Reason.ENCODING)
    if any(SCIENTIFIC.fullmatch(text) for text in cells):
        raise Refused(Reason.SCIENTIFIC)
    if SURPLUS in row:
        raise Refused(Reason.UNREADABLE)


def as_utf8(text: str) -> str:
    """Return a text with escapes in place of what is no character."""
    return text.encode(errors="backslashreplace").decode()


def line_of(row: Row) -> tuple[str, Line]:
    """Return the customer's id and the order line of a row.

    Raises:
        Refused: with the first reason that fits.
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
    text = cell(row, column)
    if not NUMBER.fullmatch(text) or abs(Decimal(text)) > NUMBER_MAX:
        raise Refused(Reason.UNREADABLE)
    return Decimal(text)


def date_of(row: Row) -> datetime:
    """Return the invoice's time, as ISO 8601 or in the form of the UCI file; in UTC if it has a zone."""
    text = cell(row, "InvoiceDate")
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)
    except ValueError:
        pass
    except OverflowError:  # of the first or the last day that there is
        raise Refused(Reason.UNREADABLE) from None
    try:
        return datetime.strptime(text, DATE_FORMAT_OF_UCI)
    except ValueError:
        raise Refused(Reason.UNREADABLE) from None


def customer_of(row: Row) -> str:
    """Return the customer's id; spreadsheets write 12923 as `12923.0`."""
    text = cell(row, "CustomerID")
    if whole := WHOLE.fullmatch(text):
        text = whole[1]
    if text.lower() in ("", "nan"):
        raise Refused(Reason.MISSING_CUSTOMER)
    return name_of(text)
