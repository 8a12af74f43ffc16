"""The comparison of a stored record with a message, by which repeated sends are suppressed.

The meanings are compared, not the bytes: topic, body and compression, and the properties as dictionaries (the
user's properties, id, tag, keys and their lengths, message group, priority, and lite topic). The bytes of
equal messages may differ, because protobuf serializes a map in an order seeded per process, so the order of a
client's properties changes with each restart and takeover.

Rules
1. The dictionaries of both sides must be equal. A message with a subset of the properties is a different
   message. A property with an empty value is never stored (`properties.encode_message`), so it equals an
   absent property.
2. The broker's own properties (BROKERS_OWN), which timers, half messages, moves, schedules, and verbs add to
   a sent message, are removed from the record before the comparison. A client cannot set these properties,
   because `validation` rejects them.
3. OF_EACH_TRY, the properties that clients write again for each attempt to send, are removed from both sides.
   These properties are trace contexts, and the end of a time span that began when the attempt arrived. Birth
   and delivery times also differ between attempts, and are ignored.
4. Records that the broker derives from a message (timer deliveries, commits, redriven dead letters, and runs
   of schedules) do not count as attempts to send the message (`is_sent`).

The cost is one comparison of bytes if the properties are in the same order, and otherwise about 2 us to parse
both sides. A message with a new id is never compared.
"""

from __future__ import annotations

from typing import Final

from commitlog import properties
from commitlog.message import Message
from commitlog.record import COMPRESSED, TYPE_NORMAL, Record
from services.broker.spine import verb_properties
from tidewheel import property_names

OF_EACH_TRY: Final = frozenset(
    one.encode() for one in (verb_properties.TO, property_names.TRACE_CONTEXT, "traceparent", "tracestate")
)
"""The properties that may differ between attempts to send, including two of W3C Trace Context."""
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
BROKERS_OWN: Final = frozenset(
    one.encode() for one in (property_names.RESERVED | {verb_properties.VERDICT}) - _CONTENT
)
"""The names of the properties that only the broker may write."""
_OF_TIMER, _REDRIVEN, _OF_SCHEDULE, _DEAD_LETTER = (
    f"\x02{name}\x01".encode()
    for name in (
        property_names.TIMER_OFFSET,
        property_names.REDRIVE_OF,
        property_names.SCHEDULE,
        property_names.DEAD_LETTER_TOPIC,
    )
)
"""The properties that mark a record created by the broker, stored after the message's own properties."""


def is_same(found: Record, message: Message, stored: bytes) -> bool:
    """Return whether a record has the content of a message with the encoded properties `stored`."""
    if found.body != message.body or bool(found.sys_flag & COMPRESSED) != message.gzip:
        return False
    written = found.properties
    if (properties.value_of(written, property_names.REAL_TOPIC) or found.topic) != message.topic:
        return False
    return written == stored or _content(written, BROKERS_OWN | OF_EACH_TRY) == _content(stored, OF_EACH_TRY)


def is_sent(record: Record) -> bool:
    """Return whether a client's send wrote a record: a message, a timer, or a half message with an id."""
    stored = record.properties
    return (
        record.type == TYPE_NORMAL
        and _ID in stored
        and _OF_TIMER not in stored  # The tests are unrolled, because a loop takes twice as long,
        and _OF_SCHEDULE not in stored  # and recovery and followers check each record
        and _REDRIVEN not in stored
        and _DEAD_LETTER not in stored
    )


def _content(written: bytes, left_out: frozenset[bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in properties.pairs(written).items() if name not in left_out}
