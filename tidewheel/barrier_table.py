"""The barrier's tables: their columns, their plain SQL, what makes a database unfit, its lock timeouts.

`tidewheel_barrier` has a row for each message, `tidewheel_database` one row: the database's name for itself,
by which whoever is asked about a message can tell whether its row would be here. Three ways to make them:
- `barrier.create_table()`,
- Alembic: `for table in metadata.sorted_tables: table.to_metadata(Base.metadata)` beside your models,
- by hand: `barrier_sql("postgresql")` or `barrier_sql("sqlite")` are the statements.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tidewheel.errors import ConfigurationError, UnknownChoice
from tidewheel.extras import needing
from tidewheel.sqlite_savepoints import begin_before_savepoints

with needing("txn"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        Integer,
        MetaData,
        String,
        Table,
        inspect,
        select,
        text,
    )
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
    from sqlalchemy.schema import CreateTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Dialect, Engine

FENCE_LOCK_MS = 1_000

begin_before_savepoints()

metadata = MetaData()
barrier_table = Table(
    "tidewheel_barrier",
    metadata,
    Column("message_id", String(128), primary_key=True),
    Column("outcome", String(16), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)
database_table = Table(
    "tidewheel_database",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", String(16), nullable=False),
)

DIALECTS: dict[str, Callable[[], Dialect]] = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}


INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def barrier_sql(dialect: str) -> str:
    """Return the statements that create the tables.

    Raises:
        UnknownChoice: when the dialect is neither sqlite nor postgresql.
    """
    return "\n".join(table_sql(table, dialect) for table in (barrier_table, database_table))


def table_sql(table: Table, dialect: str) -> str:
    """Return the statement that creates a table of ours in a dialect.

    Raises:
        UnknownChoice: when the dialect is neither sqlite nor postgresql.
    """
    if dialect not in DIALECTS:
        raise UnknownChoice(f"There is SQL for {' and '.join(DIALECTS)}, not for {dialect}.")
    return str(CreateTable(table).compile(dialect=DIALECTS[dialect]())).strip() + ";"


def database_name(connection: Connection) -> str:
    """Return the name that the database has for itself, drawn at the first call; its copies keep the name."""
    query = select(database_table.c.name).where(database_table.c.number == 1)
    found = connection.execute(query).scalar_one_or_none()
    if found is None:
        row = {"number": 1, "name": uuid4().hex[:16]}
        new = INSERTS[connection.dialect.name](database_table).values(row)
        connection.execute(new.on_conflict_do_nothing())
        found = connection.execute(query).scalar_one()
    return str(found)


def refuse_unfit_table(connection: Connection, table: Table, remedy: str) -> None:
    """Refuse a database whose table is missing or older than this version.

    Raises:
        ConfigurationError: when the table or one of its columns is not there.
    """
    inspector = inspect(connection)
    if not inspector.has_table(table.name):
        raise ConfigurationError(f"The database has no table {table.name}. {remedy}")
    there = {column["name"] for column in inspector.get_columns(table.name)}
    lacking = [column.name for column in table.columns if column.name not in there]
    if lacking:
        raise ConfigurationError(
            f"The table {table.name} is of an older version, without {', '.join(lacking)}. "
            f"Rename or drop it when no half is open (tidewheel txn summary), then: {remedy}"
        )


@contextmanager
def explained(table: Table, remedy: str) -> Iterator[None]:
    """Let a statement that failed because of our table's state say so.

    The driver's own words tell: the connection may be in a transaction that can only be rolled back, and the
    pool may have no other.

    Raises:
        ConfigurationError: when the table or one of its columns is not there.
    """
    try:
        yield
    except (OperationalError, ProgrammingError) as error:
        said = str(error.orig)
        if table.name not in said:
            raise
        if lacks(error, LACKING_TABLE):
            raise ConfigurationError(f"The database has no table {table.name}. {remedy}") from error
        if lacks(error, LACKING_COLUMN):
            raise ConfigurationError(
                f"The table {table.name} is of an older version ({said.splitlines()[0]}). "
                f"Rename or drop it when nothing in it is needed any more, then: {remedy}"
            ) from error
        raise


LACKING_TABLE = ("42P01", "no such table")
LACKING_COLUMN = ("42703", "has no column named", "no such column")
"""What PostgreSQL (the SQLSTATE) and SQLite say of a table, or a column, that is not there."""


def lacks(error: DBAPIError, signs: Sequence[str]) -> bool:
    """Return whether the database says that something is not there."""
    state, *words = signs
    return getattr(error.orig, "sqlstate", None) == state or any(word in str(error.orig) for word in words)


def refuse_autocommit(connection: Connection) -> None:
    """Refuse a database session that commits each statement: the row would stand before the user's rows.

    Raises:
        ConfigurationError: when the isolation level is AUTOCOMMIT.
    """
    if commits_each_statement(connection):
        raise ConfigurationError(
            "The engine commits each statement by itself (isolation_level AUTOCOMMIT), so nothing can stand "
            "or fall together. Give the barrier an engine with transactions."
        )


def commits_each_statement(connection: Connection) -> bool:
    """Return whether the driver ends a transaction with each statement.

    SQLAlchemy's recipe for SQLite turns the driver's transactions off and begins its own; that is fine.
    """
    if connection.dialect.name != "sqlite":
        told = getattr(connection.connection.dbapi_connection, "autocommit", None)
        return connection.get_isolation_level() == "AUTOCOMMIT" if told is None else bool(told)
    connection.execute(text("SELECT 1"))
    driver: Any = connection.connection.driver_connection
    return driver.isolation_level is None and not driver.in_transaction


@contextmanager
def sqlite_lock_timeout(connection: Connection) -> Iterator[None]:
    """Wait `FENCE_LOCK_MS` for SQLite's write lock; a pooled connection gets its own timeout back."""
    before_ms = connection.execute(text("PRAGMA busy_timeout")).scalar_one()
    connection.execute(text(f"PRAGMA busy_timeout = {FENCE_LOCK_MS}"))
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(text(f"PRAGMA busy_timeout = {before_ms}"))


@contextmanager
def postgresql_lock_timeout(connection: Connection) -> Iterator[None]:
    """Wait `FENCE_LOCK_MS` for PostgreSQL's row lock; the setting ends with the transaction."""
    connection.execute(text(f"SET LOCAL lock_timeout = '{FENCE_LOCK_MS}ms'"))
    yield


LOCK_TIMEOUTS = {"sqlite": sqlite_lock_timeout, "postgresql": postgresql_lock_timeout}


def lock_timeout_of(engine: Engine) -> Callable[[Connection], Any]:
    """Return how this database is told to wait only shortly for a lock.

    Raises:
        UnknownChoice: when the database is neither SQLite nor PostgreSQL.
    """
    timeout = LOCK_TIMEOUTS.get(engine.dialect.name)
    if timeout is None:
        known = " and ".join(LOCK_TIMEOUTS)
        raise UnknownChoice(f"The barrier works on {known}, not on {engine.dialect.name}.")
    return timeout
