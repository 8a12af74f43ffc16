"""`/timers`: what fires when; one timer shown, moved, fired, cancelled; many, after a preview of how many.

    /timers          summary, histogram and a page of those that match; acts on one come back here
    /timers/one      one timer, what it says, and the forms of its verbs
    /timers/all      how many match, and the form that cancels or moves them all as a task

A verb on one timer says its verdict, in the words of the command (`services.status.verdicts`). A verb on many
names the number that was previewed, and is refused if another number matches by then.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from services.console.bodies import shown
from services.console.histogram import bars
from services.console.page import Asked, Done, Model, Page
from services.console.pages.tasks import extent, limit_of, of_kind, page_of
from services.http.api import Api
from services.status.judgement import counted
from services.status.verdicts import ended_line, verdict_line
from tidewheel.errors import ClientMistake

FILTER: Final = ("topic", "topic-prefix", "key", "message-key", "tag", "property", "from", "until", "held")
LIMIT: Final = 50
TASKS: Final = 5
MINUTE_MS: Final = 60_000
VIEWS: Final = {"hour": (60, MINUTE_MS), "day": (48, 30 * MINUTE_MS), "month": (30, 1_440 * MINUTE_MS)}
"""Number and width of the windows of a histogram."""


def read(broker: Api, asked: Asked) -> Model:
    """Return timers at a glance, and a page of those that match the filter."""
    wanted = asked.given(*FILTER)
    view = asked.get("view", "hour")
    if view not in VIEWS:
        raise ClientMistake(f"view is {view[:20]!r}: there are {', '.join(VIEWS)}.")
    count, width_ms = VIEWS[view]
    summary = broker.get("timers", "summary")
    from_ms = int(summary["now_ms"]) // width_ms * width_ms
    span = {"from": from_ms, "until": from_ms + count * width_ms}
    drawn = {name: text for name, text in wanted.items() if name not in span} | span
    found = broker.get("timers", "histogram", **drawn, width=f"{width_ms}ms")
    page = broker.get("timers", **wanted, **asked.given("after"), limit=LIMIT)
    is_partial = page["after"] and len(page["timers"]) < LIMIT
    return {
        "filter": wanted,
        "view": view,
        "summary": summary,
        "from_ms": str(from_ms),
        "width_ms": str(width_ms),
        "until_ms": str(span["until"]),
        "drawn": found["count"],
        "counted_until_ms": found["counted_until_ms"],
        "bars": [bar._asdict() for bar in bars(found["windows"], from_ms, width_ms, count)],
        "timers": page["timers"],
        "next": urlencode(wanted | {"view": view, "after": page["after"]}) if page["after"] else "",
        "searched_until_ms": page["after"].partition(":")[0] if is_partial else None,
        "tasks": [of_kind(one, "timers") for one in broker.get("timers", "tasks")["tasks"][:TASKS]],
    }


def read_one(broker: Api, asked: Asked) -> Model:
    """Return one timer, or how it has ended."""
    topic, message_id = asked.required("topic", "The topic"), asked.required("id", "The message id")
    found = broker.get("timers", "one", topic=topic, id=message_id)
    if "verdict" in found:
        return {"topic": topic, "id": message_id, "timer": None, "ended": ended_line(found, "", topic)}
    content = found.pop("message")
    timer = found | {"message": shown(content) if content else None}
    return {"topic": topic, "id": message_id, "timer": timer, "ended": ""}


def read_all(broker: Api, asked: Asked) -> Model:
    """Return how many timers a verb on all that match would touch; nothing is changed."""
    order = order_of(asked)
    matched = broker.post("timers", "tasks", body=order | {"dry_run": True})["matched"]
    fields = asked.given(*FILTER, "verb", "by", "limit", "reason")
    return {"order": order, "fields": fields, "matched": matched, "changed": extent(order, matched)}


def cancel(broker: Api, asked: Asked) -> Done:
    """Cancel one timer."""
    return told(broker, asked, "cancel", {})


def move(broker: Api, asked: Asked) -> Done:
    """Move one timer."""
    return told(broker, asked, "move", {"to": asked.required("to", "The time to move it to")})


def fire(broker: Api, asked: Asked) -> Done:
    """Deliver one timer's message now."""
    return told(broker, asked, "fire", {})


def told(broker: Api, asked: Asked, verb: str, more: dict[str, str]) -> Done:
    """Carry out a verb on one timer, and say its verdict."""
    topic, message_id = asked.required("topic", "The topic"), asked.required("id", "The message id")
    reason = asked.required("reason", "The reason")
    body = {"topic": topic, "id": message_id, "reason": reason, **more}
    verdict = broker.post("timers", verb, body=body)
    name = asked.get("key") or message_id
    return Done(
        verdict_line(verdict, name, topic), f"/timers/one?{urlencode({'topic': topic, 'id': message_id})}"
    )


def start(broker: Api, asked: Asked) -> Done:
    """Start a task over all that match, if they are as many as were previewed."""
    order, said = order_of(asked), asked.required("count", "How many there are")
    matched = broker.post("timers", "tasks", body=order | {"dry_run": True})["matched"]
    if said.replace(",", "") != str(changed := extent(order, matched)):
        raise ClientMistake(
            f"{said[:20]} was typed, and {counted(changed, 'timer')} would change now: look again."
        )
    task = broker.post("timers", "tasks", body=order)
    return Done(
        f"Task {task['id']} has started: {order['verb']} {counted(changed, 'timer')}.",
        page_of("timers", task["id"]),
    )


def order_of(asked: Asked) -> dict[str, Any]:
    """Return the task that a form names; a filter that is empty is refused by the broker."""
    verb = asked.required("verb", "The verb")
    by = {"by": asked.required("by", "How far to move them")} if verb == "move" else {}
    return {
        "verb": verb,
        "filter": asked.given(*FILTER),
        "reason": asked.required("reason", "The reason"),
        **by,
        **limit_of(asked),
    }


PAGE: Final = Page("/timers", "Calendar", "calendar.html", read, entry="Calendar")
ONE: Final = Page(
    "/timers/one", "Timer", "timer.html", read_one, acts={"cancel": cancel, "move": move, "fire": fire}
)
ALL: Final = Page("/timers/all", "Many timers", "timers_all.html", read_all, acts={"start": start})
