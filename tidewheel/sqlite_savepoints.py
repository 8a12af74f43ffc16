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

from tidewheel.extras import needing

with needing("txn"):
    from sqlalchemy import Engine, event

if TYPE_CHECKING:
    from sqlalchemy import Connection


def begin_before_savepoints() -> None:
    """Let each savepoint of SQLite be set inside a transaction, from now on, once for the process."""
    if not event.contains(Engine, "savepoint", _begin):
        event.listen(Engine, "savepoint", _begin)


def _begin(connection: Connection, _name: str) -> None:
    if connection.dialect.name != "sqlite":
        return
    driver: Any = connection.connection.driver_connection
    if driver.isolation_level is not None and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN")
