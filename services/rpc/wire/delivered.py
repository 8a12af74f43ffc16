"""Deliveries in the bytes of the wire, written straight from their records: no message is made between.

Silent killers (reference/wire-protocol.md 4): a delivery without `body_encoding` makes the Python client
throw its whole batch away; the digest must be MD5 in upper-case hex, because clients disagree on how to
print CRC32; both cover the body as transported.

`services.rpc.wire.messages.fill` tells the same of a `Message`, by protobuf; a test holds the two together.
Fields do not ascend: what is the same in a whole answer comes last.

Cost, 256-byte bodies: 5 us a delivery, a fifth of it MD5; it was 6 by protobuf, and 5 for its `Message`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import md5
from typing import Final

from commitlog import limits, properties
from commitlog.message import MessageType
from commitlog.record import COMPRESSED
from services.broker.spine import verb_properties
from services.broker.spine.values import Delivery
from services.rpc.generated import definition_pb2 as wire
from services.rpc.wire.messages import TYPES, duration, timestamp
from services.rpc.wire.names import name_within, wire_name
from services.rpc.wire.replies import field, text_field, varint
from tidewheel import property_names

REMEMBERED: Final = 4_096
PAIR_BYTES_MAX: Final = 127 - 4
"""Of a name and its value which, each behind tag and length, have a length of one byte together."""
TRANSACTIONAL, DUE_MS, MESSAGE_GROUP, PRIORITY, LITE_TOPIC, REAL_TOPIC, VERB_TOPIC, KEYS, KEY_LENGTHS = (
    name.encode()
    for name in (
        property_names.TRANSACTIONAL,
        property_names.DUE_MS,
        property_names.MESSAGE_GROUP,
        property_names.PRIORITY,
        property_names.LITE_TOPIC,
        property_names.REAL_TOPIC,
        verb_properties.TOPIC,
        property_names.KEYS,
        property_names.KEY_LENGTHS,
    )
)
PARTED: Final = b"\x02"
"""Ends a stored property, so no key has it."""
NORMAL: Final = TYPES[MessageType.NORMAL]
TYPING: Final = frozenset((TRANSACTIONAL, DUE_MS, MESSAGE_GROUP, PRIORITY, LITE_TOPIC))
"""What makes a message of another type than NORMAL."""
SYSTEM: Final = b'%b"$\x08' + varint(wire.DigestType.MD5) + b"\x12 %b%b%b%b\x62%b%bp%b%b"
"""Texts, digest 4, what has few values, birth 7 and 8, store time 9, handle 12, queue offset 14, what a whole
answer shares."""


class DeliveryView:
    """How deliveries look in one answer, to a client of `namespace`."""

    def __init__(self, namespace: str, invisible_ms: int, store_host: str) -> None:
        self._namespace = namespace
        shared = wire.SystemProperties(store_host=store_host, invisible_duration=duration(invisible_ms))
        self._shared = shared.SerializeToString()

    def reply(self, delivery: Delivery) -> bytes:
        """Return the reply of a receive that holds a delivery."""
        head, body = self._head(delivery), delivery.record.body
        return b"\x12%b%b%b" % (varint(len(head) + len(body)), head, body)

    def message(self, delivery: Delivery) -> wire.Message:
        """Return a delivery as its consumer reads it."""
        return wire.Message.FromString(self._head(delivery) + delivery.record.body)

    def _head(self, delivery: Delivery) -> bytes:
        """Return a message's bytes up to its body (4): topic (1), user's (2) and system properties (3)."""
        record, attempt, receipt_handle, _ = delivery
        given, handle, body = properties.pairs(record.properties), receipt_handle.encode(), record.body
        if VERB_TOPIC in given:
            given[VERB_TOPIC] = name_within(given[VERB_TOPIC].decode(), self._namespace).encode()
        if KEY_LENGTHS in given:
            given[KEYS] = exact_keys(given)
        users = texts = b""
        for name, value in given.items():
            write = WRITERS.get(name)
            if write is None:
                users += pair_field(name, value)
            else:
                texts += write(value)
        system = SYSTEM % (
            texts,
            md5(body, usedforsecurity=False).hexdigest().upper().encode(),
            few_fields(
                NORMAL if TYPING.isdisjoint(given) else TYPES[message_type(given)],
                record.sys_flag & COMPRESSED,
                record.queue_id,
                attempt,
            ),
            birth_fields(record.born_ms, record.born_host[0]),
            moment(b"\x4a", record.store_ms),
            varint(len(handle)),
            handle,
            varint(record.queue_offset),
            self._shared,
        )
        topic = topic_field(given.get(REAL_TOPIC) or record.topic, self._namespace)
        behind = b"\x22" + varint(len(body)) if body else b""
        return b"%b%b\x1a%b%b%b" % (topic, users, varint(len(system)), system, behind)


def message_type(given: dict[bytes, bytes]) -> MessageType:
    """Return the type that a record's properties give it, as `Message.message_type` does."""
    if given.get(TRANSACTIONAL) == b"true":
        return MessageType.TRANSACTION
    if given.get(DUE_MS, b"").isdigit():
        return MessageType.DELAY
    if MESSAGE_GROUP in given:
        return MessageType.FIFO
    if PRIORITY in given and properties.priority_of(given[PRIORITY].decode()) is not None:
        return MessageType.PRIORITY
    return MessageType.LITE if LITE_TOPIC in given else MessageType.NORMAL


def pair_field(name: bytes, value: bytes) -> bytes:
    """Return the bytes of one of the user's properties."""
    name_bytes, value_bytes = len(name), len(value)
    pair_bytes = name_bytes + value_bytes
    if pair_bytes <= PAIR_BYTES_MAX:
        return b"\x12%c\n%c%b\x12%c%b" % (pair_bytes + 4, name_bytes, name, value_bytes, value)
    return field(b"\x12", field(b"\n", name) + field(b"\x12", value))


def exact_keys(given: dict[bytes, bytes]) -> bytes:
    """Return keys of which some have a blank, each behind `PARTED`, for `key_fields`."""
    keys = properties.keys_in(given.get(KEYS, b"").decode(), given[KEY_LENGTHS].decode())
    return b"".join([PARTED + key.encode() for key in keys])


def key_fields(keys: bytes) -> bytes:
    """Return the bytes of a message's keys."""
    parted = keys.split(PARTED if PARTED in keys else b" ")
    return b"".join([field(b"\x12", key) for key in parted if key])


def due_field(due_ms: bytes) -> bytes:
    """Return the bytes of the time at which a message was due."""
    return moment(b"\x5a", int(due_ms)) if due_ms.isdigit() else b""


def priority_field(given: bytes) -> bytes:
    """Return the bytes of a priority."""
    priority = properties.priority_of(given.decode())
    return b"" if priority is None else b"\xb0\x01" + varint(priority)


def omit(hidden: bytes) -> bytes:
    """Tell nothing of what is the broker's own."""
    return b""


WRITERS: Final[dict[bytes, Callable[[bytes], bytes]]] = {
    **{name.encode(): omit for name in property_names.RESERVED - properties.SHOWN},
    property_names.TAG.encode(): partial(field, b"\x0a"),
    KEYS: key_fields,
    property_names.MESSAGE_ID.encode(): partial(field, b"\x1a"),
    DUE_MS: due_field,
    MESSAGE_GROUP: partial(field, b"\x8a\x01"),
    property_names.TRACE_CONTEXT.encode(): partial(field, b"\x92\x01"),
    LITE_TOPIC: partial(field, b"\xaa\x01"),
    PRIORITY: priority_field,
}
"""What becomes of a stored property that is not the user's."""


@lru_cache(limits.TOPICS_CACHED)
def topic_field(stored: str | bytes, namespace: str) -> bytes:
    """Return the bytes of a topic, as a client of `namespace` knows it."""
    topic = stored if isinstance(stored, str) else stored.decode()
    return field(b"\x0a", wire_name(topic, namespace).SerializeToString())


@lru_cache(REMEMBERED)
def few_fields(message_type: wire.MessageType, is_gzip: int, queue_id: int, attempt: int) -> bytes:
    """Return the bytes of what has few values: encoding 5, type 6, queue 13, attempt 16."""
    encoding = wire.Encoding.GZIP if is_gzip else wire.Encoding.IDENTITY
    few = wire.SystemProperties(body_encoding=encoding, message_type=message_type)
    few.queue_id, few.delivery_attempt = queue_id, attempt
    return few.SerializeToString()


@lru_cache(REMEMBERED)
def birth_fields(born_ms: int, host: str) -> bytes:
    """Return the bytes that tell when and where a message was born."""
    return moment(b"\x3a", born_ms) + text_field(b"\x42", host)


@lru_cache(REMEMBERED)
def moment(tag: bytes, wall_ms: int) -> bytes:
    """Return the bytes of a time behind its tag."""
    return field(tag, timestamp(wall_ms).SerializeToString())
