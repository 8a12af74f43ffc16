"""Background tasks that cancel, move, or fire all timers that match a filter.

    count -> time window -> page of timers -> one change per timer -> flush -> next page -> ... -> done

Timers are processed in batches, in order of due time. Batches share flushes with other calls. Timers that
were set or moved after the start of the task have an offset of at least `end_offset` and are skipped. If a
timer has already fired, the verdict is TOO_LATE. If another call has cancelled or moved a timer, the verdict
is ALREADY. The rules for all kinds of tasks are described in `services.live.bulk.tasks`.

Cost: a task runs two queries for the matching timers, and keeps one page in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from enum import Enum

from commitlog import limits
from services.broker.spine.errors import IllegalDeliveryTime
from services.broker.spine.values import PendingTimer, TimerFilter, TimerName, TimerVerdict, Verdict
from services.broker.task_items import TaskItem
from services.live.bulk.tasks import Task, Tasks
from services.live.queries import timer_queries
from tidewheel.errors import Busy, TidewheelError


class TimerVerb(Enum):
    """The operation to perform on each timer."""

    CANCEL = "cancel"
    MOVE = "move"
    FIRE = "fire"


@dataclass(slots=True, frozen=True)
class TimerTaskRequest:
    """A request to cancel or fire timers, or to move the due times of timers to `to_ms` or by `by_ms`."""

    verb: TimerVerb
    wanted: TimerFilter
    reason: str = ""
    to_ms: int | None = None
    by_ms: int = 0
    limit: int = 0

    def due_ms(self, timer: PendingTimer) -> int:
        """Return the new due time of a timer in milliseconds since the Unix epoch."""
        return timer.due_ms + self.by_ms if self.to_ms is None else self.to_ms


TimerTask = Task[TimerTaskRequest]


class TimerTasks(Tasks[TimerTaskRequest]):
    """Tasks on timers."""

    what, command = "timers", "timer"

    def check(self, order: TimerTaskRequest) -> None:
        """Raise an error if the request is invalid.

        Raise `TopicNotFound` if the topic is unknown and has no pending timers, or `IllegalDeliveryTime` if a
        move exceeds the maximum delay.
        """
        timer_queries.check_topic(self._live, order.wanted)
        too_far = limits.DELAY_MS_MAX
        ahead_ms = 0 if order.to_ms is None else order.to_ms - self._live.now_ms()
        if ahead_ms > too_far or abs(order.by_ms) > too_far:
            raise IllegalDeliveryTime(f"A timer can be at most {too_far // 86_400_000} days ahead.")

    def _end_offset(self, order: TimerTaskRequest) -> int:
        return self._live.core.end_offset

    async def _process_items(self, task: TimerTask) -> None:
        """Process the timers that were stored before the start of the task, in order of due time."""
        task.matched = (await timer_queries.count_timers(self._live, task.order.wanted)).total
        async for page in timer_queries.query_pages(self._live, task.order.wanted):
            if task.why or task.is_full:
                return
            found = [one for one in page.timers if one.timer_offset < task.end_offset]
            await self._slices(task, task.admit(found))

    async def _slices(self, task: TimerTask, timers: Sequence[PendingTimer]) -> None:
        """Process timers in batches. Each batch is started only after the previous batch is durable."""
        for first in range(0, len(timers), limits.TASK_SLICE):
            if task.why:
                return
            chosen = timers[first : first + limits.TASK_SLICE]
            await self._gather(task, ((_item(timer), self._verb(task, timer)) for timer in chosen))

    async def _verb(self, task: TimerTask, timer: PendingTimer) -> str:
        """Perform the operation on a timer. Return the verdict or an error code."""
        name = TimerName(timer.topic, message_id=timer.message_id)
        try:
            if self._has_been_moved(self._live.timer(name), timer):
                return Verdict.ALREADY.value
            verdict = (await self._carry_out(task.order, name, timer)).verdict.value
        except Busy:
            raise
        except TidewheelError as error:
            return task.refuse(error)
        return verdict

    def _has_been_moved(self, now: PendingTimer | TimerVerdict, timer: PendingTimer) -> bool:
        """Return whether a timer was moved after the query. A moved timer may no longer match the filter."""
        return isinstance(now, PendingTimer) and now.timer_offset != timer.timer_offset

    def _carry_out(
        self, order: TimerTaskRequest, name: TimerName, timer: PendingTimer
    ) -> Awaitable[TimerVerdict]:
        if order.verb is TimerVerb.CANCEL:
            return self._live.call(self._live.core.timers.cancel, name, order.reason)
        if order.verb is TimerVerb.FIRE:
            return self._live.fire_timer(name, order.reason)
        return self._live.move_timer(name, order.due_ms(timer), order.reason)


def _item(timer: PendingTimer) -> TaskItem:
    return TaskItem(timer.topic, timer.timer_key, timer.message_id, "")
