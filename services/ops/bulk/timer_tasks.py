"""The tasks of `/api/timers/tasks`, which cancel, move or fire all timers of a filter (`ops/bulk/tasks.py`).

    POST   /api/timers/tasks      {"verb", "filter", "to" or "by", "limit", "reason"}

A filter without conditions must specify `everything`.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from services.broker.spine.values import TimerFilter
from services.live.bulk.timer_tasks import TimerTask, TimerTaskRequest, TimerVerb
from services.live.live_broker import LiveBroker
from services.live.queries import timer_queries
from services.ops.bulk.tasks import Bulk, CountedAnswer, Limit, TaskProgressAnswer, progress_shape
from services.ops.requests.given_times import delay_of, due_of
from services.ops.requests.request import GivenFields, Moment, Reason
from services.ops.timers.timers import FilterQuery, filter_of, time_text
from tidewheel.errors import ClientMistake


class TaskFilter(GivenFields, FilterQuery):
    """The timers of a task. A filter without conditions requires `everything`."""

    everything: bool = False


class NewTask(BaseModel):
    """A task that applies a verb to every timer of a filter. With `dry_run`, the timers are only counted."""

    model_config = ConfigDict(extra="forbid")

    verb: Literal["cancel", "move", "fire"]
    filter: TaskFilter
    to: Moment | None = Field(None, description="The new time of the timers.")
    by: str | None = Field(
        None, description="Duration to move each timer by: 1h, or -30m for an earlier time."
    )
    limit: Limit = None
    reason: Reason = ""
    dry_run: bool = False

    def order(self, now_ms: int) -> TimerTaskRequest:
        """Return the order of the task for the core. Raise a `ClientMistake` for an invalid order."""
        wanted = filter_of(self.filter, now_ms)
        if wanted == TimerFilter() and not self.filter.everything:
            raise ClientMistake(
                "The filter names no timers: give a condition, such as topic or key. Over HTTP, "
                '{"everything": true} is the filter for all timers.'
            )
        if self.verb != "move" and (self.to is not None or self.by is not None):
            doing = {"cancel": "cancelling", "fire": "firing"}[self.verb]
            raise ClientMistake(f"to and by are for moving, not for {doing}.")
        if self.verb == "move" and (self.to is None) == (self.by is None):
            raise ClientMistake(
                "To move them say either to, such as 2026-11-22T09:00+08:00, or by, such as 1h."
            )
        to_ms = None if self.to is None else due_of(self.to, now_ms, "to")
        return TimerTaskRequest(
            TimerVerb(self.verb), wanted, self.reason, to_ms, self._by_ms(), self.limit or 0
        )

    def _by_ms(self) -> int:
        if self.by is None:
            return 0
        span = delay_of(self.by.removeprefix("-"), "by")
        return -span if self.by.startswith("-") else span


class TaskAnswer(TaskProgressAnswer):
    """A task that processes many timers."""

    verb: Literal["cancel", "move", "fire"]


class TasksAnswer(TypedDict):
    """The tasks since the start of the broker, newest first."""

    tasks: list[TaskAnswer]


def task_shape(task: TimerTask) -> TaskAnswer:
    """Return a task in JSON form."""
    return {**progress_shape(task), "verb": task.order.verb.value}


async def count_matching(live: LiveBroker, order: TimerTaskRequest, seconds_max: float) -> CountedAnswer:
    """Count the timers that match the filter of a task. Stop after about `seconds_max`."""
    found = await timer_queries.count_timers(live, order.wanted, seconds_max)
    return {"matched": found.total, "counted_until_ms": time_text(found.counted_until_ms)}


TIMERS: Final = Bulk(
    "timers",
    NewTask,
    task_shape,
    count_matching,
    TaskAnswer,
    TasksAnswer,
    (400, 404, 503),
)
