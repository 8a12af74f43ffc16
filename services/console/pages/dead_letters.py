"""`/dead-letters`: the dead letters of groups with their errors, and redrives of one or many dead letters.

/dead-letters          the groups with dead letters, and the tasks
/dead-letters/group    the dead letters of a group, and the form of a task
/dead-letters/one      a dead letter with its message and its errors
/dead-letters/redrive  the number of dead letters of a task, and the form that starts it
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from services.console.bodies import shown
from services.console.forms import rate_of
from services.console.page import Asked, Done, Model, Page
from services.console.pages import tasks
from services.http.api import Api
from services.times import rates
from tidewheel.errors import ClientMistake

FILTER: Final = ("topic", "key", "tag", "reason", "from", "until")
LIMIT: Final = 50
KIND: Final = "dead-letters"


def read(broker: Api, asked: Asked) -> Model:
    """Return the groups with dead letters, largest number first, and the tasks since the broker's start."""
    groups = (one for one in broker.get("dead-letters")["groups"] if one["count"])
    begun = [tasks.of_kind(one, KIND) for one in broker.get(KIND, "tasks")["tasks"]]
    return {"groups": sorted(groups, key=lambda one: -one["count"]), "tasks": begun}


def read_group(broker: Api, asked: Asked) -> Model:
    """Return a page of a group's dead letters."""
    group, wanted = asked.required("group", "The group"), asked.given(*FILTER)
    found = broker.get("dead-letters", "groups", group, **wanted, **asked.given("after"), limit=LIMIT)
    more = {"group": group} | wanted | {"after": found["after"]}
    return {
        "group": group,
        "filter": wanted,
        "dead_letters": found["dead_letters"],
        "next": urlencode(more) if found["after"] else "",
    }


def blank_group(broker: Api, asked: Asked) -> Model:
    """Return the fields of the form, without dead letters."""
    return {"group": asked.required("group", "The group"), "filter": asked.given(*FILTER)}


def read_one(broker: Api, asked: Asked) -> Model:
    """Return a dead letter."""
    group, offset = asked.required("group", "The group"), asked.required("offset", "The offset")
    found = broker.get("dead-letters", "groups", group, offset)
    return {"dead_letter": found | {"message": shown(found["message"])}}


def read_redrive(broker: Api, asked: Asked) -> Model:
    """Return how many dead letters a task would redrive."""
    order = order_of(asked)
    preview = broker.post("dead-letters", "tasks", body=order | {"dry_run": True})
    return {
        "order": order,
        "fields": asked.given("group", "rate", "target", "limit", "why", *FILTER),
        "matched": preview["matched"],
        "changed": tasks.extent(order, preview["matched"]),
        "counted_until_ms": preview.get("counted_until_ms"),
        "is_cut_off": tasks.is_cut_off(order, preview),
    }


def redrive(broker: Api, asked: Asked) -> Done:
    """Redrive a dead letter to its group."""
    group, offset = asked.required("group", "The group"), asked.required("offset", "The offset")
    ended = broker.post("dead-letters", "groups", group, offset, "redrive", body={})
    return Done(f"{ended['verdict']}: dead letter {offset} of {group}.", page_of(group))


def start(broker: Api, asked: Asked) -> Done:
    """Start a task that redrives as many of the matching dead letters as the preview showed.

    Raises `ClientMistake` if none matches any more, because another user has redriven them.
    """
    order = order_of(asked)
    preview = broker.post("dead-letters", "tasks", body=order | {"dry_run": True})
    if not preview["matched"] and not tasks.is_cut_off(order, preview):
        raise ClientMistake("No dead letter would be redriven now: no task was started.")
    task = broker.post("dead-letters", "tasks", body=order)
    said = f"Task {task['id']} has started: redrive dead letters of {task['group']}."
    return Done(said, tasks.page_of(KIND, task["id"]))


def order_of(asked: Asked) -> dict[str, Any]:
    """Return the task request of a form."""
    return {
        "verb": "redrive",
        "group": asked.required("group", "The group"),
        "filter": asked.given(*FILTER),
        "target": asked.get("target"),
        "rate_per_second": rate_of(asked.get("rate", "50/s"), rates.per_second),
        "reason": asked.required("why", "The reason"),
        **tasks.limit_of(asked),
    }


def page_of(group: str) -> str:
    """Return the path of a group's dead letters."""
    return f"/dead-letters/group?{urlencode({'group': group})}"


PAGE: Final = Page("/dead-letters", "Dead letters", "dead_letters.html", read, entry="Dead letters")
GROUP: Final = Page(
    "/dead-letters/group",
    "Dead letters of a group",
    "dead_letters_group.html",
    read_group,
    blank=blank_group,
)
ONE: Final = Page("/dead-letters/one", "Dead letter", "dead_letter.html", read_one, acts={"redrive": redrive})
REDRIVE: Final = Page(
    "/dead-letters/redrive",
    "Redrive dead letters",
    "dead_letters_redrive.html",
    read_redrive,
    acts={"start": start},
)
