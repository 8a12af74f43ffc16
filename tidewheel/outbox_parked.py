"""Rows of the outbox that are parked: refused so often that no relay tries them, until they are brought back.

A parked row has no `sent_ms`, and in `retry_ms` the time it was parked at, negative. It holds nothing
back: the rows of its key that come later are sent without it. Whether it may still be sent then is the
user's decision.

To bring a row back is to add it again, at the end of its key: a new id, the same `outbox_id`. With its old id
it would be the oldest of a key that a relay may have in hand, and a second relay would take the key from it.
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
    """A row that is not sent: what it is, and what became of its last attempt."""

    id: int
    outbox_id: str
    topic: str
    order_key: str | None
    created_ms: int
    attempts: int
    last_error: str | None
    parked_ms: int | None
    """When it was parked; None: it waits."""
    body: bytes


@dataclass(frozen=True)
class Counts:
    """How many rows are not sent, and when the oldest one that waits was added (ms since 1970, or None)."""

    waiting: int
    parked: int
    oldest_waiting_ms: int | None


def parked(engine: Engine, limit: int = ROWS_SHOWN) -> list[OutboxRow]:
    """Return the parked rows, the oldest first."""
    return look(engine, is_parked, limit)


def waiting(engine: Engine, limit: int = ROWS_SHOWN) -> list[OutboxRow]:
    """Return the rows that wait for a relay, the oldest first."""
    return look(engine, is_waiting, limit)


def row_of_id(engine: Engine, row_id: int) -> OutboxRow | None:
    """Return a row that is not sent, or None."""
    found = look(engine, columns.sent_ms.is_(None) & (columns.id == row_id), 1)
    return found[0] if found else None


def look(engine: Engine, which: ColumnElement[bool], limit: int) -> list[OutboxRow]:
    """Return rows that are not sent."""
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
    """Let parked rows wait for a relay again, as if they were added now; return how many were parked.

    Each gets a new id, and is sent after what its key has left; those of one call in the order of their ids.
    """
    with explained(outbox_table, REMEDY):
        return sum(add_again(engine, row_id) for row_id in row_ids(ids))


def add_again(engine: Engine, row_id: int) -> bool:
    """Move a parked row to the end of the outbox; return whether there was one."""
    is_it = unsent_by_id & (columns.retry_ms < 0) & (columns.id == row_id)
    locked = update(outbox_table).where(is_it).values(AFRESH)  # also on SQLite, where a SELECT locks nothing
    with own_transaction(engine) as connection:
        if not connection.execute(locked).rowcount:
            return False
        row = connection.execute(select(outbox_table).where(columns.id == row_id)).one()
        connection.execute(delete(outbox_table).where(columns.id == row_id))
        kept = {name: value for name, value in row._mapping.items() if name != "id"}
        connection.execute(insert(outbox_table).values(kept))
    return True


def counts(engine: Engine) -> Counts:
    """Count the rows that are not sent, for a metric or an alarm."""
    every = select(func.count()).select_from(outbox_table)
    oldest = select(func.min(columns.created_ms)).where(is_waiting)
    with explained(outbox_table, REMEDY), own_transaction(engine) as connection:
        return Counts(
            connection.execute(every.where(is_waiting)).scalar_one(),
            connection.execute(every.where(is_parked)).scalar_one(),
            connection.execute(oldest).scalar_one(),
        )
