"""The loop around the core: answers wait for the disk, and a disk that fails is survived."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from commitlog import layout, limits
from commitlog.log.recovery import LogScan
from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.snapshots import snapshot
from consumequeue.filters.filter import EVERYTHING
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Delivery, Resolution, RunTimersJob
from services.cluster.errors import EngineTrouble
from services.live import flushing
from services.live.durability import OWN_MS, LeadershipProofs
from services.live.errors import ResultUnknown
from services.live.live_broker import TURNS_BETWEEN_FULL_TICKS, LiveBroker
from tests.memory_disk import MemoryDisk
from tidewheel import property_names
from tidewheel.errors import TransactionEnded

NOW_MS = 1_763_700_000_000
HOURS = 36_000.0
Scenario = Callable[[LiveBroker, "HeldDisk"], Awaitable[None]]


class HeldDisk(MemoryDisk):
    """A disk whose syncs of the log wait while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.free = Event()
        self.free.set()

    def sync(self, path: str) -> None:
        if path.startswith("commitlog"):
            assert self.free.wait(60), "nobody let the disk go on"
        super().sync(path)


def play(scenario: Scenario, *, sync_flush: bool = True) -> None:
    async def run() -> None:
        disk = HeldDisk()
        settings = BrokerSettings(segment_bytes=1 << 16, sync_flush=sync_flush)
        with ThreadPoolExecutor(1) as writer:
            call_later = asyncio.get_running_loop().call_later
            live = LiveBroker(disk, settings, lambda: NOW_MS, call_later, writer)
            await scenario(live, disk)
            await live.close()

    asyncio.run(run())


def message(message_id: str, **attributes: object) -> Message:
    return Message(topic="t", body=b"x", message_id=message_id, **attributes)  # type: ignore[arg-type]


async def received(live: LiveBroker, seconds: float) -> list[Delivery]:
    return await live.receivers.receive("g", "t", EVERYTHING, 32, 20_000, "c", False, seconds)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_send_is_answered_and_visible_only_when_it_is_on_disk() -> None:
    async def scenario(live: LiveBroker, disk: HeldDisk) -> None:
        disk.free.clear()
        sending = asyncio.create_task(live.send(message("M1")))
        waiting = asyncio.create_task(received(live, 10))
        await settle()
        assert not sending.done()
        assert not waiting.done()
        disk.free.set()
        assert (await sending).message_id == "M1"
        assert [one.message.message_id for one in await waiting] == ["M1"]

    play(scenario)


def test_a_refusal_that_rests_on_a_record_waits_for_it() -> None:
    async def scenario(live: LiveBroker, disk: HeldDisk) -> None:
        half = await live.send(message("M1", transactional=True))
        disk.free.clear()
        first = asyncio.create_task(
            live.call(live.core.transactions.end, "t", half.transaction_id, "M1", Resolution.COMMIT)
        )
        await settle()
        second = asyncio.create_task(
            live.call(live.core.transactions.end, "t", half.transaction_id, "M1", Resolution.ROLLBACK)
        )
        await settle()
        assert not second.done()
        disk.free.set()
        await first
        with pytest.raises(TransactionEnded, match="COMMITTED"):
            await second

    play(scenario)


def test_callers_of_one_turn_share_a_flush() -> None:
    async def scenario(live: LiveBroker, disk: HeldDisk) -> None:
        await asyncio.gather(*(live.send(message(f"M{number}")) for number in range(50)))
        assert live.core.statistics.flushes <= 2

    play(scenario)


def test_a_failed_sync_refuses_its_callers_and_the_broker_goes_on() -> None:
    async def scenario(live: LiveBroker, disk: HeldDisk) -> None:
        await live.send(message("kept"))
        disk.failing_syncs = 1
        with pytest.raises(ResultUnknown, match="Send again with the same message id"):
            await live.send(message("unknown"))
        await live.send(message("later"))
        got = [one.message.message_id for one in await received(live, 1)]
        assert sorted(got) == ["kept", "later"]

    play(scenario)


def test_a_wait_that_finds_nothing_ends_and_a_closing_broker_sends_everybody_home() -> None:
    async def scenario(live: LiveBroker, disk: HeldDisk) -> None:
        assert await received(live, 0.01) == []
        waiting = asyncio.create_task(received(live, 60))
        await settle()
        live.receivers.close()
        assert await waiting == []

    play(scenario)


def test_asynchronous_flushes_answer_before_the_disk_and_tell_readers_after_it() -> None:
    async def scenario(live: LiveBroker, disk: HeldDisk) -> None:
        disk.free.clear()
        receipt = await live.send(message("M1"))
        assert [one.message.message_id for one in await received(live, 1)] == ["M1"]
        assert live.core.synced_offset < receipt.durable_at
        assert layout.read_durable(disk) < receipt.durable_at
        disk.free.set()
        while layout.read_durable(disk) < receipt.durable_at:
            await asyncio.sleep(0.01)
        assert live.core.synced_offset >= receipt.durable_at

    play(scenario, sync_flush=False)


def test_a_failed_sync_of_asynchronous_flushes_loses_nothing_that_can_still_be_read() -> None:
    async def scenario(live: LiveBroker, disk: HeldDisk) -> None:
        core = live.core
        disk.failing_syncs = 1
        await live.send(message("acknowledged"))
        while live.core is core:
            await asyncio.sleep(0.01)
        await live.send(message("later"))
        got = [one.message.message_id for one in await received(live, 2)]
        while live.core.synced_offset < live.core.durable_offset:
            await asyncio.sleep(0.01)
        disk.crash(lambda count: 0)
        kept = [found.record for found in LogScan(disk, live.settings.segment_bytes)]
        sent = [
            properties.value_of(one.properties, property_names.MESSAGE_ID) for one in kept if one.topic == "t"
        ]
        assert sorted(got) == sent == ["acknowledged", "later"]

    play(scenario, sync_flush=False)


def test_after_a_failed_sync_in_a_checkpoint_nothing_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(live: LiveBroker, disk: HeldDisk) -> None:
        core = live.core
        disk.failing_syncs = 1
        await live.send(message("acknowledged"))  # a checkpoint is due at once, and syncs the log first
        while live.core is core:
            await asyncio.sleep(0.01)
        await live.send(message("later"))
        while not snapshot.offsets(disk):
            await asyncio.sleep(0.01)
        disk.crash(lambda count: 0)
        kept = [found.record.topic for found in LogScan(disk, live.settings.segment_bytes)]
        assert "t" in kept

    monkeypatch.setattr(limits, "SNAPSHOT_LOG_BYTES", 1)
    play(scenario, sync_flush=False)


@pytest.mark.parametrize(("linger_seconds", "under_way"), [(0.0, 2), (0.001, 2), (3_600.0, 1)])
def test_a_flush_begins_beside_one_that_takes_long_and_behind_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, linger_seconds: float, under_way: int
) -> None:
    monkeypatch.setattr(flushing, "LINGER_SECONDS", linger_seconds)

    async def scenario(live: LiveBroker, disk: HeldDisk) -> None:
        await live.send(message("M0"))  # a flush that makes a segment has none beside it
        await live._flushing.idle()
        disk.free.clear()
        first = asyncio.create_task(live.send(message("M1")))
        await settle()
        others = [asyncio.create_task(live.send(message(f"M{number}"))) for number in (2, 3)]
        await settle()
        if under_way == 2:
            async with asyncio.timeout(60):
                while live._flushing._flying_count < under_way:
                    await asyncio.sleep(0)
        assert live._flushing._flying_count == under_way
        disk.free.set()
        for sending in (first, *others):
            await sending
        await live._flushing.idle()

    play(scenario)


def test_who_closes_waits_for_every_read_of_timers_also_for_those_that_another_read_wants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[object] = []

    class Job:
        def run(self, disk: object) -> None:
            read.append(self)

    async def run(threads: ThreadPoolExecutor) -> None:
        call_later = asyncio.get_running_loop().call_later
        live = LiveBroker(MemoryDisk(), BrokerSettings(segment_bytes=1 << 16), lambda: 0, call_later, threads)
        wanted: Any = Job()

        def complete_timers_job(job: object) -> None:
            if len(read) < 3:
                live._apply_effects([RunTimersJob(wanted)])

        monkeypatch.setattr(live.core, "complete_timers_job", complete_timers_job)
        live._apply_effects([RunTimersJob(wanted)])
        await live.close()
        assert len(read) == 3

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(run(threads))


def test_what_a_crowded_moment_has_planned_rings_no_alarm_in_a_broker_that_is_closed() -> None:
    async def run(threads: ThreadPoolExecutor) -> None:
        loop, planned = asyncio.get_running_loop(), []

        def call_later(seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
            planned.append(call)
            return loop.call_later(seconds, call)

        live = LiveBroker(MemoryDisk(), BrokerSettings(segment_bytes=1 << 16), lambda: 0, call_later, threads)
        live.core.is_crowded = True
        await live.close()
        planned.clear()
        for _ in range(2 * TURNS_BETWEEN_FULL_TICKS):
            await asyncio.sleep(0)
        assert not planned

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(run(threads))


def test_a_leader_that_cannot_prove_that_it_leads_tells_of_its_trouble_and_that_nobody_knows() -> None:
    async def scenario() -> None:
        now_ms, later = [0], list[Callable[[], None]]()
        loop = asyncio.get_running_loop()

        def call_later(seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
            is_limit = call == live._fail_own_refusals
            if is_limit:
                later.append(call)
            return loop.call_later(HOURS if is_limit else seconds, call)

        with ThreadPoolExecutor(1) as writer:
            settings, proving = (
                BrokerSettings(segment_bytes=1 << 16),
                LeadershipProofs(lambda: now_ms[0], lambda: None),
            )
            live = LiveBroker(HeldDisk(), settings, lambda: NOW_MS, call_later, writer, proving=proving)
            live.refuse_new_messages(EngineTrouble("No standby is there."))
            first = asyncio.create_task(live.send(message("M1")))
            await settle()
            now_ms[0] = OWN_MS // 2
            second = asyncio.create_task(live.send(message("M2")))
            await settle()
            assert [first.done(), second.done()] == [False, False]
            for now_ms[0], told in ((OWN_MS, first), (2 * OWN_MS, second)):
                later.pop()()
                with pytest.raises(ResultUnknown, match=r"An earlier call .* refused: TW-259 .* No standby"):
                    await told
            assert later == []
            live.answers.stop_proofs(ResultUnknown())
            await live.close()

    asyncio.run(scenario())
