"""Messages with a priority, as the official client sends and gets them."""

from __future__ import annotations

from typing import Any

import pytest

PRIORITY = 6


def test_a_priority_is_the_queue_and_arrives_as_it_was_sent(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    producer = clients.producer(broker, broker.create_topic(topic, "PRIORITY"))
    for priority in (0, 3, 1, 9):
        producer.send(new_message(topic, str(priority), priority=priority))

    assert {one["body"]: one["queue_id"] for one in broker.stored(topic)} == {"0": 0, "1": 1, "3": 3, "9": 3}
    got = take(clients.simple(broker, topic, group), 4)

    assert {message.body.decode(): message.priority for message in got} == {"0": 0, "1": 1, "3": 3, "9": 9}
    assert {message.message_type for message in got} == {PRIORITY}


@pytest.mark.parametrize(("message_type", "attributes"), [("MIXED", {"priority": 1}), ("PRIORITY", {})])
def test_only_topics_of_priorities_take_them_and_they_take_nothing_else(
    broker: Any,
    clients: Any,
    topic: str,
    new_message: Any,
    message_type: str,
    attributes: dict[str, int],
) -> None:
    producer = clients.producer(broker, broker.create_topic(topic, message_type))
    with pytest.raises(Exception, match="message type not match"):
        producer.send(new_message(topic, "x", **attributes))


def test_a_backlog_is_received_by_priority(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    producer = clients.producer(broker, broker.create_topic(topic, "PRIORITY"))
    for number in range(12):
        producer.send(new_message(topic, str(number), priority=number % 4))

    got = take(clients.simple(broker, topic, group), 12)

    assert [message.priority for message in got] == sorted((number % 4 for number in range(12)), reverse=True)
    for priority in range(4):
        of_one = [int(message.body) for message in got if message.priority == priority]
        assert of_one == sorted(of_one)
