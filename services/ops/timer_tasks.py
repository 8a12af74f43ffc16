"""`/api/timers/tasks`: all timers of a filter cancelled or moved (`services.live.timer_tasks`).

    GET    /api/timers/tasks      the tasks since the broker's start, the newest first
    POST   /api/timers/tasks      {"verb", "filter", "to" or "by", "reason"}: cancels or moves all timers of
                                  the filter, or counts them first: dry_run
    GET    /api/timers/tasks/ID   how far that is; DELETE stops it

A filter that names nothing must say that it means everything. A file of its own beside `services.ops.timers`:
a task lives on after its request, a verb on one timer ends with it, and together they would be too long to be
read as one.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from services.broker.spine.values import TimerFilter
from services.live import timer_queries
from services.live.live_broker import LiveBroker
from services.live.timer_tasks import TimerOrder, TimerTask, TimerTasks, TimerVerb
from services.ops.callers import watch_of
from services.ops.given_times import delay_of, due_of
from services.ops.operation import Operation
from services.ops.request import Moment, Reason, said_as
from services.ops.timers import FilterQuery, filter_of
from tidewheel.errors import ClientMistake


class TaskFilter(FilterQuery):
    """Which timers a task is for; `everything` must be said when nothing else is."""

    everything: bool = False


class NewTask(BaseModel):
    """What to do to every timer of a filter; with `dry_run` they are only counted."""

    model_config = ConfigDict(extra="forbid")

    verb: Literal["cancel", "move"]
    filter: TaskFilter
    to: Moment | None = Field(None, description="Where to move them: a moment as above.")
    by: str | None = Field(None, description="How far to move each: a span such as 1h, or -30m for earlier.")
    reason: Reason = ""
    dry_run: bool = False

    def order(self, now_ms: int) -> TimerOrder:
        """Return the task's order as the broker takes it; raise the `ClientMistake` that fits."""
        wanted = filter_of(self.filter, now_ms)
        if wanted == TimerFilter() and not self.filter.everything:
            raise ClientMistake('The filter names no timers: say {"everything": true} if all are meant.')
        if self.verb == "cancel" and (self.to is not None or self.by is not None):
            raise ClientMistake("to and by are for moving, not for cancelling.")
        if self.verb == "move" and (self.to is None) == (self.by is None):
            raise ClientMistake(
                "To move them say either to, such as 2026-11-22T09:00+08:00, or by, such as 1h."
            )
        to_ms = None if self.to is None else due_of(self.to, now_ms, "to")
        return TimerOrder(TimerVerb(self.verb), wanted, self.reason, to_ms, self._by_ms())

    def _by_ms(self) -> int:
        if self.by is None:
            return 0
        span = delay_of(self.by.removeprefix("-"), "by")
        return -span if self.by.startswith("-") else span


class DryRunAnswer(TypedDict):
    """How many timers the task would touch, had it been started."""

    dry_run: bool
    matched: int


class TaskAnswer(TypedDict):
    """A task over many timers. `matched` is null until they are counted.

    `by_verdict` says how the `done` ended, the refused ones under their error's code; `why` why it stopped.
    """

    id: str
    verb: Literal["cancel", "move"]
    state: Literal["running", "done", "stopped"]
    matched: int | None
    done: int
    by_verdict: dict[str, int]
    reason: str
    started_ms: str
    ended_ms: str | None
    why: str


class TasksAnswer(TypedDict):
    """The tasks since the broker's start, the newest first."""

    tasks: list[TaskAnswer]


def task_shape(task: TimerTask) -> TaskAnswer:
    """Return a task as JSON has it."""
    return {
        "id": task.id,
        "verb": task.order.verb.value,
        "state": task.state.value,
        "matched": task.matched,
        "done": task.done,
        "by_verdict": dict(task.by_verdict),
        "reason": task.order.reason,
        "started_ms": str(task.started_ms),
        "ended_ms": None if task.ended_ms is None else str(task.ended_ms),
        "why": task.why,
    }


class TimerTasksApi:
    """The handlers of `/api/timers/tasks`."""

    def __init__(self, live: LiveBroker, tasks: TimerTasks) -> None:
        self._live, self._tasks = live, tasks

    async def tasks(self, request: Request) -> JSONResponse:
        """List the tasks."""
        return JSONResponse({"tasks": [task_shape(task) for task in self._tasks.all()]})

    async def start_task(self, request: Request) -> JSONResponse:
        """Cancel or move all timers of a filter, or count them."""
        wanted = await said_as(NewTask, request)
        order = wanted.order(self._live.now_ms())
        if not wanted.dry_run:
            task = self._tasks.start(order, watch_of(request))
            return JSONResponse(task_shape(task), status_code=202)
        self._tasks.check(order)
        return JSONResponse({"dry_run": True, "matched": await timer_queries.count(self._live, order.wanted)})

    async def task(self, request: Request) -> JSONResponse:
        """Show a task."""
        return JSONResponse(task_shape(self._tasks.get(request.path_params["id"])))

    async def stop_task(self, request: Request) -> JSONResponse:
        """Stop a task."""
        return JSONResponse(task_shape(await self._tasks.stop(request.path_params["id"])))


OPERATIONS: Final = (
    Operation("GET", "/api/timers/tasks", TimerTasksApi.tasks, {200: TasksAnswer}),
    Operation(
        "POST",
        "/api/timers/tasks",
        TimerTasksApi.start_task,
        {202: TaskAnswer, 200: DryRunAnswer},
        bodies=(NewTask,),
        refusals=(400, 503),
    ),
    Operation("GET", "/api/timers/tasks/{id}", TimerTasksApi.task, {200: TaskAnswer}, refusals=(400, 404)),
    Operation(
        "DELETE", "/api/timers/tasks/{id}", TimerTasksApi.stop_task, {200: TaskAnswer}, refusals=(400, 404)
    ),
)
