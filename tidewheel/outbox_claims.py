"""How a relay takes rows so that no other relay has them, and gives them back.

The oldest unsent row of a key that is not parked is its head. Who holds the head holds the key: rows behind
it are never taken by others, so they can be taken along.

- PostgreSQL, MySQL, MariaDB: each row in hand is locked from before its send until the marks commit. A relay
  that dies loses its connection and with it the locks, at once. The relay's statements run at READ COMMITTED,
  whatever the engine or the server is set to (`own_transactions`): at a higher level two relays would fail
  each other's marks after the sends, and all would be sent again; InnoDB would lock the gaps into which users
  insert.
  Rows are found by reads that lock nothing, and locked by their ids, with SKIP LOCKED. InnoDB locks what a
  search comes by, in each index it reads: searches that lock would make the marks of two relays a deadlock,
  whose victim loses its locks after its sends. So relays wait for no lock of each other. Marks that wait in
  vain for one of another program are undone to a savepoint, which leaves the rows locked.
- SQLite: heads and their followers are claimed by name. A claim is over for a relay that has seen it for a
  lease; a relay that lives stops sending at half of it (`Relay`). The lease is that of the claim's own relay,
  and a part of the claim's name.

Clocks: no claim depends on a clock that is set: a lease is elapsed time of the relay that looks. Pauses are
times of the clock of the relay that wrote them. One that is further ahead than any pause can be was written
by another clock, and is over.

Order: rows are found a page at a time, from the oldest on, and a transaction may commit an older one of a key
behind a page. So what is behind heads is read once more, from the oldest on, when the heads are locked.

Cost: three statements that find rows, two that lock them, and a savepoint; two more for each page of rows
whose keys others hold, or pause; one statement where all rows pause. No row is looked at for each of the
others of its key: keys with parked rows, and thousands that wait behind those, would take minutes.

Weak spot: in MySQL and MariaDB, another program's statement that locks unsent rows by another index than the
primary key, such as a DELETE of all unsent rows, can make a deadlock with the marks of a relay. If the relay
is the victim, all its locks are gone until it has marked the rows again; another may send them meanwhile.
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
"""What is to be marked in a row, by its id."""

RETRY_MS, RETRY_MS_MAX = 500, 60_000
"""The pauses before a row that could not be sent is tried again: the first, and the longest."""

MARK_TRIES = 3
SAVEPOINT = "SAVEPOINT marks"
"""Made before the first mark."""

LOOKED_AT_ONCE = 1_000
"""Unsent rows of which a statement tells the keys, on the way to heads."""

rows = outbox_table.c


def heads(connection: Connection, limit: int, now_ms: int, take: Take) -> list[Row[Any]]:
    """Take the oldest unsent row of each key that may be tried now and is not claimed, the oldest first.

    At most `limit`, and no more than make `limit` rows with those behind them. `take` may leave some out.
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
    """Return whether a row is not paused."""
    return (rows.retry_ms <= now_ms) | (rows.retry_ms > now_ms + RETRY_MS_MAX)


def with_followers(connection: Connection, found: Sequence[Row[Any]], limit: int) -> list[Row[Any]]:
    """Return heads, and what is behind them, the oldest first: at most `limit` rows."""
    keys = [row.order_key for row in found if row.order_key is not None]
    lone = [row for row in found if row.order_key is None]
    if not keys:
        return lone
    query = select(outbox_table).where(is_waiting, rows.order_key.in_(keys)).order_by(rows.id)
    return sorted([*lone, *connection.execute(query.limit(limit - len(lone)))], key=lambda row: int(row.id))


class LockedRows:
    """Claims of PostgreSQL, MySQL and MariaDB."""

    lease_ms = None

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def claim(self, limit: int, now_ms: int) -> Iterator[tuple[list[Row[Any]], Sent]]:
        """Take rows; what the block wrote down about them is marked when it ends."""
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
    """Lock those of some rows that may still be tried, and return them; wait for no other's lock."""
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
    """Return the rows that are held, each key's up to the first one that is not."""
    by_id, broken = {row.id: row for row in held}, set[str | None]()
    taken = []
    for row in found:
        if row.id not in by_id:
            broken.add(row.order_key)
        elif row.order_key not in broken:
            taken.append(by_id[row.id])
    return taken


class LeasedRows:
    """Claims of SQLite."""

    def __init__(self, engine: Engine, name: str, lease_ms: int, elapsed_ms: Callable[[], int]) -> None:
        self._engine, self._name, self._claims = engine, f"{name}.", 0
        self.lease_ms, self._elapsed_ms = lease_ms, elapsed_ms
        self._seen: dict[str, int] = {}
        """When each claim that is there was seen first, in elapsed time."""

    @contextmanager
    def claim(self, limit: int, now_ms: int) -> Iterator[tuple[list[Row[Any]], Sent]]:
        """Take rows; what the block wrote down about them is marked when it ends."""
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
            self._release(connection, over)  # writes first: no claim comes between the look and this one
            free = heads(connection, limit, now_ms, partial(read, connection))
            found = with_followers(connection, free, limit)
            ids = [row.id for row in found]
            connection.execute(update(outbox_table).where(rows.id.in_(ids)).values(claimed))
        return found

    def _claims_over(self, connection: Connection) -> list[str]:
        """Return the claims that have been seen for their lease."""
        claims = select(rows.claimed_by).where(unsent, rows.claimed_by.is_not(None)).distinct()
        found, now_ms = connection.execute(claims).scalars().all(), self._elapsed_ms()
        self._seen = {claim: self._seen.get(claim, now_ms) for claim in found}
        return [claim for claim, since_ms in self._seen.items() if now_ms - since_ms >= _lease_of(claim)]

    def _release(self, connection: Connection, over: Sequence[str] = ()) -> None:
        is_free = rows.claimed_by.startswith(self._name) | rows.claimed_by.in_(over)
        connection.execute(update(outbox_table).where(unsent, is_free).values(claimed_by=None))


def _lease_of(claim: str) -> int:
    """Return how long a claim lasts, in ms."""
    _, _, lease_ms = claim.partition(" ")
    return int(lease_ms)


def read(connection: Connection, found: Sequence[Row[Any]], limit: int) -> Sequence[Row[Any]]:
    """Return the first of some rows, whole."""
    is_found = rows.id.in_([row.id for row in found[:limit]])
    return connection.execute(select(outbox_table).where(is_found).order_by(rows.id)).all()


def mark_and_commit(
    connection: Connection,
    sent: Sent,
    undo: Callable[[Connection], None],
    then: Callable[[Connection], object] = lambda _: None,
) -> None:
    """Mark rows and commit; undo it and do it again when the database was busy."""
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
    """Roll the transaction back, and begin another."""
    roll_back(connection)
    begin(connection)


def undo_marks(connection: Connection) -> None:
    """Undo marks and keep the locks of the rows; begin again if the database rolled the whole back."""
    try:
        connection.exec_driver_sql(f"ROLLBACK TO {SAVEPOINT}")
    except DBAPIError:
        begin_again(connection)
        connection.exec_driver_sql(SAVEPOINT)


def mark(connection: Connection, sent: Sent) -> None:
    """Mark how the rows fared; a row that another relay has marked stays as it is."""
    for row_id, values in sent.items():
        connection.execute(update(outbox_table).where(rows.id == row_id, unsent_by_id).values(values))
