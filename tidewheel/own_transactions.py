"""Short transactions of ours on an engine of the user's, whatever it, its pool or its server is set to.

An engine, a pool's listener or the server may choose an isolation level, or let the driver commit each
statement. Neither is fit for ours:
- Where each statement commits, two relays claim one row, and a crash inside a move loses the row.
- In MySQL and SQLite, READ UNCOMMITTED shows what may be rolled back; in MySQL, SERIALIZABLE locks what it
  reads. At REPEATABLE READ or SERIALIZABLE, PostgreSQL lets two relays fail each other's marks.

A level that is set by SQLAlchemy is reset to the engine's default when the connection goes back to its pool:
the pool's autocommit, or level, is gone then, and the owner's next writes with it. So nothing is set that
outlives a transaction: it is begun by a statement that names its level, and ended by a statement, too.

Cost: a statement or two at the begin; at the end one, where the driver may commit each statement.
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
    """Give a connection in a transaction of ours, which commits at the end; an exception rolls it back.

    On SQLite it is deferred: let its first statement be one that writes, if any is.
    """
    with own_connection(engine) as connection:
        begin(connection)
        yield connection
        commit(connection)


@contextmanager
def own_connection(engine: Engine) -> Iterator[Connection]:
    """Give a connection for transactions that are begun and ended by the functions below."""
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
    """Begin a transaction on a connection that is in none.

    In PostgreSQL and MySQL that is done before SQLAlchemy does: a listener of the user's, to which it tells
    that a transaction begins, may read, and what is read first settles the level.
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
    """Commit it."""
    if _may_commit_each(connection):
        connection.exec_driver_sql("COMMIT")
    connection.commit()


def roll_back(connection: Connection) -> None:
    """Roll it back."""
    if connection.in_transaction() and not connection.invalidated and _may_commit_each(connection):
        connection.exec_driver_sql("ROLLBACK")
    connection.rollback()


def driver_of(connection: Connection) -> Any:
    """Return the driver's own connection."""
    return connection.connection.driver_connection


def _commits_each(connection: Connection) -> bool:
    """Return whether PostgreSQL's driver commits each statement."""
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


def _may_commit_each(connection: Connection) -> bool:
    """Return whether a call of the driver may leave our transaction open."""
    if connection.dialect.name == "sqlite":
        return bool(driver_of(connection).in_transaction)
    return connection.dialect.name in MYSQL or _commits_each(connection)


def _send(connection: Connection, *statements: str) -> None:
    """Send statements before SQLAlchemy begins; raise `DBAPIError`, as it does."""
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
    """Let connections of SQLite that share a cache see committed rows only."""
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
    """Delete rows whose time is before a time, in steps of a transaction each; return how many."""
    refuse_no_engine(engine)
    refuse_no_time(before_ms)
    deleted = 0
    step = delete_some_of_mysql if engine.dialect.name in MYSQL else delete_some
    while some := step(engine, column, before_ms, rows_max):
        deleted += some
    return deleted


def delete_some(engine: Engine, column: Column[Any], before_ms: int, rows_max: int) -> int:
    """One step of `delete_before`."""
    keys = tuple(column.table.primary_key)
    old = select(*keys).where(column < before_ms).limit(rows_max)
    with own_transaction(engine) as connection:
        return connection.execute(delete(column.table).where(tuple_(*keys).in_(old))).rowcount


def delete_some_of_mysql(engine: Engine, column: Column[Any], before_ms: int, rows_max: int) -> int:
    """Do the same row by row: InnoDB locks whatever row a search for more than one comes by."""
    keys = tuple(column.table.primary_key)
    is_one = [column < before_ms, *(key == bindparam(f"one_{key.name}") for key in keys)]
    with own_transaction(engine) as connection:
        old = connection.execute(select(*keys).where(column < before_ms).limit(rows_max)).all()
        if old:
            found = [{f"one_{key.name}": value for key, value in zip(keys, row, strict=True)} for row in old]
            connection.execute(delete(column.table).where(*is_one), found)
    return len(old)
