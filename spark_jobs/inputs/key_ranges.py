"""Ranges of a table's key, and the snapshot of the database in which all of them are read.

A range is a bounded query: its result is streamed and becomes one Parquet file, and several may run
concurrently. Bounds of whole numbers are computed from the first and the last. Other bounds come from the
database, by steps along the key's index, so the database's own order applies: the key's type needs an order,
but neither min() nor an equivalent in Python.

Snapshot: a transaction of SQLite, or of PostgreSQL at REPEATABLE READ, sees the database as of its first
statement. PostgreSQL exports its snapshot to further connections, which then read concurrently. SQLite has
one reader: a second one could see a later state, and Python reads no faster with two threads. Other databases
(MySQL, MariaDB) have one reader, at REPEATABLE READ if they support it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Select,
    and_,
    literal_column,
    select,
    text,
)
from sqlalchemy.exc import SQLAlchemyError

from spark_jobs.inputs import mysql_reads
from spark_jobs.inputs.column_reads import POSTGRESQL, as_bound

ROWS_PER_RANGE: Final = 500_000
RANGES_MAX: Final = 1_000
"""Maximum number of ranges of whole numbers, however sparse; for a larger table the ranges grow."""
READERS: Final = 4
"""How many ranges are read concurrently if the database can share its snapshot."""

_ROW_NUMBERS: Final = ("rowid", "_rowid_", "oid")
"""SQLite's names for the number of a row; a column of the same name hides one."""
_REPEATABLE: Final = "REPEATABLE READ"
_WORDING: Final = {
    POSTGRESQL: (
        "SET LOCAL TIME ZONE 'UTC'",
        "SET LOCAL datestyle = 'ISO'",
        "SET LOCAL intervalstyle = 'postgres'",
        "SET LOCAL extra_float_digits = 1",
    ),
    **dict.fromkeys(mysql_reads.MYSQL, mysql_reads.SESSION),
}
"""Statements that make the texts of values independent of the server's settings. None takes a snapshot."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys greater than `after`, up to and including `upto`; None is no bound."""

    after: Any = None
    upto: Any = None

    def holds(self, key: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return the condition for a key in the range; a null key is in no range."""
        bounds = [] if self.after is None else [key > as_bound(self.after)]
        bounds += [] if self.upto is None else [key <= as_bound(self.upto)]
        return and_(key.is_not(None), *bounds)


def key_ranges(
    connection: Connection, table: FromClause, key: ColumnElement[Any], shown: ColumnElement[Any]
) -> list[KeyRange]:
    """Return the ranges of a table, at least one, each with about `ROWS_PER_RANGE` rows.

    Whole numbers are divided evenly between the first and the last, so sparse ones give smaller ranges. Other
    keys are counted along their index. Bounds are selected as `shown`, a form that compares with the key.
    """
    keys = select(shown).select_from(table).where(key.is_not(None)).limit(1)
    first, last = (connection.scalar(keys.order_by(order)) for order in (key.asc(), key.desc()))
    if isinstance(first, int) and isinstance(last, int):
        bounds = _even(first, last, ROWS_PER_RANGE)
    else:
        bounds = _stepped(connection, table, key, shown, ROWS_PER_RANGE)
    return [KeyRange(after, upto) for after, upto in pairwise([None, *bounds, None])]


def _even(first: int, last: int, width: int) -> list[Any]:
    """Return bounds that are `width` apart, or more if there would be more than `RANGES_MAX` ranges."""
    width = max(width, (last - first) // RANGES_MAX)
    return list(range(first + width - 1, last, width))


def _stepped(
    connection: Connection, table: FromClause, key: ColumnElement[Any], shown: ColumnElement[Any], rows: int
) -> list[Any]:
    bounds: list[Any] = []
    while True:
        after = KeyRange(after=bounds[-1] if bounds else None).holds(key)
        step = select(shown).select_from(table).where(after).order_by(key).limit(1).offset(rows - 1)
        found = connection.execute(step).scalar_one_or_none()
        if found is None:
            return bounds
        bounds.append(found)


def row_number(connection: Connection, table: FromClause) -> ColumnElement[Any] | None:
    """Return SQLite's number of a row, the order of a table on disk.

    Return None for other databases, for a view or a table WITHOUT ROWID, and if the user's columns have all
    names of the number.
    """
    if connection.dialect.name != "sqlite":
        return None
    everything: Select[Any] = select(literal_column("*")).select_from(table).limit(0)
    columns = connection.execute(everything).keys()
    taken = {name.lower() for name in columns}
    free = next((name for name in _ROW_NUMBERS if name not in taken), None)
    if free is None:
        return None
    number: ColumnElement[Any] = literal_column(free)
    try:
        connection.execute(select(number).select_from(table).limit(1)).first()
    except SQLAlchemyError:  # a view, or a table WITHOUT ROWID
        return None
    return number


@contextmanager
def one_view(engine: Engine) -> Iterator[Connection]:
    """Yield a connection with a snapshot of the database, as far as the database supports one."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")
        elif _REPEATABLE in _isolation_levels(connection):
            connection = connection.execution_options(isolation_level=_REPEATABLE)
        for statement in _WORDING.get(engine.dialect.name, ()):
            connection.exec_driver_sql(statement)
        yield connection
        connection.rollback()


@contextmanager
def same_view(engine: Engine, shared: str) -> Iterator[Connection]:
    """Yield a further connection to PostgreSQL, with the snapshot that `share` has exported."""
    with one_view(engine) as connection:
        connection.exec_driver_sql(f"SET TRANSACTION SNAPSHOT '{shared}'")
        yield connection


def share(connection: Connection) -> str | None:
    """Export this connection's snapshot and return its id, or None if the database cannot export it."""
    if connection.dialect.name != POSTGRESQL:
        return None
    return str(connection.execute(text("SELECT pg_export_snapshot()")).scalar_one())


def _isolation_levels(connection: Connection) -> list[str]:
    dialect = connection.dialect
    try:
        return list(dialect.get_isolation_level_values(connection.connection.dbapi_connection))  # type: ignore[arg-type]  # the pool's connection is never None here
    except NotImplementedError:  # a dialect without levels: its default isolation is used
        return []
