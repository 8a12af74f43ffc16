"""MySQL and MariaDB: a block that begins in a transaction must end in the same one.

There a transaction may end inside a block without a word, and the next statement begins another one:
- a statement such as CREATE TABLE commits it. What comes after can fail, and what was before stays;
- a deadlock rolls it back. Code that swallows the error goes on, and its commit holds the later half only.

So a statement that commits is refused before it runs, and a savepoint that was set when the block began is
released when it ends: it is gone with its transaction.

Cost: two statements per block.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tidewheel.database_errors import SAVEPOINT_GONE, says
from tidewheel.databases import MYSQL
from tidewheel.errors import RefusedByState
from tidewheel.extras import needing

with needing("txn"):
    from sqlalchemy import event
    from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

_COMMITS: Final = re.compile(
    r"(?:\s|--[^\n]*\n|\#[^\n]*\n|/\*(?!!).*?\*/)*"
    r"((?:CREATE|DROP)(?!\s+TEMPORARY\b)|ALTER|RENAME|TRUNCATE|GRANT|REVOKE|LOCK\s+TABLES?|UNLOCK\s+TABLES|ANALYZE"
    r"|OPTIMIZE|REPAIR|FLUSH|BEGIN|START\s+TRANSACTION|COMMIT|SET\s+(?:SESSION\s+|@@(?:SESSION\.)?)?AUTOCOMMIT)\b",
    re.IGNORECASE | re.DOTALL,
)


@contextmanager
def one_transaction(connection: Connection) -> Iterator[None]:
    """Refuse what ends the connection's transaction inside the block.

    Raises:
        RefusedByState: for a statement that commits, and when the transaction is another one at the end.
    """
    if connection.dialect.name not in MYSQL:
        yield
        return
    savepoint = _begun(connection)
    with _no_commits(connection):
        yield
        _refuse_another(connection, savepoint)


@asynccontextmanager
async def async_one_transaction(connection: AsyncConnection) -> AsyncIterator[None]:
    """Do the same for an AsyncConnection."""
    if connection.dialect.name not in MYSQL:
        yield
        return
    savepoint = await connection.run_sync(_begun)
    with _no_commits(connection.sync_connection):
        yield
        if not connection.closed:
            await connection.run_sync(_refuse_another, savepoint)


def _begun(connection: Connection) -> str:
    savepoint = f"tidewheel_{uuid4().hex}"
    connection.exec_driver_sql(f"SAVEPOINT {savepoint}")
    return savepoint


@contextmanager
def _no_commits(connection: Connection | None) -> Iterator[None]:
    """Refuse statements that commit, by a listener of this block's own.

    One function that two blocks in each other had in common would be gone for both when the inner one ends.
    """

    def refuse(_connection: Connection, _cursor: Any, statement: str, *_: object) -> None:
        _refuse_commits(statement)

    event.listen(connection, "before_cursor_execute", refuse)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", refuse)


def _refuse_another(connection: Connection, savepoint: str) -> None:
    if connection.closed or not connection.in_transaction():
        return  # its owner has ended it by the session
    try:
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {savepoint}")
    except DBAPIError as error:
        if not says(error, SAVEPOINT_GONE):
            raise
        raise RefusedByState(
            "The transaction ended inside its block: a deadlock rolled it back, or a statement committed it. "
            "Let a deadlock's error out of the block, and repeat the whole transaction."
        ) from error


def _refuse_commits(statement: str) -> None:
    if found := _COMMITS.match(statement):
        raise RefusedByState(
            f"MySQL and MariaDB commit the transaction at {' '.join(found[1].upper().split())}, and what "
            "comes later could not be rolled back together with it. Run such statements before the block."
        )
