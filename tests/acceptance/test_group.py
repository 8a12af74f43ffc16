"""`tidewheel group` as its users meet it: how far a group is, who consumes, and moving it; every mistake."""

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
LEASE_SECONDS = 60


@pytest.fixture
def consumer(serving: Any) -> Iterator[SimpleConsumer]:
    """A consumer of the group shop; the topic orders has five messages."""
    config = ClientConfiguration(serving.listen, Credentials())
    producer = Producer(config, ("orders",))
    producer.startup()
    for number in range(5):
        message = Message()
        message.topic, message.body, message.keys = "orders", b"an order", f"order:{number}"
        producer.send(message)
    producer.shutdown()
    consumer = SimpleConsumer(config, "shop", {"orders": FilterExpression("*")}, 1)
    consumer.startup()
    yield consumer
    consumer.shutdown()


def test_how_far_a_group_is_and_who_consumes(serving: Any, consumer: SimpleConsumer) -> None:
    assert "no consumer group yet" in serving.run("group", "ls")
    taken = consumer.receive(3, LEASE_SECONDS)
    consumer.ack(taken[0])
    listed = serving.run("group", "ls")
    assert re.search(r"^shop +orders +4 +\d+m?s +2 +0 +1 *$", listed, re.MULTILINE), listed
    assert re.search(r"^orders +0 +0 +1 +5 +4 +2 +0 ", serving.run("group", "lag", "shop"), re.MULTILINE)
    assert re.search(r"^shop +orders +4 ", serving.run("group", "lag"), re.MULTILINE)
    clients = serving.run("group", "clients", "shop")
    assert re.search(r"^\S{20,} +simple +python \S+ +2 +0 +orders: TAG \* +\S+ ago", clients, re.MULTILINE), (
        clients
    )
    shown = serving.run("group", "show", "shop")
    assert shown.splitlines()[0] == "shop  orders"
    assert "17, again after 1s 5s 10s ... 2h (18 steps)" in shown
    assert "5 attempts, again after 1s 1m," in serving.run(
        "group", "set", "shop", "--attempts", "5", "--retry-after", "1s, 1m"
    )
    serving.run("group", "create", "late", "orders", "--from", "latest")
    for _ in range(2):
        assert "  attempts   3," in serving.run("group", "create", "early", "--attempts", "3")
    assert re.search(r"^early +none yet +0 ", serving.run("group", "ls"), re.MULTILINE)
    groups = {one["name"]: one for one in serving.json("group", "ls")}
    assert (groups["late"]["lag"], groups["shop"]["policy"]["attempts_max"]) == (0, 5)


def test_a_group_is_paused_and_set_elsewhere(serving: Any, consumer: SimpleConsumer) -> None:
    for one in consumer.receive(5, LEASE_SECONDS):
        consumer.ack(one)
    assert "shop is paused" in serving.run("group", "pause", "shop")
    shown = serving.run("group", "reset", "shop", "--to", "offset:3", "--topic", "orders", "--dry-run")
    assert re.search(r"^orders +0 +5 +3 +gives 2 again", shown, re.MULTILINE), shown
    asked = serving.run("group", "reset", "shop", "--to", "earliest")
    assert "gives up to 5 again" in asked
    assert "nothing was done: add --yes" in asked
    serving.run("group", "reset", "shop", "--to", "offset:3", "--topic", "orders", "--yes")
    assert re.search(r"^shop .* 2 .* paused *$", serving.run("group", "ls"), re.MULTILINE)
    assert not consumer.receive(5, LEASE_SECONDS)
    assert "goes on, with 2 messages to do" in serving.run("group", "resume", "shop")
    assert [one.keys for one in consumer.receive(5, LEASE_SECONDS)] == [{"order:3"}, {"order:4"}]
    assert "skips up to 2" in serving.run("group", "reset", "shop", "--to", "latest", "--yes")
    assert "add --yes" in serving.run("group", "delete", "shop")
    assert "shop no longer receives orders" in serving.run("group", "delete", "shop", "--yes")
    assert "no consumer group yet" in serving.run("group", "ls")


def test_every_mistake_gets_one_clear_sentence(serving: Any, consumer: SimpleConsumer) -> None:
    consumer.receive(1, LEASE_SECONDS)
    mistakes = {
        ("show", "sho"): (REFUSED, "There is no 'sho'"),
        ("set", "sho", "--attempts", "3"): (REFUSED, "There is no 'sho'"),
        ("set", "shop"): (CLIENT_MISTAKE, "Give --attempts, --retry-after, --fifo-run or --lite-exclusive"),
        ("set", "shop", "--retry-after", "soon"): (CLIENT_MISTAKE, "--retry-after is 'soon'"),
        ("create", "shop", "orders"): (REFUSED, "shop receives orders already"),
        ("create", "new", "order"): (REFUSED, "There is no 'order'"),
        ("create", "new", "--from", "latest"): (CLIENT_MISTAKE, "give the topic, too"),
        ("create", "shop", "--attempts", "3"): (REFUSED, "shop exists with another policy"),
        ("create", "new", "orders", "--from", "soon"): (CLIENT_MISTAKE, "--from is 'soon'"),
        ("reset", "shop"): (CLIENT_MISTAKE, "--to"),
        ("reset", "shop", "--to", "yesterday"): (CLIENT_MISTAKE, "30m ago"),
        ("reset", "shop", "--to", "offset:1"): (CLIENT_MISTAKE, "say which topic"),
        ("reset", "shop", "--to", "latest", "--topic", "order"): (REFUSED, "it receives orders"),
        ("clients", "sho"): (REFUSED, "There is no 'sho'"),
    }
    for arguments, (code, sentence) in mistakes.items():
        said = " ".join(serving.run("group", *arguments, code=code).split())
        assert sentence in said, (arguments, said)
