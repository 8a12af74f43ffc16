"""SQL expressions that read, order and find the values of MySQL and MariaDB columns (see `column_reads`).

    read       text, whole numbers        the column; for char(n) without trailing blanks
               enum, set, other bytes     the column
               binary(16)                 the text of a uuid
               binary(n)                  the column without trailing zeros
               bit(n)                     its number
               float, double              its value as a double
               dates and times, others    the database's text
    order      text                       the column, in its collation; equal texts (`a`, `A`, `a `) by bytes
               numbers, uuid, bytes       the column, for bit, float and double its number
               others                     the bytes of the text, since an enum orders by position

A collation decides which texts are equal, so a query by keys may find rows with other keys, which the caller
drops (`tables`). Texts of times are read with the connection's zone set to UTC (`SESSION`): that of a
timestamp gets the suffix +00:00, that of a datetime has no zone.

Cost: no index finds a key of bit, float, double or one of the `others`, so each query for it scans the table.
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
"""SQLAlchemy's names for the two dialects, as in the URL."""
SESSION: Final = ("SET time_zone = '+00:00'",)

Stored = Callable[[str], Sequence[Any]]
"""A key -> the values that a column may hold for it; none if their text would be another."""

_BYTES: Final = (BINARY, VARBINARY, LargeBinary, TINYBLOB, MEDIUMBLOB, LONGBLOB)
_UUID_BYTES: Final = 16
_DASHES_AT: Final = (9, 14, 19, 24)
_DECIMAL: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def is_text(kind: TypeEngine[Any]) -> bool:
    """Return whether a column holds texts that are compared by collation."""
    return isinstance(kind, String) and not isinstance(kind, Enum | SET)


def is_boolean(kind: TypeEngine[Any]) -> bool:
    """Return whether a column has a type that represents booleans: bit(1) or tinyint(1)."""
    if isinstance(kind, BIT):
        return kind.length in (None, 1)
    return isinstance(kind, TINYINT) and kind.display_width == 1


def as_text(column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return the expression that selects the text of a column."""
    if isinstance(kind, CHAR | NCHAR):
        return func.rtrim(column)
    if isinstance(kind, BINARY):
        return _uuid_text(column) if is_uuid(kind) else func.trim(_without_zeros(column))
    if isinstance(kind, BIT | Float):
        return as_number(column, kind)
    is_plain = isinstance(kind, (Integer, Enum, SET, *_BYTES)) or is_text(kind)
    return column if is_plain else cast(column, Text)


def as_number(column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return a column as numbers; drivers return a bit(n) as bytes, and a float with too few digits."""
    if isinstance(kind, BIT):
        return column.op("+")(literal_column("0"))
    return column.op("+")(literal_column("0e0")) if isinstance(kind, Float) else column


def as_time(column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return the text of a time, with any zone that it has; drivers return no value for a zero date."""
    if not isinstance(kind, DateTime | Date):
        return as_number(column, kind)
    shown = cast(column, Text)
    return func.concat(shown, literal_column("'+00:00'")) if isinstance(kind, TIMESTAMP) else shown


def as_key(column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return the expression by which a key column is compared and ordered."""
    if isinstance(kind, BIT | Float):
        return as_number(column, kind)
    is_comparable = isinstance(kind, (Integer, Numeric, Uuid, *_BYTES)) or is_text(kind)
    return column if is_comparable else exactly(cast(column, Text))


def exactly(text: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the bytes of a text in UTF-8, to which no collation applies."""
    return cast(func.convert(text.op("USING")(literal_column("utf8mb4"))), LargeBinary)


def is_uuid(kind: TypeEngine[Any]) -> bool:
    """Return whether a column is a binary(16), which holds the bytes of a uuid."""
    return isinstance(kind, BINARY) and kind.length == _UUID_BYTES


def as_literal(text: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return the value that a column holds for a text, as an SQL literal."""
    if isinstance(kind, _BYTES):
        (stored,) = lookup(literal_column("''"), kind)[1](text) or (text.encode(),)
        return literal_column(f"x'{stored.hex()}'")
    is_number = isinstance(kind, BIT | Float | Integer | Numeric) and _DECIMAL.fullmatch(text)
    return literal_column(text) if is_number else literal(text)


def is_same(
    column: ColumnElement[Any], kind: TypeEngine[Any], value: ColumnElement[Any]
) -> ColumnElement[bool]:
    """Return the condition for rows with exactly this value, not one that is equal by collation."""
    return and_(column == value, exactly(column) == value) if is_text(kind) else column == value


def lookup(column: ColumnElement[Any], kind: TypeEngine[Any]) -> tuple[ColumnElement[Any], Stored, bool]:
    """Return the expression to compare with the `Stored` values of keys, and whether an index can find it."""
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
    """Return the argument of TRIM that removes the zeros with which the database pads a binary(n)."""
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
