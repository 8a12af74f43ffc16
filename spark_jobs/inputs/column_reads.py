"""SQL expressions that select the columns of a user's table, and conditions that find rows by their keys.

A key may be of any type, and the audit identifies it by its text. In PostgreSQL this is the database's own
text (`CAST(key AS TEXT)`), so every type can be read, even values that the driver cannot convert: `infinity`,
the year 20000, an array, an enumeration. In other databases the driver's value is converted (`arrays`).

    database     our column   their type            selected
    PostgreSQL   text         text, integer, bytes  the column
                              char(n), others       the database's text; for char(n) without padding
                 time         timestamp, date       milliseconds since 1970; null for `infinity` (never)
                              the same, no zone     the database's text if a zone is mapped, for `arrays`
                 any other                          the column
    MySQL                                           see `mysql_reads`
    others       text         char(n)               the column without trailing blanks, which SQLite keeps
                 any other                          the column

Bounds and keys are sent as parameters without a type, which the database parses like its own texts. Rows
found by key may have another key, one that is equal by collation, or the number that a text (`7 `) is
converted to: the caller drops these rows. Keys that are equal by collation are ordered by their bytes, so
that repeated keys are adjacent.

Cost: in PostgreSQL, an index finds the rows of given keys if these are texts, whole numbers, uuids or bytes;
in SQLite and others, if they are no char(n). For other types a query scans the table, so it covers many keys.
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
"""Less than the maximum number of parameters of a statement."""

_PADDED: Final = (CHAR, NCHAR)


def selected(
    dialect: str, field: pa.Field, column: ColumnElement[Any], kind: TypeEngine[Any], zone: str = ""
) -> ColumnElement[Any]:
    """Return the expression to select for our `field`, which is the user's `column` of type `kind`.

    `zone` is the mapped zone of the table's times without a zone; "" if none is mapped.
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
    """Return whether a column holds dates or timestamps without a zone."""
    kind = _base(kind)
    has_clock = isinstance(kind, DateTime) and not (kind.timezone or isinstance(kind, mysql.TIMESTAMP))
    return has_clock or isinstance(kind, Date)


def has_own_numbers(dialect: str, kind: TypeEngine[Any]) -> bool:
    """Return whether numbers read for a column of times are the table's own, not converted timestamps."""
    return dialect != POSTGRESQL or not isinstance(_base(kind), DateTime | Date)


def as_key(dialect: str, column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return the expression by which a key column is compared and ordered."""
    if dialect in MYSQL:
        return mysql_reads.as_key(column, kind)
    is_padded = isinstance(_base(kind), _PADDED) and dialect != POSTGRESQL  # which ignores padding itself
    return func.rtrim(column) if is_padded else column


def in_order(dialect: str, key: ColumnElement[Any], kind: TypeEngine[Any]) -> tuple[ColumnElement[Any], ...]:
    """Return the expressions that order rows by key, with equal texts adjacent under any collation."""
    kind = _base(kind)
    if dialect in MYSQL:
        return (key, mysql_reads.exactly(key)) if mysql_reads.is_text(kind) else (key,)
    if dialect == SQLITE and not isinstance(kind, Integer):
        return key, cast(key, LargeBinary)
    is_text = dialect == POSTGRESQL and isinstance(kind, String) and not isinstance(kind, Enum)
    return (key, collate(cast(key, Text), "C")) if is_text else (key,)


def merges_keys(dialect: str, kind: TypeEngine[Any]) -> bool:
    """Return whether distinct values may be one key, as in SQLite's char(n), read without trailing blanks."""
    return dialect == SQLITE and isinstance(kind, _PADDED)


def has_booleans(dialect: str, kind: TypeEngine[Any]) -> bool:
    """Return whether a column may hold 1 and 0 for true and false."""
    return dialect == SQLITE or (dialect in MYSQL and mysql_reads.is_boolean(kind))


def as_bound(value: Any) -> ColumnElement[Any]:
    """Return a key as a parameter without an SQL type."""
    return bindparam(None, value, NullType())


def key_questions(
    dialect: str, column: ColumnElement[Any], kind: TypeEngine[Any], keys: Sequence[str]
) -> Iterator[tuple[ColumnElement[bool], Sequence[str]]]:
    """Yield conditions that together find all rows with one of these keys, each with the keys it covers.

    Every key is covered by one condition. A condition may also find rows with other keys. Without keys, yield
    one condition that finds no rows.
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
    """Return the expression to compare, a function from key to stored values, and the keys per query."""
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
    """Return the number of a text, or nothing if the number is written differently."""
    return (int(key),) if key.removeprefix("-").isdecimal() and str(int(key)) == key else ()


def _uuid(key: str) -> Sequence[Any]:
    try:
        return (key,) if str(UUID(key)) == key else ()
    except ValueError:
        return ()


def _bytes(key: str) -> Sequence[Any]:
    return (key.encode(),)


def _in_sqlite(kind: TypeEngine[Any]) -> Callable[[str], Sequence[Any]]:
    """Return a function from a key to the values that an SQLite column may hold for it.

    SQLite stores a type with each value, so this may be a text, bytes or a number. A column of numbers
    converts a text that looks like a number, so `7 ` would find 7; such texts are left out.
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
    """Return PostgreSQL's milliseconds since 1970 of a timestamp, also outside of the range of Python's."""
    since = func.floor(extract("epoch", column) * literal_column("1000"))
    before_all = cast(literal_column(f"'{BEFORE_ALL_MS}'"), BigInteger)
    return case(
        (column == literal_column("'infinity'"), null()),
        (column == literal_column("'-infinity'"), before_all),
        else_=cast(since, BigInteger),
    )


def _base(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the base type of PostgreSQL's domains, or the type itself."""
    while isinstance(kind, DOMAIN):
        kind = kind.data_type
    return kind
