"""Whether a stored record has the content of a message: the one comparison for the suppression of repeats.

Meanings are compared, not bytes: topic, body and its compression, and the properties as dictionaries (the
message's own, and id, tag, keys and their lengths, message group, priority, lite topic). Bytes differ between
equal messages: protobuf serializes a map in an order seeded per process, so the order of a client's
properties changes with each restart and takeover.

Rules
1. Both dictionaries must be equal; a subset is another message. A property with an empty value is never
   stored (`properties.encode_message`), so it equals an absent one.
2. The broker's own names (BROKERS_OWN), which timers, halves, moves, schedules and verbs add to a sent
   message, are removed from the record. `validation` refuses them in a message, so they are never content.
3. OF_EACH_TRY, the properties that clients write anew for each try, are removed from both: tracing, and the
   end of a span that began when the try arrived. Birth and delivery times are ignored for the same reason.
4. Records that the broker derives from a message (deliveries of timers, commits, redriven dead letters, runs
   of schedules) are not tries of it: `is_sent`.

Cost: one comparison of bytes if the order is the same; else both sides are parsed, some 2 us. A message with
a new id is never compared.
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
"""The properties that may differ between tries; the last two are of W3C Trace Context."""
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
"""The names that only the broker may write."""
_OF_TIMER, _REDRIVEN, _OF_SCHEDULE, _DEAD_LETTER = (
    f"\x02{name}\x01".encode()
    for name in (
        property_names.TIMER_OFFSET,
        property_names.REDRIVE_OF,
        property_names.SCHEDULE,
        property_names.DEAD_LETTER_TOPIC,
    )
)
"""The properties that mark a record made by the broker; they follow the message's own properties."""


def is_same(found: Record, message: Message, stored: bytes) -> bool:
    """Return whether a record has the content of a message with the encoded properties `stored`."""
    if found.body != message.body or bool(found.sys_flag & COMPRESSED) != message.gzip:
        return False
    written = found.properties
    if (properties.value_of(written, property_names.REAL_TOPIC) or found.topic) != message.topic:
        return False
    return written == stored or _content(written, BROKERS_OWN | OF_EACH_TRY) == _content(stored, OF_EACH_TRY)


def is_sent(record: Record) -> bool:
    """Return whether a client's send wrote a record: a message, timer or half with its own id."""
    stored = record.properties
    return (
        record.type == TYPE_NORMAL
        and _ID in stored
        and _OF_TIMER not in stored  # unrolled, as a loop takes twice as long, and
        and _OF_SCHEDULE not in stored  # a start and a follower check each record
        and _REDRIVEN not in stored
        and _DEAD_LETTER not in stored
    )


def _content(written: bytes, left_out: frozenset[bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in properties.pairs(written).items() if name not in left_out}
