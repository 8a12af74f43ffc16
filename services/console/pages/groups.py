"""`/groups`: the lag of consumer groups, and operations to pause, resume and reset a group.

/groups          the groups, sorted by their oldest unfinished message
/groups/one      a group with its queues, clients, filters and operations
/groups/reset    the preview of a reset by queue, and the form that starts it
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlencode

from services.console.forms import seen_in
from services.console.page import Asked, Done, Model, Page
from services.http.api import Api
from services.status.judgement import why_behind

SHOWN_MAX: Final = 500
SEEN_MAX: Final = 2_000
"""The number of queues whose offsets the form of a reset sends back."""


def read(broker: Api, asked: Asked) -> Model:
    """Return the groups whose names contain `name`. The group with the oldest unfinished message is first."""
    name = asked.get("name")
    groups = broker.get("groups", queues="false")["groups"]
    found = sorted((one for one in groups if name.lower() in one["name"].lower()), key=behind)
    shown = [one | {"why": why_behind(one) if one["lag"] else ""} for one in found[:SHOWN_MAX]]
    return {"name": name, "count": len(groups), "groups": shown, "more": len(found[SHOWN_MAX:])}


def behind(group: dict[str, Any]) -> tuple[bool, int, str]:
    """Return the sort key of a group in the list."""
    oldest = group["oldest_ms"]
    return oldest is None, int(oldest or 0), group["name"]


def read_one(broker: Api, asked: Asked) -> Model:
    """Return a group and its consumers."""
    name = asked.required("name", "The group")
    group = broker.get("groups", name)
    why = why_behind(group) if group["lag"] else ""
    return {"group": group, "why": why, "clients": broker.get("groups", name, "clients")}


def read_reset(broker: Api, asked: Asked) -> Model:
    """Return the queue offsets that a reset would change."""
    name, order = order_of(asked)
    moves = reset(broker, name, order, dry_run=True)["moves"]
    return {"name": name, "order": order, "moves": moves, "seen": seen_text(moves), "seen_max": SEEN_MAX}


def seen_text(moves: list[Model]) -> str:
    """Return the field of a form with the offsets that it shows, or an empty string if there are too many."""
    seen: dict[str, dict[str, str]] = {}
    for move in moves if len(moves) <= SEEN_MAX else ():
        seen.setdefault(move["topic"], {})[str(move["queue_id"])] = move["before"]
    return json.dumps(seen) if seen else ""


def pause(broker: Api, asked: Asked) -> Done:
    """Pause the delivery of messages to a group."""
    name = asked.required("name", "The group")
    broker.post("groups", name, "pause", body={})
    return Done(f"{name} is paused: its consumers receive nothing until it is resumed.", page_of(name))


def resume(broker: Api, asked: Asked) -> Done:
    """Resume the delivery of messages to a group."""
    name = asked.required("name", "The group")
    broker.post("groups", name, "resume", body={})
    return Done(f"{name} is resumed.", page_of(name))


def start_reset(broker: Api, asked: Asked) -> Done:
    """Reset a group, unless another operator has set it back since the form was shown."""
    name, order = order_of(asked)
    seen = {"seen": seen_in(asked, "seen")} if asked.get("seen") else {}
    moves = reset(broker, name, order | seen, dry_run=False)["moves"]
    moved = sum(move["before"] != move["after"] for move in moves)
    return Done(f"{name} goes on from {order['to']}: {moved} of {len(moves)} queues moved.", page_of(name))


def order_of(asked: Asked) -> tuple[str, dict[str, str]]:
    """Return the group and the target of a reset."""
    order = {"to": asked.required("to", "Where to go on from"), **asked.given("topic")}
    return asked.required("name", "The group"), order


def reset(broker: Api, name: str, order: Model, *, dry_run: bool) -> Any:
    """Return the broker's response to a reset."""
    return broker.post("groups", name, "reset", body=order | {"dry_run": dry_run})


def page_of(name: str) -> str:
    """Return the path of a group's page."""
    return f"/groups/one?{urlencode({'name': name})}"


PAGE: Final = Page("/groups", "Groups", "groups.html", read, entry="Groups")
ONE: Final = Page("/groups/one", "Group", "group.html", read_one, acts={"pause": pause, "resume": resume})
RESET: Final = Page(
    "/groups/reset", "Reset a group", "group_reset.html", read_reset, acts={"start": start_reset}
)
