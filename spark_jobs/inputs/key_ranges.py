"""A table cut into ranges of its key, and one view of the database in which all of them are read.

A range is a bounded question: its answer streams, becomes one Parquet file, and several may be asked at a
time. Its bounds come from the database, by stepping through the key's index, so that the database's own
order is the one that counts. A key needs an order, and neither min() nor a type that Python has.

One view: SQLite's transaction sees the database as it was at its first statement, PostgreSQL's at REPEATABLE
READ, and PostgreSQL hands its view on to further connections, which then read at the same time. SQLite has
one reader: a second one could see a later state, and Python reads no faster with two threads. Another
database (MySQL, MariaDB) is asked for REPEATABLE READ where it has it, and has one reader.
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
"""Into how many ranges whole numbers are cut at most, however sparse they are."""
READERS: Final = 4
"""How many ranges of a database that shares its view are read at a time."""

_ROW_NUMBERS: Final = ("rowid", "_rowid_", "oid")
"""What SQLite calls a row's number, unless a column is called so."""
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
"""The database then writes texts alike, whatever the server is set to. No statement fixes the view."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys above `after`, up to and with `upto`; None is no bound."""

    after: Any = None
    upto: Any = None

    def holds(self, key: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return the condition for a row's key; of keys that are null none is in any range."""
        bounds = [] if self.after is None else [key > as_bound(self.after)]
        bounds += [] if self.upto is None else [key <= as_bound(self.upto)]
        return and_(key.is_not(None), *bounds)


def key_ranges(
    connection: Connection, table: FromClause, key: ColumnElement[Any], shown: ColumnElement[Any]
) -> list[KeyRange]:
    """Return the ranges of a table, at least one, each with about `ROWS_PER_RANGE` rows.

    Whole numbers are cut evenly between the first and the last, other keys by stepping through them. Bounds
    are selected as `shown`, a form of the key that compares with it.
    """
    keys = select(shown).select_from(table).where(key.is_not(None)).limit(1)
    first, last = (connection.scalar(keys.order_by(order)) for order in (key.asc(), key.desc()))
    if isinstance(first, int) and isinstance(last, int):
        bounds = _even(first, last, ROWS_PER_RANGE)
    else:
        bounds = _stepped(connection, table, key, shown, ROWS_PER_RANGE)
    return [KeyRange(after, upto) for after, upto in pairwise([None, *bounds, None])]


def _even(first: int, last: int, width: int) -> list[Any]:
    """Return bounds that far apart; wider where there would be more than `RANGES_MAX`."""
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
    """Return SQLite's own number of a row, by which a table lies on disk; None where there is none, or where
    columns of the user's have all of its names.
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
    """Yield a connection in which the database stands still, as far as it can do that."""
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
    """Yield a further connection (PostgreSQL's) that sees what the one sees whose `share` it has."""
    with one_view(engine) as connection:
        connection.exec_driver_sql(f"SET TRANSACTION SNAPSHOT '{shared}'")
        yield connection


def share(connection: Connection) -> str | None:
    """Return the name under which further connections find this one's view; None where that cannot be had."""
    if connection.dialect.name != POSTGRESQL:
        return None
    return str(connection.execute(text("SELECT pg_export_snapshot()")).scalar_one())


def _isolation_levels(connection: Connection) -> list[str]:
    dialect = connection.dialect
    try:
        return list(dialect.get_isolation_level_values(connection.connection.dbapi_connection))  # type: ignore[arg-type]  # the pool's connection is never None here
    except NotImplementedError:  # a dialect without levels: its own view will do
        return []
