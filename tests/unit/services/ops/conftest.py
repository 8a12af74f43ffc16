"""A live core and its HTTP interface, on a clock that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from commitlog.records.message import Message
from services.broker.spine.settings import BrokerSettings
from services.live.clock import open_clock_offset
from services.live.live_broker import LiveBroker
from services.ops.app import make_app
from services.ops.metrics.broker_metrics import Metrics
from tests.memory_disk import MemoryDisk

START_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(segment_bytes=1 << 23)


@dataclass
class Desk:
    """Somebody at the HTTP interface of a broker with a virtual clock."""

    live: LiveBroker
    app: Starlette
    http: httpx.AsyncClient
    now_ms: int = START_MS

    async def get(self, path: str, status: int = 200, **query: object) -> Any:
        """Ask for something under /api/timers; the status must be as expected."""
        answer = await self.http.get(f"/api/timers{path}", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, path: str, body: object, status: int = 200) -> Any:
        """Hand something in under /api/timers; the status must be as expected."""
        answer = await self.http.post(f"/api/timers{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def set(self, topic: str, span: str, **more: object) -> Any:
        """Set a timer."""
        return await self.post("", {"topic": topic, "body": "x", "in": span} | more, 201)

    async def send_half(self, topic: str, key: str) -> str:
        """Send a half message; returns its transaction's id."""
        message = Message(topic=topic, body=b"x", message_id=f"H-{key}", keys=(key,), transactional=True)
        return (await self.live.send(message)).transaction_id

    async def advance(self, by: str) -> None:
        """Let time pass."""
        moved = await self.http.post("/api/clock/advance", json={"by": by})
        assert moved.status_code == 200, moved.text

    async def ended(self, task_id: str) -> Any:
        """Return a task when it has ended."""
        while (task := await self.get(f"/tasks/{task_id}"))["state"] == "running":
            await asyncio.sleep(0.001)
        return task


Scenario = Callable[[Desk], Awaitable[None]]


@pytest.fixture
def at_desk() -> Callable[[Scenario], None]:
    """Run a scenario at a desk of its own."""

    def play(scenario: Scenario) -> None:
        asyncio.run(run(scenario))

    return play


async def run(scenario: Scenario, settings: BrokerSettings = SETTINGS) -> None:
    """Run a scenario at a desk of a broker with these settings."""
    with ThreadPoolExecutor(1) as writer:
        disk = MemoryDisk()
        call_later = asyncio.get_running_loop().call_later
        live = LiveBroker(
            disk, settings, lambda: START_MS, call_later, writer, open_clock_offset(disk, "virtual")
        )
        app = make_app(live, Metrics(live, []), files=disk)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            await scenario(Desk(live, app, http))
        for tasks in app.state.tasks:
            await tasks.close()
        await live.close()
