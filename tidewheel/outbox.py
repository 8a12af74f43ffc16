"""Transactional outbox: a message is stored as a row in the user's transaction, and a relay sends it later.

    outbox.create_table(engine)                      # once; or Alembic, or outbox_sql(dialect)
    with sessions.begin() as session:
        session.add(order)
        outbox.add(session, NewMessage("order-created", {"order": 7}, keys=["order-7"]))
    ...
    Relay(engine, Client()).run(stop)                # in any number of processes

RocketMQ's official producer can be used instead of the client, and its messages instead of NewMessage, in any
combination. Message fields without a column are stored as properties.

Barrier or outbox? With the barrier, the message is available when the block ends, and no relay is needed. The
outbox does not need the broker during the transaction, preserves the order per key, and sends only after the
commit.

Rules:
1. A row is sent only after its transaction has committed, because it is not visible to other transactions
   before.
2. The order per key is the order of the row ids. The order of two concurrent transactions that add rows with
   the same key is undefined. To define it, lock a common row (such as the order's row) before adding
   messages.
3. A relay claims a key by claiming its oldest unsent row. Several relays can share the keys, and each key is
   processed by one relay at a time. Rows without a key are independent. A row that is locked by another
   transaction, for example by a DELETE, is not sent during that time. Later rows of its key are not sent
   either.
4. A row that cannot be sent blocks its key, is retried with increasing pauses, and records the reason in
   `last_error`. Other keys are not affected. A row that the broker has refused `park_after` times is parked
   and no longer blocks its key. Attempts that failed for other reasons, such as an outage, do not count.
   `parked` returns the parked rows. `replay` adds them again with a new id at the end of their key. To
   discard the message, delete the row.
5. A row is marked after it was sent. If a relay stops or loses its database connection in between, the next
   relay sends these rows again. At most `batch` rows are affected (`tidewheel.outbox_claims` describes one
   more case). Each send carries the row's id in the property TW_OUTBOX_ID, which `tidewheel.idempotence` uses
   to detect the duplicate. With a Client, the row's id is also the message id: the broker stores a message
   that it receives twice within 30 s only once.
6. A delay counts from `add`, not from the send.

Cost: one insert in the transaction, and one query without a table except on PostgreSQL. MySQL and MariaDB run
two more statements. The relay runs one claim per batch and one update per row.
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
    """Create `tidewheel_outbox` if it does not exist. With Alembic, use `outbox_table.to_metadata`.

    Raises:
        ConfigurationError: If an existing table is outdated, or has an unsuitable engine or collation in
            MySQL.
    """
    create_tables(engine, metadata, REMEDY)


def add(session: Session | Connection, message: NewMessage | Message, key: str | None = None) -> None:
    """Add a message to the session's transaction. Messages with the same `key` are sent in order.

    The default key is the message group, or the message key if there is exactly one.

    Raises:
        ClientMistake: If the broker would refuse the message, or the session is not a SQLAlchemy session.
        ConfigurationError: If the outbox's table is missing, outdated or without transaction support,
            or the session is in autocommit mode.
        RefusedByState: Raised later on MySQL and MariaDB by a statement that commits implicitly, and by the
            commit if the message belongs to a different transaction.
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
    """Return the INSERT statement of `add`, for an AsyncSession:

    `await session.execute(outbox.adding(message))`.

    An engine in autocommit mode is not detected, because this function does not have the connection.
    """
    return insert(outbox_table).values(row_of(message, key, wall_clock_ms()))


def forget(engine: Engine, before_ms: int) -> int:
    """Delete rows sent before a time in milliseconds since 1970, in steps.

    Returns the number of deleted rows.

    Raises:
        ConfigurationError: If the table is missing or outdated.
    """
    with explained(outbox_table, REMEDY):
        return delete_before(engine, outbox_table.c.sent_ms, before_ms, FORGET_ROWS)
