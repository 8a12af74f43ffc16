"""A disk that fails makes the core void: nothing is served by it, and it is made anew when the disk works."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from commitlog import layout
from commitlog.errors import DiskFailed, NoRoom
from commitlog.log.retention import Deletion
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import RetireSegments
from services.live import flushing
from services.live.durability import LeadershipProofs
from services.live.errors import ResultUnknown, StoreUnavailable
from services.live.live_broker import LiveBroker
from sharedlog.errors import NotAccepted
from tests.unit.services.live.failing_disk import FailingDisk, Pauses, failing
from tidewheel.errors import TidewheelError

NOW_MS = 1_763_700_000_000
SEGMENT_BYTES = 1 << 16


Scenario = Callable[[LiveBroker, FailingDisk, Pauses], Awaitable[None]]


def play(scenario: Scenario, *, sync_flush: bool = True) -> None:
    async def run() -> None:
        disk, pauses = FailingDisk(), Pauses()
        with ThreadPoolExecutor(3) as writer:
            settings = BrokerSettings(
                segment_bytes=SEGMENT_BYTES, sync_flush=sync_flush, housekeeping_ms=10_000_000
            )
            live = LiveBroker(disk, settings, lambda: NOW_MS, pauses, writer)
            await asyncio.wait_for(scenario(live, disk, pauses), 60)
            assert not live.broken.done(), "no bug"
            await live.close()

    asyncio.run(run())


def message(message_id: str, due_ms: int | None = None) -> Message:
    return Message(topic="t", body=b"x", message_id=message_id, keys=("k",), delivery_ms=due_ms)


async def receive(live: LiveBroker) -> list[str]:
    got = await live.receivers.receive("g", "t", EVERYTHING, 32, 20_000, "c", False, 0.0)
    return [one.message.message_id for one in got]


async def till_well(live: LiveBroker, pauses: Pauses) -> None:
    while live.disk_failure is not None:
        pauses.pass_by()
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "fails",
    [
        failing("write", under=layout.COMMITLOG),
        failing("sync", under=layout.COMMITLOG),
        failing("write", under="", number=errno.ENOSPC),
    ],
    ids=["the log", "its sync", "no room"],
)
def test_what_fails_on_the_way_of_a_send_is_told_and_not_survived_by_the_core(
    fails: Callable[[str, str], int],
) -> None:
    async def scenario(live: LiveBroker, disk: FailingDisk, pauses: Pauses) -> None:
        await live.send(message("kept"))
        core = live.core
        disk.fails = fails
        with pytest.raises(ResultUnknown, match="Send again with the same message id"):
            await live.send(message("unknown"))
        disk.heal()
        await till_well(live, pauses)
        assert live.core is not core
        await live.send(message("later"))
        got = await receive(live)
        assert {"kept", "later"} <= set(got) <= {"kept", "unknown", "later"}
        assert len(got) == len(set(got))

    play(scenario)


def test_while_the_disk_stays_dead_nothing_is_served_and_afterwards_all_is_there() -> None:
    async def scenario(live: LiveBroker, disk: FailingDisk, pauses: Pauses) -> None:
        health: list[bool] = []
        live.set_health_callback(health.append)
        await live.send(message("kept"))
        await live.send(message("soon", NOW_MS + 60_000))
        disk.fails = failing("sync", "allocate", "delete", "read")
        with pytest.raises(ResultUnknown):
            await live.send(message("unknown"))
        unwell: list[Callable[[], object]] = [
            lambda: live.core,
            lambda: live.find("t", "k", 9),
            lambda: live.query(live.core.finding.read, "t", 0, 0, 1),
            lambda: live.query(live.core.group_views.view_all),
        ]
        for look in unwell:
            with pytest.raises(StoreUnavailable, match="EIO"):
                look()
        for attempt in (
            lambda: live.send(message("refused")),
            lambda: live.call(live.core.topics.get_or_create, "t"),
            lambda: live.call(live.core.timers.recall, "t", "x"),
        ):
            with pytest.raises(StoreUnavailable):
                await attempt()
        with pytest.raises(StoreUnavailable):
            await receive(live)
        live.receivers.renew_client_leases("c")
        live.receivers.release_client_leases("c")
        live.receivers.remove_subscriptions("c")
        assert live.tick() is False
        lengths: list[float] = []
        while len(lengths) < 8:
            lengths += [seconds for seconds in pauses.pass_by() if seconds != 1.0]
            await asyncio.sleep(0.001)
        assert lengths == sorted(lengths)
        assert lengths[-1] == 5.0
        disk.heal()
        await till_well(live, pauses)
        assert health == [False, True]
        assert live.core.gauges().pending_timers == 1
        await live.send(message("later"))
        assert sorted(await receive(live)) == ["kept", "later"]

    play(scenario)


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_core_that_makes_all_queues_anew_does_not_hold_the_loop(
    monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    """It reads the whole log; without that the callers of a failure that has passed see nothing of it."""
    threads: list[threading.Thread] = []

    async def scenario(live: LiveBroker, disk: FailingDisk, pauses: Pauses) -> None:
        await live.send(message("kept"))
        checkpoint = live.core.checkpoint(NOW_MS)
        checkpoint.write(disk)
        live.core.complete_checkpoint(checkpoint)
        if not is_marked:
            disk.delete(layout.QUEUES_WHOLE)
        monkeypatch.setattr(Broker, "open", recorded)
        disk.fails = failing("write", under=layout.COMMITLOG)
        with pytest.raises(ResultUnknown):
            await live.send(message("unknown"))
        disk.heal()
        await till_well(live, pauses)
        assert (threads[0] is threading.main_thread()) == is_marked
        assert "kept" in await receive(live)

    open_core = Broker.open

    def recorded(*given: object) -> Broker:
        threads.append(threading.current_thread())
        return open_core(*given)  # type: ignore[arg-type]

    play(scenario)


def test_a_read_that_fails_in_a_receive_is_no_bug() -> None:
    async def scenario(live: LiveBroker, disk: FailingDisk, pauses: Pauses) -> None:
        await live.send(message("kept"))
        disk.fails = failing("read", under=layout.COMMITLOG)
        with pytest.raises(StoreUnavailable, match="Send again"):
            await receive(live)
        disk.heal()
        await till_well(live, pauses)
        assert await receive(live) == ["kept"]

    play(scenario)


def test_asynchronous_flushes_keep_what_was_answered_when_something_else_fails() -> None:
    async def scenario(live: LiveBroker, disk: FailingDisk, pauses: Pauses) -> None:
        await live.send(message("answered"))
        disk.fails = failing("write", under=layout.COMMITLOG)
        with pytest.raises(ResultUnknown):
            await live.send(message("unknown"))
        disk.heal()
        await till_well(live, pauses)
        assert await receive(live) == ["answered"]

    play(scenario, sync_flush=False)


def test_a_sync_that_fails_when_the_core_is_let_go_already_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL kill round, seed 2002: the loop said that a failure was never retrieved."""
    monkeypatch.setattr(flushing, "SYNC_SECONDS", 0.0)
    begun, may_end = threading.Event(), threading.Event()

    def fails_late(operation: str, path: str) -> int:
        if operation == "sync" and path.startswith(layout.COMMITLOG) and not begun.is_set():
            begun.set()
            may_end.wait(60)
            return errno.EIO
        return 0

    async def scenario(live: LiveBroker, disk: FailingDisk, pauses: Pauses) -> None:
        await live.send(message("first"))
        disk.fails = fails_late
        await live.send(message("second"))
        await asyncio.to_thread(begun.wait, 10)
        live.fail(OSError(errno.EIO, "a read has failed"))
        may_end.set()
        disk.heal()
        await till_well(live, pauses)
        assert await receive(live) == ["first", "second"]

    play(scenario, sync_flush=False)


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, NoRoom), (errno.EIO, DiskFailed)])
def test_a_snapshot_that_cannot_be_written_at_the_end_is_one_sentence(
    number: int, kind: type[TidewheelError]
) -> None:
    async def run() -> None:
        disk = FailingDisk()
        with ThreadPoolExecutor(3) as writer:
            call_later = asyncio.get_running_loop().call_later
            live = LiveBroker(
                disk, BrokerSettings(segment_bytes=SEGMENT_BYTES), lambda: NOW_MS, call_later, writer
            )
            await live.send(message("kept"))
            disk.fails = failing("write", under=layout.SNAPSHOTS, number=number)
            with pytest.raises(kind, match="All that was acknowledged is on disk"):
                await live.close()

    asyncio.run(run())


def test_a_broker_that_is_stopped_while_its_disk_fails_says_so() -> None:
    async def run() -> None:
        disk, pauses = FailingDisk(), Pauses()
        with ThreadPoolExecutor(3) as writer:
            live = LiveBroker(
                disk, BrokerSettings(segment_bytes=SEGMENT_BYTES), lambda: NOW_MS, pauses, writer
            )
            disk.fails = failing("write", "sync", "delete", "allocate", "read")
            with pytest.raises(ResultUnknown):
                await live.send(message("unknown"))
            with pytest.raises(DiskFailed, match="start it once the disk works"):
                await live.close()

    asyncio.run(run())


def test_what_a_tick_wanted_just_before_the_core_was_let_go_keeps_no_leader_from_stepping_down() -> None:
    async def run() -> None:
        disk, pauses, why = FailingDisk(), Pauses(), []
        settings = BrokerSettings(segment_bytes=SEGMENT_BYTES)
        core = Broker.open(disk, settings, NOW_MS)
        with ThreadPoolExecutor(3) as writer:
            live = LiveBroker(disk, settings, lambda: NOW_MS, pauses, writer, None, core, why.append)
            await live.send(message("kept"))
            wanted = core.housekeeping._running = Deletion(0)
            live._apply_effects([RetireSegments(wanted)])
            live.fail(NotAccepted("another one leads"))
            await live.close()
        assert [str(error) for error in why] == ["another one leads"]

    asyncio.run(run())


def test_a_leader_that_ends_waits_for_no_proof_which_nobody_brings_any_more() -> None:
    async def run() -> None:
        disk, pauses, asked = FailingDisk(), Pauses(), []
        settings = BrokerSettings(segment_bytes=SEGMENT_BYTES)
        core = Broker.open(disk, settings, NOW_MS)
        with ThreadPoolExecutor(3) as writer:
            proving = LeadershipProofs(lambda: NOW_MS, lambda: asked.append(NOW_MS))
            live = LiveBroker(disk, settings, lambda: NOW_MS, pauses, writer, None, core, print, proving)
            wanted = core.housekeeping._running = Deletion(0)
            live._apply_effects([RetireSegments(wanted)])
            await asyncio.sleep(0)
            assert asked
            async with asyncio.timeout(60):
                await live.close()
        assert core.housekeeping._running is None

    asyncio.run(run())


def test_a_full_disk_starts_with_the_room_of_the_reserve() -> None:
    async def run() -> None:
        disk = FailingDisk()
        settings = BrokerSettings(segment_bytes=SEGMENT_BYTES)
        with ThreadPoolExecutor(3) as writer:
            call_later = asyncio.get_running_loop().call_later
            live = LiveBroker(disk, settings, lambda: NOW_MS, call_later, writer)
            await live.send(message("kept"))
            await live.close()
            assert disk.size(layout.RESERVE) == SEGMENT_BYTES

            def full(operation: str, path: str) -> int:
                takes_room = operation in ("write", "allocate")
                return errno.ENOSPC if takes_room and disk.size(layout.RESERVE) >= 0 else 0

            disk.fails = full
            live = LiveBroker(disk, settings, lambda: NOW_MS, call_later, writer)
            disk.heal()
            assert await receive(live) == ["kept"]
            await live.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_started_again", [False, True])
def test_a_flush_that_ends_well_after_the_core_was_let_go_is_no_damage_of_the_log(
    is_started_again: bool,
) -> None:
    """Another operation fails while its worker syncs: a flush behind it, a checkpoint, a read in a tick."""
    disks = list[FailingDisk]()

    async def scenario(live: LiveBroker, disk: FailingDisk, pauses: Pauses) -> None:
        disks.append(disk)
        begun, allowed = threading.Event(), threading.Event()
        await live.send(message("first"))

        def slow(operation: str, path: str) -> int:
            if operation == "sync" and path.startswith(layout.COMMITLOG) and not begun.is_set():
                begun.set()
                assert allowed.wait(60)
            return 0

        disk.fails = slow
        sent = asyncio.ensure_future(live.send(message("second")))
        await asyncio.to_thread(begun.wait, 10)
        live.fail(OSError(errno.EIO, "Input/output error", "another file"))
        with pytest.raises(ResultUnknown):
            await sent
        allowed.set()
        await till_well(live, pauses)
        if not is_started_again:
            assert live.core.damaged == []
        for number in range(8):  # some come to the queue of the second one, as one of its retries would
            await live.send(message(f"later {number}"))

    play(scenario)
    if is_started_again:
        disks[0].delete(layout.SNAPSHOTS)  # it is killed before the next checkpoint
        disks[0].delete(layout.CONSUMEQUEUE)
        Broker.open(disks[0], BrokerSettings(segment_bytes=SEGMENT_BYTES), NOW_MS)
