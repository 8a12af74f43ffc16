"""How a relay takes rows so that no other relay has them, and gives them back.

The oldest unsent row of a key that is not parked is its head. Who holds the head holds the key: rows behind
it are never taken by others, so they can be taken along.

- PostgreSQL, MySQL, MariaDB: heads are locked with SKIP LOCKED and stay locked until the marks commit. A
  relay that dies loses its connection and with it the locks, at once. The relay's statements run at READ
  COMMITTED, whatever the engine or the server is set to (`own_transactions`): at a higher level two relays
  would fail each other's marks after the sends, and all would be sent again; InnoDB would lock the gaps into
  which users insert.
  It keeps locked what it comes by on its way to the heads, too: rows behind them, paused and parked ones.
  Marks that a deadlock undid, or a lock that did not come, are made again: what is sent stays sent.
- SQLite: heads and their followers are claimed by name until a time. A relay that dies is waited for until
  then; one that lives stops sending at half of it (`Relay`).

Clocks: pauses and claims are times of the clock of the relay that wrote them. One that is further ahead than
any pause or claim can be was written by another clock: such a pause is over, and such a claim ends a lease
after it was seen. The lease is that of the relay whose claim it is, which is a part of its name.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidewheel.database_errors import LOCK_TIMED_OUT, ROLLED_BACK, says
from tidewheel.extras import needing
from tidewheel.outbox_table import is_waiting, outbox_table, unsent
from tidewheel.own_transactions import begin, commit, own_connection, own_transaction, roll_back

with needing("txn"):
    from sqlalchemy import exists, select, update
    from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection, Engine, Row, Select

Sent = dict[int, dict[str, Any]]
"""What is to be marked in a row, by its id."""

RETRY_MS, RETRY_MS_MAX = 500, 60_000
"""The pauses before a row that could not be sent is tried again: the first, and the longest."""

MARK_TRIES = 3

rows = outbox_table.c
before = outbox_table.alias("before")


def heads(limit: int, now_ms: int) -> Select[Any]:
    """Return the oldest unsent row of each key that may be tried now and is not claimed."""
    earlier = exists().where(
        before.c.order_key == rows.order_key,
        before.c.sent_ms.is_(None),
        before.c.retry_ms >= 0,
        before.c.id < rows.id,
    )
    is_its_turn = (rows.retry_ms <= now_ms) | (rows.retry_ms > now_ms + RETRY_MS_MAX)
    mine = (is_waiting, ~earlier, is_its_turn, rows.claimed_until_ms <= now_ms)
    return select(outbox_table).where(*mine).order_by(rows.id).limit(limit)


def with_followers(connection: Connection, found: Sequence[Row[Any]], limit: int) -> list[Row[Any]]:
    """Return the heads, and what is behind them, the oldest first; about `limit` rows."""
    keys = [row.order_key for row in found if row.order_key is not None]
    lone = [row for row in found if row.order_key is None]
    if not keys:
        return lone
    query = select(outbox_table).where(is_waiting, rows.order_key.in_(keys)).order_by(rows.id).limit(limit)
    return sorted([*lone, *connection.execute(query)], key=lambda row: int(row.id))


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
            query = heads(limit, now_ms).with_for_update(skip_locked=True, of=outbox_table)
            found = connection.execute(query).all()
            try:
                yield with_followers(connection, found, limit), sent
            finally:
                mark_and_commit(connection, sent)


class LeasedRows:
    """Claims of SQLite."""

    def __init__(self, engine: Engine, name: str, lease_ms: int) -> None:
        self._engine, self._name = engine, f"{name} {lease_ms}"
        self.lease_ms = lease_ms

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
                    mark_and_commit(connection, sent, self._release)

    def _take(self, limit: int, now_ms: int) -> list[Row[Any]]:
        claimed = {"claimed_by": self._name, "claimed_until_ms": now_ms + self.lease_ms}
        with own_transaction(self._engine) as connection:
            end_claims_ahead(connection, now_ms)
            if connection.execute(heads(1, now_ms)).first() is None:
                return []
        with own_transaction(self._engine) as connection:
            self._release(connection)  # begins to write, so that nobody claims between the look and the claim
            found = with_followers(connection, connection.execute(heads(limit, now_ms)).all(), limit)
            ids = [row.id for row in found]
            connection.execute(update(outbox_table).where(rows.id.in_(ids)).values(claimed))
        return found

    def _release(self, connection: Connection) -> None:
        free = {"claimed_by": None, "claimed_until_ms": 0}
        connection.execute(update(outbox_table).where(unsent, rows.claimed_by == self._name).values(free))


def end_claims_ahead(connection: Connection, now_ms: int) -> None:
    """Let claims of a clock that is ahead of this one end a lease from now."""
    claimed = select(rows.claimed_by).where(unsent, rows.claimed_until_ms > now_ms).distinct()
    for name in connection.execute(claimed).scalars().all():
        ends_ms = now_ms + int(name.rpartition(" ")[2])
        is_ahead = unsent & (rows.claimed_by == name) & (rows.claimed_until_ms > ends_ms)
        if connection.execute(select(rows.id).where(is_ahead).limit(1)).first() is not None:
            connection.execute(update(outbox_table).where(is_ahead).values(claimed_until_ms=ends_ms))


def mark_and_commit(
    connection: Connection, sent: Sent, then: Callable[[Connection], object] = lambda _: None
) -> None:
    """Mark rows and commit; again, in a transaction of its own, when the database was busy."""
    for tries_left in reversed(range(MARK_TRIES)):
        try:
            mark(connection, sent)
            then(connection)
            commit(connection)
        except DBAPIError as error:
            if not tries_left or not says(error, ROLLED_BACK, LOCK_TIMED_OUT):
                raise
            roll_back(connection)
            begin(connection)
        else:
            return


def mark(connection: Connection, sent: Sent) -> None:
    """Mark how the rows fared; a row that another relay has marked stays as it is."""
    for row_id, values in sent.items():
        connection.execute(update(outbox_table).where(rows.id == row_id, unsent).values(values))
