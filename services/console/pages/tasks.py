"""`/tasks`: work over many timers, dead letters or messages: how far it is, how it ended, and its stop.

    /tasks       the tasks since the broker's start, those that run first
    /tasks/one   one, with its filter's result by verdict, its items, and the form that stops it

The broker keeps tasks in memory. A restart stops a task; its changes remain.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from services.console.page import Asked, Done, Model, Page
from services.http.api import Api
from tidewheel.errors import ClientMistake

KINDS: Final = {"timers": "timers", "dead-letters": "dead letters", "moves": "messages"}
"""The kinds of tasks, as in the paths of the HTTP interface, and their items."""
RUNNING: Final = "running"
EVERY_MS: Final = 2_000
ITEMS: Final = 50


def read(broker: Api, asked: Asked) -> Model:
    """Return all tasks, those that run first, then the newest."""
    found = [of_kind(one, kind) for kind in KINDS for one in broker.get(kind, "tasks")["tasks"]]
    found.sort(key=lambda one: (one["state"] != RUNNING, -int(one["started_ms"])))
    return {"tasks": found}


def read_one(broker: Api, asked: Asked) -> Model:
    """Return one task."""
    kind, task_id = name_of(asked)
    task = of_kind(broker.get(kind, "tasks", task_id), kind)
    page = broker.get(kind, "tasks", task_id, "items", **asked.given("after"), limit=ITEMS)
    more = {"kind": kind, "id": task_id, "after": page["after"]}
    return {"task": task, "items": page["items"], "next": urlencode(more) if page["after"] else ""}


def stop(broker: Api, asked: Asked) -> Done:
    """Stop a task after what it is doing."""
    kind, task_id = name_of(asked)
    task = broker.delete(kind, "tasks", task_id)
    done = f"{task['done']:,} of {task['matched']:,}" if task["matched"] is not None else "0"
    said = f"Task {task_id} is {task['state']}: {done} items were handled. Their changes remain."
    return Done(said, page_of(kind, task_id))


def of_kind(task: Model, kind: str) -> Model:
    """Return a task with the kind of its items; all have the fields of each kind, empty or 0."""
    return (
        {"group": "", "source": "", "target": "", "rate_per_second": 0}
        | task
        | {"kind": kind, "items": KINDS[kind]}
    )


def limit_of(asked: Asked) -> dict[str, int]:
    """Return the limit that a form gives to a task, if any; raise `ClientMistake` for what is no number."""
    limit = asked.get("limit").replace(",", "")
    if limit and not (limit.isascii() and limit.isdigit()):
        raise ClientMistake(f"{limit[:20]!r} is no number of items.")
    return {"limit": int(limit)} if limit else {}


def extent(order: Model, matched: int) -> int:
    """Return how many of the items that match a task would change."""
    limit: int = order.get("limit", matched)
    return min(matched, limit)


def name_of(asked: Asked) -> tuple[str, str]:
    """Return kind and id of a task; raise `ClientMistake` for another kind."""
    kind = asked.required("kind", "The kind of the task")
    if kind not in KINDS:
        raise ClientMistake(f"kind is {kind[:20]!r}: there are {', '.join(KINDS)}.")
    return kind, asked.required("id", "The task")


def page_of(kind: str, task_id: str) -> str:
    """Return the path of a task's page."""
    return f"/tasks/one?{urlencode({'kind': kind, 'id': task_id})}"


PAGE: Final = Page("/tasks", "Tasks", "tasks.html", read, entry="Tasks", every_ms=EVERY_MS)
ONE: Final = Page("/tasks/one", "Task", "task.html", read_one, acts={"stop": stop}, every_ms=EVERY_MS)
