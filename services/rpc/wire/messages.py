"""Conversion between protobuf messages and the messages of the core.

Deliveries to consumers are encoded from records (`delivered.py`). This module converts the messages that
producers send, and half messages for check-backs.

A topic in a property (`TW_TIMER_TOPIC`) is in the same namespace as the message's topic.

Cost for 256-byte bodies: 7 us per incoming message, compared with 9 us if enum values are looked up each
time.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import md5
from ipaddress import ip_address
from typing import Any, Final

from commitlog.records.message import Message, MessageType
from services.broker.spine import verb_properties
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated.duration_pb2 import Duration
from services.rpc.generated.timestamp_pb2 import Timestamp
from services.rpc.wire.caller import Caller
from services.rpc.wire.names import name_within, stored_name

TRANSACTION: Final = wire.MessageType.TRANSACTION
IMMUNITY: Final = "orphaned_transaction_recovery_duration"
IDENTITY, GZIP, MD5 = wire.Encoding.IDENTITY, wire.Encoding.GZIP, wire.DigestType.MD5
TYPES: Final[dict[MessageType, Any]] = {
    one: wire.MessageType.Value(one.value) for one in MessageType if one is not MessageType.MIXED
}
ADDRESSES_REMEMBERED: Final = 4_096
ADDRESS_CHARACTERS_MAX: Final = 64
"""Includes a network interface name. Longer texts are not addresses and are not cached."""


def timestamp(wall_ms: int) -> Timestamp:
    """Return wall-clock time in milliseconds as a protobuf Timestamp."""
    return Timestamp(seconds=wall_ms // 1000, nanos=wall_ms % 1000 * 1_000_000)


def set_time(stamp: Timestamp, wall_ms: int) -> None:
    """Set a protobuf Timestamp to a time in milliseconds."""
    stamp.seconds = wall_ms // 1000
    stamp.nanos = wall_ms % 1000 * 1_000_000


BORN_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, which is the maximum of protobuf's Timestamp. Client clocks are not validated."""


def born_ms(stamp: Timestamp) -> int:
    """Return the birth time of a message according to its client."""
    return min(max(wall_ms(stamp), 0), BORN_MS_MAX)


def wall_ms(stamp: Timestamp) -> int:
    """Return a protobuf Timestamp in milliseconds, rounded up so that nothing is due early."""
    found: int = stamp.seconds * 1000 + -(-stamp.nanos // 1_000_000)
    return found


def duration(span_ms: int) -> Duration:
    """Return a time span in milliseconds as a protobuf Duration."""
    return Duration(seconds=span_ms // 1000, nanos=span_ms % 1000 * 1_000_000)


def span_ms(span: Duration) -> int:
    """Return a protobuf Duration in milliseconds."""
    found: int = span.seconds * 1000 + span.nanos // 1_000_000
    return found


def from_wire(sent: wire.Message, caller: Caller) -> Message:
    """Convert a message from a producer. The core validates it later."""
    system, topic, given = sent.system_properties, sent.topic, sent.user_properties
    has, keys = system.HasField, system.keys
    properties = {name: given[name] for name in given}
    if verb_properties.TOPIC in properties:
        properties = stored_properties(properties, topic.resource_namespace)
    return Message(
        topic=stored_name(topic),
        body=sent.body,
        message_id=system.message_id,
        tag=system.tag,
        keys=(keys[0],) if len(keys) == 1 else tuple(keys),
        message_group=system.message_group,
        delivery_ms=wall_ms(system.delivery_timestamp) if has("delivery_timestamp") else None,
        transactional=system.message_type == TRANSACTION,
        properties=properties,
        born_ms=born_ms(system.born_timestamp) if has("born_timestamp") else 0,
        born_host=(address_of(system.born_host) or caller.host, 0),
        gzip=system.body_encoding == GZIP,
        trace_context=system.trace_context,
        check_immunity_ms=immunity_ms(system) if has(IMMUNITY) else None,
        priority=system.priority if has("priority") else None,
        lite_topic=system.lite_topic,
    )


def half_to_wire(message: Message, namespace: str) -> wire.Message:
    """Convert a half message for a check-back to its producer."""
    shown = wire.Message()
    fill(shown, message, namespace)
    return shown


def fill(shown: wire.Message, message: Message, namespace: str) -> None:
    """Fill a protobuf message with the fields that are the same for all recipients."""
    shown.topic.resource_namespace = namespace
    shown.topic.name = name_within(message.topic, namespace)
    if given := message.properties:
        shown_properties = shown.user_properties
        for name, value in wire_properties(given, namespace).items():
            shown_properties[name] = value
    shown.body = message.body
    fill_system(shown.system_properties, message)


def fill_system(system: wire.SystemProperties, message: Message) -> None:
    """Fill the system properties."""
    if message.keys:
        system.keys.extend(message.keys)
    system.message_id = message.message_id
    system.message_type = TYPES[message.message_type]
    system.body_encoding = GZIP if message.gzip else IDENTITY
    digest = system.body_digest
    digest.type = MD5
    digest.checksum = md5(message.body, usedforsecurity=False).hexdigest().upper()
    set_time(system.born_timestamp, message.born_ms)
    system.born_host = message.born_host[0]
    if message.tag:
        system.tag = message.tag
    if message.message_group:
        system.message_group = message.message_group
    if message.trace_context:
        system.trace_context = message.trace_context
    if message.lite_topic:
        system.lite_topic = message.lite_topic
    if message.priority is not None:
        system.priority = message.priority
    if message.delivery_ms is not None:
        set_time(system.delivery_timestamp, message.delivery_ms)


def stored_properties(given: dict[str, str], namespace: str) -> dict[str, str]:
    """Return a client's properties with the stored name of the timer topic."""
    if topic := given.get(verb_properties.TOPIC):
        return given | {
            verb_properties.TOPIC: stored_name(wire.Resource(resource_namespace=namespace, name=topic))
        }
    return given


def wire_properties(stored: dict[str, str], namespace: str) -> dict[str, str]:
    """Return stored properties with the timer topic as a client of `namespace` knows it."""
    if topic := stored.get(verb_properties.TOPIC):
        return stored | {verb_properties.TOPIC: name_within(topic, namespace)}
    return stored


def immunity_ms(system: wire.SystemProperties) -> int | None:
    """Return the time before the first check-back that the producer requests for a half message."""
    return span_ms(system.orphaned_transaction_recovery_duration) or None


def address_of(claimed: str) -> str:
    """Return a normalized IP address, or an empty string for other text."""
    return _address_of(claimed) if len(claimed) <= ADDRESS_CHARACTERS_MAX else ""


@lru_cache(ADDRESSES_REMEMBERED)
def _address_of(claimed: str) -> str:
    try:
        return str(ip_address(claimed))
    except ValueError:
        return ""
