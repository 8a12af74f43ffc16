"""What the loop does not survive ends it: `broken` says why, and nothing is acknowledged after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from commitlog.errors import ResultUnknown, StoreError
from commitlog.memory_disk import MemoryDisk
from commitlog.message import Message
from services.broker.settings import BrokerSettings
from services.live.live_broker import LiveBroker

NOW_MS = 1_763_700_000_000


class DyingDisk(MemoryDisk):
    """A disk that, once dead, refuses every change."""

    dead = False

    def sync(self, path: str) -> None:
        self._refuse_if_dead(path)
        super().sync(path)

    def truncate(self, path: str, length: int) -> None:
        self._refuse_if_dead(path)
        super().truncate(path, length)

    def _refuse_if_dead(self, path: str) -> None:
        if self.dead:
            raise OSError(5, "Input/output error", path)


def play(scenario: Callable[[LiveBroker, DyingDisk], Awaitable[None]]) -> None:
    async def run() -> None:
        disk = DyingDisk()
        with ThreadPoolExecutor(1) as writer:
            call_later = asyncio.get_running_loop().call_later
            settings = BrokerSettings(segment_bytes=1 << 16)
            live = LiveBroker(disk, settings, lambda: NOW_MS, call_later, writer)
            await asyncio.wait_for(scenario(live, disk), 10)
            await live.close()

    asyncio.run(run())


def message(message_id: str) -> Message:
    return Message(topic="t", body=b"x", message_id=message_id)


def test_a_disk_that_stays_dead_breaks_the_broker_and_refuses_its_callers() -> None:
    async def scenario(live: LiveBroker, disk: DyingDisk) -> None:
        await live.send(message("kept"))
        disk.dead = True
        with pytest.raises(ResultUnknown):
            await live.send(message("unknown"))
        with pytest.raises(StoreError, match="Input/output error"):
            await live.broken

    play(scenario)


def test_a_bug_in_the_core_breaks_the_broker_and_reaches_the_caller() -> None:
    async def scenario(live: LiveBroker, disk: DyingDisk) -> None:
        with pytest.raises(TypeError):
            await live.send(Message(topic=None, body=b"x", message_id="M"))  # type: ignore[arg-type]
        assert isinstance(live.broken.exception(), TypeError)

    play(scenario)
