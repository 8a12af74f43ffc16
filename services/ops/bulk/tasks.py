"""The operations of `/api/NOUN/tasks`, which apply a verb to all items of a filter (`live/bulk/tasks.py`).

    GET    /api/NOUN/tasks      lists the tasks since the start of the broker, newest first
    POST   /api/NOUN/tasks      starts a task, or with `dry_run` counts the items of its filter
    GET    /api/NOUN/tasks/ID   shows the progress of a task; DELETE stops the task
    GET    /api/NOUN/tasks/ID/items   lists the processed items with their verdicts: after, limit

A task continues after its request, and its items are kept after a restart, until retention deletes them. The
handlers are the same for each noun. A noun declares a `Bulk` with the body that starts a task, the answer
that shows a task, and the count of its items (`timer_tasks`, `dead_letters`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from services.broker.task_items import ItemsPage
from services.live.bulk.tasks import Task, TaskRequest, Tasks, TaskState
from services.live.live_broker import LiveBroker
from services.ops.requests.answers import written
from services.ops.requests.callers import watch_of
from services.ops.requests.operation import Operation
from services.ops.requests.request import LIMIT_DEFAULT, LIMIT_MAX, NUMBER_MAX, Nothing, asked, said_as
from services.ops.timers import timers
from services.times import moments
from tidewheel.errors import ClientMistake, NotFound

Order = TypeVar("Order", bound=TaskRequest)


Limit = Annotated[int | None, Field(ge=1, le=NUMBER_MAX, description="Change at most this many items.")]


class QueuePlaceAnswer(TypedDict):
    """A position in the queues of a topic."""

    queue_id: int
    queue_offset: str


class CountedAnswer(TypedDict):
    """The number of items that match, or of those that were counted in about 2 seconds.

    `counted_until_ms` is then the due time up to which timers were counted, or the time at which the last
    counted dead letter was given up. It is null if all items were counted. Only a count of messages to move
    has `by_verdict` and `reasons`, which are those of a task that runs now. Instead of a time, it has
    `counted_until`, which is the first message that was not counted, or null.
    """

    matched: int
    counted_until_ms: NotRequired[str | None]
    counted_until: NotRequired[QueuePlaceAnswer | None]
    by_verdict: NotRequired[dict[str, int]]
    reasons: NotRequired[dict[str, str]]


class DryRunAnswer(CountedAnswer):
    """A preview of a task, which processes all items that match, also those that the preview did not count.

    The task processes at most `limit` items, or all if `limit` is null.
    """

    dry_run: bool
    limit: int | None


class TaskProgressAnswer(TypedDict):
    """The fields of every task.

    `matched` is null until the items have been counted. The task ends after `limit` items, or after all items
    if `limit` is null. `by_verdict` contains the number of `done` items by verdict, or by error code for
    refused items. `reasons` contains, for verdicts that left items unchanged, the reason for the first such
    item. `why` is the reason for a stop. Only the answer to a stop has `already_ended`, which is true if the
    task had ended before, and nothing was stopped.
    """

    id: str
    state: Literal["running", "done", "stopped"]
    matched: int | None
    limit: int | None
    done: int
    by_verdict: dict[str, int]
    reasons: dict[str, str]
    reason: str
    started_ms: str
    ended_ms: str | None
    why: str
    already_ended: NotRequired[bool]


class ItemsQuery(Nothing):
    """A page of the items of a task."""

    after: str = Field("", description="The value that the previous page returned.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class TaskItemAnswer(TypedDict):
    """An item that a task has handled, with its verdict or the code of the error that refused it.

    `name` is the timer key; for a dead letter its offset; for a message its queue and offset.
    """

    topic: str
    name: str
    message_id: str
    verdict: str
    at_ms: str


class TaskItemsAnswer(TypedDict):
    """Items in the order in which the task handled them; `after` asks for the next page, null at the end."""

    items: list[TaskItemAnswer]
    after: str | None


def items_shape(page: ItemsPage) -> TaskItemsAnswer:
    """Return a page of items as JSON has it."""
    items: list[TaskItemAnswer] = [
        {
            "topic": one.item.topic,
            "name": one.item.name,
            "message_id": one.item.message_id,
            "verdict": one.item.verdict,
            "at_ms": str(one.store_ms),
        }
        for one in page.items
    ]
    return {"items": items, "after": None if page.after is None else f"{page.after[0]}:{page.after[1]}"}


def place_of(text: str) -> tuple[int, int] | None:
    """Read where a page of items ends, as `items_shape` wrote it; raise `ClientMistake`."""
    offset, _, number = text.partition(":")
    if not text:
        return None
    try:
        return moments.whole_ms(offset), moments.whole_ms(number)
    except ValueError:
        raise ClientMistake(f"after is {text[:80]!r}: use the one from the page before.") from None


def progress_shape(task: Task[Order]) -> TaskProgressAnswer:
    """Return the fields of every task in JSON form."""
    return {
        "id": task.id,
        "state": task.state.value,
        "matched": task.matched,
        "limit": task.order.limit or None,
        "done": task.done,
        "by_verdict": dict(task.by_verdict),
        "reasons": dict(task.reasons),
        "reason": task.order.reason,
        "started_ms": str(task.started_ms),
        "ended_ms": None if task.ended_ms is None else str(task.ended_ms),
        "why": task.why,
    }


@dataclass(frozen=True, slots=True)
class Bulk:
    """The tasks of a noun.

    `body` has the field `dry_run` and the method `order`, whose argument is the time. `count` counts the
    items of an order for about the given number of seconds at most.
    """

    noun: str
    body: type[BaseModel]
    shape: Callable[[Task[Any]], Any]
    count: Callable[[LiveBroker, Any, float], Awaitable[CountedAnswer]]
    answer: type[Any]
    answers: type[Any]
    refusals: tuple[int, ...] = (400, 503)


class TasksApi:
    """The handlers of `/api/NOUN/tasks`, for each noun that has tasks."""

    def __init__(self, live: LiveBroker, nouns: Mapping[Bulk, Tasks[Any]]) -> None:
        self._live = live
        self._nouns = {bulk.noun: (bulk, tasks) for bulk, tasks in nouns.items()}

    def _noun_of(self, request: Request) -> tuple[Bulk, Tasks[Any]]:
        path: str = request.scope["path"]  # the routed path, because the Host header can change `request.url`
        return self._nouns[path.split("/")[2]]

    def _task_of(self, request: Request) -> tuple[Bulk, Tasks[Any], str]:
        """Return the task in the path of a request. Raise `NotFound` if the task is of another noun."""
        (bulk, tasks), task_id = self._noun_of(request), request.path_params["id"]
        if not tasks.has(task_id):
            for _, other in self._nouns.values():
                if other.has(task_id):
                    raise NotFound(
                        f"The task {task_id!r} is one over {other.what}, not over {tasks.what}. See: "
                        f"tidewheel {other.command} tasks {task_id}"
                    )
        return bulk, tasks, task_id

    async def tasks(self, request: Request) -> JSONResponse:
        """List the tasks."""
        bulk, tasks = self._noun_of(request)
        return JSONResponse({"tasks": [bulk.shape(task) for task in tasks.list_tasks()]})

    async def start_task(self, request: Request) -> JSONResponse:
        """Start a task over all items of a filter, or count them."""
        bulk, tasks = self._noun_of(request)
        wanted: Any = await said_as(bulk.body, request)
        order = wanted.order(self._live.now_ms())
        if not wanted.dry_run:
            return JSONResponse(bulk.shape(tasks.start(order, watch_of(request))), status_code=202)
        tasks.check(order)
        counted = await bulk.count(self._live, order, timers.SECONDS_MAX)
        answer: DryRunAnswer = {"dry_run": True, "limit": order.limit or None, **counted}
        return JSONResponse(answer)

    async def task(self, request: Request) -> JSONResponse:
        """Show a task."""
        bulk, tasks, task_id = self._task_of(request)
        return JSONResponse(bulk.shape(tasks.get(task_id)))

    async def task_items(self, request: Request) -> Response:
        """List the items that a task has handled, each with its verdict."""
        query, (_, tasks, task_id) = asked(ItemsQuery, request), self._task_of(request)
        page = tasks.read_items(task_id, place_of(query.after), query.limit)
        return await written(items_shape(page))

    async def stop_task(self, request: Request) -> JSONResponse:
        """Stop a task. A task that has ended is shown unchanged."""
        bulk, tasks, task_id = self._task_of(request)
        already_ended = tasks.get(task_id).state is not TaskState.RUNNING
        return JSONResponse(bulk.shape(await tasks.stop(task_id)) | {"already_ended": already_ended})


def operations_of(bulk: Bulk) -> tuple[Operation, ...]:
    """Return the operations on the tasks of a noun."""
    path, one = f"/api/{bulk.noun}/tasks", {200: bulk.answer}
    return (
        Operation("GET", path, TasksApi.tasks, {200: bulk.answers}),
        Operation(
            "POST",
            path,
            TasksApi.start_task,
            {202: bulk.answer, 200: DryRunAnswer},
            bodies=(bulk.body,),
            refusals=bulk.refusals,
        ),
        Operation("GET", f"{path}/{{id}}", TasksApi.task, one, refusals=(400, 404)),
        Operation(
            "GET",
            f"{path}/{{id}}/items",
            TasksApi.task_items,
            {200: TaskItemsAnswer},
            ItemsQuery,
            refusals=(400, 404),
        ),
        Operation("DELETE", f"{path}/{{id}}", TasksApi.stop_task, one, refusals=(400, 404)),
    )
