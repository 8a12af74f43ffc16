"""A client under load in a separate process, so that the processor time is the client's alone.

    process.py KIND HTTP LISTEN      KIND: client, async, official

A line of stdin is a work with its arguments; its answer is a line of JSON: microseconds of this process's
processor time, user and system, and the latencies if the work has any. The official client's stubs have the
same names as the broker's, so this module imports nothing of the broker.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

AT_ONCE: Final = 16
BATCH: Final = 100
LEASED: Final = 32
LEASE_S: Final = 60
GROUP: Final = "stopwatch"
BODY: Final = "x" * 256
POLLS_PER_CLIENT: Final = 100
"""Number of connections that one client opens."""


class Threads:
    """Works of a blocking client."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE)

    def send_one(self, topic: str) -> Any:
        """Send a message."""
        raise NotImplementedError

    def receive_some(self, topic: str) -> int:
        """Receive up to LEASED messages and acknowledge each; return their number."""
        raise NotImplementedError

    def send(self, topic: str, count: str) -> None:
        """Send messages sequentially."""
        for _ in range(int(count)):
            self.send_one(topic)

    def send_at_once(self, topic: str, count: str) -> None:
        """Send with AT_ONCE calls in flight."""
        shares = [str(int(count) // AT_ONCE)] * AT_ONCE
        list(self._threads.map(partial(self.send, topic), shares))

    def receive(self, topic: str, count: str) -> None:
        """Receive and acknowledge `count` messages."""
        done = 0
        while done < int(count):
            done += self.receive_some(topic)

    def lone(self, topic: str, count: str) -> list[float]:
        """Send messages sequentially; return the duration of each, in ms."""
        took = []
        for _ in range(int(count)):
            began = time.perf_counter()
            self.send_one(topic)
            took.append((time.perf_counter() - began) * 1e3)
        return took


class OfClient(Threads):
    """Works of `tidewheel.Client`."""

    def __init__(self, http: str, _: str) -> None:
        super().__init__()
        from tidewheel import Client, NewMessage

        self._client, self._new = Client(http), NewMessage

    def send_one(self, topic: str) -> Any:
        """Send a message."""
        return self._client.send(topic, BODY)

    def send_many(self, topic: str, count: str) -> None:
        """Send messages, BATCH in a request."""
        for _ in range(int(count) // BATCH):
            self._client.send_many(self._new(topic, BODY) for _ in range(BATCH))

    def receive_some(self, topic: str) -> int:
        """Receive and acknowledge."""
        found = self._client.receive(topic, GROUP, count=LEASED, wait="2s", lease=f"{LEASE_S}s")
        for one in found:
            one.ack()
        return len(found)


class OfOfficial(Threads):
    """Works of the official client."""

    def __init__(self, _: str, listen: str) -> None:
        super().__init__()
        import rocketmq

        self._library = rocketmq
        self._configuration = rocketmq.ClientConfiguration(listen, rocketmq.Credentials())
        self._producer = rocketmq.Producer(self._configuration, ())
        self._producer.startup()
        self._consumers: dict[str, Any] = {}

    def send_one(self, topic: str) -> Any:
        """Send a message."""
        message = self._library.Message()
        message.topic, message.body = topic, BODY.encode()
        return self._producer.send(message)

    def subscribe(self, topic: str) -> None:
        """Start the consumer of a topic."""
        wanted = {topic: self._library.FilterExpression()}
        self._consumers[topic] = self._library.SimpleConsumer(self._configuration, GROUP, wanted, 2)
        self._consumers[topic].startup()

    def receive_some(self, topic: str) -> int:
        """Receive and acknowledge."""
        found = self._consumers[topic].receive(LEASED, LEASE_S)
        for one in found:
            self._consumers[topic].ack(one)
        return len(found)


class OfAsyncClient:
    """Works of `tidewheel.AsyncClient`."""

    def __init__(self, http: str, _: str) -> None:
        from tidewheel import AsyncClient, NewMessage

        self._make, self._new = partial(AsyncClient, http), NewMessage
        self._client = self._make()

    async def send(self, topic: str, count: str) -> None:
        """Send messages sequentially."""
        for _ in range(int(count)):
            await self._client.send(topic, BODY)

    async def send_at_once(self, topic: str, count: str) -> None:
        """Send with AT_ONCE calls in flight."""
        share = str(int(count) // AT_ONCE)
        await asyncio.gather(*(self.send(topic, share) for _ in range(AT_ONCE)))

    async def send_many(self, topic: str, count: str) -> None:
        """Send messages, BATCH in a request."""
        for _ in range(int(count) // BATCH):
            await self._client.send_many(self._new(topic, BODY) for _ in range(BATCH))

    async def receive(self, topic: str, count: str) -> None:
        """Receive and acknowledge `count` messages."""
        done = 0
        while done < int(count):
            found = await self._client.receive(topic, GROUP, count=LEASED, wait="2s", lease=f"{LEASE_S}s")
            for one in found:
                await one.ack()
            done += len(found)

    async def lone(self, topic: str, count: str) -> list[float]:
        """Send messages sequentially; return the duration of each, in ms."""
        took = []
        for _ in range(int(count)):
            began = time.perf_counter()
            await self._client.send(topic, BODY)
            took.append((time.perf_counter() - began) * 1e3)
        return took

    async def polls(self, *topics: str) -> None:
        """Receive one message of each topic, all polls open at once."""
        starts = range(0, len(topics), POLLS_PER_CLIENT)
        await asyncio.gather(*(self._poll(topics[one : one + POLLS_PER_CLIENT]) for one in starts))

    async def _poll(self, topics: tuple[str, ...]) -> None:
        async with self._make() as client:
            found = await asyncio.gather(*(client.receive(one, GROUP, wait="20s") for one in topics))
        assert all(found), "a poll got nothing"


KINDS: Final[dict[str, Callable[[str, str], Any]]] = {
    "client": OfClient,
    "async": OfAsyncClient,
    "official": OfOfficial,
}


def main(kind: str, http: str, listen: str) -> None:
    """Run the works read from stdin."""
    works = KINDS[kind](http, listen)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            name, *arguments = line.split()
            work = getattr(works, name)
            before_s = time.process_time()
            done = runner.run(work(*arguments)) if kind == "async" else work(*arguments)
            print(json.dumps({"us": (time.process_time() - before_s) * 1e6, "took": done}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
