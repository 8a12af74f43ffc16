"""Tasks over many timers when the disk fails, a record is damaged, a key is taken over meanwhile."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Semaphore
from typing import Any

import pytest

from commitlog import limits
from commitlog.records.message import Message
from services.broker.spine.errors import IllegalDeliveryTime
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import TimerFilter, TimerName, TimerVerdict, Verdict
from services.live.bulk.move_tasks import MoveTaskRequest, MoveTasks
from services.live.bulk.tasks import TaskState
from services.live.bulk.timer_tasks import TimerTask, TimerTaskRequest, TimerTasks, TimerVerb
from services.live.live_broker import LiveBroker
from tests.memory_disk import MemoryDisk
from tidewheel import property_names
from tidewheel.errors import NotFound

NOW_MS = 1_763_700_000_000
HOUR_MS = 3_600_000
ALL = TimerTaskRequest(TimerVerb.CANCEL, TimerFilter())


@dataclass
class Bench:
    """A broker with 500 timers an hour ahead, a second apart or less, and its tasks."""

    disk: MemoryDisk
    live: LiveBroker
    tasks: TimerTasks

    async def ended(self, task: TimerTask) -> TimerTask:
        while task.state is TaskState.RUNNING:
            await asyncio.sleep(0.001)
        return task


def play(
    scenario: Callable[[Bench], Awaitable[None]], apart_ms: int = 1_000, disk: MemoryDisk | None = None
) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as writer:
            settings, log_disk = BrokerSettings(segment_bytes=1 << 23), disk or MemoryDisk()
            call_later = asyncio.get_running_loop().call_later
            live = LiveBroker(log_disk, settings, lambda: NOW_MS, call_later, writer)
            await live.send_many([timer(number, apart_ms=apart_ms) for number in range(500)])
            bench = Bench(log_disk, live, TimerTasks(live))
            await scenario(bench)
            await bench.tasks.close()
            await live.close()

    asyncio.run(run())


def timer(number: int, message_id: str = "", apart_ms: int = 1_000) -> Message:
    return Message(
        topic="t",
        body=b"x",
        message_id=message_id or str(number),
        delivery_ms=NOW_MS + HOUR_MS + number * apart_ms,
        born_ms=NOW_MS,
        properties={property_names.TIMER_KEY: f"k{number}"},
    )


class SteppedDisk(MemoryDisk):
    """A disk whose next sync of the log waits for a step while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held, self.waits, self._steps = False, Event(), Semaphore(0)

    def sync(self, path: str) -> None:
        if self.is_held and path.startswith("commitlog"):
            self.waits.set()
            assert self._steps.acquire(timeout=60), "the disk was held for too long"
        super().sync(path)

    def step(self) -> None:
        """Let the waiting sync go on."""
        self.waits.clear()
        self._steps.release()

    def crashed(self) -> MemoryDisk:
        """Return the disk as it is if the power fails while a sync waits."""
        image = MemoryDisk()
        for name in image.__dict__:
            setattr(image, name, copy.deepcopy(getattr(self, name)))
        image.crash(lambda count: 0)
        return image


async def listed_after_crash(disk: SteppedDisk, what: str, task_id: str) -> int:
    """Return the number of items of a task that the store lists if the power fails now."""
    with ThreadPoolExecutor(1) as writer:
        call_later = asyncio.get_running_loop().call_later
        settings = BrokerSettings(segment_bytes=1 << 23)
        after = LiveBroker(disk.crashed(), settings, lambda: NOW_MS, call_later, writer)
        page = after.query(after.core.task_items.page, task_id, what, None, 1_000)
        await after.close()
    return 0 if page is None else len(page.items)


def test_a_disk_that_fails_stops_the_task_which_says_why_and_can_be_begun_again() -> None:
    async def scenario(bench: Bench) -> None:
        bench.disk.failing_syncs = 1
        stopped = await bench.ended(bench.tasks.start(ALL))
        assert stopped.state is TaskState.STOPPED
        assert "Writing to the store failed" in stopped.why
        while bench.live.disk_failure is not None:  # The store is opened again in other turns of the loop.
            await asyncio.sleep(0.001)
        left = bench.live.query(bench.live.core.timer_views.count, TimerFilter())
        assert left == 500, "what was refused has not happened"
        done = await bench.ended(bench.tasks.start(ALL))
        assert (done.state, done.by_verdict) == (TaskState.DONE, {"CANCELLED": 500})

    play(scenario)


async def steps_through(disk: SteppedDisk, running: list[tuple[Any, Any]]) -> None:
    """Run tasks to their end, and compare what each has reported with what a crash leaves at each sync."""
    reported = {task.id: 0 for _, task in running}
    while any(task.state is TaskState.RUNNING for _, task in running):
        for _ in range(20):
            await asyncio.sleep(0)
        if not disk.waits.is_set():
            continue
        for tasks, task in running:
            if task.done != reported[task.id]:
                reported[task.id] = task.done
                assert await listed_after_crash(disk, tasks.what, task.id) >= task.done
        disk.step()


def test_a_count_that_was_reported_is_not_smaller_after_a_crash() -> None:
    disk = SteppedDisk()

    async def scenario(bench: Bench) -> None:
        moves = MoveTasks(bench.live)
        await bench.live.send_many([Message(topic="from", body=b"x", message_id=f"m{n}") for n in range(300)])
        await bench.live.send(Message(topic="to", body=b"x", message_id="first"))
        running: list[tuple[Any, Any]] = [(bench.tasks, bench.tasks.start(ALL))]
        running.append((moves, moves.start(MoveTaskRequest("from", "to"))))
        disk.is_held = True
        try:
            await steps_through(disk, running)
        finally:
            disk.is_held = False
            disk.step()
        assert [task.done for _, task in running] == [500, 300]

    play(scenario, disk=disk)


def test_what_is_set_or_moved_by_others_after_it_began_is_left_alone_or_has_its_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TIMERS_QUERY_WORK_MAX", 2_000)  # so both are found before they are changed

    async def scenario(bench: Bench) -> None:
        task = bench.tasks.start(ALL)
        while not task.done:
            await asyncio.sleep(0)
        replaced = await bench.live.send(timer(249, "newer"))
        assert replaced.durable_at > task.end_offset
        moved = await bench.live.move_timer(TimerName("t", key="k248"), NOW_MS + 50 * HOUR_MS)
        assert moved.verdict is Verdict.MOVED
        await bench.ended(task)
        left = {one.message_id for one in bench.live.timers(TimerFilter(), None, 10).timers}
        assert left == {"newer", "248"}
        assert (task.matched, task.by_verdict) == (500, {"CANCELLED": 498, "ALREADY": 2})

    play(scenario, apart_ms=1)  # in one slot


def test_a_refusal_of_one_timer_is_counted_under_its_code_and_the_others_go_on() -> None:
    async def scenario(bench: Bench) -> None:
        far = limits.DELAY_MS_MAX - HOUR_MS - 250_000
        order = TimerTaskRequest(TimerVerb.MOVE, TimerFilter(), by_ms=far)
        task = await bench.ended(bench.tasks.start(order))
        assert task.state is TaskState.DONE
        assert task.by_verdict == {"MOVED": 251, IllegalDeliveryTime.code: 249}

    play(scenario)


def test_tasks_that_cannot_be_are_refused() -> None:
    async def scenario(bench: Bench) -> None:
        for order in (
            TimerTaskRequest(TimerVerb.MOVE, TimerFilter(), to_ms=NOW_MS + limits.DELAY_MS_MAX + 1),
            TimerTaskRequest(TimerVerb.MOVE, TimerFilter(), by_ms=-limits.DELAY_MS_MAX - 1),
        ):
            with pytest.raises(IllegalDeliveryTime):
                bench.tasks.start(order)
        assert bench.tasks.list_tasks() == []
        with pytest.raises(NotFound):
            await bench.tasks.stop("unknown")

    play(scenario)


def test_closing_ends_every_task_and_what_they_did_is_durable() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.tasks.start(ALL), bench.tasks.start(ALL)
        while not first.done:
            await asyncio.sleep(0)
        await bench.tasks.close()
        for task in (first, second):
            assert (task.state, task.why) == (TaskState.STOPPED, "the broker ends")
        cancelled = first.by_verdict["CANCELLED"] + second.by_verdict["CANCELLED"]
        assert 0 < cancelled < 500
        assert bench.live.query(bench.live.core.timer_views.count, TimerFilter()) == 500 - cancelled
        found = bench.live.timer(TimerName("t", key="k0"))
        assert isinstance(found, TimerVerdict)
        assert found.durable_at <= bench.live.core.durable_offset

    play(scenario)
