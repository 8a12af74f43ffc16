"""Messages and names between the wire and the core."""

from __future__ import annotations

from hashlib import md5

import pytest

from commitlog.records.message import Message, MessageType
from services.broker.sending import message_record
from services.broker.spine.values import Delivery
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated.timestamp_pb2 import Timestamp
from services.rpc.wire import messages
from services.rpc.wire.caller import Caller
from services.rpc.wire.delivered import DeliveryView
from services.rpc.wire.messages import BORN_MS_MAX, from_wire, half_to_wire, timestamp, wall_ms
from services.rpc.wire.names import stored_name, wire_name

SENT = wire.Message(
    topic=wire.Resource(name="orders", resource_namespace="shop"),
    user_properties={"colour": "blue"},
    body=b"zipped",
    system_properties=wire.SystemProperties(
        tag="paid",
        keys=["order:1", "customer:2"],
        message_id="0102",
        body_encoding=wire.Encoding.GZIP,
        born_timestamp=Timestamp(seconds=1_763_700_000),
        born_host="10.0.0.9",
        message_group="customer:2",
        trace_context="00-abc",
    ),
)


def delivered(message: Message) -> wire.Message:
    record = message_record(message, 3)
    record.queue_offset, record.store_ms = 41, 1_763_700_001_500
    return DeliveryView("shop", 15_000, "127.0.0.1").message(Delivery(record, 2, "handle"))


def test_a_delivery_tells_what_was_sent() -> None:
    got = delivered(from_wire(SENT, Caller("c")))
    system = got.system_properties
    assert got.topic == SENT.topic
    assert got.body == SENT.body
    assert got.user_properties == SENT.user_properties
    for name in ("tag", "keys", "message_id", "body_encoding", "born_host", "message_group", "trace_context"):
        assert getattr(system, name) == getattr(SENT.system_properties, name)
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 41, 2)
    assert system.receipt_handle == "handle"
    assert wall_ms(system.store_timestamp) == 1_763_700_001_500
    assert system.invisible_duration.seconds == 15


def test_a_delivery_has_what_clients_fail_without() -> None:
    plain = wire.Message(body=b"plain", system_properties=wire.SystemProperties(message_id="1"))
    system = delivered(from_wire(plain, Caller("c"))).system_properties
    assert system.body_encoding == wire.Encoding.IDENTITY
    assert system.body_digest.type == wire.DigestType.MD5
    assert system.body_digest.checksum == md5(b"plain").hexdigest().upper()
    assert not system.HasField("delivery_timestamp")


@pytest.mark.parametrize("due_ms", [1_763_700_000_000, 1_763_700_000_001, 1_763_700_000_999])
def test_a_due_time_keeps_its_millisecond(due_ms: int) -> None:
    assert wall_ms(timestamp(due_ms)) == due_ms


def test_a_due_time_between_milliseconds_is_never_early() -> None:
    assert wall_ms(Timestamp(seconds=1, nanos=1)) == 1_001


@pytest.mark.parametrize(
    ("seconds", "kept_ms"),
    [(-1, 0), (-(1 << 63), 0), ((1 << 63) - 1, BORN_MS_MAX), (1_763_700_000, 1_763_700_000_000)],
)
def test_what_a_clients_clock_says_is_kept_within_what_a_record_can_hold(seconds: int, kept_ms: int) -> None:
    sent = wire.Message(system_properties=wire.SystemProperties(born_timestamp=Timestamp(seconds=seconds)))
    message = from_wire(sent, Caller("c"))
    assert message.born_ms == kept_ms
    assert wall_ms(delivered(message).system_properties.born_timestamp) == kept_ms


def test_a_host_that_is_no_address_is_replaced_by_the_one_seen() -> None:
    sent = wire.Message(system_properties=wire.SystemProperties(born_host="my-laptop"))
    assert from_wire(sent, Caller("c", host="10.1.2.3")).born_host == ("10.1.2.3", 0)


def test_a_host_that_is_far_too_long_is_not_remembered() -> None:
    """A born host may have megabytes; of those that are addresses some thousand are kept to be quick."""
    before = messages._address_of.cache_info().currsize
    assert messages.address_of("x" * 1_000_000) == ""
    assert messages._address_of.cache_info().currsize == before
    assert messages.address_of("2001:0db8::1") == "2001:db8::1"


@pytest.mark.parametrize(("namespace", "stored"), [("", "orders"), ("shop", "shop%orders")])
def test_a_namespace_is_a_prefix_in_the_store_only(namespace: str, stored: str) -> None:
    resource = wire.Resource(resource_namespace=namespace, name="orders")
    assert stored_name(resource) == stored
    assert wire_name(stored, namespace) == resource


@pytest.mark.parametrize(("namespace", "stored"), [("", "pushes"), ("shop", "shop%pushes")])
def test_the_topic_of_a_verb_is_in_the_namespace_of_its_message(namespace: str, stored: str) -> None:
    """Nobody names a timer of another namespace, and consumers see the name that was given."""
    sent = wire.Message(
        topic=wire.Resource(resource_namespace=namespace, name="orders"),
        user_properties={"TW_TIMER_CANCEL": "k", "TW_TIMER_TOPIC": "pushes"},
    )
    message = from_wire(sent, Caller("c"))
    assert message.properties["TW_TIMER_TOPIC"] == stored
    assert half_to_wire(message, namespace).user_properties == sent.user_properties


@pytest.mark.parametrize("priority", [0, 7, 0x7FFFFFFF])
def test_a_priority_goes_both_ways(priority: int) -> None:
    sent = wire.Message(system_properties=wire.SystemProperties(priority=priority))
    message = from_wire(sent, Caller("c"))
    assert message.message_type is MessageType.PRIORITY
    system = delivered(message).system_properties
    assert (system.priority, system.message_type) == (priority, wire.MessageType.PRIORITY)


def test_a_message_without_a_priority_has_none_on_the_wire() -> None:
    assert from_wire(SENT, Caller("c")).priority is None
    assert not delivered(from_wire(SENT, Caller("c"))).system_properties.HasField("priority")
