"""A block must end in the transaction in which it began.

A transaction may end inside a block without an error, and the next statement then begins a new transaction:
- COMMIT and ROLLBACK statements, or calls of the driver, end the transaction. In MySQL and MariaDB, a
  statement such as CREATE TABLE commits it. Later statements can fail while the earlier changes remain;
- a deadlock in MySQL and MariaDB, or OR ROLLBACK in SQLite, rolls the transaction back. If the error is
  caught, the commit contains only the later statements;
- after any error, PostgreSQL rolls back at COMMIT, and drivers report no error.

The check is made on the server. A savepoint that is set when the block begins disappears with its
transaction, and PostgreSQL assigns transaction ids. The check runs when the block ends, or before a commit
inside the block. On MySQL and MariaDB, `complete` is called only after a successful check, so its changes are
committed together with all changes of the block or not at all.

Statements that are known to commit implicitly are refused before they run. The list need not be complete,
because the check detects other statements afterwards.

The outbox has no block. On MySQL and MariaDB, where a statement may commit implicitly, its transaction is
monitored from the first message to the commit.

Cost: two statements per block or monitored transaction.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

from tidewheel.database_errors import SAVEPOINT_GONE, TRANSACTION_FAILED, says
from tidewheel.databases import MYSQL
from tidewheel.errors import RefusedByState
from tidewheel.extras import needing

with needing("txn"):
    from sqlalchemy import event
    from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection
    from sqlalchemy.orm import Session

    _Proof = Callable[[Connection], None]

_BLANKS: Final = r"(?:\s|--[^\n]*\n|\#[^\n]*\n|/\*(?!!).*?\*/)*"
_COMMITS: Final = re.compile(rf"{_BLANKS}(COMMIT|END)\b", re.IGNORECASE | re.DOTALL)
_COMMITS_IN_MYSQL: Final = re.compile(
    rf"{_BLANKS}"
    r"((?:CREATE|DROP)(?!\s+TEMPORARY\b)|ALTER|RENAME|TRUNCATE|GRANT|REVOKE|LOCK\s+TABLES?|UNLOCK\s+TABLES|ANALYZE"
    r"|OPTIMIZE|REPAIR|FLUSH|BEGIN|START\s+TRANSACTION|COMMIT|SET\s+(?:SESSION\s+|@@(?:SESSION\.)?)?AUTOCOMMIT)\b",
    re.IGNORECASE | re.DOTALL,
)

_ENDED: Final = (
    "The transaction ended inside its block, or a savepoint around the block did: a deadlock rolled it back, "
    "or a statement ended it. "
    "Let a deadlock's error out of the block, and repeat the whole transaction."
)

_FAILED: Final = (
    "A statement failed inside the block, and its error was swallowed: PostgreSQL commits nothing of "
    "such a transaction. Let the error out of the block, or run the statement in begin_nested()."
)

_proofs: WeakKeyDictionary[Connection, list[_Proof]] = WeakKeyDictionary()
"""Checks of the open blocks of a connection, outermost first."""

_watched: WeakSet[Connection] = WeakSet()
"""Connections whose transaction is monitored until its end."""


@contextmanager
def one_transaction(
    connection: Connection, complete: Callable[[Connection], object] = lambda _: None
) -> Iterator[None]:
    """Refuse statements that end the connection's transaction inside the block, and call `complete` in that
    transaction.

    `complete` is called only on MySQL and MariaDB.

    Raises:
        RefusedByState: If a statement commits, or the transaction is a different one at the end of the block.
    """
    with _begun(connection, complete) as prove:
        yield
        prove(connection)


@asynccontextmanager
async def async_one_transaction(
    connection: AsyncConnection, complete: Callable[[Connection], object] = lambda _: None
) -> AsyncIterator[None]:
    """Do the same as `one_transaction` for an AsyncConnection."""
    with await connection.run_sync(_begun, complete) as prove:
        yield
        if not connection.closed:
            await connection.run_sync(prove)


@contextmanager
def one_database(session: Session, engine: Engine) -> Iterator[None]:
    """Refuse a second engine of the session inside the block, because its rows would be committed separately.

    Raises:
        RefusedByState: If the session begins a transaction on another engine. It is raised before the first
            statement.
    """

    def refuse(_session: object, _transaction: object, other: Connection) -> None:
        if other.engine is not engine:
            raise RefusedByState(
                "The session of this block has more than one engine, and rows of another are not committed "
                "together with the block's. Use a session of its own for the other one."
            )

    event.listen(session, "after_begin", refuse)
    try:
        yield
    finally:
        event.remove(session, "after_begin", refuse)


def watch_to_its_end(connection: Connection) -> None:
    """Refuse implicit ends of the connection's transaction until its commit, on MySQL and MariaDB.

    Inside a savepoint or a block, whose end would remove the monitoring savepoint, the existing check is
    sufficient. Monitoring continues before the first statement after it.

    Raises:
        RefusedByState: For a statement that commits, and at the commit if the transaction is a different one.
    """
    if connection.dialect.name not in MYSQL:
        return
    _watched.add(connection)
    _mark_watched(connection)
    if not event.contains(connection, "commit", _prove_all):
        event.listen(connection, "commit", _prove_all)
        event.listen(connection, "rollback", _forget)
        event.listen(connection, "before_cursor_execute", _refuse_while_watched)


def _mark_watched(connection: Connection) -> None:
    proofs = _proofs.setdefault(connection, [])
    if proofs or connection.in_nested_transaction():
        return
    savepoint = f"tidewheel_{uuid4().hex}"
    # added first, because the SAVEPOINT statement is also monitored
    proofs.append(partial(_prove, savepoint, lambda _: None))
    connection.exec_driver_sql(f"SAVEPOINT {savepoint}")


def _prove_all(connection: Connection) -> None:
    proofs = _proofs.get(connection, [])
    while proofs:
        try:
            proofs[-1](connection)
        finally:
            proofs.pop()
    _watched.discard(connection)


def _forget(connection: Connection) -> None:
    _proofs.get(connection, []).clear()
    _watched.discard(connection)


def _refuse_while_watched(connection: Connection, _cursor: Any, statement: str, *_: object) -> None:
    if connection in _watched:
        _refuse_commits(connection, statement)
        _mark_watched(connection)


def _begun(
    connection: Connection, complete: Callable[[Connection], object]
) -> AbstractContextManager[_Proof]:
    """Mark the transaction and return a block that provides the check.

    In PostgreSQL, a transaction keeps its id across ROLLBACK TO, so a savepoint is also used inside a
    savepoint.
    """
    if connection.dialect.name == "postgresql" and not connection.in_nested_transaction():
        return _listening(connection, partial(_prove_number, _number(connection)))
    savepoint = f"tidewheel_{uuid4().hex}"
    connection.exec_driver_sql(f"SAVEPOINT {savepoint}")
    return _listening(connection, partial(_prove, savepoint, complete))


@contextmanager
def _listening(connection: Connection, prove: _Proof) -> Iterator[_Proof]:
    """Refuse statements that commit, and check the transaction before it is committed inside the block.

    Each block registers separate listeners, because nested blocks that share a listener would both lose it
    when the inner block ends. Nested blocks are checked from the innermost outwards, because releasing the
    outer savepoint also releases the inner savepoints.
    """
    proofs = _proofs.setdefault(connection, [])

    def refuse(_connection: Connection, _cursor: Any, statement: str, *_: object) -> None:
        _refuse_commits(_connection, statement)

    def prove_all(connection: Connection) -> None:
        _prove_all(connection)

    proofs.append(prove)
    event.listen(connection, "before_cursor_execute", refuse)
    event.listen(connection, "commit", prove_all)
    try:
        yield prove
    finally:
        event.remove(connection, "commit", prove_all)
        event.remove(connection, "before_cursor_execute", refuse)
        if prove in proofs:
            proofs.remove(prove)


def _prove(savepoint: str, complete: Callable[[Connection], object], connection: Connection) -> None:
    if connection.closed or not connection.in_transaction():
        return  # the user has ended the transaction through the session
    try:
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {savepoint}")
    except DBAPIError as error:
        if says(error, TRANSACTION_FAILED):
            raise RefusedByState(_FAILED) from error
        if not says(error, SAVEPOINT_GONE):
            raise
        if connection.dialect.name in MYSQL:
            connection.invalidate()  # the connection may be in autocommit mode now and must not be reused
        raise RefusedByState(_ENDED) from error
    if connection.dialect.name in MYSQL:
        complete(connection)


def _number(connection: Connection) -> int:
    """Return the id of the PostgreSQL transaction. The call assigns an id if there is none."""
    return int(connection.exec_driver_sql("SELECT txid_current()").scalar_one())


def _prove_number(number: int, connection: Connection) -> None:
    if connection.closed or not connection.in_transaction():
        return  # the user has ended the transaction through the session
    try:
        is_same = _number(connection) == number
    except DBAPIError as error:
        if not says(error, TRANSACTION_FAILED):
            raise
        raise RefusedByState(_FAILED) from error
    if not is_same:
        raise RefusedByState(_ENDED)


def _refuse_commits(connection: Connection, statement: str) -> None:
    commits = _COMMITS_IN_MYSQL if connection.dialect.name in MYSQL else _COMMITS
    if found := commits.match(statement):
        raise RefusedByState(
            f"The database commits the transaction at {' '.join(found[1].upper().split())}, and what "
            "comes later could not be rolled back together with it. Run such statements before the block."
        )
