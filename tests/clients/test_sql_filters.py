"""SQL filters, as the official client asks by them."""

from __future__ import annotations

from typing import Any

import pytest
from rocketmq import FilterExpression

SQL = 2


def test_only_what_the_expression_says_is_received_and_the_rest_is_done(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    producer = clients.producer(broker, topic)
    for price in range(40):
        message = new_message(topic, str(price), tag="even" if price % 2 == 0 else "odd")
        if price != 38:
            message.add_property("price", str(price))
        producer.send(message)

    consumer = clients.simple(broker, topic, group)
    consumer.subscribe(topic, FilterExpression("price >= 30 AND TAGS = 'even'", SQL))
    got = take(consumer, 4)
    assert sorted(int(message.body) for message in got) == [30, 32, 34, 36]
    assert not consumer.receive(32, 15)

    producer.send(new_message(topic, "later", tag="even"))
    consumer.subscribe(topic, FilterExpression("price IS NULL", SQL))
    [got_later] = take(consumer, 1)
    assert got_later.body == b"later", "what the group did not want before has passed, 38 too"


def test_a_wrong_expression_is_refused_with_its_place(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any
) -> None:
    clients.producer(broker, topic).send(new_message(topic, "x"))
    consumer = clients.simple(broker, topic, group)
    consumer.subscribe(topic, FilterExpression("price > 3 = = 5", SQL))
    with pytest.raises(Exception, match="Line 1, column 13: found =, expected"):
        consumer.receive(32, 15)
