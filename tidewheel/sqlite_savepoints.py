"""SQLite savepoints are always set inside a transaction, so that their changes are committed with the
session.

Python's sqlite3 begins a transaction before the first statement that writes, but not before SAVEPOINT. A
block of `session.begin_nested()` at the beginning of a session would then be a separate transaction, which is
committed when the block ends and cannot be rolled back later. Rows that are added in the block would be
committed without the session's other rows.

A transaction is therefore begun before such a savepoint, on every engine of the process (by a listener on the
class Engine), because it cannot be determined later how a savepoint was begun. SQLAlchemy's documentation
recommends this for SQLite. It has no effect if a transaction is open or the driver is in autocommit mode.

Limitation: savepoints that were set before this module was imported are not covered.
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
"""Connections whose outermost savepoint was set outside a transaction."""


def begin_before_savepoints() -> None:
    """Begin a transaction before each outermost savepoint on SQLite, in the whole process."""
    if not event.contains(Engine, "savepoint", _begin):
        event.listen(Engine, "savepoint", _begin)


def commits_by_itself(driver: Any) -> bool:
    """Return whether a sqlite3 or aiosqlite connection is in a transaction only after an explicit BEGIN."""
    own = getattr(driver, "_conn", driver)  # connection of aiosqlite; `autocommit` exists since Python 3.12
    return driver.isolation_level is None or getattr(own, "autocommit", None) is True


def is_in_lone_savepoint(connection: Connection) -> bool:
    """Return whether the connection is in a savepoint outside a transaction, whose release commits."""
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
