"""Messages between the wire and the core.

Silent killers (reference/wire-protocol.md 4): a delivery without `body_encoding` makes the Python client
throw its whole batch away; the digest must be MD5 in upper-case hex, because clients disagree on how to
print CRC32; both cover the body as transported.

A topic that a property names (`TW_TIMER_TOPIC`) is in the message's own namespace, like its topic.
"""

from __future__ import annotations

from hashlib import md5
from ipaddress import ip_address

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from commitlog.message import Message
from services.broker import verb_properties
from services.broker.values import Delivery
from services.rpc.caller import Caller
from services.rpc.generated import definition_pb2 as wire
from services.rpc.names import stored_name, wire_name


def timestamp(wall_ms: int) -> Timestamp:
    """Return wall time in milliseconds as the wire has it."""
    return Timestamp(seconds=wall_ms // 1000, nanos=wall_ms % 1000 * 1_000_000)


BORN_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the last time of protobuf's Timestamp; a client's clock is only noted."""


def wall_ms(stamp: Timestamp) -> int:
    """Return a time of the wire as wall time in milliseconds, rounded up so that nothing is due early."""
    return stamp.seconds * 1000 + -(-stamp.nanos // 1_000_000)


def duration(span_ms: int) -> Duration:
    """Return a span in milliseconds as the wire has it."""
    return Duration(seconds=span_ms // 1000, nanos=span_ms % 1000 * 1_000_000)


def span_ms(span: Duration) -> int:
    """Return a span of the wire in milliseconds."""
    return span.seconds * 1000 + span.nanos // 1_000_000


def from_wire(sent: wire.Message, caller: Caller) -> Message:
    """Return the message that a producer sent; nothing is validated here, the core does that."""
    system = sent.system_properties
    return Message(
        topic=stored_name(sent.topic),
        body=sent.body,
        message_id=system.message_id,
        tag=system.tag,
        keys=tuple(system.keys),
        message_group=system.message_group,
        delivery_ms=wall_ms(system.delivery_timestamp) if system.HasField("delivery_timestamp") else None,
        transactional=system.message_type == wire.MessageType.TRANSACTION,
        properties=stored_properties(dict(sent.user_properties), sent.topic.resource_namespace),
        born_ms=min(max(wall_ms(system.born_timestamp), 0), BORN_MS_MAX),
        born_host=(address(system.born_host, caller.host), 0),
        gzip=system.body_encoding == wire.Encoding.GZIP,
        trace_context=system.trace_context,
        check_immunity_ms=immunity_ms(system),
        priority=system.priority if system.HasField("priority") else None,
        lite_topic=system.lite_topic,
    )


def to_wire(delivery: Delivery, namespace: str, invisible_ms: int, store_host: str) -> wire.Message:
    """Return a delivery as its consumer sees it."""
    system = system_properties(delivery.message)
    system.store_timestamp.CopyFrom(timestamp(delivery.store_ms))
    system.store_host = store_host
    system.receipt_handle = delivery.receipt_handle
    system.queue_id = delivery.queue_id
    system.queue_offset = delivery.queue_offset
    system.delivery_attempt = delivery.attempt
    system.invisible_duration.CopyFrom(duration(invisible_ms))
    return envelope(delivery.message, namespace, system)


def half_to_wire(message: Message, namespace: str) -> wire.Message:
    """Return a half message as the producer that is asked about it sees it."""
    return envelope(message, namespace, system_properties(message))


def envelope(message: Message, namespace: str, system: wire.SystemProperties) -> wire.Message:
    """Return a message of the wire around its system properties."""
    return wire.Message(
        topic=wire_name(message.topic, namespace),
        user_properties=wire_properties(message.properties, namespace),
        system_properties=system,
        body=message.body,
    )


def system_properties(message: Message) -> wire.SystemProperties:
    """Return what a message itself tells the client, whoever gets it."""
    system = wire.SystemProperties(
        keys=message.keys,
        message_id=message.message_id,
        message_type=message.message_type.value,
        body_encoding=wire.Encoding.GZIP if message.gzip else wire.Encoding.IDENTITY,
        body_digest=wire.Digest(
            type=wire.DigestType.MD5,
            checksum=md5(message.body, usedforsecurity=False).hexdigest().upper(),
        ),
        born_timestamp=timestamp(message.born_ms),
        born_host=message.born_host[0],
    )
    for name in ("tag", "message_group", "trace_context", "lite_topic"):
        if value := getattr(message, name):
            setattr(system, name, value)
    if message.priority is not None:
        system.priority = message.priority
    if message.delivery_ms is not None:
        system.delivery_timestamp.CopyFrom(timestamp(message.delivery_ms))
    return system


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
        return stored | {verb_properties.TOPIC: wire_name(topic, namespace).name}
    return stored


def immunity_ms(system: wire.SystemProperties) -> int | None:
    """Return how long a half is left alone before it is asked about, if the producer says so."""
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return None
    return span_ms(system.orphaned_transaction_recovery_duration) or None


def address(claimed: str, seen: str) -> str:
    """Return the IP address a client claims to have, or the one it is seen under when the claim is none."""
    try:
        return str(ip_address(claimed))
    except ValueError:
        return seen
