"""The table `tidewheel_outbox`: a message as a row, and back.

A row is unsent while `sent_ms` is empty. `order_key` is what its order is kept by: the message group, else
the message's only key. `claimed_*` is used on SQLite only, where a lock cannot be skipped.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tidewheel.barrier_halves import refuse_unsendable
from tidewheel.barrier_table import DIALECTS, table_sql
from tidewheel.errors import ClientMistake
from tidewheel.extras import needing

with needing("txn"):
    from rocketmq import Message
    from sqlalchemy import (
        BigInteger,
        Column,
        Index,
        Integer,
        LargeBinary,
        MetaData,
        String,
        Table,
        Text,
    )
    from sqlalchemy.schema import CreateIndex

if TYPE_CHECKING:
    from sqlalchemy import Row

OUTBOX_ID = "TW_OUTBOX_ID"
"""The message property that carries the row's id: the client gives each send a new message id."""

metadata = MetaData()
outbox_table = Table(
    "tidewheel_outbox",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("outbox_id", String(64), nullable=False, unique=True),
    Column("order_key", String(1024)),
    Column("topic", String(255), nullable=False),
    Column("tag", Text),
    Column("keys", Text, nullable=False),
    Column("message_group", Text),
    Column("properties", Text, nullable=False),
    Column("deliver_s", BigInteger),
    Column("body", LargeBinary, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("sent_ms", BigInteger),
    Column("attempts", Integer, nullable=False, default=0, server_default="0"),
    Column("retry_ms", BigInteger, nullable=False, default=0, server_default="0"),
    Column("last_error", Text),
    Column("claimed_by", String(64)),
    Column("claimed_until_ms", BigInteger, nullable=False, default=0, server_default="0"),
)
unsent = outbox_table.c.sent_ms.is_(None)
Index("tidewheel_outbox_unsent", outbox_table.c.id, postgresql_where=unsent, sqlite_where=unsent)
Index(
    "tidewheel_outbox_order",
    outbox_table.c.order_key,
    outbox_table.c.id,
    postgresql_where=unsent,
    sqlite_where=unsent,
)
Index("tidewheel_outbox_sent", outbox_table.c.sent_ms)


def outbox_sql(dialect: str) -> str:
    """Return the statements that create the table and its indexes.

    Raises:
        UnknownChoice: when the dialect is neither sqlite nor postgresql.
    """
    statements = [table_sql(outbox_table, dialect)]
    for index in sorted(outbox_table.indexes, key=lambda index: str(index.name)):
        statements.append(str(CreateIndex(index).compile(dialect=DIALECTS[dialect]())) + ";")
    return "\n".join(statements)


def row_of(message: Message, key: str | None, created_ms: int) -> dict[str, Any]:
    """Return the row that keeps a message.

    Raises:
        ClientMistake: when it has no topic or body, too large a body, or what the table does not keep.
    """
    refuse_unsendable(message)  # now: a row that can never be sent would hold back those behind it for ever
    if message.lite_topic or message.priority is not None:
        raise ClientMistake("The outbox keeps neither lite_topic nor priority. Send this message directly.")
    return {
        "outbox_id": uuid4().hex,
        "order_key": key or order_key_of(message),
        "topic": message.topic,
        "tag": message.tag,
        "keys": json.dumps(sorted(message.keys)),
        "message_group": message.message_group,
        "properties": json.dumps(message.properties),
        "deliver_s": message.delivery_timestamp,
        "body": message.body,
        "created_ms": created_ms,
    }


def order_key_of(message: Message) -> str | None:
    """Return what a message's order is kept by when the user names nothing.

    Of several keys none is chosen.
    """
    if message.message_group:
        return str(message.message_group)
    return next(iter(message.keys)) if len(message.keys) == 1 else None


def message_of(row: Row[Any]) -> Message:
    """Return the message that a row keeps."""
    message = Message()
    message.topic, message.body = row.topic, bytes(row.body)
    if row.tag:
        message.tag = row.tag
    for key in json.loads(row.keys):
        message.keys = key
    if row.message_group:
        message.message_group = row.message_group
    if row.deliver_s is not None:
        message.delivery_timestamp = row.deliver_s
    for name, value in json.loads(row.properties).items():
        message.add_property(name, value)
    message.add_property(OUTBOX_ID, row.outbox_id)
    return message
