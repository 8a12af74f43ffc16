"""How `tidewheel dlq` tells people about dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.cli.task_views import progress, verdicts_text
from services.cli.times import both, exactly

Answer = dict[str, Any]

NONE_AT_ALL = "no group has dead letters."
GROUPS = ("group", "dead letters", "the oldest given up")
LETTERS = ("offset", "topic", "keys", "tag", "attempts", "reason", "given up")
TOLD_ABOVE = ("DLQ_ORIGIN_", "TW_DEAD_")
TASKS = ("task", "verb", "group", "to", "state", "done", "verdicts", "began", "reason")


def group_row(one: Answer) -> tuple[str, ...]:
    """Return a group that has dead letters as a line of the list."""
    return one["group"], f"{one['count']:,}", both(int(one["oldest_ms"])) if one["oldest_ms"] else "-"


def letter_row(letter: Answer) -> tuple[str, ...]:
    """Return a dead letter as a line of the list."""
    return (
        letter["offset"],
        letter["topic"],
        " ".join(letter["keys"]),
        letter["tag"],
        str(letter["attempts"]),
        letter["reason"],
        both(int(letter["given_up_ms"])),
    )


def letter_lines(letter: Answer) -> Iterator[str]:
    """Say everything about one dead letter."""
    message = letter["message"]
    given_up = both(int(letter["given_up_ms"]))
    yield f"{letter['group']} {letter['offset']}  {letter['topic']}  given up {given_up}"
    facts = {
        "message": letter["message_id"],
        "keys": " ".join(letter["keys"]),
        "tag": letter["tag"],
        "reason": letter["reason"],
        "attempts": str(letter["attempts"]) if letter["attempts"] else "",
        "first error": error_text(letter["first_error"]),
        "last error": error_text(letter["last_error"]) if letter["attempts"] != 1 else "",
    }
    yield from (f"  {name:<11} {value}" for name, value in facts.items() if value)
    for name, value in message["properties"].items():
        if not name.startswith(TOLD_ABOVE):
            yield f"  {'property':<11} {name}={value}"
    yield f"  {message.get('body', '(binary)')}"
    yield f"send it back: tidewheel dlq redrive {letter['group']} {letter['offset']}"


def error_text(error: Answer | None) -> str:
    """Return how an attempt ended, and when."""
    if error is None:
        return ""
    return error["what"] if error["at_ms"] is None else f"{exactly(int(error['at_ms']))}  {error['what']}"


def task_row(task: Answer) -> tuple[str, ...]:
    """Return a task as a line of the list."""
    return (
        task["id"],
        task["verb"],
        task["group"],
        task["target"] or ("back" if task["verb"] == "redrive" else "-"),
        task["state"],
        progress(task),
        verdicts_text(task),
        both(int(task["started_ms"])),
        task["reason"],
    )
