"""Record properties: UTF-8 pairs `name 0x01 value 0x02` with RocketMQ's names.

As in RocketMQ's `MessageDecoder`, a writer ends every pair with 0x02. A reader accepts a missing final 0x02,
drops pairs without a value, and uses the last of several pairs with the same name. There is no escaping.
Names and values that contain 0x01 or 0x02 are rejected before encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from commitlog.records.compression import to_client_format
from commitlog.records.message import Message
from commitlog.records.record import Record
from tidewheel.message_rules import key_lengths
from tidewheel.property_names import (
    CHECK_IMMUNITY_SECONDS,
    DEAD_ATTEMPTS,
    DEAD_FIRST_ERROR,
    DEAD_LAST_ERROR,
    DEAD_LETTER_MESSAGE_ID,
    DEAD_LETTER_TOPIC,
    DEAD_REASON,
    DUE_MS,
    KEY_LENGTHS,
    KEYS,
    LITE_TOPIC,
    MESSAGE_GROUP,
    MESSAGE_ID,
    OCCURRENCE_MS,
    ORIGIN_TOPIC,
    PRIORITY,
    PRIORITY_MAX,
    REAL_TOPIC,
    REDRIVE_OF,
    RESERVED,
    SCHEDULE,
    TAG,
    TRACE_CONTEXT,
    TRANSACTIONAL,
)

SHOWN: Final = frozenset({
    SCHEDULE, OCCURRENCE_MS,
    DEAD_LETTER_TOPIC, DEAD_LETTER_MESSAGE_ID, DEAD_REASON, DEAD_ATTEMPTS, DEAD_FIRST_ERROR, DEAD_LAST_ERROR,
    REDRIVE_OF, ORIGIN_TOPIC,
})  # fmt: skip
"""Reserved properties that consumers see: the schedule of a message, and why it is a dead letter."""
_HIDDEN: Final = RESERVED - SHOWN


def encode(properties: dict[str, str]) -> bytes:
    """Encode properties. Omit pairs with an empty value, because readers drop them."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items() if value]).encode()


def decode(stored: bytes) -> dict[str, str]:
    """Return the decoded pairs, omitting malformed ones."""
    found: dict[str, str] = {}
    for pair in stored.decode(errors="replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if value:
            found[name] = value
    return found


def pairs(stored: bytes) -> dict[bytes, bytes]:
    """Return the pairs as UTF-8 bytes, omitting malformed ones."""
    if not stored.isascii():
        stored = stored.decode(errors="replace").encode()
    found: dict[bytes, bytes] = {}
    for pair in stored.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if value:
            found[name] = value
    return found


def of_record(record: Record) -> dict[str, str]:
    """Return the properties of a record. Do not modify the dictionary.

    Each record is parsed only once.
    """
    parsed = record.parsed
    if parsed is None or parsed[0] is not record.properties:
        parsed = record.parsed = record.properties, decode(record.properties)
    return parsed[1]


def encode_message(message: Message, marks: str = "") -> bytes:
    """Encode the properties of a message, followed by its attributes.

    The properties must not have reserved names. `marks` holds encoded pairs to append. This takes half as
    long as encoding the same pairs from a dictionary.
    """
    parts = [f"{name}\x01{value}\x02" for name, value in message.properties.items() if value]
    if message.message_id:
        parts.append(f"{MESSAGE_ID}\x01{message.message_id}\x02")
    if message.tag:
        parts.append(f"{TAG}\x01{message.tag}\x02")
    if message.keys:
        parts.append(_keys_pairs(message.keys))
    if message.message_group:
        parts.append(f"{MESSAGE_GROUP}\x01{message.message_group}\x02")
    if message.priority is not None:
        parts.append(f"{PRIORITY}\x01{message.priority}\x02")
    if message.lite_topic:
        parts.append(f"{LITE_TOPIC}\x01{message.lite_topic}\x02")
    if message.trace_context:
        parts.append(f"{TRACE_CONTEXT}\x01{message.trace_context}\x02")
    if marks:
        parts.append(marks)
    return "".join(parts).encode()


def _keys_pairs(keys: tuple[str, ...]) -> str:
    """Encode the keys of a message.

    As in RocketMQ, KEYS holds the keys separated by spaces. If a key contains a space, KEY_LENGTHS holds
    their lengths.
    """
    lengths = key_lengths(keys)
    more = f"{KEY_LENGTHS}\x01{lengths}\x02" if lengths else ""
    return f"{KEYS}\x01{' '.join(keys)}\x02{more}"


def keys_in(joined: str, lengths: str) -> tuple[str, ...]:
    """Return the keys stored in the properties KEYS and KEY_LENGTHS.

    If the lengths do not match, split KEYS at the spaces.
    """
    words = tuple([word for word in joined.split(" ") if word])
    if not lengths:
        return words
    keys, at = list[str](), 0
    for length in lengths.split(" "):
        if not length.isdecimal() or (at and joined[at - 1 : at] != " "):
            return words
        keys.append(joined[at : at + int(length)])
        at += int(length) + 1
    return tuple(keys) if at == len(joined) + 1 and all(keys) else words


def keys_of(stored: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys of a message as the producer sent them."""
    joined = stored.get(KEYS)
    return keys_in(joined, stored.get(KEY_LENGTHS, "")) if joined else ()


def to_message(record: Record) -> Message:
    """Return the message in a record, with its real topic.

    This is the inverse of `encode_message`. Properties set by the broker are omitted, but the due time is
    returned as `delivery_ms`. The body is plain or gzip. Raise `LibraryMissing` if an imported body needs a
    library that is not installed.
    """
    stored = of_record(record)
    get = stored.get
    due_ms, immunity, priority = get(DUE_MS, ""), get(CHECK_IMMUNITY_SECONDS, ""), get(PRIORITY)
    body, gzip = to_client_format(record.body, record.sys_flag) if record.sys_flag else (record.body, False)
    return Message(
        topic=get(REAL_TOPIC) or record.topic,
        body=body,
        message_id=get(MESSAGE_ID, ""),
        tag=get(TAG, ""),
        keys=keys_of(stored),
        message_group=get(MESSAGE_GROUP, ""),
        delivery_ms=int(due_ms) if due_ms.isdigit() else None,
        transactional=get(TRANSACTIONAL) == "true",
        properties={name: value for name, value in stored.items() if name not in _HIDDEN},
        born_ms=record.born_ms,
        born_host=record.born_host,
        gzip=gzip,
        trace_context=get(TRACE_CONTEXT, ""),
        check_immunity_ms=int(immunity) * 1000 if immunity.isdigit() else None,
        priority=None if priority is None else priority_of(priority),
        lite_topic=get(LITE_TOPIC, ""),
    )


def priority_of(text: str) -> int | None:
    """Return the priority in a property value, or None if it is not valid."""
    is_number = text.isdecimal() and len(text) <= len(str(PRIORITY_MAX))
    return int(text) if is_number and int(text) <= PRIORITY_MAX else None


def value_of(stored: bytes, name: str) -> str:
    """Return the value of a property, or "" if it is missing. Other properties are not parsed."""
    marker, at_start = _markers(name)
    start = stored.rfind(marker)
    if start >= 0:
        start += len(marker)
    elif stored.startswith(at_start):
        start = len(at_start)
    else:
        return ""
    end = stored.find(b"\x02", start)
    return stored[start : end if end >= 0 else None].decode(errors="replace")


@lru_cache(maxsize=128)
def _markers(name: str) -> tuple[bytes, bytes]:
    """Return the bytes before the value of a property.

    The first result applies to a property that follows another one, and the second to the first property.
    """
    return f"\x02{name}\x01".encode(), f"{name}\x01".encode()
