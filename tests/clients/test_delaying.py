"""Delayed messages: never early, and recalled for good."""

from __future__ import annotations

import time
from typing import Any

import pytest


def in_seconds(delay: int) -> int:
    """Return the delivery timestamp of the official client: whole seconds of wall time."""
    return int(time.time()) + delay


def test_delayed_messages_arrive_and_none_is_early(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    producer = clients.producer(broker, topic)
    for number in range(50):
        producer.send(new_message(topic, str(number), delivery_timestamp=in_seconds(2 + number % 3)))

    got = take(clients.simple(broker, topic, group), 50)

    assert sorted(int(message.body) for message in got) == list(range(50))
    assert all(message.decode_message_timestamp >= message.delivery_timestamp for message in got)


def test_a_recalled_message_never_arrives(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    producer = clients.producer(broker, topic)
    recalled = producer.send(new_message(topic, "recalled", delivery_timestamp=in_seconds(2)))
    assert producer.recall_message(topic, recalled.recall_handle) == recalled.message_id
    producer.send(new_message(topic, "kept", delivery_timestamp=in_seconds(3)))

    [got] = take(clients.simple(broker, topic, group), 1)

    assert got.body == b"kept"
    assert [message["body"] for message in broker.stored(topic)] == ["kept"]


def test_recalling_twice_is_fine(broker: Any, clients: Any, topic: str, new_message: Any) -> None:
    producer = clients.producer(broker, topic)
    receipt = producer.send(new_message(topic, "recalled", delivery_timestamp=in_seconds(60)))
    for _ in range(2):
        assert producer.recall_message(topic, receipt.recall_handle) == receipt.message_id


def test_recalling_too_late_says_so(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    producer = clients.producer(broker, topic)
    receipt = producer.send(new_message(topic, "gone", delivery_timestamp=in_seconds(1)))
    take(clients.simple(broker, topic, group), 1)
    with pytest.raises(Exception, match=r"TW-162 .*TOO_LATE.* was delivered at"):
        producer.recall_message(topic, receipt.recall_handle)


def test_a_delivery_time_in_the_past_means_at_once(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    clients.producer(broker, topic).send(new_message(topic, "now", delivery_timestamp=in_seconds(-60)))
    [got] = take(clients.simple(broker, topic, group), 1)
    assert got.body == b"now"


def test_a_property_delays_by_the_millisecond(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    producer = clients.producer(broker, topic)
    began_ms = time.time_ns() // 1_000_000
    for name, value, delay_ms in (
        ("DELAY", "1", 1_000),
        ("TIMER_DELAY_SEC", "2", 2_000),
        ("TIMER_DELAY_MS", "1234", 1_234),
        ("TIMER_DELIVER_MS", str(began_ms + 1_777), 1_777),
        ("__STARTDELIVERTIME", str(began_ms + 1_999), 1_999),
    ):
        message = new_message(topic, str(delay_ms))
        message.add_property(name, value)
        producer.send(message)

    got = take(clients.simple(broker, topic, group), 5)

    assert all(message.decode_message_timestamp >= message.delivery_timestamp for message in got)
    assert all(message.delivery_timestamp >= began_ms + int(message.body) for message in got)
