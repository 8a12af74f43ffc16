"""`/tasks`: bulk tasks on timers, dead letters or messages, with their progress, their result and a stop
operation.

    /tasks       the tasks since the broker's start, running tasks first
    /tasks/one   a task with its results, its items and the form that stops it

The broker keeps tasks in memory. A restart of the broker stops a task, and its changes remain.
"""

from __future__ import annotations

from math import inf
from typing import Final
from urllib.parse import urlencode

from services.console.forms import is_count
from services.console.page import Asked, Done, Model, Page
from services.http.api import Api
from tidewheel.errors import ClientMistake

KINDS: Final = {"timers": "timers", "dead-letters": "dead letters", "moves": "messages"}
"""The kinds of tasks as in the paths of the HTTP interface, with the names of their items."""
RUNNING: Final = "running"
EVERY_MS: Final = 2_000
ITEMS: Final = 50


def read(broker: Api, asked: Asked) -> Model:
    """Return all tasks, running tasks first, then in descending order of their start."""
    found = [of_kind(one, kind) for kind in KINDS for one in broker.get(kind, "tasks")["tasks"]]
    found.sort(key=lambda one: (one["state"] != RUNNING, -int(one["started_ms"])))
    return {"tasks": found}


def read_one(broker: Api, asked: Asked) -> Model:
    """Return a task."""
    kind, task_id = name_of(asked)
    task = of_kind(broker.get(kind, "tasks", task_id), kind)
    page = broker.get(kind, "tasks", task_id, "items", **asked.given("after"), limit=ITEMS)
    more = {"kind": kind, "id": task_id, "after": page["after"]}
    return {"task": task, "items": page["items"], "next": urlencode(more) if page["after"] else ""}


def stop(broker: Api, asked: Asked) -> Done:
    """Stop a task after the current item."""
    kind, task_id = name_of(asked)
    task = broker.delete(kind, "tasks", task_id)
    done = f"{task['done']:,} of {task['matched']:,}" if task["matched"] is not None else "0"
    state = f"had already ended ({task['state']})" if task.get("already_ended") else f"is {task['state']}"
    said = f"Task {task_id} {state}: {done} items were handled. Their changes remain."
    return Done(said, page_of(kind, task_id))


def of_kind(task: Model, kind: str) -> Model:
    """Return a task with its kind and the name of its items. Fields of other kinds are empty or 0."""
    return (
        {"group": "", "source": "", "target": "", "rate_per_second": 0}
        | task
        | {"kind": kind, "items": KINDS[kind]}
    )


def limit_of(asked: Asked) -> dict[str, int]:
    """Return the limit of a task from a form, if any. Raises `ClientMistake` if it is not a number."""
    limit = asked.get("limit").replace(",", "")
    return {"limit": number(limit)} if limit else {}


def number(text: str) -> int:
    """Return a number of items. Raises `ClientMistake` if the text is not a number."""
    if not is_count(text):
        raise ClientMistake(f"{text[:20]!r} is no number of items.")
    return int(text)


def is_cut_off(order: Model, preview: Model) -> bool:
    """Return whether a task may change more items than its preview has counted in its time."""
    limit: float = order.get("limit", inf)
    return preview.get("counted_until_ms") is not None and preview["matched"] < limit


def extent(order: Model, matched: int) -> int:
    """Return how many matching items a task would change."""
    limit: int = order.get("limit", matched)
    return min(matched, limit)


def name_of(asked: Asked) -> tuple[str, str]:
    """Return the kind and id of a task. Raises `ClientMistake` for an unknown kind."""
    kind = asked.required("kind", "The kind of the task")
    if kind not in KINDS:
        raise ClientMistake(f"kind is {kind[:20]!r}: there are {', '.join(KINDS)}.")
    return kind, asked.required("id", "The task")


def page_of(kind: str, task_id: str) -> str:
    """Return the path of a task's page."""
    return f"/tasks/one?{urlencode({'kind': kind, 'id': task_id})}"


PAGE: Final = Page("/tasks", "Tasks", "tasks.html", read, entry="Tasks", every_ms=EVERY_MS)
ONE: Final = Page("/tasks/one", "Task", "task.html", read_one, acts={"stop": stop}, every_ms=EVERY_MS)
