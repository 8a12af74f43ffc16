"""Background tasks. A task processes many items, and can be monitored and stopped.

    start -> count the matches -> a batch -> a flush   -> next batch -> ... -> DONE
                 |                   |
                 +-------------------+-> STOPPED: by an operator, by an error, by the loss of a
                                                  required right, or by the end of the broker

Rules:
- After each batch, a task waits until the batch is durable. Other calls are served during the wait.
- A task processes only items that were stored before the start of the task (`end_offset`), and each item only
  once.
- A task with a limit ends after that number of items. Items are processed in the order in which the task
  finds them.
- Items are counted by verdict. If the operation on an item is refused, the verdict is the error code. A batch
  is counted only when its changes and its list of items are durable, so a crash never reduces a reported
  count.
- Like a long poll, a user's task requires that the user's token and rights remain valid until it ends
  (`Watch`). If the token is revoked, the task finishes the current batch and stops.
- Each batch is stored with its verdicts (`services.broker.task_items`).
- Tasks exist only in memory, so a broker restart ends all tasks. Finished batches are durable, and the
  remaining items are unchanged. The result of each task is recorded in the journal, which survives a restart.
  If the journal contains no result for a task, the task was interrupted by a crash.

The operations and their items are described in `services.live.bulk.timer_tasks`,
`services.live.bulk.dead_letter_tasks`, and `services.live.bulk.move_tasks`.
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
from services.broker.journal import JournalEntry
from services.broker.task_items import ItemsPage, TaskItem
from services.live.live_broker import LiveBroker
from tidewheel.errors import AccessRefused, Busy, NotFound, TidewheelError

log = structlog.get_logger()


class TaskRequest(Protocol):
    """The operation of a task, and the reason for the operation."""

    @property
    def verb(self) -> Enum:
        """The operation to perform on each item."""

    @property
    def reason(self) -> str:
        """The reason given by the user, or an empty string."""

    @property
    def limit(self) -> int:
        """Maximum number of items to process, or 0 for all items."""


Order = TypeVar("Order", bound=TaskRequest)
"""The type of a task request."""


Item = TypeVar("Item")


Watch = Callable[[Callable[[AccessRefused], None]], Callable[[], None]]
"""Watches the rights of the user that started a task, and returns a function that ends the watch.

The argument is a function that is called once if the user loses a required right.
"""


BATCHES_PER_SECOND: Final = 10


def batch_size(per_second: float) -> int:
    """Return the maximum batch size for a rate in items per second. A rate of 0 means no limit."""
    if not per_second:
        return limits.TASK_SLICE
    return min(limits.TASK_SLICE, max(1, int(per_second / BATCHES_PER_SECOND)))


def pause_seconds(per_second: float, count: int) -> float:
    """Return the minimum time in seconds to process `count` items at the rate `per_second`."""
    return count / per_second if per_second else 0


def ignore_task_end(ended: Callable[[AccessRefused], None]) -> Callable[[], None]:
    """Watch nothing. This is the default for callers whose rights cannot be revoked."""
    return lambda: None


class TaskState(Enum):
    """The state of a task. If a task is STOPPED, `Task.why` contains the reason."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(slots=True)
class Task(Generic[Order]):
    """A task and its progress.

    `stop_requested` is set when the task must stop. If the task ends early, `why` contains the reason.
    `reasons` maps each verdict that left items unchanged to the reason for the first such item. `first_items`
    is the offset of the first item record of the task.
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

    @property
    def done(self) -> int:
        """Return the number of processed items."""
        return self.by_verdict.total()

    def admit(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the items of a page, up to the remaining limit of the request."""
        return items[: max(0, self.order.limit - self.done)] if self.order.limit else items

    def refuse(self, error: TidewheelError) -> str:
        """Return the error code as the verdict on an item, and store the error message if the code is new."""
        self.reasons.setdefault(error.code, str(error))
        return error.code

    @property
    def is_full(self) -> bool:
        """Return whether the task has processed the maximum number of items."""
        return 0 < self.order.limit <= self.done


class Tasks(ABC, Generic[Order]):
    """The running tasks and the most recently ended tasks of one kind."""

    what: str
    """The plural noun for the items in log messages and error messages."""
    command: str
    """The command group whose `tasks` command lists the tasks."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live
        self._tasks: dict[str, Task[Order]] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}

    @abstractmethod
    def check(self, order: Order) -> None:
        """Raise an error if a request cannot be executed, for example because a topic does not exist."""

    @abstractmethod
    def _end_offset(self, order: Order) -> int:
        """Return the end offset of a new task, which processes only items below that offset."""

    @abstractmethod
    async def _process_items(self, task: Task[Order]) -> None:
        """Count the matching items, and then process them until none remain or `task.why` is set."""

    def start(self, order: Order, watch: Watch = ignore_task_end) -> Task[Order]:
        """Start a task. Raise `Busy` if too many tasks are running.

        The task stops if `watch` reports the loss of a required right.
        """
        self.check(order)
        if len(self._runs) >= limits.TASKS_RUNNING_MAX:
            raise Busy(f"{len(self._runs)} tasks over {self.what} are running: wait for one, or stop one.")
        task = Task(uuid4().hex[:12], order, self._live.now_ms(), self._end_offset(order))
        self._tasks[task.id] = task
        run = self._runs[task.id] = asyncio.create_task(self._run(task))
        unwatch = watch(lambda error: self._stop_task(task, f"its starter lost the right: {error.detail}"))
        run.add_done_callback(lambda _: self._finish_task(task, unwatch))
        self._drop_oldest_ended_tasks()
        verb = order.verb.value
        log.info("task begins", what=self.what, task=task.id, verb=verb, reason=order.reason)
        return task

    def list_tasks(self) -> list[Task[Order]]:
        """Return all running and retained tasks, newest first."""
        return list(reversed(self._tasks.values()))

    def get(self, task_id: str) -> Task[Order]:
        """Return the task with the given id. Raise `NotFound` if the task is not retained."""
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

    def has(self, task_id: str) -> bool:
        """Return whether a task is retained or the log contains items of the task."""
        return task_id in self._tasks or self._page(task_id, None, 1) is not None

    def read_items(self, task_id: str, after: tuple[int, int] | None, count_max: int) -> ItemsPage:
        """Return a page of the items of a task. The task may be older than the broker process.

        Raise `NotFound` if the task is not retained and the log contains no items of the task.
        """
        page = self._page(task_id, after, count_max)
        if page is not None:
            return page
        self.get(task_id)
        return ItemsPage([], None)

    def _page(self, task_id: str, after: tuple[int, int] | None, count_max: int) -> ItemsPage | None:
        return self._live.query(self._live.core.task_items.page, task_id, self.what, after, count_max)

    async def stop(self, task_id: str) -> Task[Order]:
        """Stop a task after its current batch. Do nothing if the task has ended."""
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
        """Stop a task after its current batch, or immediately if the task is still counting items.

        If the task has ended, do nothing.
        """
        if self._runs[task.id].done():
            return
        task.why = task.why or why
        task.stop_requested.set()
        if task.matched is None:
            self._runs[task.id].cancel()

    async def _run(self, task: Task[Order]) -> None:
        try:
            await self._process_items(task)
        except TidewheelError as error:
            task.why = str(error)
        except Exception as bug:
            task.why = f"it broke: {bug!r}"
            raise

    async def _gather(self, task: Task[Order], verbs: Iterable[tuple[TaskItem, Awaitable[str]]]) -> None:
        """Wait for the verdicts on a batch, count the verdicts, and store the items.

        An item whose operation fails has no verdict. After all operations have ended, the first error is
        raised.
        """
        slice_ = list(verbs)
        results = await asyncio.gather(*(verb for _, verb in slice_), return_exceptions=True)
        done = [
            item._replace(verdict=result)
            for (item, _), result in zip(slice_, results, strict=True)
            if isinstance(result, str)
        ]
        await self._complete_items(task, done, durable_at=0)  # The changes are already durable.
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _complete_items(self, task: Task[Order], done: Sequence[TaskItem], durable_at: int) -> None:
        """Store a batch of items, and count the items by verdict once the batch is durable.

        `durable_at` is the log offset at which the batch's changes end. If the list of items cannot be
        stored, the items are still counted, and the error is raised. Raise `ResultUnknown` if the disk fails
        before the changes are durable.
        """
        try:
            await self._store_items(task, done)
        finally:
            await self._live.wait_until_durable(durable_at)
            task.by_verdict.update(item.verdict for item in done)

    async def _store_items(self, task: Task[Order], done: Sequence[TaskItem]) -> None:
        """Store a list of items, and wait until the list is durable.

        Store nothing if a node of the cluster does not support item records.
        """
        if done and self._live.core.task_items.is_enabled:
            add = self._live.core.task_items.add_items
            added = self._live.call_with_time(add, task.id, self.what, task.first_items, done)
            task.first_items = added.first
            await self._live.wait_until_durable(added.durable_at)

    def _finish_task(self, task: Task[Order], unwatch: Callable[[], None]) -> None:
        """Set the final state of a task, and remove the asyncio task."""
        unwatch()
        assert task.state is TaskState.RUNNING, "a task ends twice"
        task.state = TaskState.STOPPED if task.why else TaskState.DONE
        task.ended_ms = self._live.now_ms()
        del self._runs[task.id]
        log.info("task ends", task=task.id, state=task.state.value, why=task.why, **task.by_verdict)
        with suppress(TidewheelError):  # If the core is unavailable, the journal entry is lost.
            self._live.call_with_time(self._live.core.journal.add_entry, self._make_journal_entry(task))

    def _make_journal_entry(self, task: Task[Order]) -> JournalEntry:
        """Return the journal entry for the end of a task.

        The user and the filter are in the entry for the start of the task.
        """
        counts = " ".join(f"{verdict}={count}" for verdict, count in sorted(task.by_verdict.items()))
        about = f"id={task.id} matched={task.matched} {counts}"
        verb = f"{self.what}: task ended ({task.order.verb.value})"
        return JournalEntry("", "", "", verb, about, task.order.reason, task.state.value, task.why)

    def _drop_oldest_ended_tasks(self) -> None:
        """Remove the oldest ended tasks while more than `TASKS_KEPT_MAX` tasks are retained."""
        ended = [task_id for task_id in self._tasks if task_id not in self._runs]
        for task_id in ended[: max(0, len(self._tasks) - limits.TASKS_KEPT_MAX)]:
            del self._tasks[task_id]
