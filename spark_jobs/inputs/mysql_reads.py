"""The SQL by which a column of MySQL or MariaDB is read, put in order and looked for (see `column_reads`).

    to read    text, whole numbers        as they are; a char(n) without the blanks at its end
               binary(16)                 a uuid; binary(n) without the zeros that fill it
               bit(n)                     its number
               float, double              the double that it is
               dates and times, others    the database's text
    in order   text                       the column, in its collation; equal texts (`a`, `A`, `a `) by bytes
               numbers, uuid, bytes       the column
               others                     the bytes of the text: an enum's order is not that of its texts

A collation decides which texts are equal, so a question by keys may find rows of other keys; whoever asks
drops those (`tables`). Texts of times are read with the connection's zone at UTC (`SESSION`): a timestamp
says so, a datetime has no zone.

Cost: a key among the `others` has no index here, so each question about it reads the table once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    BINARY,
    CHAR,
    NCHAR,
    TIMESTAMP,
    VARBINARY,
    ColumnElement,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Text,
    Uuid,
    and_,
    cast,
    func,
    literal,
    literal_column,
)
from sqlalchemy.dialects.mysql import BIT, LONGBLOB, MEDIUMBLOB, SET, TINYBLOB, TINYINT
from sqlalchemy.types import TypeEngine

MYSQL: Final = frozenset({"mysql", "mariadb"})
"""What SQLAlchemy calls the two, by the URL."""
SESSION: Final = ("SET time_zone = '+00:00'",)

Stored = Callable[[str], Sequence[Any]]
"""A key -> what a column may hold of it; none where another text would be written for it."""

_BYTES: Final = (BINARY, VARBINARY, LargeBinary, TINYBLOB, MEDIUMBLOB, LONGBLOB)
_UUID_BYTES: Final = 16
_DASHES_AT: Final = (9, 14, 19, 24)
_DECIMAL: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def is_text(kind: TypeEngine[Any]) -> bool:
    """Return whether a column holds texts that a collation compares."""
    return isinstance(kind, String) and not isinstance(kind, Enum | SET)


def is_boolean(kind: TypeEngine[Any]) -> bool:
    """Return whether a column is what stands for a boolean: bit(1), tinyint(1)."""
    if isinstance(kind, BIT):
        return kind.length in (None, 1)
    return isinstance(kind, TINYINT) and kind.display_width == 1


def as_text(column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return what to select for the text of a column."""
    if isinstance(kind, CHAR | NCHAR):
        return func.rtrim(column)
    if isinstance(kind, BINARY):
        return _uuid_text(column) if is_uuid(kind) else func.trim(_without_zeros(column))
    if isinstance(kind, BIT | Float):
        return as_number(column, kind)
    is_plain = isinstance(kind, (Integer, Enum, SET, *_BYTES)) or is_text(kind)
    return column if is_plain else cast(column, Text)


def as_number(column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return a column of numbers, of which drivers have bytes (bit) or too few digits (float)."""
    if isinstance(kind, BIT):
        return column.op("+")(literal_column("0"))
    return column.op("+")(literal_column("0e0")) if isinstance(kind, Float) else column


def as_time(column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return the text of a time, with its zone if it has one: drivers have nothing for a zero date."""
    if not isinstance(kind, DateTime | Date):
        return as_number(column, kind)
    shown = cast(column, Text)
    return func.concat(shown, literal_column("'+00:00'")) if isinstance(kind, TIMESTAMP) else shown


def as_key(column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return a key column as it is compared and put in order."""
    if isinstance(kind, BIT | Float):
        return as_number(column, kind)
    is_comparable = isinstance(kind, (Integer, Numeric, Uuid, *_BYTES)) or is_text(kind)
    return column if is_comparable else exactly(cast(column, Text))


def exactly(text: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the bytes of a text in UTF-8, which no collation compares."""
    return cast(func.convert(text.op("USING")(literal_column("utf8mb4"))), LargeBinary)


def is_uuid(kind: TypeEngine[Any]) -> bool:
    """Return whether a column has the 16 bytes of a uuid."""
    return isinstance(kind, BINARY) and kind.length == _UUID_BYTES


def as_literal(text: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return what a column holds of a text, as a literal of a statement."""
    if isinstance(kind, _BYTES):
        (stored,) = lookup(literal_column("''"), kind)[1](text) or (text.encode(),)
        return literal_column(f"x'{stored.hex()}'")
    is_number = isinstance(kind, BIT | Float | Integer | Numeric) and _DECIMAL.fullmatch(text)
    return literal_column(text) if is_number else literal(text)


def is_same(
    column: ColumnElement[Any], kind: TypeEngine[Any], value: ColumnElement[Any]
) -> ColumnElement[bool]:
    """Return the condition for rows with a value and none that a collation takes for it."""
    return and_(column == value, exactly(column) == value) if is_text(kind) else column == value


def lookup(column: ColumnElement[Any], kind: TypeEngine[Any]) -> tuple[ColumnElement[Any], Stored, bool]:
    """Return what to compare with what is `Stored` of a key, and whether an index can find it."""
    if isinstance(kind, BINARY):
        return column, _uuid_bytes if is_uuid(kind) else _filled(kind.length), True
    compared = as_key(column, kind)
    if compared is column and is_text(kind):
        return column, _as_it_is, True
    is_number, is_one = isinstance(kind, BIT | Float | Integer | Numeric), isinstance(kind, Uuid)
    return compared, _decimal if is_number else _uuid if is_one else _bytes, compared is column


def _uuid_text(column: ColumnElement[Any]) -> ColumnElement[Any]:
    text: ColumnElement[Any] = func.lower(func.hex(column))
    for place in _DASHES_AT:
        text = func.insert(text, literal_column(str(place)), literal_column("0"), literal_column("'-'"))
    return text


def _without_zeros(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return what `trim` takes to cut the zeros with which the database fills a binary(n)."""
    return literal_column("TRAILING x'00'").op("FROM")(column)


def _as_it_is(key: str) -> Sequence[Any]:
    return (key,)


def _bytes(key: str) -> Sequence[Any]:
    return (key.encode(),)


def _filled(length: int | None) -> Stored:
    return lambda key: (key.encode().ljust(length or 1, b"\0"),)


def _decimal(key: str) -> Sequence[Any]:
    return (Decimal(key),) if _DECIMAL.fullmatch(key) else ()


def _uuid(key: str) -> Sequence[Any]:
    try:
        return (key,) if str(UUID(key)) == key else ()
    except ValueError:
        return ()


def _uuid_bytes(key: str) -> Sequence[Any]:
    return tuple(UUID(one).bytes for one in _uuid(key))
