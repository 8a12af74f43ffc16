"""The SQL by which a column of a user's table is read, and rows are asked for by their keys.

A key may be of any type, and the audit knows it by its text. In PostgreSQL that is the text of the database
itself (`CAST(key AS TEXT)`), so every type that it has is read, whatever the driver makes of it: `infinity`,
the year 20000, an array, an enumeration. Elsewhere the driver's value is made a text (`arrays`).

    PostgreSQL   text, integers, bytes    as they are
                 timestamps, for times    milliseconds since 1970; `infinity` is null, which is never
                 char(n), anything else   the database's text; that of a char(n) has no padding
                 times without a zone     that text, too, if a zone is mapped: `arrays` knows of zones
    MySQL        see `mysql_reads`
    others       char(n)                  without the blanks at its end (SQLite keeps those that it was given)
                 anything else            as the driver has it

Bounds and keys go back as literals without a type: the database reads them as it reads its own texts. Rows
that were asked for by key may be of another key, too, one that a collation takes for the same or a number
that a text is taken for (`7 `): whoever asks drops those. Keys that a collation takes for one are put in
order by their bytes, so that what is repeated lies side by side.

Cost: rows of some keys are found by an index where the key is a text, a whole number or a uuid; for others
each question reads the table once, so it asks for many keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from sqlalchemy import (
    CHAR,
    NCHAR,
    BigInteger,
    ColumnElement,
    Date,
    DateTime,
    Enum,
    Integer,
    LargeBinary,
    String,
    Text,
    Uuid,
    bindparam,
    case,
    cast,
    collate,
    extract,
    false,
    func,
    literal_column,
    null,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.postgresql import DOMAIN
from sqlalchemy.types import NullType, TypeEngine

from spark_jobs.inputs import mysql_reads
from spark_jobs.inputs.arrays import BEFORE_ALL_MS, MILLISECONDS
from spark_jobs.inputs.mysql_reads import MYSQL

POSTGRESQL: Final = "postgresql"
SQLITE: Final = "sqlite"
KEYS_PER_LOOKUP: Final = 1_000
KEYS_PER_SCAN: Final = 20_000
"""Fewer than the parameters that a statement may have."""

_PADDED: Final = (CHAR, NCHAR)


def selected(
    dialect: str, field: pa.Field, column: ColumnElement[Any], kind: TypeEngine[Any], zone: str = ""
) -> ColumnElement[Any]:
    """Return what to select for a field of ours that is a column of theirs, of type `kind`.

    `zone` is the mapped zone of the table's times that have none.
    """
    kind = _base(kind)
    if dialect in MYSQL:
        if pa.types.is_string(field.type):
            return mysql_reads.as_text(column, kind)
        is_time = field.name.endswith(MILLISECONDS)
        return (mysql_reads.as_time if is_time else mysql_reads.as_number)(column, kind)
    if pa.types.is_string(field.type):
        return as_key(dialect, column, kind) if dialect != POSTGRESQL else _text(column, kind)
    if field.name.endswith(MILLISECONDS) and not has_own_numbers(dialect, kind):
        return cast(column, Text) if zone and lacks_zone(kind) else _milliseconds(column)
    return column


def lacks_zone(kind: TypeEngine[Any]) -> bool:
    """Return whether a column has times of a calendar, and no zone to go with them."""
    kind = _base(kind)
    has_clock = isinstance(kind, DateTime) and not (kind.timezone or isinstance(kind, mysql.TIMESTAMP))
    return has_clock or isinstance(kind, Date)


def has_own_numbers(dialect: str, kind: TypeEngine[Any]) -> bool:
    """Return whether numbers that are read of a column of times are the table's, not made of timestamps."""
    return dialect != POSTGRESQL or not isinstance(_base(kind), DateTime | Date)


def as_key(dialect: str, column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return a key column as it is compared and put in order."""
    if dialect in MYSQL:
        return mysql_reads.as_key(column, kind)
    is_padded = isinstance(_base(kind), _PADDED) and dialect != POSTGRESQL  # which ignores its padding itself
    return func.rtrim(column) if is_padded else column


def in_order(dialect: str, key: ColumnElement[Any], kind: TypeEngine[Any]) -> tuple[ColumnElement[Any], ...]:
    """Return what puts rows in the order of their keys, equal texts side by side whatever the collation."""
    kind = _base(kind)
    if dialect in MYSQL:
        return (key, mysql_reads.exactly(key)) if mysql_reads.is_text(kind) else (key,)
    if dialect == SQLITE and not isinstance(kind, Integer):
        return key, cast(key, LargeBinary)
    is_text = dialect == POSTGRESQL and isinstance(kind, String) and not isinstance(kind, Enum)
    return (key, collate(cast(key, Text), "C")) if is_text else (key,)


def merges_keys(dialect: str, kind: TypeEngine[Any]) -> bool:
    """Return whether two values that the database tells apart may be one key: not so where it pads."""
    return dialect == SQLITE and isinstance(kind, _PADDED)


def has_booleans(dialect: str, kind: TypeEngine[Any]) -> bool:
    """Return whether a column has 1 and 0 for true and false."""
    return dialect == SQLITE or (dialect in MYSQL and mysql_reads.is_boolean(kind))


def as_bound(value: Any) -> ColumnElement[Any]:
    """Return a key as a parameter without a type."""
    return bindparam(None, value, NullType())


def key_questions(
    dialect: str, column: ColumnElement[Any], kind: TypeEngine[Any], keys: Sequence[str]
) -> Iterator[tuple[ColumnElement[bool], Sequence[str]]]:
    """Yield conditions that together find the rows with one of these keys, and perhaps others; at least one,
    for no keys. With each go the keys that it is about, which are in no other.
    """
    compared, stored, count = _lookup(dialect, column, _base(kind))
    unique = list(dict.fromkeys(keys))
    for first in range(0, len(unique) or 1, count):
        asked = unique[first : first + count]
        values = [value for key in asked for value in stored(key)]
        found = compared.in_(bindparam(None, values, NullType(), expanding=True)) if values else false()
        yield found, asked


def _lookup(
    dialect: str, column: ColumnElement[Any], kind: TypeEngine[Any]
) -> tuple[ColumnElement[Any], Callable[[str], Sequence[Any]], int]:
    """Return what to compare, what a column of that kind may hold of a key, and how many keys to ask for."""
    if dialect in MYSQL:
        compared, stored, has_index = mysql_reads.lookup(column, kind)
        return compared, stored, KEYS_PER_LOOKUP if has_index else KEYS_PER_SCAN
    if dialect != POSTGRESQL:
        key = as_key(dialect, column, kind)
        if key is not column:
            return key, _as_it_is, KEYS_PER_SCAN
        return column, _in_sqlite(kind) if dialect == SQLITE else _as_it_is, KEYS_PER_LOOKUP
    if isinstance(kind, String) and not isinstance(kind, Enum):
        return column, _as_it_is, KEYS_PER_LOOKUP
    for types, stored in ((Integer, _whole_number), (Uuid, _uuid), (LargeBinary, _bytes)):
        if isinstance(kind, types):
            return column, stored, KEYS_PER_LOOKUP
    return cast(column, Text), _as_it_is, KEYS_PER_SCAN


def _as_it_is(key: str) -> Sequence[Any]:
    return (key,)


def _whole_number(key: str) -> Sequence[Any]:
    """Return the number of a text; none where another text would be written for it."""
    return (int(key),) if key.removeprefix("-").isdecimal() and str(int(key)) == key else ()


def _uuid(key: str) -> Sequence[Any]:
    try:
        return (key,) if str(UUID(key)) == key else ()
    except ValueError:
        return ()


def _bytes(key: str) -> Sequence[Any]:
    return (key.encode(),)


def _in_sqlite(kind: TypeEngine[Any]) -> Callable[[str], Sequence[Any]]:
    """Return what a column of SQLite may hold of a key: a value has the type with which it was written.

    A column of numbers takes a text for the number that it looks like, so `7 ` would find 7.
    """
    has_numbers = not isinstance(kind, String | LargeBinary | NullType)

    def stored(key: str) -> Sequence[Any]:
        numbers = [one for one in _whole_number(key) if -(1 << 63) <= one < 1 << 63] or _float(key)
        texts = () if has_numbers and _is_number(key) else (key, key.encode())
        return *texts, *numbers

    return stored


def _float(key: str) -> Sequence[Any]:
    return (float(key),) if _is_number(key) and repr(float(key)) == key else ()


def _is_number(key: str) -> bool:
    try:
        float(key)
    except ValueError:
        return False
    return True


def _text(column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    is_plain = isinstance(kind, String | Integer | LargeBinary) and not isinstance(kind, _PADDED)
    return column if is_plain else cast(column, Text)


def _milliseconds(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return PostgreSQL's milliseconds since 1970 of a timestamp, also of one that Python has none for."""
    since = func.floor(extract("epoch", column) * literal_column("1000"))
    before_all = cast(literal_column(f"'{BEFORE_ALL_MS}'"), BigInteger)
    return case(
        (column == literal_column("'infinity'"), null()),
        (column == literal_column("'-infinity'"), before_all),
        else_=cast(since, BigInteger),
    )


def _base(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type beneath PostgreSQL's domains."""
    while isinstance(kind, DOMAIN):
        kind = kind.data_type
    return kind
