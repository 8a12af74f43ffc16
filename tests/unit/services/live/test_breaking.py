"""What the loop does not survive ends it: `broken` says why, and nothing is acknowledged after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from commitlog.records.message import Message
from services.broker.spine.settings import BrokerSettings
from services.live.errors import BrokerBroken
from services.live.live_broker import LiveBroker
from tests.memory_disk import MemoryDisk
from tidewheel.errors import PropertiesTooLarge

NOW_MS = 1_763_700_000_000


def play(scenario: Callable[[LiveBroker, MemoryDisk], Awaitable[None]]) -> None:
    async def run() -> None:
        disk = MemoryDisk()
        with ThreadPoolExecutor(1) as writer:
            call_later = asyncio.get_running_loop().call_later
            settings = BrokerSettings(segment_bytes=1 << 16)
            live = LiveBroker(disk, settings, lambda: NOW_MS, call_later, writer)
            await asyncio.wait_for(scenario(live, disk), 60)
            await live.close()

    asyncio.run(run())


def message(message_id: str) -> Message:
    return Message(topic="t", body=b"x", message_id=message_id)


def test_a_bug_in_the_core_breaks_the_broker_and_reaches_the_caller() -> None:
    async def scenario(live: LiveBroker, disk: MemoryDisk) -> None:
        with pytest.raises(TypeError):
            await live.send(Message(topic=None, body=b"x", message_id="M"))  # type: ignore[arg-type]
        assert isinstance(live.broken.exception(), TypeError)
        with pytest.raises(BrokerBroken):
            await live.send(message("after the bug"))

    play(scenario)


def test_a_message_whose_keys_no_record_could_hold_is_refused_and_breaks_nothing() -> None:
    """One key has a blank, so the record would have the length of each."""

    async def scenario(live: LiveBroker, disk: MemoryDisk) -> None:
        with pytest.raises(PropertiesTooLarge):
            await live.send(Message(topic="t", body=b"x", message_id="M", keys=("a ", *["b"] * 16_382)))
        await live.send(message("after it"))
        assert not live.broken.done()

    play(scenario)
