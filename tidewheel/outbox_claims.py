"""Exclusive claims of outbox rows by a relay.

The oldest unsent row of a key that is not parked is called the head of the key. A relay that claims the head
also claims the key. Later rows of the key are never claimed by another relay, so they can be sent in the same
batch.

- PostgreSQL, MySQL, MariaDB: each claimed row is locked from before its send until the commit of the marks. A
  relay that crashes loses its connection and its locks immediately. The statements of a relay run at READ
  COMMITTED, regardless of the settings of the engine or the server (`own_transactions`). At a higher level,
  two relays would invalidate each other's marks after the sends, and all rows would be sent again. InnoDB
  would also lock the gaps into which users insert. Rows are found by non-locking reads and then locked by
  their ids with SKIP LOCKED. InnoDB locks each index entry that a locking search reads. With locking
  searches, the marks of two relays could deadlock, and the victim would lose its locks after its sends.
  Relays therefore never wait for each other's locks. If a mark times out on a lock of another program, it is
  rolled back to a savepoint, and the rows remain locked.
- SQLite: heads and their followers are claimed by name. A claim expires for a relay that has observed it for
  the lease time. A running relay stops sending after half of the lease time (`Relay`). The lease time is set
  by the relay that made the claim and is part of the claim's name.

Clocks: claims do not depend on the system time, because a lease is measured in elapsed time by the observing
relay. Pauses use the system time of the relay that wrote them. A pause that is longer than the maximum was
written with a different clock and is treated as expired.

Order: rows are read page by page, oldest first, and a transaction may commit an older row of a key after its
page was read. The followers are therefore read again, oldest first, after the heads are locked.

Cost: three statements to find rows, two to lock them, and a savepoint. Two more statements run for each page
of rows whose keys are claimed by other relays or paused. If all rows are paused, one statement runs. No
statement compares each row with all other rows of its key, because keys with parked rows and thousands of
waiting rows would take minutes.

Limitation: in MySQL and MariaDB, a statement of another program that locks unsent rows by a secondary index,
such as a DELETE of all unsent rows, can deadlock with the marks of a relay. If the relay is the victim, it
loses its locks until it has marked the rows again, and another relay may send the rows in the meantime.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from tidewheel.database_errors import LOCK_TIMED_OUT, ROLLED_BACK, says
from tidewheel.databases import MYSQL
from tidewheel.extras import needing
from tidewheel.outbox_table import is_waiting, outbox_table, unsent, unsent_by_id
from tidewheel.own_transactions import begin, commit, own_connection, own_transaction, roll_back

with needing("txn"):
    from sqlalchemy import select, update
    from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection, Engine, Row

    Take = Callable[[Sequence[Row[Any]], int], Sequence[Row[Any]]]

Sent = dict[int, dict[str, Any]]
"""Column values to store in each row, by row id."""

RETRY_MS, RETRY_MS_MAX = 500, 60_000
"""The first and the maximum pause before a row that could not be sent is retried."""

MARK_TRIES = 3
SAVEPOINT = "SAVEPOINT marks"
"""Created before the first mark."""

LOOKED_AT_ONCE = 1_000
"""Number of unsent rows whose keys one statement reads in the search for heads."""

rows = outbox_table.c


def heads(connection: Connection, limit: int, now_ms: int, take: Take) -> list[Row[Any]]:
    """Claim the oldest unsent row of each key that is neither paused nor claimed, oldest first.

    At most `limit` rows are claimed, and no more than needed to get `limit` rows together with their
    followers. `take` may skip rows.
    """
    is_free = is_its_turn(now_ms) & rows.claimed_by.is_(None)
    if connection.execute(select(rows.id).where(is_waiting, is_free).limit(1)).first() is None:
        return []
    counts = is_waiting & (is_free | rows.order_key.is_not(None))
    oldest = select(rows.id, rows.order_key, is_free.label("is_free")).where(counts).order_by(rows.id)
    query, known = oldest.limit(LOOKED_AT_ONCE), set[str]()
    taken: list[Row[Any]] = []
    in_reach = 0
    while page := connection.execute(query).all():
        free: list[Row[Any]] = []
        for row in page:
            if row.is_free and row.order_key not in known:
                free.append(row)
            if row.order_key is not None:
                known.add(row.order_key)
        taken += take(free, limit - len(taken))
        ids, keys = {row.id for row in taken}, {row.order_key for row in taken} - {None}
        in_reach += sum(row.id in ids or row.order_key in keys for row in page)
        if len(taken) == limit or in_reach >= limit or len(page) < LOOKED_AT_ONCE:
            break
        query = oldest.where(rows.id > page[-1].id).limit(LOOKED_AT_ONCE)
    return taken


def is_its_turn(now_ms: int) -> ColumnElement[bool]:
    """Return the SQL condition for rows that are not paused."""
    return (rows.retry_ms <= now_ms) | (rows.retry_ms > now_ms + RETRY_MS_MAX)


def with_followers(connection: Connection, found: Sequence[Row[Any]], limit: int) -> list[Row[Any]]:
    """Return heads and the later rows of their keys, oldest first, at most `limit` rows."""
    keys = [row.order_key for row in found if row.order_key is not None]
    lone = [row for row in found if row.order_key is None]
    if not keys:
        return lone
    query = select(outbox_table).where(is_waiting, rows.order_key.in_(keys)).order_by(rows.id)
    return sorted([*lone, *connection.execute(query.limit(limit - len(lone)))], key=lambda row: int(row.id))


class LockedRows:
    """Claims on PostgreSQL, MySQL and MariaDB."""

    lease_ms = None

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def claim(self, limit: int, now_ms: int) -> Iterator[tuple[list[Row[Any]], Sent]]:
        """Claim rows. The values that the block stores in `sent` are written when the block ends."""
        sent: Sent = {}
        with own_connection(self._engine) as connection:
            begin(connection)
            lock = partial(locked, connection, now_ms)
            found = with_followers(connection, heads(connection, limit, now_ms, lock), limit)
            taken = in_order(found, lock(found, len(found)))
            try:
                yield taken, sent
            finally:
                if sent:
                    connection.exec_driver_sql(SAVEPOINT)
                mark_and_commit(connection, sent, undo_marks)


def locked(connection: Connection, now_ms: int, found: Sequence[Row[Any]], limit: int) -> Sequence[Row[Any]]:
    """Lock the rows that may still be sent and return them. Rows locked by others are skipped."""
    if not found:
        return []
    is_found = rows.id.in_([row.id for row in found])
    query = (
        select(outbox_table).where(is_found, is_waiting, is_its_turn(now_ms)).order_by(rows.id).limit(limit)
    )
    for name in MYSQL:
        query = query.with_hint(outbox_table, "FORCE INDEX (PRIMARY)", name)
    return connection.execute(query.with_for_update(skip_locked=True, of=outbox_table)).all()


def in_order(found: Sequence[Row[Any]], held: Sequence[Row[Any]]) -> list[Row[Any]]:
    """Return the locked rows, for each key only up to the first row that is not locked."""
    by_id, broken = {row.id: row for row in held}, set[str | None]()
    taken = []
    for row in found:
        if row.id not in by_id:
            broken.add(row.order_key)
        elif row.order_key not in broken:
            taken.append(by_id[row.id])
    return taken


class LeasedRows:
    """Claims on SQLite."""

    def __init__(self, engine: Engine, name: str, lease_ms: int, elapsed_ms: Callable[[], int]) -> None:
        self._engine, self._name, self._claims = engine, f"{name}.", 0
        self.lease_ms, self._elapsed_ms = lease_ms, elapsed_ms
        self._seen: dict[str, int] = {}
        """The time when each existing claim was first observed, in elapsed time."""

    @contextmanager
    def claim(self, limit: int, now_ms: int) -> Iterator[tuple[list[Row[Any]], Sent]]:
        """Claim rows. The values that the block stores in `sent` are written when the block ends."""
        sent: Sent = {}
        taken = self._take(limit, now_ms)
        try:
            yield taken, sent
        finally:
            if taken:
                with own_connection(self._engine) as connection:
                    begin(connection)
                    mark_and_commit(connection, sent, begin_again, self._release)

    def _take(self, limit: int, now_ms: int) -> list[Row[Any]]:
        self._claims += 1
        claimed = {"claimed_by": f"{self._name}{self._claims} {self.lease_ms}"}
        with own_transaction(self._engine) as connection:
            over = self._claims_over(connection)
            if not over and not heads(connection, 1, now_ms, partial(read, connection)):
                return []
        with own_transaction(self._engine) as connection:
            # the first statement writes, so no other claim can occur before the heads are read
            self._release(connection, over)
            free = heads(connection, limit, now_ms, partial(read, connection))
            found = with_followers(connection, free, limit)
            ids = [row.id for row in found]
            connection.execute(update(outbox_table).where(rows.id.in_(ids)).values(claimed))
        return found

    def _claims_over(self, connection: Connection) -> list[str]:
        """Return the claims that have been observed for their lease time."""
        claims = select(rows.claimed_by).where(unsent, rows.claimed_by.is_not(None)).distinct()
        found, now_ms = connection.execute(claims).scalars().all(), self._elapsed_ms()
        self._seen = {claim: self._seen.get(claim, now_ms) for claim in found}
        return [claim for claim, since_ms in self._seen.items() if now_ms - since_ms >= _lease_of(claim)]

    def _release(self, connection: Connection, over: Sequence[str] = ()) -> None:
        is_free = rows.claimed_by.startswith(self._name) | rows.claimed_by.in_(over)
        connection.execute(update(outbox_table).where(unsent, is_free).values(claimed_by=None))


def _lease_of(claim: str) -> int:
    """Return the lease time of a claim in ms."""
    _, _, lease_ms = claim.partition(" ")
    return int(lease_ms)


def read(connection: Connection, found: Sequence[Row[Any]], limit: int) -> Sequence[Row[Any]]:
    """Return the complete rows of the first `limit` rows."""
    is_found = rows.id.in_([row.id for row in found[:limit]])
    return connection.execute(select(outbox_table).where(is_found).order_by(rows.id)).all()


def mark_and_commit(
    connection: Connection,
    sent: Sent,
    undo: Callable[[Connection], None],
    then: Callable[[Connection], object] = lambda _: None,
) -> None:
    """Mark rows and commit. If the database reports a conflict, undo the marks and try again."""
    for tries_left in reversed(range(MARK_TRIES)):
        try:
            mark(connection, sent)
            then(connection)
            commit(connection)
        except DBAPIError as error:
            if not tries_left or not says(error, ROLLED_BACK, LOCK_TIMED_OUT):
                raise
            undo(connection)
        else:
            return


def begin_again(connection: Connection) -> None:
    """Roll the transaction back and begin a new transaction."""
    roll_back(connection)
    begin(connection)


def undo_marks(connection: Connection) -> None:
    """Undo the marks and keep the row locks.

    If the whole transaction was rolled back, begin a new transaction.
    """
    try:
        connection.exec_driver_sql(f"ROLLBACK TO {SAVEPOINT}")
    except DBAPIError:
        begin_again(connection)
        connection.exec_driver_sql(SAVEPOINT)


def mark(connection: Connection, sent: Sent) -> None:
    """Store the result of each row. A row that another relay has marked as sent is not changed."""
    for row_id, values in sent.items():
        connection.execute(update(outbox_table).where(rows.id == row_id, unsent_by_id).values(values))
