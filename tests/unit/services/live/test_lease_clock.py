"""The shell tells the core of each step of the system clock, before anything is decided by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Delivery
from services.live.live_broker import LiveBroker
from services.rpc.clients.sessions import FORGET_AFTER_MS, Sessions
from services.rpc.wire.caller import Caller
from tests.memory_disk import MemoryDisk
from tidewheel.errors import InvalidReceiptHandle

NOW_MS = 1_763_700_000_000
SPAN_MS, HOUR_MS = 60_000, 3_600_000


class Machine:
    """A broker whose system clock is set, and whose other clock only counts."""

    def __init__(self, writer: ThreadPoolExecutor) -> None:
        self.wall_ms, self.counted_ms = NOW_MS, 7_000.0
        later = asyncio.get_running_loop().call_later
        settings = BrokerSettings(segment_bytes=1 << 16, queue_count=1)
        self.disk = MemoryDisk()
        self.live = LiveBroker(
            self.disk, settings, lambda: self.wall_ms, later, writer, counted_ms=lambda: self.counted_ms
        )

    def passes(self, ms: int) -> None:
        self.wall_ms += ms
        self.counted_ms += ms

    async def receive(self) -> list[Delivery]:
        self.live.tick()
        return await self.live.receivers.receive("g", "t", EVERYTHING, 32, SPAN_MS, "c", False, 0)

    async def ack(self, delivery: Delivery) -> None:
        await self.live.call(self.live.core.receiving.ack, "g", "t", delivery.receipt_handle)


def play(scenario: Callable[[Machine], Awaitable[None]]) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as writer:
            machine = Machine(writer)
            await machine.live.send(Message(topic="t", body=b"x", message_id="M1"))
            await asyncio.wait_for(scenario(machine), 30)
            await machine.live.close()

    asyncio.run(run())


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS, 30_000, -30_000, 900, -900])
@pytest.mark.parametrize("ticks", [True, False])
def test_a_step_of_the_clock_changes_no_span(by_ms: int, ticks: bool) -> None:
    """`ticks`: the alarm rings behind the step, else a consumer calls first."""

    async def scenario(machine: Machine) -> None:
        [first] = await machine.receive()
        for _ in range(5):
            machine.passes(SPAN_MS // 5 - 1)
            machine.wall_ms += by_ms
            if ticks:
                machine.live.tick()
        assert await machine.receive() == []
        machine.passes(5)
        [second] = await machine.receive()
        with pytest.raises(InvalidReceiptHandle):
            await machine.ack(first)
        machine.wall_ms += by_ms
        await machine.ack(second)

    play(scenario)


def test_a_lease_that_is_given_in_the_moment_of_a_step_lasts_its_span() -> None:
    async def scenario(machine: Machine) -> None:
        machine.wall_ms -= HOUR_MS
        receive = machine.live.receivers.receive
        [got] = await receive("g", "t", EVERYTHING, 32, SPAN_MS, "c", False, 0)
        assert got.visible_ms == machine.wall_ms + SPAN_MS
        machine.passes(SPAN_MS - 1)
        assert await machine.receive() == []
        machine.passes(1)
        assert len(await machine.receive()) == 1

    play(scenario)


def test_a_suspended_machine_counts_no_time() -> None:
    async def scenario(machine: Machine) -> None:
        [got] = await machine.receive()
        machine.wall_ms += 8 * HOUR_MS
        machine.live.tick()
        await machine.ack(got)
        machine.passes(HOUR_MS)
        assert await machine.receive() == []

    play(scenario)


def test_a_core_that_is_made_anew_is_told_of_steps_too() -> None:
    async def scenario(machine: Machine) -> None:
        await machine.live.send(Message(topic="t", body=b"x", message_id="M2", message_group="a"))
        for got in await machine.receive():
            if got.message.message_id == "M1":
                await machine.ack(got)
        before = machine.live.core
        machine.live.fail(OSError("the disk is gone"))
        await machine.live.wait_until_available()
        assert machine.live.core is not before
        machine.wall_ms += HOUR_MS
        machine.passes(SPAN_MS - 1)
        assert await machine.receive() == []
        machine.passes(1)
        [again] = await machine.receive()
        assert again.message.message_id == "M2"

    play(scenario)


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_a_client_is_silent_for_elapsed_time(by_ms: int) -> None:
    wall_ms, counted_ms = NOW_MS, 0.0
    sessions = Sessions(lambda: wall_ms, lambda: counted_ms)
    session = sessions.seen(Caller("a"))
    wall_ms += by_ms
    sessions.seen(Caller("b"))
    assert (sessions.find("a"), sessions.present()) == (session, ["a", "b"])
    since_ms = sessions.counted_ms()
    counted_ms += 1
    sessions.seen(Caller("a"))
    assert not session.absent_since(since_ms)
    counted_ms += FORGET_AFTER_MS
    sessions.seen(Caller("c"))
    assert sessions.find("a") is None
