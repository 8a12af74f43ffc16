"""The barrier's tables: their columns, their plain SQL, what makes a database unfit, its lock timeouts.

`tidewheel_barrier` has a row for each message, `tidewheel_database` one row: the database's name for itself,
by which whoever is asked about a message can tell whether its row would be here. Three ways to make them:
- `barrier.create_table()`,
- Alembic: `for table in metadata.sorted_tables: table.to_metadata(Base.metadata)` beside your models,
- by hand: `barrier_sql("postgresql")`, or of another database, gives the statements.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tidewheel.database_arguments import refuse_no_engine
from tidewheel.database_errors import LACKING_COLUMN, LACKING_TABLE, says
from tidewheel.databases import EXACT, KNOWN, MYSQL, insert_if_new, only_on, statements_of, tables_sql
from tidewheel.errors import ConfigurationError, UnknownChoice
from tidewheel.extras import needing
from tidewheel.mysql_tables import look_again, refuse_unfit_mysql_table
from tidewheel.sqlite_savepoints import (
    begin_before_savepoints,
    commits_by_itself,
    is_in_lone_savepoint,
)

with needing("txn"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        Index,
        Integer,
        MetaData,
        String,
        Table,
        inspect,
        select,
        text,
    )
    from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine, Select

FENCE_LOCK_MS = 1_000

begin_before_savepoints()

metadata = MetaData()
barrier_table = Table(
    "tidewheel_barrier",
    metadata,
    Column("message_id", String(128), primary_key=True),
    Column("outcome", String(16), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    **EXACT,
)
only_on(MYSQL, Index("tidewheel_barrier_when", barrier_table.c.created_ms))
database_table = Table(
    "tidewheel_database",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", String(16), nullable=False),
    **EXACT,
)


def barrier_sql(dialect: str) -> str:
    """Return the statements that create the tables.

    Raises:
        UnknownChoice: when the dialect is none of sqlite, postgresql, mysql, mariadb.
    """
    return tables_sql(metadata, dialect)


def database_name(connection: Connection) -> str | None:
    """Return the name that the database has for itself, which its copies keep; None before it has one."""
    return connection.execute(_name()).scalar_one_or_none()


def draw_database_name(connection: Connection) -> str:
    """Draw a name for the database, and return the one that it has: that of a rival who came first.

    In a transaction at READ COMMITTED that has read nothing: SQLite refuses to write behind what a rival has
    written since.
    """
    insert_if_new(connection, database_table, {"number": 1, "name": uuid4().hex[:16]})
    return str(connection.execute(_name()).scalar_one())


def _name() -> Select[Any]:
    return select(database_table.c.name).where(database_table.c.number == 1)


def create_tables(engine: Engine, metadata: MetaData, remedy: str) -> None:
    """Create tables of ours where they are missing.

    A MariaDB may be reached by a URL of MySQL; its collation has its own name all the same.

    Raises:
        ConfigurationError: when a table is there already and cannot be used: CREATE changes nothing in it.
    """
    refuse_no_engine(engine)
    if engine.dialect.name != "mysql":
        metadata.create_all(engine)
    with engine.connect() as connection:
        if engine.dialect.name == "mysql":
            server = "mariadb" if getattr(connection.dialect, "is_mariadb", False) else "mysql"
            there = set(inspect(connection).get_table_names())
            for table in metadata.tables.values():
                if table.name not in there:
                    for statement in statements_of(table, server):
                        connection.exec_driver_sql(statement)
            connection.commit()
        for table in metadata.tables.values():
            refuse_unfit_table(connection, table, remedy)
    look_again(engine)


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
            f"Rename or drop it when nothing in it is needed any more, then: {remedy}"
        )
    refuse_unfit_mysql_table(connection, table)


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
    except DBAPIError as error:
        if table.name not in (error.statement or ""):
            raise
        if says(error, LACKING_TABLE):
            raise ConfigurationError(f"The database has no table {table.name}. {remedy}") from error
        if says(error, LACKING_COLUMN):
            raise ConfigurationError(
                f"The table {table.name} is of an older version ({str(error.orig).splitlines()[0]}). "
                f"Rename or drop it when nothing in it is needed any more, then: {remedy}"
            ) from error
        raise


def refuse_autocommit(connection: Connection) -> None:
    """Refuse a database session that commits each statement: the row would stand before the user's rows.

    Raises:
        ConfigurationError: when the isolation level is AUTOCOMMIT.
    """
    if commits_each_statement(connection):
        raise ConfigurationError(
            "The engine commits each statement by itself (isolation_level AUTOCOMMIT), so nothing can stand "
            "or fall together. Take an engine with transactions."
        )


def commits_each_statement(connection: Connection) -> bool:
    """Return whether the driver ends a transaction with each statement.

    SQLAlchemy's recipe for SQLite turns the driver's transactions off and begins its own; that is fine.
    """
    if connection.dialect.name in MYSQL:
        return bool(connection.execute(text("SELECT @@autocommit")).scalar_one())
    if connection.dialect.name != "sqlite":
        told = getattr(connection.connection.dbapi_connection, "autocommit", None)
        return connection.get_isolation_level() == "AUTOCOMMIT" if told is None else bool(told)
    connection.execute(text("SELECT 1"))
    driver: Any = connection.connection.driver_connection
    return commits_by_itself(driver) and (not driver.in_transaction or is_in_lone_savepoint(connection))


@contextmanager
def sqlite_lock_timeout(connection: Connection) -> Iterator[None]:
    """Wait `FENCE_LOCK_MS` for SQLite's write lock; a pooled connection gets its own timeout back."""
    before_ms = connection.execute(text("PRAGMA busy_timeout")).scalar_one()
    connection.execute(text(f"PRAGMA busy_timeout = {FENCE_LOCK_MS}"))
    try:
        yield
    finally:
        connection.execute(text(f"PRAGMA busy_timeout = {before_ms}"))


@contextmanager
def postgresql_lock_timeout(connection: Connection) -> Iterator[None]:
    """Wait `FENCE_LOCK_MS` for PostgreSQL's row lock; the setting ends with the transaction."""
    connection.execute(text(f"SET LOCAL lock_timeout = '{FENCE_LOCK_MS}ms'"))
    yield


@contextmanager
def mysql_lock_timeout(connection: Connection) -> Iterator[None]:
    """Wait `FENCE_LOCK_MS`, in whole seconds, for InnoDB's row lock; the session gets its own back."""
    before_s = connection.execute(text("SELECT @@innodb_lock_wait_timeout")).scalar_one()
    connection.execute(text(f"SET SESSION innodb_lock_wait_timeout = {-(-FENCE_LOCK_MS // 1000)}"))
    try:
        yield
    finally:
        connection.execute(text(f"SET SESSION innodb_lock_wait_timeout = {before_s}"))


LOCK_TIMEOUTS = {
    "sqlite": sqlite_lock_timeout,
    "postgresql": postgresql_lock_timeout,
    **dict.fromkeys(MYSQL, mysql_lock_timeout),
}


def lock_timeout_of(engine: Engine) -> Callable[[Connection], Any]:
    """Return how this database is told to wait only shortly for a lock.

    Raises:
        UnknownChoice: for any other database.
    """
    timeout = LOCK_TIMEOUTS.get(engine.dialect.name)
    if timeout is None:
        raise UnknownChoice(f"The barrier works on {KNOWN}, not on {engine.dialect.name}.")
    return timeout
