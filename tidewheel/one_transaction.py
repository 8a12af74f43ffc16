"""A block that begins in a transaction must end in the same one.

A transaction may end inside a block without a word, and the next statement begins another one:
- COMMIT and ROLLBACK as a text, or by the driver, end it. In MySQL and MariaDB a statement such as CREATE
  TABLE commits it. What comes after can fail, and what was before stays;
- a deadlock in MySQL and MariaDB, or OR ROLLBACK in SQLite, rolls it back. Code that swallows the error
  continues, and its commit holds the later half only;
- after any error PostgreSQL rolls it back at its COMMIT, and drivers report no error.

The server tells: a savepoint that was set when the block began is gone with its transaction, and PostgreSQL
numbers transactions. The proof is made when the block ends, or before a commit inside the block. Only then,
on MySQL and MariaDB, is `complete` called: what it writes is committed together with all that the block has
done, and never with a part of it.

Statements that are known to commit are refused before they run. The list need not be complete: it spares
their users the first half.

The outbox has no block. On MySQL and MariaDB, where a statement may commit unseen, its transaction is watched
from the first message to the commit.

Cost: two statements per block, or per transaction that is watched.
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
"""The proofs of the blocks that are open on a connection, the outermost first."""

_watched: WeakSet[Connection] = WeakSet()
"""Connections whose transaction is watched to its end."""


@contextmanager
def one_transaction(
    connection: Connection, complete: Callable[[Connection], object] = lambda _: None
) -> Iterator[None]:
    """Refuse what ends the connection's transaction inside the block; call `complete` in the one it began in.

    Elsewhere than on MySQL and MariaDB `complete` is not called.

    Raises:
        RefusedByState: for a statement that commits, and when the transaction is another one at the end.
    """
    with _begun(connection, complete) as prove:
        yield
        prove(connection)


@asynccontextmanager
async def async_one_transaction(
    connection: AsyncConnection, complete: Callable[[Connection], object] = lambda _: None
) -> AsyncIterator[None]:
    """Do the same for an AsyncConnection."""
    with await connection.run_sync(_begun, complete) as prove:
        yield
        if not connection.closed:
            await connection.run_sync(prove)


@contextmanager
def one_database(session: Session, engine: Engine) -> Iterator[None]:
    """Refuse another engine of the session inside the block: its rows would have a commit of their own.

    Raises:
        RefusedByState: when the session begins there, before its first statement.
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
    """Refuse what ends the connection's transaction unseen, from now to its commit, on MySQL and MariaDB.

    Inside a savepoint or a block, whose end would take the proof along, that one's own proof is enough: the
    watch takes over before the first statement behind it.

    Raises:
        RefusedByState: for a statement that commits, and at the commit when the transaction is another one.
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
    proofs.append(partial(_prove, savepoint, lambda _: None))  # first: its own statement is watched, too
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
    """Mark the transaction; return the block that has the proof of it.

    In PostgreSQL a transaction keeps its number across ROLLBACK TO: inside a savepoint the proof is a
    savepoint, too.
    """
    if connection.dialect.name == "postgresql" and not connection.in_nested_transaction():
        return _listening(connection, partial(_prove_number, _number(connection)))
    savepoint = f"tidewheel_{uuid4().hex}"
    connection.exec_driver_sql(f"SAVEPOINT {savepoint}")
    return _listening(connection, partial(_prove, savepoint, complete))


@contextmanager
def _listening(connection: Connection, prove: _Proof) -> Iterator[_Proof]:
    """Refuse statements that commit, and prove the transaction before it is committed inside the block.

    Both by listeners of this block's own: one function that two blocks in each other had in common would be
    gone for both when the inner one ends. Of blocks in each other the inner one is proven first, since the
    release of the outer savepoint takes the inner one along.
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
        return  # its owner has ended it by the session
    try:
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {savepoint}")
    except DBAPIError as error:
        if says(error, TRANSACTION_FAILED):
            raise RefusedByState(_FAILED) from error
        if not says(error, SAVEPOINT_GONE):
            raise
        if connection.dialect.name in MYSQL:
            connection.invalidate()  # it may commit each statement from now on: no other is to get it
        raise RefusedByState(_ENDED) from error
    if connection.dialect.name in MYSQL:
        complete(connection)


def _number(connection: Connection) -> int:
    """Return PostgreSQL's number of the transaction, which it has then."""
    return int(connection.exec_driver_sql("SELECT txid_current()").scalar_one())


def _prove_number(number: int, connection: Connection) -> None:
    if connection.closed or not connection.in_transaction():
        return  # its owner has ended it by the session
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
