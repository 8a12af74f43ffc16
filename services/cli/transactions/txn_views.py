"""Output of `tidewheel txn` for users."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from services.times.display import away, exactly, span, wall

Answer = dict[str, Any]

EMPTY = "no transaction is open or has expired."
NEEDS = "needs you"
NO_PRODUCER = "no producer"


def row(one: Answer, now_ms: int) -> tuple[str, ...]:
    """Return a half message as a table row. At a width of 80 columns, the id is not wrapped."""
    return (
        one["transaction_id"],
        one["topic"],
        " ".join(one["keys"]),
        span(max(0, now_ms - int(one["stored_ms"]))),
        one["state"].lower(),
        f"{one['check_count']}/{one['check_count_max']}" if is_waiting(one) else "-",
        following(one),
    )


def is_waiting(one: Answer) -> bool:
    """Return whether the transaction has not ended."""
    return one["state"] in ("OPEN", "EXPIRED")


def answers(counts: dict[str, int]) -> str:
    """Return the answers of producers, such as UNKNOWN x9."""
    return ", ".join(f"{answer} x{count}" if count > 1 else answer for answer, count in counts.items()) or "-"


def following(one: Answer) -> str:
    """Return the next event of a half message."""
    if one["state"] == "EXPIRED":
        return NEEDS
    if one["next_check_ms"] is None:
        return "-"
    if not one["producers"]:
        return NO_PRODUCER
    return f"asked {away(int(one['next_check_ms']))}"


def advice(one: Answer) -> str:
    """Return the next event of a half message, and the required action."""
    if one["state"] == "EXPIRED":
        return f"{NEEDS}: tidewheel txn resolve {one['transaction_id']} commit|rollback --reason ..."
    if is_waiting(one) and not one["producers"]:
        return f"{NEEDS}: no producer of {one['topic']} is connected to be asked"
    return following(one)


def needing(shown: list[Answer]) -> list[Answer]:
    """Return the transactions that only an operator can end."""
    return [one for one in shown if following(one) in (NEEDS, NO_PRODUCER)]


def lines(one: Answer) -> Iterator[str]:
    """Yield the lines that describe a transaction."""
    yield f"{one['transaction_id']}  {one['state']}  {one['topic']}"
    message = one["message"]
    facts = {
        "message": one["message_id"],
        "keys": " ".join(one["keys"]),
        "tag": one["tag"],
        "stored": f"{moment(int(one['stored_ms']))}   log offset {one['half_offset']}",
        "due": moment(int(one["due_ms"])) + "   from its commit on" if one["due_ms"] else "",
        "timer": carried(message["properties"]),
        "verdict": verdict(one["verdict"]),
        "ended": ended(one),
        "reason": one["reason"],
        "checks": checks(one),
        "next": advice(one) if is_waiting(one) else "",
        "producers": f"{one['producers']} can be asked now" if is_waiting(one) else "",
    }
    for name, value in facts.items():
        if value:
            yield f"  {name:<10} {value}"
    for late in one["late"]:
        yield f"  {'too late':<10} {late['asked_for']} was asked for at {moment(int(late['at_ms']))}"
    for question in reversed(one["questions"]):
        yield f"  {'asked':<10} {question_text(question)}"


def checks(one: Answer) -> str:
    """Return the number of check-backs, as long as the transaction is open, and their answers."""
    said = answers(one["answers"])
    if is_waiting(one):
        return f"{one['check_count']} of {one['check_count_max']}   {said}"
    return "" if said == "-" else said


def verdict(said: str) -> str:
    """Return the verdict on the attached timer operation, with its time in readable form."""
    return re.sub(r"(?<= at )\d+", lambda found: exactly(int(found.group())), said)


def carried(properties: dict[str, str]) -> str:
    """Return the timer key and the timer operation of a message."""
    names = ("TW_TIMER_KEY", "TW_TIMER_CANCEL", "TW_TIMER_MOVE", "TW_TIMER_FIRE", "TW_TIMER_TOPIC")
    return "  ".join(f"{name}={properties[name]}" for name in names if name in properties)


def moment(moment_ms: int) -> str:
    """Return a time with milliseconds, and its distance from now."""
    return f"{exactly(moment_ms)} ({away(moment_ms)})"


def ended(one: Answer) -> str:
    """Return when a transaction ended, and its log offset."""
    if one["ended_ms"] is None:
        return "" if one["state"] == "OPEN" else "before what is remembered"
    place = f"   log offset {one['ended_offset']}" if one["ended_offset"] else ""
    return f"{moment(int(one['ended_ms']))}{place}"


def question_text(question: Answer) -> str:
    """Return a check-back and its answer as text."""
    at = wall(int(question["asked_ms"]))
    if not question["client_id"]:
        return f"{at}  nobody to ask"
    if not question["answer"]:
        return f"{at}  {question['client_id']}: no answer"
    took_ms = int(question["answered_ms"]) - int(question["asked_ms"])
    return f"{at}  {question['client_id']}: {question['answer']} after {span(max(0, took_ms))}"
