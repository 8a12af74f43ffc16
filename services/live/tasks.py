"""Bulk cancel and move: a task that goes through the timers of a filter while other work goes on.

    count -> piece of time -> page of timers -> one verb each -> their flush -> next page -> ... -> done

Rules:
- It goes by due time, a slice at a time; after each slice it waits until that is durable, so a task takes
  its turn in the loop like any caller, and its verbs share flushes with everybody's.
- It touches what was stored before it began, and each timer once: what it moves, or what others set or move
  meanwhile, lies behind `end_offset` and is left alone.
- Every verb has its verdict: a timer that fired before its turn is TOO_LATE, one that somebody cancelled or
  moved is ALREADY; none is lost from the count.
- Tasks are in memory: a restart stops them. What they did is durable, what they did not do is not begun.
Cost: a look at the timers of the filter twice; one page of timers in memory for each task that runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from enum import Enum
from uuid import uuid4

import structlog

from commitlog import limits
from commitlog.errors import Busy, IllegalDeliveryTime, NotFound, TidewheelError
from services.broker.values import PendingTimer, TimerFilter, TimerName, TimerVerdict, Verdict
from services.live import looking
from services.live.live_broker import LiveBroker

log = structlog.get_logger()


class TaskVerb(Enum):
    """What a task does to each timer."""

    CANCEL = "cancel"
    MOVE = "move"


class TaskState(Enum):
    """Where a task is; STOPPED: by somebody, by an error, or with the broker."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(slots=True, frozen=True)
class Order:
    """What a task is to do: cancel, or move `to_ms` or `by_ms` from where each timer was."""

    verb: TaskVerb
    wanted: TimerFilter
    reason: str = ""
    to_ms: int | None = None
    by_ms: int = 0

    def due_ms(self, timer: PendingTimer) -> int:
        """When a timer is to be due."""
        return timer.due_ms + self.by_ms if self.to_ms is None else self.to_ms


@dataclass(slots=True)
class Task:
    """A task and how far it is."""

    id: str
    order: Order
    started_ms: int
    end_offset: int
    matched: int | None = None
    state: TaskState = TaskState.RUNNING
    by_verdict: Counter[str] = field(default_factory=Counter)
    ended_ms: int | None = None
    why: str = ""

    @property
    def done(self) -> int:
        """How many timers have had their verdict."""
        return self.by_verdict.total()


class TimerTasks:
    """The tasks of a broker since it started; of those that have ended the newest are kept."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live
        self._tasks: dict[str, Task] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}

    def start(self, order: Order) -> Task:
        """Begin a task, which first counts its timers; raises `Busy` when enough are running."""
        self.check(order)
        if len(self._runs) >= limits.TIMER_TASKS_RUNNING_MAX:
            raise Busy(f"{len(self._runs)} tasks over timers are running: wait for one, or stop one.")
        task = Task(uuid4().hex[:12], order, self._live.now_ms(), self._live.core.end_offset)
        self._tasks[task.id] = task
        run = self._runs[task.id] = asyncio.create_task(self._run(task))
        run.add_done_callback(lambda _: self._ended(task))
        self._forget()
        log.info("timer task begins", task=task.id, verb=order.verb.value, reason=order.reason)
        return task

    def check(self, order: Order) -> None:
        """Refuse a time that no timer can be moved to."""
        too_far = limits.DELAY_MS_MAX
        ahead_ms = 0 if order.to_ms is None else order.to_ms - self._live.now_ms()
        if ahead_ms > too_far or abs(order.by_ms) > too_far:
            raise IllegalDeliveryTime(f"A timer can be at most {too_far // 86_400_000} days ahead.")

    def all(self) -> list[Task]:
        """Return the tasks, the newest first."""
        return list(reversed(self._tasks.values()))

    def get(self, task_id: str) -> Task:
        """Return a task; raises `NotFound`."""
        task = self._tasks.get(task_id)
        if task is None:
            raise NotFound(
                f"There is no task {task_id[:80]!r}. Tasks end with the broker's process: after a restart,"
                " count the timers of the filter to see what is left, and begin a new task for them."
            )
        return task

    async def stop(self, task_id: str) -> Task:
        """End a task behind the slice it is at; one that has ended stays as it is."""
        task, run = self.get(task_id), self._runs.get(task_id)
        if run is not None:
            self._tell(task, "somebody stopped it")
            await asyncio.wait([run])
        return task

    async def close(self) -> None:
        """End every task, as the broker ends."""
        for task_id in self._runs:
            self._tell(self._tasks[task_id], "the broker ends")
        if self._runs:
            await asyncio.wait(self._runs.values())

    def _tell(self, task: Task, why: str) -> None:
        """Have a task end behind its slice; at once if it only counts as yet."""
        task.why = task.why or why
        if task.matched is None:
            self._runs[task.id].cancel()

    async def _run(self, task: Task) -> None:
        try:
            await self._all_slices(task)
        except TidewheelError as error:
            task.why = str(error)
        except Exception as bug:
            task.why = f"it broke: {bug!r}"
            raise

    def _ended(self, task: Task) -> None:
        task.state = TaskState.STOPPED if task.why else TaskState.DONE
        task.ended_ms = self._live.now_ms()
        del self._runs[task.id]
        log.info("timer task ends", task=task.id, state=task.state.value, why=task.why, **task.by_verdict)

    async def _all_slices(self, task: Task) -> None:
        """Go through the timers that were stored when the task began, by due time."""
        task.matched = await looking.count(self._live, task.order.wanted)
        async for piece in looking.pieces(self._live, task.order.wanted):
            if task.why:
                return
            after: tuple[int, int] | None = None
            while not task.why:
                page = self._live.timers(piece, after, limits.TIMERS_LOOKED_AT_MIN)
                found = [timer for timer in page.timers if timer.timer_offset < task.end_offset]
                await self._slices(task, found)
                after = page.after
                if after is None:
                    break

    async def _slices(self, task: Task, timers: list[PendingTimer]) -> None:
        """Do it to a slice of timers at once, wait until that is durable, and go on to the next."""
        for first in range(0, len(timers), limits.TIMER_TASK_SLICE):
            if task.why:
                return
            asked = [
                self._verb(task.order, timer) for timer in timers[first : first + limits.TIMER_TASK_SLICE]
            ]
            task.by_verdict.update(await asyncio.gather(*asked))

    async def _verb(self, order: Order, timer: PendingTimer) -> str:
        """Do it to one timer; returns the verdict, or the code of the error that refused it."""
        name = TimerName(timer.topic, message_id=timer.message_id)
        try:
            if self._is_another(self._live.timer(name), timer):
                return Verdict.ALREADY.value
            verdict = (await self._asked(order, name, timer)).verdict.value
        except Busy:
            raise
        except TidewheelError as error:
            return error.code
        return verdict

    def _is_another(self, now: PendingTimer | TimerVerdict, timer: PendingTimer) -> bool:
        """Whether somebody has moved it since it was found: it may not match any more."""
        return isinstance(now, PendingTimer) and now.timer_offset != timer.timer_offset

    def _asked(self, order: Order, name: TimerName, timer: PendingTimer) -> Awaitable[TimerVerdict]:
        if order.verb is TaskVerb.CANCEL:
            return self._live.cancel_timer(name, order.reason)
        return self._live.move_timer(name, order.due_ms(timer))

    def _forget(self) -> None:
        """Drop the oldest that have ended, beyond what is kept."""
        ended = [task_id for task_id, task in self._tasks.items() if task_id not in self._runs]
        for task_id in ended[: max(0, len(self._tasks) - limits.TIMER_TASKS_KEPT_MAX)]:
            del self._tasks[task_id]
