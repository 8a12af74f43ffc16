"""Parked rows of the outbox, which relays do not send until they are replayed.

A parked row has no `sent_ms`, and `retry_ms` is the negated time when it was parked. A parked row does not
block later rows of its key. The user decides whether it may still be sent after them.

A replayed row is added again at the end of its key, with a new id and the same `outbox_id`. With the old id,
it would be the oldest row of a key that a relay may have claimed, and a second relay could claim the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidewheel.barrier_table import explained
from tidewheel.database_arguments import row_ids
from tidewheel.extras import needing
from tidewheel.outbox_table import REMEDY, is_parked, is_waiting, outbox_table, unsent_by_id
from tidewheel.own_transactions import own_transaction

with needing("txn"):
    from sqlalchemy import delete, func, insert, select, update

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import ColumnElement, Engine

ROWS_SHOWN = 1_000
AFRESH = {"attempts": 0, "refusals": 0, "retry_ms": 0, "last_error": None}

columns = outbox_table.c


@dataclass(frozen=True)
class OutboxRow:
    """An unsent row with the result of its last attempt."""

    id: int
    outbox_id: str
    topic: str
    order_key: str | None
    created_ms: int
    attempts: int
    last_error: str | None
    parked_ms: int | None
    """The time when the row was parked, or None if it is waiting."""
    body: bytes


@dataclass(frozen=True)
class Counts:
    """The number of unsent rows, and the creation time of the oldest waiting row (milliseconds since 1970, or
    None).
    """

    waiting: int
    parked: int
    oldest_waiting_ms: int | None


def parked(engine: Engine, limit: int = ROWS_SHOWN) -> list[OutboxRow]:
    """Return the parked rows, oldest first."""
    return look(engine, is_parked, limit)


def waiting(engine: Engine, limit: int = ROWS_SHOWN) -> list[OutboxRow]:
    """Return the rows that are waiting for a relay, oldest first."""
    return look(engine, is_waiting, limit)


def row_of_id(engine: Engine, row_id: int) -> OutboxRow | None:
    """Return an unsent row, or None."""
    found = look(engine, columns.sent_ms.is_(None) & (columns.id == row_id), 1)
    return found[0] if found else None


def look(engine: Engine, which: ColumnElement[bool], limit: int) -> list[OutboxRow]:
    """Return unsent rows that match a condition."""
    query = select(outbox_table).where(which).order_by(columns.id).limit(limit)
    with explained(outbox_table, REMEDY), own_transaction(engine) as connection:
        return [
            OutboxRow(
                row.id,
                row.outbox_id,
                row.topic,
                row.order_key,
                row.created_ms,
                row.attempts,
                row.last_error,
                -row.retry_ms if row.retry_ms < 0 else None,
                bytes(row.body),
            )
            for row in connection.execute(query)
        ]


def replay(engine: Engine, ids: Iterable[int]) -> int:
    """Return parked rows to the relay as if they were added now. Returns the number of rows that were parked.

    Each row gets a new id and is sent after the unsent rows of its key. Rows of one call keep the order of
    their ids.
    """
    with explained(outbox_table, REMEDY):
        return sum(add_again(engine, row_id) for row_id in row_ids(ids))


def add_again(engine: Engine, row_id: int) -> bool:
    """Move a parked row to the end of the outbox. Returns whether the row existed."""
    is_it = unsent_by_id & (columns.retry_ms < 0) & (columns.id == row_id)
    # an UPDATE also locks on SQLite, where a SELECT does not
    locked = update(outbox_table).where(is_it).values(AFRESH)
    with own_transaction(engine) as connection:
        if not connection.execute(locked).rowcount:
            return False
        row = connection.execute(select(outbox_table).where(columns.id == row_id)).one()
        connection.execute(delete(outbox_table).where(columns.id == row_id))
        kept = {name: value for name, value in row._mapping.items() if name != "id"}
        connection.execute(insert(outbox_table).values(kept))
    return True


def counts(engine: Engine) -> Counts:
    """Count the unsent rows, for a metric or an alert."""
    every = select(func.count()).select_from(outbox_table)
    oldest = select(func.min(columns.created_ms)).where(is_waiting)
    with explained(outbox_table, REMEDY), own_transaction(engine) as connection:
        return Counts(
            connection.execute(every.where(is_waiting)).scalar_one(),
            connection.execute(every.where(is_parked)).scalar_one(),
            connection.execute(oldest).scalar_one(),
        )
