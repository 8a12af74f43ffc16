"""The rows of growth: brokers that differ in one respect, measured in rounds, in turns.

The first broker of a row is the baseline; the result is the others' ratio to it in the same round. Brokers
run one at a time (`peers_servers`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

from growth_load import KINDS, Grown, group_of, topic_of
from peers_command import tell
from peers_http2 import LoadFailed
from peers_rows import Load, fill, memory
from peers_servers import Tidewheel

LOAD_SECONDS: Final = 3.0
"""Duration of the load on a broker before it is killed."""
FIRST_SECONDS: Final = 30.0
"""Duration of the measurement after a start."""
FIRST_KINDS: Final = ("send-1", "send-16", "receive")
FILL_STEP: Final = 100_000
CONNECTIONS_SPARE: Final = 1_000


class Rows:
    """The folder, the options and the brokers of a row; the brokers are killed at its end."""

    def __init__(self, folder: Path, given: argparse.Namespace, stack: AsyncExitStack) -> None:
        self.given, self._folder, self._stack, self._started = given, folder, stack, 0

    async def broker(self, name: str, topics: int = 1, groups: int = 1, *options: str) -> Grown:
        """Start a broker, create its topics and groups, and freeze it until it is measured."""
        tell(f"starting: {name}")
        self._started += 1
        server = Tidewheel(self._folder / f"broker-{self._started}", self.given.flush, *options)
        self._stack.callback(rmtree, server.folder, ignore_errors=True)
        self._stack.callback(server.kill)
        await server.start()
        grown = Grown(name, server, topics, groups)
        await grown.fill()
        server.freeze()
        return grown

    async def compare(self, brokers: Sequence[Grown]) -> None:
        """Measure every kind on each broker in turn: one warm-up round, then the rounds that count."""
        for number in range(self.given.rounds + 1):
            tell(f"round {number} of {self.given.rounds}")
            await self._round(brokers, list(KINDS), number)
            if number == 0:
                for one in brokers:
                    one.costs.clear()
                    one.facts |= memory(one.server)
        for one in brokers:
            one.facts["idle_ms"] = await one.idle_ms()

    async def compare_for(self, brokers: Sequence[Grown], kinds: Sequence[str], seconds: float) -> None:
        """Measure for `seconds`, without a warm-up round."""
        ends, number = time.monotonic() + seconds, 0
        while time.monotonic() < ends:
            await self._round(brokers, kinds, number)
            number += 1
        for one in brokers:
            one.facts |= memory(one.server)

    async def _round(self, brokers: Sequence[Grown], kinds: Sequence[str], number: int) -> None:
        for kind in kinds:
            for one in brokers if number % 2 else reversed(brokers):
                await one.sample(kind, self.given.calls)


async def topics(rows: Rows) -> list[Grown]:
    """Measure brokers with few and with many topics of eight queues, 16 messages in each."""
    names = [f"{size:,} topic{'s' * (size > 1)}" for size in rows.given.sizes]
    brokers = [await rows.broker(name, size) for name, size in zip(names, rows.given.sizes, strict=True)]
    await rows.compare(brokers)
    return brokers


async def ids(rows: Rows) -> list[Grown]:
    """Measure a broker after minutes of sends with fresh ids, and a new one."""
    minutes = rows.given.minutes
    old = await rows.broker(f"after {minutes:g} minutes of fresh ids")
    await old.server.thaw()
    old.facts["ids"] = await old.send_for(minutes * 60)
    old.server.freeze()
    new = await rows.broker("a new broker")
    await rows.compare([new, old])
    return [new, old]


async def restart(rows: Rows) -> list[Grown]:
    """Measure a broker in the first seconds after it was killed under load, and one that keeps running.

    Both have the largest number of topics. Each is frozen while the other is measured. `FIRST_SECONDS` are
    counted from the restart in wall time, so they include the turns of both.
    """
    size = max(rows.given.sizes)
    on = await rows.broker(f"{size:,} topics, goes on", size)
    killed = await rows.broker(f"{size:,} topics, first {FIRST_SECONDS:g} s after kill -9", size)
    await on.server.thaw()
    await on.send_for(LOAD_SECONDS)
    on.server.freeze()
    await killed.server.thaw()
    await killed.kill_under_load(LOAD_SECONDS)
    await killed.server.start()
    killed.facts["killed_seconds"] = round(killed.server.start_seconds, 2)
    await rows.compare_for([on, killed], FIRST_KINDS, FIRST_SECONDS)
    for one in (on, killed):
        one.facts["p99_ms_max"] = max(sample["p99_ms"] for sample in one.costs["send-1"])
    return [on, killed]


async def groups(rows: Rows) -> list[Grown]:
    """Measure a topic with one group and with many."""
    count = rows.given.groups
    one, many = await rows.broker("1 group"), await rows.broker(f"{count:,} groups of a topic", 1, count)
    await rows.compare([one, many])
    anonymous = [broker.server.anonymous_bytes() for broker in (one, many)]
    many.facts["bytes_each"] = round((anonymous[1] - anonymous[0]) / max(1, count - 1))
    return [one, many]


async def connections(rows: Rows) -> list[Grown]:
    """Measure a broker with many idle clients, which have only sent their settings."""
    count = rows.given.connections
    options = ("--connections-per-address", str(count + CONNECTIONS_SPARE))
    none = await rows.broker("no other connection", 1, 1, *options)
    many = await rows.broker(f"{count:,} idle connections", 1, 1, *options)
    load = Load(many.server, "plain", topic_of(0), group_of(0))
    try:
        await many.server.thaw()
        before_bytes = many.server.anonymous_bytes()
        await load.producers(count)
        many.facts["bytes_each"] = round((many.server.anonymous_bytes() - before_bytes) / count)
        many.server.freeze()
        await rows.compare([none, many])
        load.failures.check()
    finally:
        load.close()
    return [none, many]


async def messages(rows: Rows) -> list[Grown]:
    """Measure starts, memory and costs of a large and of an empty store."""
    count = rows.given.messages
    small, large = await rows.broker("an empty store"), await rows.broker(f"{count:,} messages")
    await large.server.thaw()
    load = Load(large.server, "plain", topic_of(0), group_of(0))
    for first in range(0, count, FILL_STEP):
        await fill(load, min(FILL_STEP, count - first))
        load.close()
        load.connections.clear()
    large.server.freeze()
    for one in (small, large):
        one.server.stop()
        await one.server.start()
        one.facts["start_seconds"] = round(one.server.start_seconds, 2)
        one.facts |= memory(one.server, "start_")
        await one.kill_under_load(LOAD_SECONDS)
        await one.server.start()
        one.facts["killed_seconds"] = round(one.server.start_seconds, 2)
        one.server.freeze()
    await rows.compare([small, large])
    return [small, large]


ROWS: Final[dict[str, Callable[[Rows], Awaitable[list[Grown]]]]] = {
    "topics": topics,
    "ids": ids,
    "restart": restart,
    "groups": groups,
    "connections": connections,
    "messages": messages,
}


async def measure(name: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Run a row; return its figures, the baseline first. Raise `LoadFailed` if nothing was measured."""
    async with AsyncExitStack() as stack:
        brokers = await ROWS[name](Rows(folder, given, stack))
        if not all(one.costs for one in brokers):
            raise LoadFailed(f"{name}: nothing was measured.")
        return {"row": name, "brokers": [one.told() for one in brokers]}
