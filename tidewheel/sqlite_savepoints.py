"""A savepoint of SQLite is inside a transaction: whatever it holds ends with the session that it is part of.

Python's sqlite3 begins a transaction before the first statement that writes, and not before SAVEPOINT. A
block of `session.begin_nested()` that comes first is then a transaction of its own: what it holds is
committed when it ends, and an exception later rolls nothing back. What is added in it "to the session's
transaction" would stay without the session's other rows.

So a transaction is begun before such a savepoint, on every engine of the process (a listener of the class
Engine), since nothing tells afterwards how a savepoint was begun. It is what SQLAlchemy's manual advises for
SQLite, and does nothing where a transaction is open or the driver commits each statement by itself.

Weak spot: a savepoint that was set before this module was imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tidewheel.extras import needing

with needing("txn"):
    from sqlalchemy import Engine, event

if TYPE_CHECKING:
    from sqlalchemy import Connection

_alone: WeakSet[Connection] = WeakSet()
"""Connections whose outermost savepoint was set outside of a transaction."""


def begin_before_savepoints() -> None:
    """Let each savepoint of SQLite be set inside a transaction, from now on, once for the process."""
    if not event.contains(Engine, "savepoint", _begin):
        event.listen(Engine, "savepoint", _begin)


def commits_by_itself(driver: Any) -> bool:
    """Return whether a connection of sqlite3, or aiosqlite, is in a transaction only where BEGIN was sent."""
    own = getattr(driver, "_conn", driver)  # aiosqlite's; `autocommit` is of Python 3.12 and newer
    return driver.isolation_level is None or getattr(own, "autocommit", None) is True


def is_in_lone_savepoint(connection: Connection) -> bool:
    """Return whether the connection is in a savepoint whose end commits, as no transaction is around it."""
    return connection in _alone and connection.in_nested_transaction()


def _begin(connection: Connection, _name: str) -> None:
    if connection.dialect.name != "sqlite" or connection.in_nested_transaction():
        return
    driver: Any = connection.connection.driver_connection
    _alone.discard(connection)
    if driver.in_transaction:
        return
    if commits_by_itself(driver):
        _alone.add(connection)
    else:
        connection.exec_driver_sql("BEGIN")
