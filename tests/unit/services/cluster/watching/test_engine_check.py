"""While the engine would lose what it accepts, a leader takes nothing new, and ends what it has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from services.broker.schedules.schedule_values import Schedule
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Resolution, TimerName, Verdict
from services.cluster.errors import EngineTrouble
from services.cluster.watching.engine_check import CHECK_SECONDS, UNSAFE_CHECK_SECONDS, EngineCheck
from services.live.live_broker import LiveBroker
from tests.memory_disk import MemoryDisk
from tests.memory_engine import MemoryEngine

NOW_MS = 1_763_700_000_000
BAD = "fsync of PostgreSQL is off, so a power cut loses records. Set it: ALTER SYSTEM SET fsync = on;"


class Stage:
    """A broker that leads, an engine, and the watch over it, whose pauses a test ends."""

    def __init__(self, live: LiveBroker, executor: ThreadPoolExecutor) -> None:
        self.live, self.engine = live, MemoryEngine(Random(1))
        self.engine.is_well = True
        self.check = EngineCheck(self.engine.check_settings, executor, self._pause)
        self._paused: asyncio.Queue[float] = asyncio.Queue()
        self._goes_on = asyncio.Event()

    async def _pause(self, seconds: float) -> None:
        self._paused.put_nowait(seconds)
        await self._goes_on.wait()
        self._goes_on.clear()

    async def asked(self) -> float:
        """How long the watch pauses, once it has asked."""
        return await self._paused.get()

    async def ask_again(self) -> float:
        """Let a pause be over."""
        self._goes_on.set()
        return await self.asked()

    async def send(self, message_id: str, **attributes: object) -> str:
        """Send a message; returns the transaction's id, of a half."""
        message = Message(topic="t", body=b"x", message_id=message_id, **attributes)  # type: ignore[arg-type]
        return (await self.live.send(message)).transaction_id


def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        settings = BrokerSettings(segment_bytes=1 << 16)
        with ThreadPoolExecutor(4) as executor:
            call_later = asyncio.get_running_loop().call_later
            live = LiveBroker(MemoryDisk(), settings, lambda: NOW_MS, call_later, executor)
            await scenario(Stage(live, executor))
            await live.close()

    asyncio.run(run())


def fail(bug: BaseException) -> None:
    raise bug


def test_new_messages_are_refused_and_their_ends_are_not() -> None:
    async def scenario(stage: Stage) -> None:
        live = stage.live
        await stage.send("M1")
        half = await stage.send("H1", transactional=True)
        await stage.send("D1", delivery_ms=NOW_MS + 60_000)
        (got,) = await live.receivers.receive("g", "t", EVERYTHING, 32, 20_000, "c", False, 1)
        stage.engine.troubles = [BAD]
        async with stage.check.watching(live.refuse_new_messages, fail):
            await stage.asked()
            for attributes in ({}, {"transactional": True}, {"delivery_ms": NOW_MS + 60_000}):
                with pytest.raises(EngineTrouble, match="ALTER SYSTEM SET fsync = on;"):
                    await stage.send("M2", **attributes)
            schedule = Schedule(name="s", cron="* * * * *", time_zone="UTC", topic="t", body=b"x")
            with pytest.raises(EngineTrouble):
                await live.call(live.core.schedules.set, schedule)
            await live.call(live.core.receiving.ack, "g", "t", got.receipt_handle)
            await live.call(live.core.transactions.end, "t", half, "H1", Resolution.COMMIT)
            gone = await live.call(live.core.timers.cancel, TimerName("t", "D1"), "told so")
            assert gone.verdict is Verdict.CANCELLED

    play(scenario)


def test_when_the_trouble_is_over_sends_go_on() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.check.watching(stage.live.refuse_new_messages, fail):
            assert await stage.asked() == CHECK_SECONDS
            await stage.send("M1")
            stage.engine.troubles = [BAD]
            assert await stage.ask_again() == UNSAFE_CHECK_SECONDS
            assert stage.check.trouble == [BAD]
            with pytest.raises(EngineTrouble):
                await stage.send("M2")
            stage.engine.troubles = []
            assert await stage.ask_again() == CHECK_SECONDS
            assert stage.check.trouble == []
            await stage.send("M2")

    play(scenario)


def test_an_engine_that_does_not_answer_changes_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.check.watching(stage.live.refuse_new_messages, fail):
            await stage.asked()
            stage.engine.is_away = True
            await stage.ask_again()
            await stage.send("M1")
            stage.engine.is_away, stage.engine.troubles = False, [BAD]
            await stage.ask_again()
            stage.engine.is_away, stage.engine.troubles = True, []
            assert await stage.ask_again() == UNSAFE_CHECK_SECONDS
            with pytest.raises(EngineTrouble):
                await stage.send("M2")

    play(scenario)


def test_who_leads_no_more_tells_no_trouble() -> None:
    async def scenario(stage: Stage) -> None:
        stage.engine.troubles = [BAD]
        async with stage.check.watching(stage.live.refuse_new_messages, fail):
            await stage.asked()
        assert stage.check.trouble == []

    play(scenario)


def test_a_bug_in_a_check_is_not_hidden() -> None:
    async def scenario(stage: Stage) -> None:
        stage.check = EngineCheck(lambda: [][0], ThreadPoolExecutor(1))
        met: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        async with stage.check.watching(stage.live.refuse_new_messages, met.set_result):
            assert isinstance(await met, IndexError)

    play(scenario)
