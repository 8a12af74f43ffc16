"""A push consumer's lease lasts as long as its connection: through a slow listener, not beyond its death."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest

from tests.endurance.client_processes import hear, running

LEASE_SECONDS = 1
GONE_SECONDS_MAX = 3.0
PATIENCE_SECONDS = 60
FOR_EVER = "600"


class Consumers:
    """Push consumers in processes; what they all say comes in one queue, with who said it."""

    def __init__(self, broker: Any, stack: ExitStack, seconds: str) -> None:
        self._broker, self._stack, self._seconds = broker, stack, seconds
        self._heard: Queue[tuple[Any, list[str]]] = Queue()

    def start(self) -> Any:
        """Start one and return its process once it consumes."""
        process = self._stack.enter_context(running("push_process", self._broker, "t", "g", self._seconds))
        assert hear(process) == "ready"
        Thread(target=self._listen, args=[process], daemon=True).start()
        return process

    def next(self, seconds: float = PATIENCE_SECONDS) -> tuple[Any, list[str]]:
        """What is said next, and by whom; raises `Empty`."""
        return self._heard.get(timeout=seconds)

    def _listen(self, process: Any) -> None:
        for line in process.stdout:
            self._heard.put((process, line.split()))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def send(broker: Any, endurance: dict[str, Any], name: str) -> None:
    async def sent() -> None:
        async with endurance["Client"](broker.listen) as client:
            assert await client.send("t", name, name.encode()) == endurance["OK"]

    asyncio.run(sent())


def test_a_listener_that_sleeps_five_times_its_lease_gets_its_message_once(
    tmp_path: Path, endurance: dict[str, Any], stack: ExitStack
) -> None:
    broker = endurance["BrokerProcess"](tmp_path / "store")
    broker.module = "tests.endurance.short_lease_broker"
    broker.start()
    stack.callback(broker.kill)
    consumers = Consumers(broker, stack, str(5 * LEASE_SECONDS))
    for _ in range(2):
        consumers.start()
    send(broker, endurance, "slow")
    first, began = consumers.next()
    second, ended = consumers.next()
    assert (began[:3], ended, first) == (["began", "slow", "1"], ["ended", "slow"], second)
    with pytest.raises(Empty):
        consumers.next(2 * LEASE_SECONDS)


def test_what_a_killed_consumer_held_comes_to_another_within_three_seconds(
    tmp_path: Path, endurance: dict[str, Any], stack: ExitStack, request: pytest.FixtureRequest
) -> None:
    broker = endurance["BrokerProcess"](tmp_path / "store")
    broker.start()
    stack.callback(broker.kill)
    consumers = Consumers(broker, stack, FOR_EVER)
    consumers.start()
    consumers.start()
    send(broker, endurance, "passed")
    holder, began = consumers.next()
    took: list[float] = []
    for attempt in range(2, 2 + request.config.getoption("--rounds") // 2):
        killed_ms = time.time() * 1000
        holder.kill()
        holder, began = consumers.next()
        assert began[:3] == ["began", "passed", str(attempt)]
        took.append((int(began[-1]) - killed_ms) / 1000)
        consumers.start()
    print("seconds from kill to the next listener:", [round(seconds, 2) for seconds in took])
    assert max(took) < GONE_SECONDS_MAX
