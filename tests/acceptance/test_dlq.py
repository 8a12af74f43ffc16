"""`tidewheel dlq` as its users meet it: why messages were given up, back to work with them, every mistake."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

with patch.dict(os.environ, HOME=tempfile.mkdtemp(prefix="tidewheel-client-logs-")):
    from rocketmq import (
        ClientConfiguration,
        Credentials,
        FilterExpression,
        Message,
        Producer,
        SimpleConsumer,
    )

logging.getLogger("rocketmq-python-client").propagate = False

CLIENT_MISTAKE, REFUSED = 2, 4
ORDERS = 4


@pytest.fixture
def consumer(serving: Any, eventually: Any) -> Iterator[SimpleConsumer]:
    """A consumer of the group shop, which has given up every order after one attempt of a second."""
    config = ClientConfiguration(serving.listen, Credentials())
    producer = Producer(config, ("orders",))
    producer.startup()
    for number in range(ORDERS):
        message = Message()
        message.topic, message.body, message.keys = "orders", b"an order", f"order:{number}"
        message.tag = "late" if number else "early"
        producer.send(message)
    producer.shutdown()
    serving.run("group", "create", "shop", "orders")
    serving.run("group", "set", "shop", "--attempts", "1")
    consumer = SimpleConsumer(config, "shop", {"orders": FilterExpression("*")}, 1)
    consumer.startup()

    def given_up() -> bool:
        consumer.receive(32, 1)
        [*groups] = serving.json("dlq", "ls")
        return bool(groups) and groups[0]["count"] == ORDERS

    eventually(given_up)
    yield consumer
    consumer.shutdown()


def test_why_they_were_given_up_and_back_to_work_with_them(serving: Any, consumer: SimpleConsumer) -> None:
    assert re.search(r"^shop +4 +\d\d:", serving.run("dlq", "ls"), re.MULTILINE)
    listed = serving.run("dlq", "ls", "shop", "--key", "order:2", "--died-of", "Not acknowledged")
    assert re.search(r"^2 +orders +order:2 +late +1 +attempts used up", listed, re.MULTILINE), listed
    shown = serving.run("dlq", "show", "shop", "2")
    assert re.search(r"^  first error \S+ +not acknowledged in time, consumer ", shown, re.MULTILINE), shown
    assert "  an order\n" in shown
    assert "shop 2  REDRIVEN  back to its topic" in serving.run("dlq", "redrive", "shop", "2")
    assert [one.keys for one in consumer.receive(32, 60)] == [{"order:2"}]

    counted = serving.run("dlq", "redrive", "shop", "--tag", "late", "--rate", "20/s")
    assert "would redrive 2 dead letters of shop" in counted
    assert "nothing was done: add --yes" in counted
    done = serving.run(
        "dlq", "redrive", "shop", "--tag", "late", "--rate", "20/s", "--yes", "--reason", "the bug is fixed"
    )
    assert re.search(r"^done  redrive  2 of 2  REDRIVEN 2  task [0-9a-f]{12}$", done, re.MULTILINE), done
    assert {key for one in consumer.receive(32, 60) for key in one.keys} == {"order:1", "order:3"}
    assert "the bug is fixed" in " ".join(serving.run("dlq", "tasks").split())
    assert "PURGED" in serving.run("dlq", "purge", "shop", "0")
    assert "no group has dead letters" in serving.run("dlq", "ls")
    assert "shop has no dead letters" in serving.run("dlq", "ls", "shop")


def test_they_go_to_another_topic_by_a_task_that_can_be_stopped(
    serving: Any, consumer: SimpleConsumer, eventually: Any
) -> None:
    serving.run("topic", "create", "repair", "--type", "normal", "--queues", "1")
    slow = ("--to", "repair", "--rate", "1/h", "--yes", "--detach")
    task = serving.json("dlq", "redrive", "shop", *slow)
    eventually(lambda: serving.json("dlq", "tasks", task["id"])["done"] == 1)
    stopped = serving.run("dlq", "tasks", task["id"], "--stop")
    assert "stopped  redrive  1 of 4  REDRIVEN 1" in stopped
    assert "an operator stopped it" in stopped
    [moved] = serving.json("msg", "show", "order:0", "--topic", "repair")
    assert moved["properties"]["TW_REDRIVE_OF"] == "%DLQ%shop:0"
    assert moved["properties"]["TW_ORIGIN_TOPIC"] == "orders"
    assert "done  purge  3 of 3  PURGED 3" in serving.run("dlq", "purge", "shop", "--yes")


def test_every_mistake_gets_one_clear_sentence(serving: Any, consumer: SimpleConsumer) -> None:
    mistakes = {
        ("ls", "sho"): (REFUSED, "There is no 'sho'"),
        ("ls", "--key", "order:1"): (CLIENT_MISTAKE, "Say of which group"),
        ("ls", "shop", "--from", "tomorrow"): (CLIENT_MISTAKE, "--from is 'tomorrow'"),
        ("ls", "shop", "--from", "1m ago", "--until", "1h ago"): (CLIENT_MISTAKE, "reversed or empty"),
        ("show", "shop", "99"): (REFUSED, "shop has no dead letter 99"),
        ("redrive", "shop", "99"): (REFUSED, "tidewheel dlq ls shop"),
        ("redrive", "shop", "1", "--to", "repai"): (REFUSED, "There is no 'repai'"),
        ("redrive", "shop", "1", "--rate", "5/s"): (CLIENT_MISTAKE, "--rate is for many"),
        ("redrive", "shop", "--rate", "fast"): (CLIENT_MISTAKE, "write it as 50/s"),
        ("redrive", "sho", "--yes"): (REFUSED, "There is no 'sho'"),
        ("tasks", "--stop"): (CLIENT_MISTAKE, "which task"),
        ("tasks", "none"): (REFUSED, "There is no task 'none'"),
    }
    for arguments, (code, sentence) in mistakes.items():
        said = " ".join(serving.run("dlq", *arguments, code=code).split())
        assert sentence in said, (arguments, said)
