"""`/timers`: the timers by time, operations on a timer, and bulk operations after a preview.

    /timers          the summary, the histogram and a page of matching timers
    /timers/one      a timer, its message and its forms
    /timers/all      the number of matching timers, and the form of a bulk operation

An operation on a timer shows the same result as the command (`services.status.verdicts`), and is refused if
another operator has moved the timer since the form was shown. A bulk operation contains the number of timers
from the preview. It is refused if the number has changed, and its task is limited to the number. If the
preview could not count all timers in its time, it contains the word `all` instead.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from services.console.bodies import shown
from services.console.histogram import bars
from services.console.page import Asked, Done, Model, Page
from services.console.pages.tasks import extent, is_cut_off, limit_of, of_kind, page_of
from services.http.api import Api
from services.status.judgement import counted
from services.status.verdicts import ended_line, move_line
from tidewheel.errors import ClientMistake

FILTER: Final = ("topic", "topic-prefix", "key", "message-key", "tag", "property", "from", "until", "held")
LIMIT: Final = 50
TASKS: Final = 5
ALL_WORD: Final = "all"
"""The confirmation that replaces the number of timers if a preview ended before all were counted."""
VERBS: Final = ("cancel", "move", "fire")
MINUTE_MS: Final = 60_000
VIEWS: Final = {"hour": (60, MINUTE_MS), "day": (48, 30 * MINUTE_MS), "month": (30, 1_440 * MINUTE_MS)}
"""The number and the width of the windows of a histogram."""
NOT_DRAWN: Final[Model] = {"count": None, "counted_until_ms": None, "windows": []}
"""The histogram of held timers, whose due times are in the past."""


def read(broker: Api, asked: Asked) -> Model:
    """Return the summary, the histogram and a page of the timers that match the filter.

    The histogram starts now, regardless of the times of the filter. It is omitted for held timers.
    """
    wanted = asked.given(*FILTER)
    view = asked.get("view", "hour")
    if view not in VIEWS:
        raise ClientMistake(f"view is {view[:20]!r}: there are {', '.join(VIEWS)}.")
    count, width_ms = VIEWS[view]
    summary = broker.get("timers", "summary")
    from_ms = int(summary["now_ms"]) // width_ms * width_ms
    span = {"from": from_ms, "until": from_ms + count * width_ms}
    drawn = {name: text for name, text in wanted.items() if name not in span} | span
    is_drawn = wanted.get("held") != "true"
    found = broker.get("timers", "histogram", **drawn, width=f"{width_ms}ms") if is_drawn else NOT_DRAWN
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


def blank(broker: Api, asked: Asked) -> Model:
    """Return the summary and the fields of the form, without a histogram and without timers."""
    view = asked.get("view")
    return {
        "filter": asked.given(*FILTER),
        "view": view if view in VIEWS else next(iter(VIEWS)),
        "summary": broker.get("timers", "summary"),
    }


def read_one(broker: Api, asked: Asked) -> Model:
    """Return a timer or its outcome."""
    topic, message_id = asked.required("topic", "The topic"), asked.required("id", "The message id")
    found = broker.get("timers", "one", topic=topic, id=message_id)
    if "verdict" in found:
        return {"topic": topic, "id": message_id, "timer": None, "ended": ended_line(found, "", topic)}
    content = found.pop("message")
    timer = found | {"message": shown(content) if content else None}
    return {"topic": topic, "id": message_id, "timer": timer, "ended": ""}


def read_all(broker: Api, asked: Asked) -> Model:
    """Return how many timers a bulk operation would change."""
    order = order_of(asked)
    preview = broker.post("timers", "tasks", body=order | {"dry_run": True})
    return {
        "order": order,
        "fields": asked.given(*FILTER, "verb", "by", "limit", "reason"),
        "matched": preview["matched"],
        "changed": extent(order, preview["matched"]),
        "counted_until_ms": preview.get("counted_until_ms"),
        "is_cut_off": is_cut_off(order, preview),
    }


def blank_all(broker: Api, asked: Asked) -> Model:
    """Return the fields of the form of a bulk operation, without a number of timers."""
    broker.get("whoami")
    return {
        "order": {"verb": asked.get("verb"), "filter": asked.given(*FILTER)},
        "fields": {name: asked.get(name) for name in ("by", "limit", "reason")},
        "verbs": list(VERBS),
    }


def cancel(broker: Api, asked: Asked) -> Done:
    """Cancel a timer."""
    return told(broker, asked, "cancel", {})


def move(broker: Api, asked: Asked) -> Done:
    """Move a timer."""
    return told(broker, asked, "move", {"to": asked.required("to", "The time to move it to")})


def fire(broker: Api, asked: Asked) -> Done:
    """Deliver a timer's message immediately."""
    return told(broker, asked, "fire", {})


def told(broker: Api, asked: Asked, verb: str, more: dict[str, str]) -> Done:
    """Perform an operation on a timer, if it is due when the form showed, and return its result."""
    topic, message_id = asked.required("topic", "The topic"), asked.required("id", "The message id")
    reason = asked.required("reason", "The reason")
    seen = {"seen": {"due_ms": due_ms}} if (due_ms := asked.get("due_ms")) else {}
    body = {"topic": topic, "id": message_id, "reason": reason, **more, **seen}
    verdict = broker.post("timers", verb, body=body)
    name = asked.get("key") or message_id
    return Done(
        move_line(broker, verdict, name, topic),
        f"/timers/one?{urlencode({'topic': topic, 'id': message_id})}",
    )


def start(broker: Api, asked: Asked) -> Done:
    """Start a task for all matching timers, and no more of them, if their number equals the previewed number.

    If the time of the preview was over before all timers were counted, the number is a lower bound, which a
    new count cannot confirm. The word `ALL_WORD` must then be typed, and the task changes all that match.
    """
    order = order_of(asked)
    said = asked.required("count", "How many there are").replace(",", "")
    preview = broker.post("timers", "tasks", body=order | {"dry_run": True})
    if is_cut_off(order, preview):
        check_typed(said.lower(), ALL_WORD, order, preview)
        changed = all_of(order, preview["matched"])
    else:
        count = extent(order, preview["matched"])
        check_typed(said, str(count), order, preview)
        changed, order = counted(count, "timer"), order | {"limit": count}
    task = broker.post("timers", "tasks", body=order)
    return Done(f"Task {task['id']} has started: {order['verb']} {changed}.", page_of("timers", task["id"]))


def check_typed(said: str, wanted: str, order: dict[str, Any], preview: Model) -> None:
    """Raise `ClientMistake` if another text was typed than is wanted, or if no timer would change."""
    count = extent(order, preview["matched"])
    if not count and wanted != ALL_WORD:
        raise ClientMistake("No timer would change now: no task was started.")
    if said != wanted:
        changed = ("at least " if wanted == ALL_WORD else "") + counted(count, "timer")
        raise ClientMistake(f"{said[:20]} was typed, and {changed} would change now: look again.")


def all_of(order: dict[str, Any], matched: int) -> str:
    """Return how many timers a task changes that has counted only a part of them, as part of a sentence."""
    if "limit" in order:
        return f"at most {counted(order['limit'], 'timer')}"
    return f"all that match, at least {counted(matched, 'timer')}"


def order_of(asked: Asked) -> dict[str, Any]:
    """Return the task request of a form. The broker refuses an empty filter."""
    verb = asked.required("verb", "The verb")
    by = {"by": asked.required("by", "How far to move them")} if verb == "move" else {}
    return {
        "verb": verb,
        "filter": asked.given(*FILTER),
        "reason": asked.required("reason", "The reason"),
        **by,
        **limit_of(asked),
    }


PAGE: Final = Page("/timers", "Calendar", "calendar.html", read, entry="Calendar", blank=blank)
ONE: Final = Page(
    "/timers/one", "Timer", "timer.html", read_one, acts={"cancel": cancel, "move": move, "fire": fire}
)
ALL: Final = Page(
    "/timers/all", "Many timers", "timers_all.html", read_all, acts={"start": start}, blank=blank_all
)
