"""Samples of the cost of a message at a broker that has grown, with calls to its topics in turn.

A sample is a fixed number of messages, so that brokers of any size do the same work; requests are built
before it begins. Its figure is the processor time of the broker's process, flushes, checkpoints and answers
included, divided by the messages. Topics are visited in steps that do not follow the order of names.

    send-1      one message per call, 16 connections x 8
    send-16     the same with 16 messages per call
    receive     one message received and acknowledged, 128 in flight; the messages are stored beforehand
    delayed     from setting a timer until a second after it is due, when none may be pending
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import count, cycle
from typing import Any, Final

import peers_calls as calls
from peers_http2 import Asked, Connection, LoadFailed, Worker
from peers_rows import CONNECTIONS, PER_CALL, STREAMS, Figures, Load, idle, spent
from peers_servers import Tidewheel

from services.rpc.generated import definition_pb2 as wire

STEP: Final = 7_919
PART: Final = 1_000
"""Calls of a fill between two waits for their answers."""
MANY: Final = 4
"""Factor of messages in a sample of 16 per call: 2,000 would be one call of each stream."""
DUE_SECONDS, DELIVERY_SECONDS, IDLE_SECONDS = 3, 1.0, 5.0
Place = tuple[str, str]
"""The names of a topic and of a group."""


class Grown:
    """A broker's process, and the topics and groups of its load."""

    def __init__(self, name: str, server: Tidewheel, topics: int = 1, groups: int = 1) -> None:
        self.name, self.server, self.topics, self.groups = name, server, topics, groups
        self.costs: dict[str, list[Figures]] = {}
        self.facts: dict[str, float] = {}
        self._turn = count()

    def told(self) -> dict[str, Any]:
        """Return the samples in the order of rounds, and single figures."""
        return {"broker": self.name, "costs": self.costs, "facts": self.facts}

    def places(self, number: int) -> list[Place]:
        """Return the next topics and groups in turn."""
        turns = [next(self._turn) for _ in range(number)]
        return [(topic_of(turn * STEP % self.topics), group_of(turn % self.groups)) for turn in turns]

    def _load(self) -> Load:
        return Load(self.server, "plain", topic_of(0), group_of(0))

    # Growing.

    async def fill(self) -> None:
        """Create every topic with 16 messages, and receive one message with every group."""
        load = self._load()
        try:
            await self._store(load, map(topic_of, range(self.topics)), PER_CALL)
            opened = await load.consumers(CONNECTIONS)
            for places in parts(self.places(max(self.topics, self.groups))):
                await work(opened, lambda left: receives(load, left), places)
            load.failures.check()
        finally:
            load.close()

    async def send_for(self, seconds: float) -> int:
        """Send one message per call as fast as possible for `seconds`; return the number of messages."""
        load = self._load()
        try:
            opened = await self._endless(load)
            await asyncio.sleep(seconds)
            load.goes_on = False
            await idle(opened)
            load.failures.check()
            return load.done
        finally:
            load.close()

    async def kill_under_load(self, seconds: float) -> None:
        """Send for `seconds`, and kill the broker during the load."""
        load = self._load()
        try:
            await self._endless(load)
            await asyncio.sleep(seconds)
            load.failures.check()
            self.server.kill()
        finally:
            load.close()

    async def _endless(self, load: Load) -> list[Connection]:
        makers = [calls.sending(topic, wire.NORMAL) for topic, _ in self.places(self.topics)]
        asked = (make() for make in cycle(makers))
        opened = await load.producers(CONNECTIONS)
        for connection in opened:
            for _ in range(STREAMS):
                connection.start(endless(load, asked))
        return opened

    async def _store(self, load: Load, topics: Iterable[str], per_call: int) -> None:
        opened = await load.producers(CONNECTIONS)
        for some in parts(list(topics)):
            asked = [calls.sending(topic, wire.NORMAL, per_call)() for topic in some]
            await work(opened, lambda left: each(load, left), asked)

    # Samples.

    async def sample(self, kind: str, messages: int) -> None:
        """Measure `messages` of a kind, with this broker running only meanwhile; raise `LoadFailed`."""
        os.sync()
        await self.server.thaw()
        load = self._load()
        try:
            found = await KINDS[kind](self, load, messages)
        finally:
            load.close()
            self.server.freeze()
        self.costs.setdefault(kind, []).append(found)

    async def send(self, load: Load, messages: int, per_call: int = 1) -> Figures:
        """Send messages; return the figures."""
        makers = [
            calls.sending(topic, wire.NORMAL, per_call) for topic, _ in self.places(messages // per_call)
        ]
        asked, opened = [make() for make in makers], await load.producers(CONNECTIONS)
        figures: Figures = {}
        with spent(load, figures):
            await work(opened, lambda left: each(load, left, per_call), asked)
        return figures

    async def receive(self, load: Load, messages: int) -> Figures:
        """Store messages, then receive and acknowledge them one at a time; return the figures."""
        places = self.places(messages)
        await self._store(load, (topic for topic, _ in places), 1)
        opened = await load.consumers(CONNECTIONS)
        figures: Figures = {}
        with spent(load, figures):
            await work(opened, lambda left: receives(load, left), places)
        return figures

    async def delay(self, load: Load, messages: int) -> Figures:
        """Set timers, and wait until a second after they are due; raise `LoadFailed` if any is pending."""
        topics, opened = [topic for topic, _ in self.places(messages)], await load.producers(CONNECTIONS)
        due_s = int(time.time()) + DUE_SECONDS + 1
        asked = [calls.sending(topic, wire.DELAY, due_s=due_s)() for topic in topics]
        figures: Figures = {}
        with spent(load, figures):
            await work(opened, lambda left: each(load, left), asked)
            left_s = due_s - time.time()
            if left_s < 0:
                raise LoadFailed(f"Setting {messages} timers took longer than {DUE_SECONDS} s.")
            await asyncio.sleep(left_s + DELIVERY_SECONDS)
        if pending := await asyncio.to_thread(self.server.pending_timers):
            raise LoadFailed(f"{pending} of {messages} timers were late by {DELIVERY_SECONDS:g} s.")
        return {"server_us": figures["server_us"], "load_busy": figures["load_busy"]}

    async def idle_ms(self) -> float:
        """Return the processor time of an idle broker, in ms per second."""
        await self.server.thaw()
        before_s = self.server.processor_seconds()
        await asyncio.sleep(IDLE_SECONDS)
        spent_s = self.server.processor_seconds() - before_s
        self.server.freeze()
        return round(spent_s / IDLE_SECONDS * 1_000, 2)


Sample = Callable[[Grown, Load, int], Awaitable[Figures]]
KINDS: Final[dict[str, Sample]] = {
    "send-1": Grown.send,
    "send-16": lambda grown, load, messages: grown.send(load, MANY * messages, PER_CALL),
    "receive": Grown.receive,
    "delayed": Grown.delay,
}


def topic_of(number: int) -> str:
    """Return the name of a topic."""
    return f"topic-{number:06d}"


def group_of(number: int) -> str:
    """Return the name of a group."""
    return f"group-{number:06d}"


def parts(whole: list[Any]) -> Iterator[list[Any]]:
    """Yield a list in pieces of up to `PART`."""
    return (whole[first : first + PART] for first in range(0, len(whole), PART))


async def work(opened: list[Connection], worker: Callable[[Iterator[Any]], Worker], whole: list[Any]) -> None:
    """Let the streams of all connections share the items of `whole`, and wait until all are done."""
    left = iter(whole)
    for connection in opened:
        for _ in range(STREAMS):
            connection.start(worker(left))
    await idle(opened)


def each(load: Load, left: Iterator[Asked], counted: int = 1) -> Worker:
    """Make calls from an iterator shared by all workers."""
    for asked in left:
        began = time.perf_counter()
        calls.check((yield asked))
        load.took_s.append(time.perf_counter() - began)
        load.done += counted


def endless(load: Load, asked: Iterator[Asked]) -> Worker:
    """Make calls until the load ends."""
    while load.goes_on:
        calls.check((yield next(asked)))
        load.done += 1


def receives(load: Load, left: Iterator[Place]) -> Worker:
    """Receive and acknowledge one message from each place of an iterator shared by all workers."""
    for topic, group in left:
        began = time.perf_counter()
        messages = calls.received((yield calls.receiving(topic, group, batch=1)))
        if not messages:
            raise LoadFailed(f"{group} received nothing from {topic}.")
        calls.check((yield calls.acknowledging(topic, group, messages)))
        load.took_s.append(time.perf_counter() - began)
        load.done += 1
