"""Tasks: work over many things that goes on while others are served, to be watched and stopped.

    start -> count what matches -> a slice -> its flush -> next slice -> ... -> DONE
                 |                    |
                 +--------------------+-> STOPPED: by an operator, by an error, with the right of the user
                                                   that started it, or with the broker

Rules:
- A task takes its turn in the loop like any caller: after each slice it waits until that is durable.
- It touches what was there before it began (`end_offset`), and each thing once.
- Every thing has its verdict, or the code of the error that refused it; none is lost from the count.
- A task of a user needs its token and rights until its end (`Watch`), as a long poll does: a revoked token
  ends what was begun with it. The slice under way is finished.
- Tasks are in memory: a restart stops them. What they did is durable, what they did not do is not begun.

`services.live.timer_tasks` and `services.live.dead_letter_tasks` say what is done to what.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar
from uuid import uuid4

import structlog

from commitlog import limits
from services.live.live_broker import LiveBroker
from tidewheel.errors import AccessRefused, Busy, NotFound, TidewheelError

log = structlog.get_logger()


class Doing(Protocol):
    """What a task is to do to each thing, and why."""

    @property
    def verb(self) -> Enum:
        """What it does."""

    @property
    def reason(self) -> str:
        """Why, in the words of whoever began it; may be empty."""


Order = TypeVar("Order", bound=Doing)
"""What a task is to do, and to what."""


Watch = Callable[[Callable[[AccessRefused], None]], Callable[[], None]]
"""Call the argument once if the starter of a task loses its right; return a function that ends the watch."""


def unwatched(ended: Callable[[AccessRefused], None]) -> Callable[[], None]:
    """Watch nothing: the starter has all rights."""
    return lambda: None


class TaskState(Enum):
    """State of a task; STOPPED: `Task.why` is the reason."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(slots=True)
class Task(Generic[Order]):
    """A task and how far it is. `told` is set when it is to end; `why` says why it did not do all."""

    id: str
    order: Order
    started_ms: int
    end_offset: int
    matched: int | None = None
    state: TaskState = TaskState.RUNNING
    by_verdict: Counter[str] = field(default_factory=Counter)
    ended_ms: int | None = None
    why: str = ""
    told: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> int:
        """The number of things that have had their verdict."""
        return self.by_verdict.total()


class Tasks(ABC, Generic[Order]):
    """The tasks of one kind since the broker started; of those that have ended the newest are kept."""

    what: str
    """What they go over, in the plural."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live
        self._tasks: dict[str, Task[Order]] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}

    @abstractmethod
    def check(self, order: Order) -> None:
        """Refuse what can never be done."""

    @abstractmethod
    def _end_offset(self, order: Order) -> int:
        """Return the offset that everything which a new task may touch lies below."""

    @abstractmethod
    async def _work(self, task: Task[Order]) -> None:
        """Count, then go through what matches until it is done or `task.why` says to end."""

    def start(self, order: Order, watch: Watch = unwatched) -> Task[Order]:
        """Begin a task, which first counts what matches; raise `Busy` when enough are running.

        It stops when `watch` reports that its starter has lost the right.
        """
        self.check(order)
        if len(self._runs) >= limits.TASKS_RUNNING_MAX:
            raise Busy(f"{len(self._runs)} tasks over {self.what} are running: wait for one, or stop one.")
        task = Task(uuid4().hex[:12], order, self._live.now_ms(), self._end_offset(order))
        self._tasks[task.id] = task
        run = self._runs[task.id] = asyncio.create_task(self._run(task))
        unwatch = watch(lambda error: self._tell(task, f"its starter lost the right: {error.detail}"))
        run.add_done_callback(lambda _: self._ended(task, unwatch))
        self._forget()
        verb = order.verb.value
        log.info("task begins", what=self.what, task=task.id, verb=verb, reason=order.reason)
        return task

    def all(self) -> list[Task[Order]]:
        """Return the tasks, the newest first."""
        return list(reversed(self._tasks.values()))

    def get(self, task_id: str) -> Task[Order]:
        """Return a task; raise `NotFound`."""
        task = self._tasks.get(task_id)
        if task is None:
            raise NotFound(
                f"There is no task {task_id[:80]!r}. Tasks end with the broker's process: after a restart,"
                f" count the {self.what} of the filter to see what is left, and begin a new task for them."
            )
        return task

    async def stop(self, task_id: str) -> Task[Order]:
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

    def _tell(self, task: Task[Order], why: str) -> None:
        """Have a task end after its slice; at once while it counts. No effect on one whose work is done."""
        if self._runs[task.id].done():
            return
        task.why = task.why or why
        task.told.set()
        if task.matched is None:
            self._runs[task.id].cancel()

    async def _run(self, task: Task[Order]) -> None:
        try:
            await self._work(task)
        except TidewheelError as error:
            task.why = str(error)
        except Exception as bug:
            task.why = f"it broke: {bug!r}"
            raise

    def _ended(self, task: Task[Order], unwatch: Callable[[], None]) -> None:
        """Give a task its last state, and forget its run."""
        unwatch()
        assert task.state is TaskState.RUNNING, "a task ends twice"
        task.state = TaskState.STOPPED if task.why else TaskState.DONE
        task.ended_ms = self._live.now_ms()
        del self._runs[task.id]
        log.info("task ends", task=task.id, state=task.state.value, why=task.why, **task.by_verdict)

    def _forget(self) -> None:
        """Drop the oldest that have ended, beyond what is kept."""
        ended = [task_id for task_id in self._tasks if task_id not in self._runs]
        for task_id in ended[: max(0, len(self._tasks) - limits.TASKS_KEPT_MAX)]:
            del self._tasks[task_id]
