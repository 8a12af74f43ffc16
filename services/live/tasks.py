"""Runs background tasks. A task performs an operation on many items, and can be monitored and stopped.

    start -> count the matches -> a batch -> its flush -> next batch -> ... -> DONE
                 |                   |
                 +-------------------+-> STOPPED: by an operator, by an error, by loss of the starter's
                                                  right, or with the broker

Rules:
- After each batch, a task waits until the batch is durable, so that other callers are served between batches.
- A task processes only items that were stored before the task was started (`end_offset`), and processes each
  item once.
- A task with a limit ends when it has processed the specified number of items. Items are processed in the
  order in which they are found.
- Items are counted by verdict, or by error code if the operation on the item was refused.
- Until a task that was started by a user ends, it requires a valid token and the user's rights (`Watch`),
  like a long poll. If the token is revoked, the task finishes the current batch and stops.
- The items of each batch are stored together with their verdicts (`services.broker.task_items`).
- Tasks are kept only in memory, so a restart stops all tasks. Finished batches are durable, and the remaining
  items are unchanged. The result of a task is recorded in the journal, which survives a restart. If the
  journal does not contain the result of a task, the task was interrupted by a crash.

The operations and their items are defined by `services.live.timer_tasks`, `services.live.dead_letter_tasks`,
and `services.live.move_tasks`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar
from uuid import uuid4

import structlog

from commitlog import limits
from services.broker.journal import Entry
from services.broker.task_items import ItemsPage, TaskItem
from services.live.live_broker import LiveBroker
from tidewheel.errors import AccessRefused, Busy, NotFound, TidewheelError

log = structlog.get_logger()


class TaskOrder(Protocol):
    """The operation that a task performs on each item, and the reason for the task."""

    @property
    def verb(self) -> Enum:
        """The operation to perform on each item."""

    @property
    def reason(self) -> str:
        """The reason given by the user who started the task. The reason may be empty."""

    @property
    def limit(self) -> int:
        """The maximum number of items to process, or 0 to process all items."""


Order = TypeVar("Order", bound=TaskOrder)
"""The type of a task order, which specifies the operation and the items."""


Item = TypeVar("Item")


Watch = Callable[[Callable[[AccessRefused], None]], Callable[[], None]]
"""A function that watches the rights of the user who started a task.

The function returns another function that ends the watch. The argument is called once if the user loses a
required right.
"""


BATCHES_PER_SECOND: Final = 10


def batch_size(per_second: float) -> int:
    """Return the maximum number of items in a batch of a task with this rate (0: without a limit)."""
    if not per_second:
        return limits.TASK_SLICE
    return min(limits.TASK_SLICE, max(1, int(per_second / BATCHES_PER_SECOND)))


def pause_seconds(per_second: float, count: int) -> float:
    """Return the minimum time, in seconds, for processing `count` items at this rate."""
    return count / per_second if per_second else 0


def watch_nothing(ended: Callable[[AccessRefused], None]) -> Callable[[], None]:
    """Watch nothing, because the caller that started the task cannot lose its rights."""
    return lambda: None


class TaskState(Enum):
    """The state of a task. If the state is STOPPED, the reason is stored in `Task.why`."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(slots=True)
class Preview:
    """The number of items by verdict, with the reasons for verdicts that leave items unchanged."""

    by_verdict: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Task(Generic[Order]):
    """A task and its progress.

    The event `stop_requested` is set when the task must stop. If the task ends early, `why` contains the
    reason. `reasons` contains the reason for the first item of each verdict that left items unchanged.
    `first_items` is the offset of the first item record of the task. `items_at` is the log offset at which
    all item records of the task are durable.
    """

    id: str
    order: Order
    started_ms: int
    end_offset: int
    matched: int | None = None
    state: TaskState = TaskState.RUNNING
    by_verdict: Counter[str] = field(default_factory=Counter)
    ended_ms: int | None = None
    why: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)
    first_items: int | None = None
    items_at: int = 0

    @property
    def done(self) -> int:
        """The number of items that have been processed."""
        return self.by_verdict.total()

    def admit(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the items of a page that may still be processed within the limit of the order."""
        return items[: max(0, self.order.limit - self.done)] if self.order.limit else items

    def refuse(self, error: TidewheelError) -> str:
        """Return the error code as the verdict on an item, and keep the message of the first such error."""
        self.reasons.setdefault(error.code, str(error))
        return error.code

    @property
    def is_full(self) -> bool:
        """Whether the task has reached the limit of its order."""
        return 0 < self.order.limit <= self.done


class Tasks(ABC, Generic[Order]):
    """The running tasks of one kind, and the most recently started tasks that have ended."""

    what: str
    """The plural noun that is used for the items in log messages and error messages."""
    command: str
    """The group of commands that lists the tasks."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live
        self._tasks: dict[str, Task[Order]] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}

    @abstractmethod
    def check(self, order: Order) -> None:
        """Raise an error if an order cannot be carried out."""

    @abstractmethod
    def _end_offset(self, order: Order) -> int:
        """Return the offset below which a new task processes items."""

    @abstractmethod
    async def _work(self, task: Task[Order]) -> None:
        """Count the matching items, and process them until all items are processed or `task.why` is set."""

    def start(self, order: Order, watch: Watch = watch_nothing) -> Task[Order]:
        """Start a task. The task first counts the matching items.

        The task is stopped if `watch` reports the loss of a required right. Raise `Busy` if too many tasks
        are running.
        """
        self.check(order)
        if len(self._runs) >= limits.TASKS_RUNNING_MAX:
            raise Busy(f"{len(self._runs)} tasks over {self.what} are running: wait for one, or stop one.")
        task = Task(uuid4().hex[:12], order, self._live.now_ms(), self._end_offset(order))
        self._tasks[task.id] = task
        run = self._runs[task.id] = asyncio.create_task(self._run(task))
        unwatch = watch(lambda error: self._stop_task(task, f"its starter lost the right: {error.detail}"))
        run.add_done_callback(lambda _: self._finish_task(task, unwatch))
        self._drop_oldest_ended()
        verb = order.verb.value
        log.info("task begins", what=self.what, task=task.id, verb=verb, reason=order.reason)
        return task

    def list_tasks(self) -> list[Task[Order]]:
        """Return all running and retained tasks, ordered from newest to oldest."""
        return list(reversed(self._tasks.values()))

    def get(self, task_id: str) -> Task[Order]:
        """Return the task with a given id. Raise `NotFound` if the task does not exist."""
        task, name = self._tasks.get(task_id), task_id[:80]
        if task is not None:
            return task
        if self._page(task_id, None, 1) is None:
            found = f"There is no task {name!r} over {self.what}, and the log contains no items of it."
        else:
            found = (
                f"The task {name!r} ended with an earlier process of the broker. The items that it handled, "
                f"with their verdicts: tidewheel {self.command} tasks {name} --items."
            )
        raise NotFound(
            f"{found} The start and the result of a task are in the journal: tidewheel journal --about "
            f"{name}. Without a result, a crash interrupted it: count the {self.what} of the filter, and "
            "begin a new task for them."
        )

    def read_items(self, task_id: str, after: tuple[int, int] | None, count_max: int) -> ItemsPage:
        """Return a page of a task's items. The task may have ended before the broker started.

        Raise `NotFound` if the task is unknown and the log contains no items of the task.
        """
        page = self._page(task_id, after, count_max)
        if page is not None:
            return page
        self.get(task_id)
        return ItemsPage([], None)

    def _page(self, task_id: str, after: tuple[int, int] | None, count_max: int) -> ItemsPage | None:
        return self._live.query(self._live.core.task_items.page, task_id, self.what, after, count_max)

    async def stop(self, task_id: str) -> Task[Order]:
        """Stop a task after its current batch. A task that has already ended is not changed."""
        task, run = self.get(task_id), self._runs.get(task_id)
        if run is not None:
            self._stop_task(task, "an operator stopped it")
            await asyncio.wait([run])
        return task

    async def close(self) -> None:
        """Stop all tasks before the broker stops."""
        for task_id in self._runs:
            self._stop_task(self._tasks[task_id], "the broker ends")
        if self._runs:
            await asyncio.wait(self._runs.values())

    def _stop_task(self, task: Task[Order], why: str) -> None:
        """Stop a task after its current batch, or immediately if it is still counting items.

        A task that has already ended is not changed.
        """
        if self._runs[task.id].done():
            return
        task.why = task.why or why
        task.stop_requested.set()
        if task.matched is None:
            self._runs[task.id].cancel()

    async def _run(self, task: Task[Order]) -> None:
        try:
            await self._work(task)
            await self._live.wait_until_durable(task.items_at)
        except TidewheelError as error:
            task.why = str(error)
        except Exception as bug:
            task.why = f"it broke: {bug!r}"
            raise

    async def _gather(self, task: Task[Order], verbs: Iterable[tuple[TaskItem, Awaitable[str]]]) -> None:
        """Wait for the verdicts on a batch of items, count them, and store the items with their verdicts.

        If an operation raises an error, its item has no verdict. The first error is raised after all
        operations have ended.
        """
        slice_ = list(verbs)
        results = await asyncio.gather(*(verb for _, verb in slice_), return_exceptions=True)
        done = [
            item._replace(verdict=result)
            for (item, _), result in zip(slice_, results, strict=True)
            if isinstance(result, str)
        ]
        self._note(task, done)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _note(self, task: Task[Order], done: Sequence[TaskItem]) -> None:
        """Count a batch of items by verdict, and store the items."""
        task.by_verdict.update(item.verdict for item in done)
        if done:
            add = self._live.core.task_items.add_items
            added = self._live.decide(add, task.id, self.what, task.first_items, done)
            task.first_items, task.items_at = added.first, added.durable_at

    def _finish_task(self, task: Task[Order], unwatch: Callable[[], None]) -> None:
        """Set the final state of a task, and remove its asyncio task."""
        unwatch()
        assert task.state is TaskState.RUNNING, "a task ends twice"
        task.state = TaskState.STOPPED if task.why else TaskState.DONE
        task.ended_ms = self._live.now_ms()
        del self._runs[task.id]
        log.info("task ends", task=task.id, state=task.state.value, why=task.why, **task.by_verdict)
        with suppress(TidewheelError):  # If the core is being rebuilt, the journal entry is lost.
            self._live.decide(self._live.core.journal.add_entry, self._entry_of(task))

    def _entry_of(self, task: Task[Order]) -> Entry:
        """Return the journal entry for the end of a task.

        The entry for the start of the task contains the user and the filter.
        """
        counts = " ".join(f"{verdict}={count}" for verdict, count in sorted(task.by_verdict.items()))
        about = f"id={task.id} matched={task.matched} {counts}"
        verb = f"{self.what}: task ended ({task.order.verb.value})"
        return Entry("", "", "", verb, about, task.order.reason, task.state.value, task.why)

    def _drop_oldest_ended(self) -> None:
        """If there are more than `TASKS_KEPT_MAX` tasks, remove the oldest task that has ended."""
        ended = [task_id for task_id in self._tasks if task_id not in self._runs]
        for task_id in ended[: max(0, len(self._tasks) - limits.TASKS_KEPT_MAX)]:
            del self._tasks[task_id]
