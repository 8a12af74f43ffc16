"""The table `tidewheel_barrier`: its columns, its plain SQL, what makes a database unfit, its lock timeouts.

Three ways to make it:
- `barrier.create_table()`,
- Alembic: `barrier_table.to_metadata(Base.metadata)` beside your models; `--autogenerate` sees it,
- by hand: `barrier_sql("postgresql")` or `barrier_sql("sqlite")` is the statement.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, inspect, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from commitlog.errors import ConfigurationError, UnknownChoice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Dialect, Engine

FENCE_LOCK_MS = 1_000

metadata = MetaData()
barrier_table = Table(
    "tidewheel_barrier",
    metadata,
    Column("message_id", String(128), primary_key=True),
    Column("outcome", String(16), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)

DIALECTS: dict[str, Callable[[], Dialect]] = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}


def barrier_sql(dialect: str) -> str:
    """The statement that creates the table.

    Raises:
        UnknownChoice: when the dialect is neither sqlite nor postgresql.
    """
    return table_sql(barrier_table, dialect)


def table_sql(table: Table, dialect: str) -> str:
    """The statement that creates a table of ours in a dialect.

    Raises:
        UnknownChoice: when the dialect is neither sqlite nor postgresql.
    """
    if dialect not in DIALECTS:
        raise UnknownChoice(f"There is SQL for {' and '.join(DIALECTS)}, not for {dialect}.")
    return str(CreateTable(table).compile(dialect=DIALECTS[dialect]())).strip() + ";"


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
    """Whether the driver ends a transaction with each statement.

    SQLAlchemy's recipe for SQLite turns the driver's transactions off and begins its own; that is fine.
    """
    if connection.dialect.name != "sqlite":
        told = getattr(connection.connection.dbapi_connection, "autocommit", False)
        return bool(told) or connection.get_isolation_level() == "AUTOCOMMIT"
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
    """How this database is told to wait only shortly for a lock.

    Raises:
        UnknownChoice: when the database is neither SQLite nor PostgreSQL.
    """
    timeout = LOCK_TIMEOUTS.get(engine.dialect.name)
    if timeout is None:
        known = " and ".join(LOCK_TIMEOUTS)
        raise UnknownChoice(f"The barrier works on {known}, not on {engine.dialect.name}.")
    return timeout
