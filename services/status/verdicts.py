"""One-line descriptions of timer verdicts."""

from __future__ import annotations

from typing import Any

from services.status.asking import Api
from services.status.holds import is_held
from services.times.display import both, now_ms

Answer = dict[str, Any]


def move_line(api: Api, answer: Answer, name: str, topic: str) -> str:
    """Return the description of the verdict of a move. Ask whether the topic is held if it is needed."""
    is_due = answer["verdict"] == "MOVED" and int(answer["ended_ms"]) <= now_ms()
    return verdict_line(answer, name, topic, has_hold=is_due and is_held(api, topic))


def verdict_line(answer: Answer, name: str, topic: str, *, has_hold: bool = False) -> str:
    """Return the description of a verdict. `has_hold` is true if the timers of the topic are held."""
    ended_ms, due_ms = int(answer["ended_ms"]), int(answer["due_ms"])
    was = f"was due {both(due_ms)}" if due_ms else ""
    told = {
        "CANCELLED": was,
        "MOVED": f"{was}, {moved_to(ended_ms, topic, has_hold)}".removeprefix(", "),
        "FIRED": was,
        "TOO_LATE": _ended_text(answer, "was delivered"),
        "ALREADY": _ended_text(answer, "ended before"),
        "NEVER_SET": "there is no such timer",
        "FORGOTTEN": "ended longer ago than outcomes are kept (--timer-history-hours)",
    }[answer["verdict"]]
    return "  ".join(part for part in (answer["verdict"], name, topic, told, *_place(answer)) if part)


def ended_line(answer: Answer, name: str, topic: str) -> str:
    """Return the description of a timer that has ended, with the terms of `tidewheel explain`."""
    what = answer["what"]
    if not what:
        return verdict_line(answer, name, topic)
    parts = (what.upper(), name, topic, _when_and_why(answer), *_place(answer))
    return "  ".join(part for part in parts if part)


def _ended_text(answer: Answer, usual: str) -> str:
    """Return how and when a timer had ended before, and why."""
    what = answer["what"]
    return f"{f'was {what}' if what else usual} {_when_and_why(answer)}".strip()


def _when_and_why(answer: Answer) -> str:
    """Return when a timer ended, and why."""
    ended_ms = int(answer["ended_ms"])
    return ", ".join(part for part in (both(ended_ms) if ended_ms > 0 else "", answer["note"]) if part)


def _place(answer: Answer) -> tuple[str, str]:
    offset = int(answer["ended_offset"])
    message_id = f"id {answer['message_id']}" if answer["message_id"] else ""
    return message_id, f"log@{offset}" if offset >= 0 else ""


def moved_to(due_ms: int, topic: str, has_hold: bool) -> str:
    """Return the due time of a moved timer, and what follows from a time in the past."""
    if due_ms > now_ms():
        return f"now due {both(due_ms)}"
    if has_hold:
        return f"now held until the release of {topic}: {both(due_ms)} has passed"
    return f"now delivered: {both(due_ms)} has passed"
