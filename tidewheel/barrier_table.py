"""Tables of the barrier, their SQL, validation, and lock timeouts.

`tidewheel_barrier` contains a row for each message. `tidewheel_database` contains one row with the name of
the database. The name shows whether the row of a message would be in this database. There are three ways to
create the tables:
- `barrier.create_table()`,
- Alembic: `for table in metadata.sorted_tables: table.to_metadata(Base.metadata)` beside your models,
- by hand: `barrier_sql("postgresql")` returns the SQL statements for a dialect.
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
    """Return the SQL statements that create the tables.

    Raises:
        UnknownChoice: If the dialect is not sqlite, postgresql, mysql or mariadb.
    """
    return tables_sql(metadata, dialect)


def database_name(connection: Connection) -> str | None:
    """Return the stored name of the database, or None if it has no name.

    Copies of the database keep the name.
    """
    return connection.execute(_name()).scalar_one_or_none()


def draw_database_name(connection: Connection) -> str:
    """Insert a random name for the database if it has none, and return the stored name.

    The transaction must be at READ COMMITTED and must not have read anything, because SQLite refuses a write
    after a concurrent change to a snapshot that was read.
    """
    insert_if_new(connection, database_table, {"number": 1, "name": uuid4().hex[:16]})
    return str(connection.execute(_name()).scalar_one())


def _name() -> Select[Any]:
    return select(database_table.c.name).where(database_table.c.number == 1)


def create_tables(engine: Engine, metadata: MetaData, remedy: str) -> None:
    """Create missing tables.

    A MariaDB server can be used with a MySQL URL; the name of its collation is chosen by the server.

    Raises:
        ConfigurationError: If an existing table cannot be used. CREATE does not modify an existing table.
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
    """Refuse a database whose table is missing or outdated.

    Raises:
        ConfigurationError: If the table or one of its columns is missing.
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
    """Translate a statement error that is caused by a missing or outdated table.

    The driver's error message is used, because the connection may be in a transaction that can only be rolled
    back, and the pool may have no other connection.

    Raises:
        ConfigurationError: If the table or one of its columns is missing.
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
    """Refuse a session that commits each statement, because the barrier's row would be committed before the
    user's rows.

    Raises:
        ConfigurationError: If the isolation level is AUTOCOMMIT.
    """
    if commits_each_statement(connection):
        raise ConfigurationError(
            "The engine commits each statement by itself (isolation_level AUTOCOMMIT), so nothing can stand "
            "or fall together. Take an engine with transactions."
        )


def commits_each_statement(connection: Connection) -> bool:
    """Return whether the driver commits each statement.

    SQLAlchemy's recipe for SQLite, which disables the driver's transactions and begins its own, is supported.
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
    """Wait at most `FENCE_LOCK_MS` for SQLite's write lock, then restore the timeout of the pooled
    connection.
    """
    before_ms = connection.execute(text("PRAGMA busy_timeout")).scalar_one()
    connection.execute(text(f"PRAGMA busy_timeout = {FENCE_LOCK_MS}"))
    try:
        yield
    finally:
        connection.execute(text(f"PRAGMA busy_timeout = {before_ms}"))


@contextmanager
def postgresql_lock_timeout(connection: Connection) -> Iterator[None]:
    """Wait at most `FENCE_LOCK_MS` for PostgreSQL's row lock. The setting ends with the transaction."""
    connection.execute(text(f"SET LOCAL lock_timeout = '{FENCE_LOCK_MS}ms'"))
    yield


@contextmanager
def mysql_lock_timeout(connection: Connection) -> Iterator[None]:
    """Wait at most `FENCE_LOCK_MS`, in whole seconds, for InnoDB's row lock, then restore the session
    setting.
    """
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
    """Return the context manager that limits the lock timeout in a database.

    Raises:
        UnknownChoice: If the database is not supported.
    """
    timeout = LOCK_TIMEOUTS.get(engine.dialect.name)
    if timeout is None:
        raise UnknownChoice(f"The barrier works on {KNOWN}, not on {engine.dialect.name}.")
    return timeout
