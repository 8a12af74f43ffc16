"""Leases: acknowledged once and for all, or given out again."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rocketmq import ConsumeResult, MessageListener
from rocketmq.v5.exception import BadRequestException


class Listener(MessageListener):
    """Fails the first `failures` times, then succeeds; keeps what it saw."""

    def __init__(self, failures: int = 0, seconds: float = 0) -> None:
        self.failures, self.seconds = failures, seconds
        self.attempts: list[int] = []

    def consume(self, message: Any) -> ConsumeResult:
        self.attempts.append(message.delivery_attempt)
        time.sleep(self.seconds)
        return ConsumeResult.FAILURE if len(self.attempts) <= self.failures else ConsumeResult.SUCCESS


def lag(broker: Any, group: str) -> float:
    """Return how many messages the group has not acknowledged."""
    return sum(broker.metric("rocketmq_consumer_lag_messages", f'consumer_group="{group}"'))


def receive_one(consumer: Any, lease_seconds: int) -> Any:
    """Receive until there is a message."""
    for _ in range(6):
        if received := consumer.receive(1, lease_seconds):
            return received[0]
    raise AssertionError("no message came")


def test_what_is_not_acknowledged_comes_again_and_its_old_handle_is_void(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any
) -> None:
    clients.producer(broker, topic).send(new_message(topic, "again"))
    consumer = clients.simple(broker, topic, group)
    first = receive_one(consumer, 1)
    second = receive_one(consumer, 15)
    assert (first.delivery_attempt, second.delivery_attempt) == (1, 2)
    assert first.message_id == second.message_id
    with pytest.raises(BadRequestException, match="TW-146"):
        consumer.ack(first)
    consumer.ack(second)
    assert lag(broker, group) == 0


def test_a_shorter_lease_brings_the_message_back_sooner(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any
) -> None:
    clients.producer(broker, topic).send(new_message(topic, "sooner"))
    consumer = clients.simple(broker, topic, group)
    message = receive_one(consumer, 3_600)
    before = message.receipt_handle
    consumer.change_invisible_duration(message, 1)
    assert message.receipt_handle != before
    again = receive_one(consumer, 15)
    assert again.message_id == message.message_id
    consumer.ack(again)


def test_a_push_consumer_gets_a_failed_message_again(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, wait_until: Any
) -> None:
    listener = Listener(failures=1)
    clients.push(broker, topic, group, listener)
    clients.producer(broker, topic).send(new_message(topic, "retry me"))
    wait_until(lambda: listener.attempts == [1, 2] and lag(broker, group) == 0, 20)


def test_a_slow_push_consumer_keeps_its_lease(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, wait_until: Any
) -> None:
    slow, other = Listener(seconds=4), Listener(seconds=4)
    for listener in (slow, other):
        clients.push(broker, topic, group, listener)
    clients.producer(broker, topic).send(new_message(topic, "slowly"))
    wait_until(lambda: bool(slow.attempts + other.attempts) and lag(broker, group) == 0, 20)
    assert slow.attempts + other.attempts == [1]
