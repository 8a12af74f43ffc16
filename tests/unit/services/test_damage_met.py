"""Damage that a reader meets: log, metric, /readyz and /api/timers/damaged say so at once, by one way.

The background check does not run here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest
from structlog.testing import capture_logs

from commitlog import layout
from commitlog.layout import CONSUMEQUEUE, KEYINDEX, TIMERS
from commitlog.records.message import Message
from consumequeue.entry import ENTRY_BYTES
from services.broker.spine.settings import BrokerSettings
from services.broker.timers.timer_ends import NAMES
from services.broker.timers.timer_repair import TimerRepair
from services.live.live_broker import LiveBroker
from services.ops.app import make_app
from services.ops.metrics.broker_metrics import Metrics
from tests.memory_disk import MemoryDisk
from txn.checkback import CheckBackPolicy

NOW_MS = 1_763_700_000_000
HOUR = 3_600_000
SETTINGS = BrokerSettings(
    segment_bytes=1 << 20,
    queue_count=1,
    tail_entries_max=1,
    check_back=CheckBackPolicy(immunity_ms=HOUR),
    housekeeping_ms=HOUR,
)


@pytest.fixture(autouse=True)
def no_background_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimerRepair, "begin", lambda self, now_ms: None)


@dataclass
class Desk:
    """A running broker with messages in all its files, and its HTTP interface."""

    disk: MemoryDisk
    live: LiveBroker
    http: httpx.AsyncClient
    offsets: dict[str, int]
    half: str

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(path)

    def spoil(self, path: str, byte: int) -> None:
        self.disk.flip_bit(path, byte * 8)

    def spoil_record(self, message_id: str) -> None:
        self.spoil(layout.segment_path(0), self.offsets[message_id] + 100)

    def only(self, folder: str) -> str:
        (name,) = self.disk.list(folder)
        return f"{folder}/{name}"


Step = Callable[[Desk], Awaitable[httpx.Response]]


async def fill(live: LiveBroker) -> tuple[dict[str, int], str]:
    offsets = {}
    for message_id in ("A", "B", "C"):
        receipt = await live.send(Message(topic="t", body=b"x" * 100, message_id=message_id, keys=("k",)))
        offsets[message_id] = receipt.physical_offset
    for number, message_id in enumerate(("T", "U", "V")):
        due_ms = NOW_MS + (2 + number) * HOUR
        timer = Message(
            topic="t",
            body=b"y" * 100,
            message_id=message_id,
            delivery_ms=due_ms,
            properties={"TW_KEY": message_id},
        )
        offsets[message_id] = (await live.send(timer)).physical_offset
    half = await live.send(
        Message(topic="t", body=b"z" * 100, message_id="H", keys=("h",), transactional=True)
    )
    offsets["H"] = half.physical_offset
    live.core.request_checkpoint()
    live._flush_and_plan()
    await live.wait_until_timers_ready()
    live.core.store.dispatch.write()  # entries are read from memory until they are written
    return offsets, half.transaction_id


def met(step: Step) -> tuple[httpx.Response, str, str, list[dict[str, Any]], list[Any]]:
    """Return the answer to a read, /readyz, /metrics, the listed damage and the lines of log after it."""

    async def play() -> tuple[httpx.Response, str, str, list[dict[str, Any]], list[Any]]:
        with ThreadPoolExecutor(1) as writer, capture_logs() as logged:
            disk = MemoryDisk()
            loop = asyncio.get_running_loop()
            live = LiveBroker(disk, SETTINGS, lambda: NOW_MS, loop.call_later, writer)
            app = make_app(live, Metrics(live, []), files=disk)
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://localhost"
            ) as http:
                offsets, half = await fill(live)
                desk = Desk(disk, live, http, offsets, half)
                assert "damaged" not in (await desk.get("/readyz")).text
                answer = await step(desk)
                again = await step_again(desk, answer)
                assert again.status_code == answer.status_code
                ready, metrics = (await desk.get("/readyz")).text, (await desk.get("/metrics")).text
                listed = (await desk.get("/api/timers/damaged")).json()["damage"]
            for tasks in app.state.tasks:
                await tasks.close()
            await live.close()
            return answer, ready, metrics, listed, [one for one in logged if one["event"] == "store damaged"]

    return asyncio.run(play())


async def step_again(desk: Desk, answer: httpx.Response) -> httpx.Response:
    """Ask the same again: the same place is told once."""
    return await desk.http.send(answer.request)


async def by_key(desk: Desk) -> httpx.Response:
    desk.spoil(desk.only(KEYINDEX), 4096 + 3)
    return await desk.get("/api/messages?topic=t&key=k")


async def record_by_key(desk: Desk) -> httpx.Response:
    desk.spoil_record("B")
    return await desk.get("/api/messages?topic=t&key=k")


async def record_by_place(desk: Desk) -> httpx.Response:
    desk.spoil_record("B")
    return await desk.get("/api/topics/t/messages?queue=0&offset=0")


async def queue_entry(desk: Desk) -> httpx.Response:
    desk.spoil(desk.only(f"{CONSUMEQUEUE}/t/0"), ENTRY_BYTES + 4)
    return await desk.get("/api/topics/t/messages?queue=0&offset=0")


async def queue_entry_of_zeros(desk: Desk) -> httpx.Response:
    desk.disk.write(desk.only(f"{CONSUMEQUEUE}/t/0"), ENTRY_BYTES, bytes(ENTRY_BYTES))
    return await desk.get("/api/topics/t/messages?queue=0&offset=0")


async def queue_file_cut(desk: Desk) -> httpx.Response:
    desk.disk.truncate(desk.only(f"{CONSUMEQUEUE}/t/0"), ENTRY_BYTES)
    return await desk.get("/api/topics/t/messages?queue=0&offset=1")


async def queue_file_gone(desk: Desk) -> httpx.Response:
    desk.disk.delete(desk.only(f"{CONSUMEQUEUE}/t/0"))
    return await desk.get("/api/topics/t/messages?queue=0&offset=0")


async def timer_by_id(desk: Desk) -> httpx.Response:
    desk.spoil(desk.only(NAMES), 4096 + 3)
    return await desk.get("/api/timers/one?topic=t&id=T")


async def timer_record(desk: Desk) -> httpx.Response:
    desk.spoil_record("T")
    return await desk.get("/api/timers/one?topic=t&id=T")


async def timers_listed(desk: Desk) -> httpx.Response:
    for name in desk.disk.list(TIMERS):
        desk.spoil(f"{TIMERS}/{name}", 60)
    return await desk.get("/api/timers?topic=t&tag=none")


async def half_by_id(desk: Desk) -> httpx.Response:
    desk.spoil_record("H")
    return await desk.get(f"/api/transactions/{desk.half}")


async def halves_listed(desk: Desk) -> httpx.Response:
    desk.spoil_record("H")
    return await desk.get("/api/transactions")


async def explained(desk: Desk) -> httpx.Response:
    desk.spoil_record("B")
    return await desk.get("/api/explain?name=k")


async def group_made(desk: Desk) -> httpx.Response:
    """To begin at the end needs nothing of the file."""
    desk.spoil(desk.only(f"{CONSUMEQUEUE}/t/0"), ENTRY_BYTES + 4)
    made = await desk.http.post("/api/groups", json={"name": "new", "topic": "t", "start": "latest"})
    assert made.status_code == 201, made.text
    return await desk.get("/api/groups/new")


READERS: Final[dict[Step, tuple[int, str, str]]] = {
    by_key: (500, "index", "keyindex/"),
    record_by_key: (200, "log", "commitlog/"),
    record_by_place: (200, "log", "commitlog/"),
    queue_entry: (500, "queue", "consumequeue/t/0/"),
    queue_entry_of_zeros: (500, "queue", "consumequeue/t/0/"),
    queue_file_cut: (500, "queue", "consumequeue/t/0/"),
    queue_file_gone: (500, "queue", "consumequeue/t/0/"),
    timer_by_id: (500, "names", "timers-names/"),
    timer_record: (200, "log", "commitlog/"),
    timers_listed: (200, "partition", "timers/"),
    half_by_id: (500, "log", "commitlog/"),
    halves_listed: (200, "log", "commitlog/"),
    explained: (200, "log", "commitlog/"),
    group_made: (200, "queue", "consumequeue/t/0/"),
}
"""A reader, and what is answered and told: HTTP status, part, path."""
SEE: Final = dict.fromkeys(("partition", "names", "ends"), "tidewheel timer ls --damaged")
"""The command that `/readyz` and `tidewheel status` name for a damaged part."""


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_the_first_reader_that_meets_damage_has_it_told_everywhere(reader: Step) -> None:
    status, part, path = READERS[reader]
    answer, ready, metrics, listed, logged = met(reader)
    assert answer.status_code == status, answer.text
    if status == 500:
        assert answer.json()["code"] == "TW-111"
    assert logged, "the log says nothing"
    assert {one["part"] for one in logged} == {one["part"] for one in listed} == {part}
    assert all(path in f"{one['path']}: {one['what']}" for one in (*logged, *listed))
    count = len(listed)
    assert f"damaged: {count} places" in ready
    (line,) = [one for one in ready.splitlines() if one.startswith("damaged: ")]
    assert line.endswith(f", see: {SEE.get(part, 'tidewheel store verify')}")
    assert ("queue 0 of topic t; restart the broker" in line) == (part == "queue")
    (gauge,) = [line for line in metrics.splitlines() if line.startswith("mq_store_damage{")]
    assert gauge.endswith(f" {float(count)}")
    assert len(logged) == count, "each place is told once"
