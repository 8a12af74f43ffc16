"""The table `tidewheel_outbox`, and conversion between messages and rows.

A row is unsent as long as `sent_ms` is null. Rows with the same `order_key` are sent in order. The default is
the message group, or the message key if there is exactly one. `claimed_by` is used only on SQLite, which has
no SKIP LOCKED.

MySQL and MariaDB have no partial indexes. Their index begins with `sent_ms` instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tidewheel.client.bodies import body_bytes
from tidewheel.client.calls import TIMER_KEY, message_fields
from tidewheel.client.names import text
from tidewheel.client.spans import moment_of
from tidewheel.client.values import NewMessage
from tidewheel.database_arguments import kind_of, shown
from tidewheel.databases import EXACT, MYSQL, only_on, tables_sql
from tidewheel.delay_properties import contradiction, without_delay
from tidewheel.durations import span_ms
from tidewheel.errors import ClientMistake, IllegalTopic
from tidewheel.extras import needing
from tidewheel.message_rules import DELAY_MS_MAX, check_delivery, check_said, check_topic_name

with needing("txn"):
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
    from sqlalchemy.dialects import mysql

if TYPE_CHECKING:
    from rocketmq import Message
    from sqlalchemy import Row

OUTBOX_ID = "TW_OUTBOX_ID"
"""The message property that contains the row's id. The official client assigns a new message id to each send.
"""
DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_PROPERTIES = {"timer_key": TIMER_KEY, "unique": "TW_TIMER_UNIQUE"}

REMEDY = (
    "Call outbox.create_table(engine) once, or with Alembic put outbox_table.to_metadata(Base.metadata) "
    "beside your models and migrate."
)
ORDER_KEY_CHARACTERS = 640
"""A longer key is stored as its hash.

An index entry is limited to 2,704 bytes in PostgreSQL and 3,072 bytes in MySQL.
"""

long_text = Text().with_variant(mysql.LONGTEXT(), *MYSQL)
long_bytes = LargeBinary().with_variant(mysql.LONGBLOB(), *MYSQL)

metadata = MetaData()
outbox_table = Table(
    "tidewheel_outbox",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("outbox_id", String(64), nullable=False, unique=True),
    Column("order_key", String(1024).with_variant(String(ORDER_KEY_CHARACTERS), *MYSQL)),
    Column("topic", String(255), nullable=False),
    Column("tag", long_text),
    Column("keys", long_text, nullable=False),
    Column("message_group", long_text),
    Column("properties", long_text, nullable=False),
    Column("deliver_s", BigInteger),
    Column("body", long_bytes, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("sent_ms", BigInteger),
    Column("attempts", Integer, nullable=False, default=0, server_default="0"),
    Column("refusals", Integer, nullable=False, default=0, server_default="0"),
    Column("retry_ms", BigInteger, nullable=False, default=0, server_default="0"),
    Column("last_error", Text),
    Column("claimed_by", String(64)),
    **EXACT,
)
unsent = outbox_table.c.sent_ms.is_(None)
is_waiting, is_parked = unsent & (outbox_table.c.retry_ms >= 0), unsent & (outbox_table.c.retry_ms < 0)
unsent_by_id = (outbox_table.c.sent_ms + 0).is_(None)
"""The condition `unsent` for a row that is selected by id.

The expression prevents the use of an index on `sent_ms`, in which InnoDB would also lock entries.
"""
PARTS = ("sqlite", "postgresql")
partial: dict[str, Any] = {"postgresql_where": unsent, "sqlite_where": unsent}
by_key = outbox_table.c.order_key, outbox_table.c.id
only_on(PARTS, Index("tidewheel_outbox_unsent", outbox_table.c.id, **partial))
only_on(PARTS, Index("tidewheel_outbox_order", *by_key, **partial))
only_on(MYSQL, Index("tidewheel_outbox_turn", outbox_table.c.sent_ms, *by_key))
Index("tidewheel_outbox_sent", outbox_table.c.sent_ms)


def outbox_sql(dialect: str) -> str:
    """Return the SQL statements that create the table and its indexes.

    Raises:
        UnknownChoice: If the dialect is not sqlite, postgresql, mysql or mariadb.
    """
    return tables_sql(metadata, dialect)


def row_of(message: NewMessage | Message, key: str | None, created_ms: int) -> dict[str, Any]:
    """Return the row for a NewMessage or a message of the official client.

    Raises:
        ClientMistake: If the broker would refuse the message, or the table cannot store it.
    """
    if key is not None:
        refuse_unstorable(key, "key")
        if "\0" in key:
            raise ClientMistake("key holds a NUL, which PostgreSQL does not store. Leave it out.")
    said = fields_of_new(message, created_ms) if isinstance(message, NewMessage) else fields_of(message)
    outbox_id = uuid4().hex
    said["properties"] = sendable_properties(said, outbox_id, created_ms)
    order_key = short(key or order_key_of(said["message_group"], said["keys"]))
    texts = {name: json.dumps(said[name]) for name in ("keys", "properties")}
    return {**said, **texts, "outbox_id": outbox_id, "order_key": order_key, "created_ms": created_ms}


@dataclass(frozen=True)
class Kept:
    """The fields of a row that are checked by the broker's rules."""

    body: bytes
    message_id: str
    tag: str
    keys: Sequence[str]
    message_group: str
    properties: dict[str, str]
    trace_context: str = ""


def sendable_properties(said: Mapping[str, Any], outbox_id: str, now_ms: int) -> dict[str, str]:
    """Return the properties of a valid message.

    An invalid message is refused, because its row would block its key.

    A delay in the properties is converted to a time, counted from now. The existence and the type of the
    topic are checked by the broker.

    Raises:
        ClientMistake: The same error that the broker would return.
    """
    if not said["topic"]:
        raise IllegalTopic("It is empty. Set message.topic.")
    check_topic_name(said["topic"])
    refuse_no_texts(said)
    due_ms, rest = without_delay(said["properties"], now_ms)
    texts = said["tag"] or "", said["keys"], said["message_group"] or "", {**rest, OUTBOX_ID: outbox_id}
    check_said(Kept(said["body"] or b"", outbox_id, *texts))
    if said["deliver_s"] is not None:
        check_delivery(said["deliver_s"] * 1000, DELAY_MS_MAX, now_ms)
        if due_ms not in (None, said["deliver_s"] * 1000):
            raise contradiction({"the delivery timestamp": said["deliver_s"] * 1000, "a property": due_ms})
    if due_ms is None:
        return rest
    check_delivery(due_ms, DELAY_MS_MAX, now_ms)
    return {**rest, DELIVER_MS: str(due_ms)}


def refuse_no_texts(said: Mapping[str, Any]) -> None:
    """Refuse values that are not texts or cannot be encoded in UTF-8."""
    properties = said["properties"]
    for value in (said["tag"], said["message_group"], *said["keys"], *properties, *properties.values()):
        if value is not None:
            refuse_unstorable(value, "A tag, key, group or property")


def refuse_unstorable(value: object, field: str) -> None:
    """Refuse a value that is not a text or cannot be encoded in UTF-8."""
    try:
        text(value, field).encode()
    except UnicodeEncodeError as error:
        raise ClientMistake(f"A text cannot be held by UTF-8: {error}.") from None


def fields_of(message: Message) -> dict[str, Any]:
    """Return the fields of a message of the official client. Raises `ClientMistake`."""
    if not hasattr(message, "lite_topic"):
        raise ClientMistake(
            f"It takes a NewMessage, or a Message of the official client, and this is {kind_of(message)}: "
            f"{shown(message)}."
        )
    if message.lite_topic or message.priority is not None:
        raise ClientMistake("The outbox keeps neither lite_topic nor priority. Send this message directly.")
    return {
        "topic": message.topic,
        "body": message.body,
        "tag": message.tag,
        "keys": sorted(message.keys),
        "message_group": message.message_group,
        "properties": message.properties,
        "deliver_s": message.delivery_timestamp,
    }


def fields_of_new(message: NewMessage, now_ms: int) -> dict[str, Any]:
    """Return the fields of a NewMessage. Delays and the time span of a move count from now.

    Raises `ClientMistake`.

    Fields without a column are stored as the properties that clients of any language can set.
    """
    if message.idempotency_key:
        raise ClientMistake("The outbox gives each message an idempotency_key of its own: leave it out.")
    wire = message_fields(message, "", "")
    return {
        "topic": message.topic,
        "body": body_bytes(message.body),
        "tag": message.tag or None,
        "keys": wire.get("keys", []),
        "message_group": message.group or None,
        "properties": wire.get("properties", {}) | timer_properties(wire, now_ms),
        "deliver_s": None,
    }


def timer_properties(wire: Mapping[str, Any], now_ms: int) -> dict[str, str]:
    """Return message properties for the timer fields of a request (`docs/http.md`)."""
    said: dict[str, Any] = {}
    if "in" in wire or "at" in wire:
        said[DELIVER_MS] = wire["at"] if "at" in wire else now_ms + span_ms(wire["in"])
    said |= {name: wire[field] for field, name in TIMER_PROPERTIES.items() if field in wire}
    for verb in ("cancel", "move", "fire"):
        if timer := wire.get(verb):
            said |= {f"TW_TIMER_{verb.upper()}": timer["key"], "TW_TIMER_TOPIC": timer["topic"]}
            if verb == "move":
                to = timer["to"]
                said["TW_TIMER_TO"] = now_ms + span_ms(to) if isinstance(to, str) else to
    return {name: "true" if value is True else str(value) for name, value in said.items()}


def order_key_of(group: str | None, keys: Sequence[str]) -> str | None:
    """Return the default order key of a message.

    If the message has several keys, it has no default order key.
    """
    return group or (keys[0] if len(keys) == 1 else None)


def short(order_key: str | None) -> str | None:
    """Return an order key as stored in a row. A long key is hashed."""
    if order_key is None or len(order_key) <= ORDER_KEY_CHARACTERS:
        return order_key
    return f"sha256:{sha256(order_key.encode()).hexdigest()}"


def new_message_of(row: Row[Any]) -> NewMessage:
    """Return the message of a row. The row's `outbox_id` is used as the message id."""
    return NewMessage(
        row.topic,
        bytes(row.body),
        at=None if row.deliver_s is None else moment_of(row.deliver_s * 1000),
        group=row.message_group or "",
        tag=row.tag or "",
        keys=json.loads(row.keys),
        properties={**json.loads(row.properties), OUTBOX_ID: row.outbox_id},
        idempotency_key=row.outbox_id,
    )


def message_of(row: Row[Any]) -> Message:
    """Return the message of a row for the official client, with a delivery time in whole seconds."""
    with needing("rocketmq"):
        from rocketmq import Message
    message = Message()
    message.topic, message.body = row.topic, bytes(row.body)
    if row.tag:
        message.tag = row.tag
    for key in json.loads(row.keys):
        message.keys = key
    if row.message_group:
        message.message_group = row.message_group
    properties, deliver_s = json.loads(row.properties), row.deliver_s
    if DELIVER_MS in properties:
        deliver_s = -(-int(properties.pop(DELIVER_MS)) // 1000)
    if deliver_s is not None:
        message.delivery_timestamp = deliver_s
    for name, value in properties.items():
        message.add_property(name, value)
    message.add_property(OUTBOX_ID, row.outbox_id)
    return message
