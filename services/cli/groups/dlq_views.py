"""Output of `tidewheel dlq` for users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.times.display import both, exactly

Answer = dict[str, Any]

NONE_AT_ALL = "no group has dead letters."
GROUPS = ("group", "dead letters", "the oldest given up")
DEAD_LETTERS = ("offset", "topic", "keys", "tag", "attempts", "reason", "given up")
TOLD_ABOVE = ("DLQ_ORIGIN_", "TW_DEAD_")


def group_row(one: Answer) -> tuple[str, ...]:
    """Return a group with dead letters as a table row."""
    return one["group"], f"{one['count']:,}", both(int(one["oldest_ms"])) if one["oldest_ms"] else "-"


def dead_letter_row(dead_letter: Answer) -> tuple[str, ...]:
    """Return a dead letter as a table row."""
    return (
        dead_letter["offset"],
        dead_letter["topic"],
        " ".join(dead_letter["keys"]),
        dead_letter["tag"],
        str(dead_letter["attempts"]),
        dead_letter["reason"],
        both(int(dead_letter["given_up_ms"])),
    )


def dead_letter_lines(dead_letter: Answer) -> Iterator[str]:
    """Yield the lines that describe a dead letter."""
    message = dead_letter["message"]
    given_up = both(int(dead_letter["given_up_ms"]))
    yield f"{dead_letter['group']} {dead_letter['offset']}  {dead_letter['topic']}  given up {given_up}"
    facts = {
        "message": dead_letter["message_id"],
        "keys": " ".join(dead_letter["keys"]),
        "tag": dead_letter["tag"],
        "reason": dead_letter["reason"],
        "attempts": str(dead_letter["attempts"]) if dead_letter["attempts"] else "",
        "first error": error_text(dead_letter["first_error"]),
        "last error": error_text(dead_letter["last_error"]) if dead_letter["attempts"] != 1 else "",
    }
    yield from (f"  {name:<11} {value}" for name, value in facts.items() if value)
    for name, value in message["properties"].items():
        if not name.startswith(TOLD_ABOVE):
            yield f"  {'property':<11} {name}={value}"
    yield f"  {message.get('body', '(binary)')}"
    yield f"send it back: tidewheel dlq redrive {dead_letter['group']} {dead_letter['offset']}"


def error_text(error: Answer | None) -> str:
    """Return the error of an attempt and its time."""
    if error is None:
        return ""
    return error["what"] if error["at_ms"] is None else f"{exactly(int(error['at_ms']))}  {error['what']}"


def task_cells(task: Answer) -> tuple[str, ...]:
    """Return the group and the target of a task as table cells."""
    return task["group"], task["target"] or ("back" if task["verb"] == "redrive" else "-")
