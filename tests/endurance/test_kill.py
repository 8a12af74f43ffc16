"""`kill -9` under load, again and again: nothing acknowledged is missing or comes twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

SENDERS = 24
CONSUMERS = 4
TOPIC, GROUP = "t", "g"


class Load:
    """Senders and consumers that write down what they were told."""

    def __init__(self, client: Any, ok: int) -> None:
        self.client, self.ok = client, ok
        self.number = 0
        self.sent: set[str] = set()
        self.got: Counter[str] = Counter()
        self.got_after_ack: list[str] = []
        self.acknowledged: set[str] = set()

    async def send_on_and_on(self) -> None:
        while True:
            self.number += 1
            message_id = f"M{self.number}"
            if await self.client.send(TOPIC, message_id, b"x" * 256) == self.ok:
                self.sent.add(message_id)

    async def consume_on_and_on(self) -> None:
        while True:
            await self.consume(2)

    async def consume(self, seconds: float) -> int:
        """Receives and acknowledges one batch; a batch that the kill cuts off was still given out."""
        messages = await self.client.receive(TOPIC, GROUP, seconds)
        for message in messages:
            message_id = message.system_properties.message_id
            self.got[message_id] += 1
            if message_id in self.acknowledged:
                self.got_after_ack.append(message_id)
        codes = await asyncio.gather(*(self.client.ack(TOPIC, GROUP, one) for one in messages))
        for message, code in zip(messages, codes, strict=True):
            if code == self.ok:
                self.acknowledged.add(message.system_properties.message_id)
        return len(messages)

    async def run(self, seconds: float, kill: Any) -> None:
        """Sends and consumes for a while, then kills the broker in the middle of it."""
        work = [asyncio.create_task(self.send_on_and_on()) for _ in range(SENDERS)]
        work += [asyncio.create_task(self.consume_on_and_on()) for _ in range(CONSUMERS)]
        await asyncio.sleep(seconds)
        kill()
        for ended in await asyncio.gather(*work, return_exceptions=True):
            assert isinstance(ended, grpc.aio.AioRpcError), ended


def test_nothing_acknowledged_is_lost_or_repeated(
    tmp_path: Path, endurance: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    rounds = request.config.getoption("--rounds")
    broker = endurance["BrokerProcess"](tmp_path / "store", "--segment-bytes", str(8 << 20))
    asyncio.run(play(broker, endurance, rounds))


async def play(broker: Any, endurance: dict[str, Any], rounds: int) -> None:
    chance = random.Random(7)
    broker.start()
    async with endurance["Client"](broker.listen) as client:
        load = Load(client, endurance["OK"])
        for _ in range(rounds):
            await endurance["eventually"](lambda: client.receive(TOPIC, "unused", 0.1))
            await load.run(chance.uniform(0.2, 1.2), broker.kill)
            broker.start()
        empty = 0
        while empty < 3:
            got = await endurance["eventually"](lambda: load.consume(1))
            empty = 0 if got else empty + 1
    assert broker.stop() == 0
    missing = load.sent - set(load.got)
    repeated = sum(load.got.values()) - len(load.got)
    print(f"{rounds} rounds: sent {len(load.sent)}, acknowledged {len(load.acknowledged)},", end=" ")
    print(f"missing {len(missing)}, repeated {repeated}, of these acknowledged {len(load.got_after_ack)}")
    assert not missing, "an acknowledged send is missing"
    assert not load.got_after_ack, "an acknowledged message was given out again"
    assert len(load.sent) > 100 * rounds
