"""Bad input gets a clear error, and nothing of it is stored."""

from __future__ import annotations

from typing import Any

import pytest
from rocketmq.v5.exception import BadRequestException, PayloadTooLargeException


def trusting(producer: Any) -> Any:
    """Return the producer with the library's own checks off, so that the broker has to refuse."""
    producer.reset_setting = lambda _: None  # the broker's settings may come at any time
    producer._Producer__max_body_size = 1 << 30
    producer._Producer__validate_message_type = False
    return producer


def test_an_unknown_topic_is_refused_when_topics_are_not_created_by_themselves(
    strict_broker: Any, clients: Any, topic: str, new_message: Any
) -> None:
    producer = clients.producer(strict_broker)
    with pytest.raises(Exception, match=f"failed to fetch topic:{topic} route"):
        producer.send(new_message(topic, "nowhere"))
    strict_broker.create_topic(topic, "NORMAL")
    producer.send(new_message(topic, "somewhere"))
    assert [message["body"] for message in strict_broker.stored(topic)] == ["somewhere"]


def test_a_message_of_another_type_is_refused(
    strict_broker: Any, clients: Any, topic: str, new_message: Any
) -> None:
    producer = clients.producer(strict_broker, strict_broker.create_topic(topic, "DELAY"))
    with pytest.raises(Exception, match="message type not match"):
        producer.send(new_message(topic, "at once"))
    with pytest.raises(BadRequestException, match="TW-144"):
        trusting(producer).send(new_message(topic, "at once"))
    assert strict_broker.stored(topic) == []


def test_a_body_above_four_mebibytes_is_refused(
    broker: Any, clients: Any, topic: str, new_message: Any
) -> None:
    producer = clients.producer(broker, topic)
    with pytest.raises(PayloadTooLargeException, match="TW-142"):
        trusting(producer).send(new_message(topic, "x" * (4 * 1024 * 1024 + 1)))
    assert broker.stored(topic) == []


@pytest.mark.parametrize(
    ("attributes", "code"),
    [({"tag": "two\x01parts"}, "TW-133"), ({"keys": "two\x02parts"}, "TW-134")],
    ids=["tag", "key"],
)
def test_an_illegal_name_is_refused(
    broker: Any, clients: Any, topic: str, new_message: Any, attributes: dict[str, str], code: str
) -> None:
    with pytest.raises(BadRequestException, match=code):
        clients.producer(broker, topic).send(new_message(topic, "refused", **attributes))
    assert broker.stored(topic) == []


@pytest.mark.parametrize("name", ["UNIQ_KEY", "REAL_TOPIC", "bad\x02name"])
def test_an_illegal_property_is_refused(
    broker: Any, clients: Any, topic: str, new_message: Any, name: str
) -> None:
    message = new_message(topic, "refused")
    message.add_property(name, "value")
    with pytest.raises(BadRequestException, match="TW-135"):
        clients.producer(broker, topic).send(message)
    assert broker.stored(topic) == []
