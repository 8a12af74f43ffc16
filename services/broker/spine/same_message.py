"""Compare a message with a stored record to detect repeated sends.

Messages are compared by content, not by encoded bytes. Two messages are the same if their topics, bodies,
compression flags, and properties are equal. Properties are compared as dictionaries of user properties, id,
tag, keys and key lengths, message group, priority, and lite topic. Equal messages may be encoded differently,
because the order of a protobuf map depends on a seed that differs between processes. The order of the
properties therefore changes with each restart or takeover.

Rules
1. Both dictionaries must be equal. A message that lacks a property of the record is different. An empty
   property is equivalent to an absent property, because empty properties are never stored
   (`properties.encode_message`).
2. Properties that the broker adds (BROKER_PROPERTIES), such as those of timers, half messages, moves, and
   schedules, are removed from the record first. A client cannot set these properties, because `validation`
   rejects them.
3. Properties that a client sets anew for each attempt (PER_ATTEMPT_PROPERTIES) are removed from the message
   and from the record. These properties are trace contexts and the end of a time span that starts with the
   attempt. Birth times and delivery times also differ between attempts and are ignored.
4. Records that the broker derives from a message are not sends (`is_sent`). These records are timer
   deliveries, commits, redriven dead letters, and messages of schedules.

Cost: a single byte comparison if the properties are in the same order. Otherwise, parsing the properties of
the message and the record takes about 2 us. A message with a new id is never compared.
"""

from __future__ import annotations

from typing import Final

from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import COMPRESSED, TYPE_NORMAL, Record
from services.broker.spine import verb_properties
from tidewheel import property_names

PER_ATTEMPT_PROPERTIES: Final = frozenset(
    one.encode() for one in (verb_properties.TO, property_names.TRACE_CONTEXT, "traceparent", "tracestate")
)
"""The properties that may differ between attempts, including two properties of W3C Trace Context."""
_CONTENT: Final = frozenset(
    {
        property_names.MESSAGE_ID,
        property_names.TAG,
        property_names.KEYS,
        property_names.KEY_LENGTHS,
        property_names.MESSAGE_GROUP,
        property_names.PRIORITY,
        property_names.LITE_TOPIC,
    }
)
_ID: Final = property_names.MESSAGE_ID.encode()
BROKER_PROPERTIES: Final = frozenset(
    one.encode() for one in (property_names.RESERVED | {verb_properties.VERDICT}) - _CONTENT
)
"""The properties that only the broker can write."""
_OF_TIMER, _REDRIVEN, _OF_SCHEDULE, _DEAD_LETTER = (
    f"\x02{name}\x01".encode()
    for name in (
        property_names.TIMER_OFFSET,
        property_names.REDRIVE_OF,
        property_names.SCHEDULE,
        property_names.DEAD_LETTER_TOPIC,
    )
)
"""The encoded names of the properties that identify records created by the broker."""


def is_same(found: Record, message: Message, stored: bytes) -> bool:
    """Return whether a record has the same content as a message with encoded properties `stored`."""
    if found.body != message.body or bool(found.sys_flag & COMPRESSED) != message.gzip:
        return False
    written = found.properties
    if (properties.value_of(written, property_names.REAL_TOPIC) or found.topic) != message.topic:
        return False
    return written == stored or _content(written, BROKER_PROPERTIES | PER_ATTEMPT_PROPERTIES) == _content(
        stored, PER_ATTEMPT_PROPERTIES
    )


def is_sent(record: Record) -> bool:
    """Return whether a record was sent by a client and has a message id.

    Such a record is a message, a timer, or a half message.
    """
    stored = record.properties
    return (
        record.type == TYPE_NORMAL
        and _ID in stored
        and _OF_TIMER not in stored  # Unrolled, because a loop would take twice as long.
        and _OF_SCHEDULE not in stored  # Recovery and followers call this function for each record.
        and _REDRIVEN not in stored
        and _DEAD_LETTER not in stored
    )


def _content(written: bytes, left_out: frozenset[bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in properties.pairs(written).items() if name not in left_out}
