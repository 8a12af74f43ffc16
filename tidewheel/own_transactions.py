"""Short internal transactions on the user's engine, independent of the settings of engine, pool and server.

The engine, a pool listener or the server may set an isolation level or autocommit mode. Neither is suitable
for these transactions:
- In autocommit mode, two relays can claim the same row, and a crash during a move loses the row.
- In MySQL and SQLite, READ UNCOMMITTED shows uncommitted changes. In MySQL, SERIALIZABLE locks the rows that
  it reads. In PostgreSQL, two relays at REPEATABLE READ or SERIALIZABLE invalidate each other's marks.

If SQLAlchemy sets an isolation level, it resets the level to the engine's default when the connection is
returned to the pool. An autocommit mode or level that the pool has set is then lost for the next user of the
connection. Nothing is set that outlives a transaction: each transaction begins with a statement that
specifies the level, and ends with a statement.

Cost: one or two statements at the beginning, and one at the end if the driver may be in autocommit mode.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from tidewheel.database_arguments import refuse_no_engine, refuse_no_time
from tidewheel.databases import MYSQL
from tidewheel.extras import needing

with needing("txn"):
    from sqlalchemy import bindparam, delete, select, tuple_
    from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Column, Connection, Engine

_READ_COMMITTED: Final = "ISOLATION LEVEL READ COMMITTED"
_READS_DIRTY: Final = "PRAGMA read_uncommitted"
_BEGIN_IN_MYSQL: Final = (f"SET TRANSACTION {_READ_COMMITTED}", "START TRANSACTION")


@contextmanager
def own_transaction(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in an internal transaction, which commits at the end. An exception rolls it back.

    On SQLite the transaction is deferred. If it writes, its first statement should be a write.
    """
    with own_connection(engine) as connection:
        begin(connection)
        yield connection
        commit(connection)


@contextmanager
def own_connection(engine: Engine) -> Iterator[Connection]:
    """Yield a connection for transactions that are begun and ended by the functions below."""
    refuse_no_engine(engine)
    with engine.connect() as connection:
        try:
            with _without_dirty_reads(connection):
                yield connection
        except BaseException:
            with suppress(DBAPIError):
                roll_back(connection)
            raise


def begin(connection: Connection) -> None:
    """Begin a transaction on a connection without an open transaction.

    In PostgreSQL and MySQL, the transaction begins before SQLAlchemy's transaction. SQLAlchemy notifies the
    user's listeners of its begin, and a listener that reads would fix the isolation level.
    """
    if connection.dialect.name in MYSQL:
        _send(connection, *_BEGIN_IN_MYSQL)
    elif connection.dialect.name != "sqlite":
        _send(connection, f"{'BEGIN' if _commits_each(connection) else 'SET TRANSACTION'} {_READ_COMMITTED}")
    else:
        connection.begin()
        if not driver_of(connection).in_transaction:
            connection.exec_driver_sql("BEGIN")


def commit(connection: Connection) -> None:
    """Commit the transaction."""
    if _may_commit_each(connection):
        connection.exec_driver_sql("COMMIT")
    connection.commit()


def roll_back(connection: Connection) -> None:
    """Roll the transaction back."""
    if connection.in_transaction() and not connection.invalidated and _may_commit_each(connection):
        connection.exec_driver_sql("ROLLBACK")
    connection.rollback()


def driver_of(connection: Connection) -> Any:
    """Return the driver's connection."""
    return connection.connection.driver_connection


def _commits_each(connection: Connection) -> bool:
    """Return whether the PostgreSQL driver is in autocommit mode."""
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


def _may_commit_each(connection: Connection) -> bool:
    """Return whether a commit or rollback call of the driver may leave the transaction open."""
    if connection.dialect.name == "sqlite":
        return bool(driver_of(connection).in_transaction)
    return connection.dialect.name in MYSQL or _commits_each(connection)


def _send(connection: Connection, *statements: str) -> None:
    """Send statements before SQLAlchemy begins a transaction. Raises `DBAPIError`, as SQLAlchemy does."""
    made: Any = connection.connection.dbapi_connection
    statement = ""
    try:
        cursor = made.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()
    except connection.dialect.loaded_dbapi.Error as error:
        connection.invalidate()
        raise DBAPIError(statement, None, error, connection_invalidated=True) from error


@contextmanager
def _without_dirty_reads(connection: Connection) -> Iterator[None]:
    """Disable dirty reads on SQLite connections that share a cache."""
    driver = driver_of(connection)
    is_dirty = connection.dialect.name == "sqlite" and driver.execute(_READS_DIRTY).fetchone() == (1,)
    if is_dirty:
        driver.execute(f"{_READS_DIRTY} = 0")
    try:
        yield
    finally:
        if is_dirty and not connection.invalidated:
            driver.execute(f"{_READS_DIRTY} = 1")


def delete_before(engine: Engine, column: Column[Any], before_ms: int, rows_max: int) -> int:
    """Delete rows older than a time, in steps of one transaction each. Returns the number of deleted rows."""
    refuse_no_engine(engine)
    refuse_no_time(before_ms)
    deleted = 0
    step = delete_some_of_mysql if engine.dialect.name in MYSQL else delete_some
    while some := step(engine, column, before_ms, rows_max):
        deleted += some
    return deleted


def delete_some(engine: Engine, column: Column[Any], before_ms: int, rows_max: int) -> int:
    """Delete one batch of rows."""
    keys = tuple(column.table.primary_key)
    old = select(*keys).where(column < before_ms).limit(rows_max)
    with own_transaction(engine) as connection:
        return connection.execute(delete(column.table).where(tuple_(*keys).in_(old))).rowcount


def delete_some_of_mysql(engine: Engine, column: Column[Any], before_ms: int, rows_max: int) -> int:
    """Delete one batch of rows on MySQL, row by row. InnoDB locks every row that a range search reads."""
    keys = tuple(column.table.primary_key)
    is_one = [column < before_ms, *(key == bindparam(f"one_{key.name}") for key in keys)]
    with own_transaction(engine) as connection:
        old = connection.execute(select(*keys).where(column < before_ms).limit(rows_max)).all()
        if old:
            found = [{f"one_{key.name}": value for key, value in zip(keys, row, strict=True)} for row in old]
            connection.execute(delete(column.table).where(*is_one), found)
    return len(old)
