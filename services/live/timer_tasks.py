"""Bulk cancel and move: a task over the timers of a filter; `services.live.tasks` has the rules.

    count -> piece of time -> page of timers -> one verb each -> their flush -> next page -> ... -> done

It goes by due time, a slice at a time, so its verbs share flushes with everybody's. What it moves, or what
others set or move meanwhile, lies behind `end_offset` and is left alone. A timer that fired before its turn
is TOO_LATE, one that somebody cancelled or moved is ALREADY.

Cost: a look at the timers of the filter twice; one page of timers in memory for each task that runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import Enum

from commitlog import limits
from services.broker.spine.errors import IllegalDeliveryTime
from services.broker.spine.values import PendingTimer, TimerFilter, TimerName, TimerVerdict, Verdict
from services.live import timer_queries
from services.live.tasks import Task, Tasks
from tidewheel.errors import Busy, TidewheelError


class TimerVerb(Enum):
    """What a task does to each timer."""

    CANCEL = "cancel"
    MOVE = "move"


@dataclass(slots=True, frozen=True)
class TimerOrder:
    """What a task is to do: cancel, or move `to_ms` or `by_ms` from where each timer was."""

    verb: TimerVerb
    wanted: TimerFilter
    reason: str = ""
    to_ms: int | None = None
    by_ms: int = 0

    def due_ms(self, timer: PendingTimer) -> int:
        """Return when a timer is to be due, in ms since 1970."""
        return timer.due_ms + self.by_ms if self.to_ms is None else self.to_ms


TimerTask = Task[TimerOrder]


class TimerTasks(Tasks[TimerOrder]):
    """The tasks over timers."""

    what = "timers"

    def check(self, order: TimerOrder) -> None:
        """Refuse a time that no timer can be moved to."""
        too_far = limits.DELAY_MS_MAX
        ahead_ms = 0 if order.to_ms is None else order.to_ms - self._live.now_ms()
        if ahead_ms > too_far or abs(order.by_ms) > too_far:
            raise IllegalDeliveryTime(f"A timer can be at most {too_far // 86_400_000} days ahead.")

    def _end_offset(self, order: TimerOrder) -> int:
        return self._live.core.end_offset

    async def _work(self, task: TimerTask) -> None:
        """Go through the timers that were stored when the task began, by due time."""
        task.matched = await timer_queries.count(self._live, task.order.wanted)
        async for page in timer_queries.looks(self._live, task.order.wanted):
            if task.why:
                return
            await self._slices(task, [one for one in page.timers if one.timer_offset < task.end_offset])

    async def _slices(self, task: TimerTask, timers: list[PendingTimer]) -> None:
        """Carry the verb out on the timers, a slice at once; the next begins when the last is durable."""
        for first in range(0, len(timers), limits.TASK_SLICE):
            if task.why:
                return
            asked = [self._verb(task.order, timer) for timer in timers[first : first + limits.TASK_SLICE]]
            task.by_verdict.update(await asyncio.gather(*asked))

    async def _verb(self, order: TimerOrder, timer: PendingTimer) -> str:
        """Carry the verb out on a timer; return the verdict, or the code of the error that refused it."""
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
        """Return whether somebody has moved it since it was found: it may not match any more."""
        return isinstance(now, PendingTimer) and now.timer_offset != timer.timer_offset

    def _asked(self, order: TimerOrder, name: TimerName, timer: PendingTimer) -> Awaitable[TimerVerdict]:
        if order.verb is TimerVerb.CANCEL:
            return self._live.call(self._live.core.timers.cancel, name, order.reason)
        return self._live.move_timer(name, order.due_ms(timer), order.reason)
