"""Ten thousand cancels at the very moment: each timer is delivered, or its cancel was told, never both."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from commitlog.disk.real_disk import RealDisk
from commitlog.log.recovery import LogScan
from commitlog.records import properties
from commitlog.records.kinds import VERB_TOPIC
from services.rpc.generated import definition_pb2, service_pb2
from tidewheel import property_names

ROUNDS, ROUND = 20, 500
COUNT = ROUNDS * ROUND
JITTER_MS = 20
CONNECTIONS = 4
WORKERS_PER_CONNECTION = 8
SEGMENT_BYTES = 8 << 20


class Race:
    """Rounds of timers, and callers who cancel each when it is about to come due."""

    def __init__(self, http: httpx.AsyncClient, grpc_clients: list[Any]) -> None:
        self.http, self.grpc_clients = http, grpc_clients
        self.offsets: set[int] = set()
        self.cancelled: set[int] = set()
        self.late: set[int] = set()
        self.chance = random.Random(7)

    async def run(self) -> None:
        """Each round is spread over as long as the cancels of the one before it took."""
        set_seconds = cancel_seconds = 1.0
        for _ in range(ROUNDS):
            began = time.monotonic()
            due_ms = int(time.time() * 1000 + 2000 * set_seconds)
            timers = await self.set_timers(due_ms, 1000 * cancel_seconds)
            set_seconds = time.monotonic() - began
            await asyncio.sleep(due_ms / 1000 - time.time())
            began = time.monotonic()
            await self.cancel_all(timers)
            cancel_seconds = time.monotonic() - began

    async def set_timers(self, due_ms: int, width_ms: float) -> list[dict[str, str]]:
        """Sets a round of timers, due one after the other."""
        dues = [int(due_ms + place / ROUND * width_ms) for place in range(ROUND)]
        jittered = [due + self.chance.randint(-JITTER_MS, JITTER_MS) for due in dues]
        batch = [{"topic": "t", "body": "x" * 256, "at": str(due)} for due in jittered]
        answer = await self.http.post("/api/timers", json={"timers": batch})
        assert answer.status_code == 200, answer.text
        timers: list[dict[str, str]] = answer.json()["timers"]
        self.offsets |= {int(one["physical_offset"]) for one in timers}
        return timers

    async def cancel_all(self, timers: list[dict[str, str]]) -> None:
        """Cancels them in order, over several connections of both kinds."""
        left = iter(timers)

        async def work(cancel: Any) -> None:
            for timer in left:
                is_cancelled = await cancel(timer)
                (self.cancelled if is_cancelled else self.late).add(int(timer["physical_offset"]))

        ways = [self.over_http, *(partial(self.over_grpc, client) for client in self.grpc_clients)]
        await asyncio.gather(*(work(way) for way in ways for _ in range(WORKERS_PER_CONNECTION)))

    async def over_http(self, timer: dict[str, str]) -> bool:
        wanted = {"topic": "t", "id": timer["message_id"]}
        verdict = (await self.http.post("/api/timers/cancel", json=wanted)).json()["verdict"]
        assert verdict in ("CANCELLED", "TOO_LATE"), verdict
        return bool(verdict == "CANCELLED")

    async def over_grpc(self, client: Any, timer: dict[str, str]) -> bool:
        topic = definition_pb2.Resource(name="t")
        request = service_pb2.RecallMessageRequest(topic=topic, recall_handle=timer["recall_handle"])
        reply = await client._call("RecallMessage", request, service_pb2.RecallMessageResponse)
        return bool(reply.status.code == definition_pb2.Code.OK)


def test_each_timer_is_delivered_or_cancelled(tmp_path: Path, endurance: dict[str, Any]) -> None:
    broker = endurance["BrokerProcess"](tmp_path / "store", "--segment-bytes", str(SEGMENT_BYTES))
    broker.start()
    race = asyncio.run(play(broker, endurance))
    assert broker.stop() == 0
    delivered, cancels = read_log(tmp_path / "store")
    cancelled, late = race.cancelled, race.late
    print(f"{COUNT} cancels: {len(cancelled)} told CANCELLED, {len(late)} TOO_LATE,", end=" ")
    print(f"{len(cancelled & delivered.keys())} both, {COUNT - len(cancelled | delivered.keys())} neither")
    assert len(race.offsets) == COUNT
    assert len(cancelled) > COUNT // 20, "no race: hardly one was in time"
    assert len(late) > COUNT // 20, "no race: hardly one was late"
    assert cancelled | late == race.offsets
    assert cancels == cancelled
    assert delivered.keys() == late
    assert set(delivered.values()) == {1}


async def play(broker: Any, endurance: dict[str, Any]) -> Race:
    async with AsyncExitStack() as stack:
        http = httpx.AsyncClient(base_url=f"http://{broker.http}", timeout=60)
        await stack.enter_async_context(http)
        clients = [endurance["Client"](broker.listen) for _ in range(CONNECTIONS)]
        race = Race(http, [await stack.enter_async_context(client) for client in clients])
        await race.run()
        return race


def read_log(store: Path) -> tuple[Counter[int], set[int]]:
    """How often each timer was delivered, and which were cancelled."""
    delivered: Counter[int] = Counter()
    cancels: set[int] = set()
    for found in LogScan(RealDisk(store), SEGMENT_BYTES):
        timer_offset = properties.value_of(found.record.properties, property_names.TIMER_OFFSET)
        if found.record.topic == VERB_TOPIC:
            cancels.add(int(timer_offset))
        elif timer_offset:
            delivered[int(timer_offset)] += 1
    return delivered, cancels
