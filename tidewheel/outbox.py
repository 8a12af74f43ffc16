"""The local message table: a message is a row of the user's own transaction, and a relay sends it later.

    outbox.create_table(engine)                      # once; or Alembic, or outbox_sql(dialect)
    with sessions.begin() as session:
        session.add(order)
        outbox.add(session, NewMessage("order-created", {"order": 7}, keys=["order-7"]))
    ...
    Relay(engine, Client()).run(stop)                # in any process, in as many as you like

RocketMQ's official producer may stand in the client's place, and its messages in those of NewMessage, in any
combination: a row keeps what a message says, by properties where there is no column.

Which one to take, barrier or outbox? The barrier's message is there when the block ends and needs no relay;
the outbox needs no broker while the user's transaction runs, keeps the order per key, and sends only once the
transaction is committed.

Rules:
1. A row is sent only when its transaction has committed: another transaction does not see it before.
2. The order per key is that of the rows' ids. Two transactions that add with the same key at the same time
   have no order of their own; let them lock what they both change (the order's row) before they add.
3. A relay holds a key by holding its oldest unsent row; whoever is behind it waits. So several relays share
   the keys, and each key is in one hand. Rows without a key are independent. A row that another transaction
   has locked (to delete it, for example) is not sent meanwhile, nor are later ones of its key.
4. A row that cannot be sent holds back its key, with growing pauses, and says why in `last_error`; other keys
   go on. One that the broker has refused `park_after` times is parked, and holds nothing back then. Attempts
   that failed otherwise, as in an outage, do not count. `parked` shows parked rows; `replay` adds them again,
   at the end of their key and under a new id. Delete the row to give the message up.
5. A row is marked after it was sent. A relay that dies, or loses its database, in between leaves rows that
   are sent again by the next: at most `batch` of them (`tidewheel.outbox_claims` names one more such case).
   Each send carries the row's id as the property TW_OUTBOX_ID, by which `tidewheel.idempotence` recognises
   the second one. Of a Client it is the message's id, too: the broker stores what it gets twice within 30 s
   once.
6. A delay counts from `add`, not from the send, whatever says it.

Cost: one insert with the transaction, and but for PostgreSQL one query of no table (MySQL and MariaDB: two
statements more); in the relay one claim per batch, and one mark per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidewheel.barrier import wall_clock_ms
from tidewheel.barrier_table import create_tables, explained, refuse_autocommit
from tidewheel.database_arguments import refuse_no_session
from tidewheel.extras import needing
from tidewheel.mysql_tables import refuse_unfit_mysql_table
from tidewheel.one_transaction import watch_to_its_end
from tidewheel.outbox_parked import Counts, OutboxRow, counts, parked, replay, row_of_id, waiting
from tidewheel.outbox_relay import Relay, Round
from tidewheel.outbox_table import OUTBOX_ID, REMEDY, metadata, outbox_sql, outbox_table, row_of
from tidewheel.own_transactions import delete_before

with needing("txn"):
    from sqlalchemy import Connection, insert

if TYPE_CHECKING:
    from rocketmq import Message
    from sqlalchemy import Engine, Insert
    from sqlalchemy.orm import Session

    from tidewheel.client.values import NewMessage

__all__ = [
    "OUTBOX_ID",
    "Counts",
    "OutboxRow",
    "Relay",
    "Round",
    "add",
    "adding",
    "counts",
    "create_table",
    "forget",
    "metadata",
    "outbox_sql",
    "outbox_table",
    "parked",
    "replay",
    "row_of_id",
    "waiting",
]

FORGET_ROWS = 10_000


def create_table(engine: Engine) -> None:
    """Create `tidewheel_outbox` where it is missing (with Alembic: `outbox_table.to_metadata`).

    Raises:
        ConfigurationError: when one is there of an older version, or unfit in MySQL.
    """
    create_tables(engine, metadata, REMEDY)


def add(session: Session | Connection, message: NewMessage | Message, key: str | None = None) -> None:
    """Add a message to the session's transaction; `key` is what its order is kept by.

    Without `key` that is the message group, else the message's only key.

    Raises:
        ClientMistake: when no broker would take the message, or the session is none of SQLAlchemy's.
        ConfigurationError: when the outbox's table is missing, of an older version or without transactions,
            or each statement commits by itself.
        RefusedByState: later, by a statement that commits the transaction on MySQL and MariaDB, and by its
            commit when the message is in another one.
    """
    if not isinstance(session, Connection):
        refuse_no_session(session)
    statement = adding(message, key)
    connection = session if isinstance(session, Connection) else session.connection()
    refuse_autocommit(connection)
    refuse_unfit_mysql_table(connection, outbox_table)
    with explained(outbox_table, REMEDY):
        session.execute(statement)
    watch_to_its_end(connection)


def adding(message: NewMessage | Message, key: str | None = None) -> Insert:
    """Return the statement of `add`, for an AsyncSession: `await session.execute(outbox.adding(message))`.

    It does not see the connection: an engine that commits each statement is not refused.
    """
    return insert(outbox_table).values(row_of(message, key, wall_clock_ms()))


def forget(engine: Engine, before_ms: int) -> int:
    """Delete rows that were sent before a time (milliseconds since 1970), in steps; return how many.

    Raises:
        ConfigurationError: when the table is missing or of an older version.
    """
    with explained(outbox_table, REMEDY):
        return delete_before(engine, outbox_table.c.sent_ms, before_ms, FORGET_ROWS)
