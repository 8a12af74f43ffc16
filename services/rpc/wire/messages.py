"""Messages between the wire and the core.

What goes to consumers is written from records (`delivered.py`); here is the message that a producer sends,
and the half that it is asked about.

A topic that a property names (`TW_TIMER_TOPIC`) is in the message's own namespace, like its topic.

Cost, 256-byte bodies: 7 us a message in; it was 9 with enum values looked up each time.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import md5
from ipaddress import ip_address
from typing import Any, Final

from commitlog.message import Message, MessageType
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
"""With the name of a network interface. What is longer is no address, and not to be remembered."""


def timestamp(wall_ms: int) -> Timestamp:
    """Return wall time in milliseconds as the wire has it."""
    return Timestamp(seconds=wall_ms // 1000, nanos=wall_ms % 1000 * 1_000_000)


def set_time(stamp: Timestamp, wall_ms: int) -> None:
    """Make a time of the wire this one."""
    stamp.seconds = wall_ms // 1000
    stamp.nanos = wall_ms % 1000 * 1_000_000


BORN_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the last time of protobuf's Timestamp; a client's clock is only noted."""


def born_ms(stamp: Timestamp) -> int:
    """Return when a client says that a message was born."""
    return min(max(wall_ms(stamp), 0), BORN_MS_MAX)


def wall_ms(stamp: Timestamp) -> int:
    """Return a time of the wire as wall time in milliseconds, rounded up so that nothing is due early."""
    found: int = stamp.seconds * 1000 + -(-stamp.nanos // 1_000_000)
    return found


def duration(span_ms: int) -> Duration:
    """Return a span in milliseconds as the wire has it."""
    return Duration(seconds=span_ms // 1000, nanos=span_ms % 1000 * 1_000_000)


def span_ms(span: Duration) -> int:
    """Return a span of the wire in milliseconds."""
    found: int = span.seconds * 1000 + span.nanos // 1_000_000
    return found


def from_wire(sent: wire.Message, caller: Caller) -> Message:
    """Return the message that a producer sent; nothing is validated here, the core does that."""
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
    """Return a half message as the producer that is asked about it sees it."""
    shown = wire.Message()
    fill(shown, message, namespace)
    return shown


def fill(shown: wire.Message, message: Message, namespace: str) -> None:
    """Fill an empty message of the wire with what the message itself tells a client, whoever gets it."""
    shown.topic.resource_namespace = namespace
    shown.topic.name = name_within(message.topic, namespace)
    if given := message.properties:
        shown_properties = shown.user_properties
        for name, value in wire_properties(given, namespace).items():
            shown_properties[name] = value
    shown.body = message.body
    fill_system(shown.system_properties, message)


def fill_system(system: wire.SystemProperties, message: Message) -> None:
    """Fill the part that is not the user's."""
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
    """Return a client's properties with the topic of its verb as the store knows it."""
    if topic := given.get(verb_properties.TOPIC):
        return given | {
            verb_properties.TOPIC: stored_name(wire.Resource(resource_namespace=namespace, name=topic))
        }
    return given


def wire_properties(stored: dict[str, str], namespace: str) -> dict[str, str]:
    """Return properties with the topic of a verb as a client of `namespace` knows it."""
    if topic := stored.get(verb_properties.TOPIC):
        return stored | {verb_properties.TOPIC: name_within(topic, namespace)}
    return stored


def immunity_ms(system: wire.SystemProperties) -> int | None:
    """Return how long a half is left alone before it is asked about, as its producer says."""
    return span_ms(system.orphaned_transaction_recovery_duration) or None


def address_of(claimed: str) -> str:
    """Return an IP address as it is written; empty if it is none."""
    return _address_of(claimed) if len(claimed) <= ADDRESS_CHARACTERS_MAX else ""


@lru_cache(ADDRESSES_REMEMBERED)
def _address_of(claimed: str) -> str:
    try:
        return str(ip_address(claimed))
    except ValueError:
        return ""
