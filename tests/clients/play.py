"""What a scenario plays with: a client, a broker, names of its own, and the words that plays share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.request import Request, urlopen
from uuid import uuid4

from tests.clients.official import (
    Got,
    LitePushConsumer,
    LiteSimpleConsumer,
    OfficialClient,
    Plan,
    PushConsumer,
    Seen,
    SimpleConsumer,
)

ARRIVE_SECONDS: Final = 30


class Play:
    """A client and a broker, with names that no other scenario uses."""

    def __init__(self, client: OfficialClient, broker: Any) -> None:
        self.client, self._broker, self._number = client, broker, uuid4().hex[:12]
        self.topic, self.group = self.named("t"), self.named("g")

    def named(self, name: str) -> str:
        """A name of this play's own."""
        return f"{name}-{self._number}"

    def create_topic(self, message_type: str) -> None:
        """Create the play's topic as one of that type."""
        self._broker.create_topic(self.topic, message_type)

    def stored(self) -> list[str]:
        """The bodies of what the topic holds."""
        return sorted(message["body"] for message in self._broker.stored(self.topic))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the broker over HTTP, as its commands do."""
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        request = Request(f"http://{self._broker.http}/api/{path}", data, kind, method=method)
        with urlopen(request) as answer:
            return json.load(answer)

    def set_group(self, start: str = "earliest", **policy: Any) -> None:
        """Create the play's group, beginning there, and set its policy."""
        self.ask("POST", "groups", {"name": self.group, "topic": self.topic, "start": start})
        if policy:
            self.ask("PUT", f"groups/{self.group}", policy)

    def listed_dead_letters(self) -> list[Any]:
        """The group's dead letters."""
        return list(self.ask("GET", f"dead-letters/groups/{self.group}")["dead_letters"])

    def dead_letters(self) -> list[str]:
        """What the group's dead letters say."""
        return sorted(message["body"] for message in self._broker.stored(f"%25DLQ%25{self.group}"))

    def lag(self) -> float:
        """How many messages the group has not acknowledged."""
        return sum(self._lags())

    def group_has_begun(self) -> bool:
        """Whether the group has received, be it nothing."""
        return bool(self._lags())

    def _lags(self) -> list[float]:
        label = f'consumer_group="{self.group}"'
        return list(self._broker.metric("rocketmq_consumer_lag_messages", label))

    def send_all(self, *bodies: str, **attributes: Any) -> None:
        """Send to the play's topic, one after the other."""
        for body in bodies:
            self.client.send(self.topic, body, **attributes)

    def consumer(self, group: str = "", **options: Any) -> SimpleConsumer:
        """A simple consumer of the play's topic and group; `group` is another one."""
        return self.client.simple(self.topic, group or self.group, **options)

    def push(self, **plan: Any) -> PushConsumer:
        """A push consumer of the play's topic and group."""
        return self.client.push(self.topic, self.group, Plan(**plan))

    def lite_consumer(self, *lite_topics: str, await_seconds: int = 5) -> LiteSimpleConsumer:
        """A simple consumer of the play's topic and group that has subscribed to these."""
        consumer = self.client.lite_simple(self.topic, self.group, await_seconds=await_seconds)
        for lite_topic in lite_topics:
            consumer.subscribe_lite(lite_topic)
        return consumer

    def lite_push(self, *lite_topics: str, **plan: Any) -> LitePushConsumer:
        """A push consumer likewise."""
        consumer = self.client.lite_push(self.topic, self.group, Plan(**plan))
        for lite_topic in lite_topics:
            consumer.subscribe_lite(lite_topic)
        return consumer


def until(condition: Callable[[], Any], seconds: float = ARRIVE_SECONDS) -> None:
    """Wait for a condition."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"nothing happened within {seconds} s"
        time.sleep(0.05)


def take(consumer: SimpleConsumer, count: int, *, batch: int = 32, lease_seconds: int = 30) -> list[Got]:
    """Receive until there are `count` messages; none is acknowledged."""
    taken: list[Got] = []
    ends = time.monotonic() + ARRIVE_SECONDS
    while len(taken) < count:
        assert time.monotonic() < ends, f"{len(taken)} of {count} messages came"
        taken += consumer.receive(batch, lease_seconds)
    assert len(taken) == count
    return taken


def finish(consumer: SimpleConsumer, count: int) -> list[str]:
    """Receive and acknowledge `count` messages; returns their bodies in the order of their coming."""
    bodies: list[str] = []
    while len(bodies) < count:
        for one in take(consumer, 1, batch=1):
            consumer.ack(one)
            bodies.append(one.body)
    return bodies


def bodies(messages: list[Got] | list[Seen]) -> list[str]:
    """What they say, sorted."""
    return sorted(one.body for one in messages)


def nothing_comes(play: Play, group: str = "") -> None:
    """The group has nothing left, not even leased for a moment."""
    assert play.consumer(group, await_seconds=2).receive() == []
