"""What a producer sends is what a consumer gets."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_message_arrives_as_it_was_sent(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    message = new_message(topic, "body ünïcode", tag="paid", keys="order:1")
    message.add_property("colour", "blue")
    receipt = clients.producer(broker, topic).send(message)

    [got] = take(clients.simple(broker, topic, group), 1)

    assert got.body.decode() == "body ünïcode"
    assert (got.tag, got.keys, got.properties) == ("paid", {"order:1"}, {"colour": "blue"})
    assert (got.message_id, got.topic, got.delivery_attempt) == (receipt.message_id, topic, 1)
    assert not got.corrupted


def test_a_thousand_asynchronous_sends_all_arrive_once(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    producer = clients.producer(broker, topic)
    bodies = {f"body {number}" for number in range(1_000)}
    receipts = [producer.send_async(new_message(topic, body)) for body in bodies]
    assert len({receipt.result().message_id for receipt in receipts}) == len(bodies)

    got = take(clients.simple(broker, topic, group), len(bodies))

    assert {message.body.decode() for message in got} == bodies
    assert len(broker.stored(topic)) == len(bodies)


def test_messages_of_one_group_are_stored_in_one_queue_in_order(
    broker: Any, clients: Any, topic: str, new_message: Any
) -> None:
    producer = clients.producer(broker, topic)
    for number in range(20):
        producer.send(new_message(topic, str(number), message_group=f"customer-{number % 2}"))

    stored = broker.stored(topic)

    for customer in ("customer-0", "customer-1"):
        own = [message for message in stored if message["message_group"] == customer]
        assert len({message["queue_id"] for message in own}) == 1
        assert [int(message["body"]) for message in own] == sorted(int(message["body"]) for message in own)


def test_a_tag_filter_lets_only_its_tags_through(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    producer = clients.producer(broker, topic)
    for tag in ("paid", "shipped", "new", "paid"):
        producer.send(new_message(topic, tag, tag=tag))

    got = take(clients.simple(broker, topic, group, tags="paid||shipped"), 3)

    assert sorted(message.tag for message in got) == ["paid", "paid", "shipped"]


def test_two_groups_each_get_everything(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    clients.producer(broker, topic).send(new_message(topic, "for both"))
    for one in (group, f"{group}-too"):
        [got] = take(clients.simple(broker, topic, one), 1)
        assert got.body == b"for both"


def test_the_same_topic_in_another_namespace_is_another_topic(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    for namespace in ("", "shop"):
        clients.producer(broker, topic, namespace=namespace).send(new_message(topic, f"in {namespace}"))
    for namespace in ("shop", ""):
        [got] = take(clients.simple(broker, topic, group, namespace=namespace), 1)
        assert (got.topic, got.namespace, got.body.decode()) == (topic, namespace, f"in {namespace}")


def test_a_body_of_four_mebibytes_is_taken(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    body = "x" * 4 * 1024 * 1024
    clients.producer(broker, topic).send(new_message(topic, body))
    [got] = take(clients.simple(broker, topic, group), 1)
    assert got.body.decode() == body


@pytest.mark.parametrize("reached_by", ["127.0.0.1", "localhost"])
def test_a_client_is_told_the_address_it_dialled(
    broker: Any, clients: Any, topic: str, new_message: Any, reached_by: str
) -> None:
    producer = clients.producer(broker.dialled_as(reached_by), topic)
    receipt = producer.send(new_message(topic, "hello"))
    assert str(receipt.message_queue.endpoints).lower().startswith(reached_by)
