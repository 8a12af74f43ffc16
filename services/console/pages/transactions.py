"""`/transactions`: half messages without an outcome, which an operator can commit or roll back.

A half message requires an action if it has expired without an outcome, or if no producer of its topic is
connected.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlencode

from services.console.bodies import shown
from services.console.page import Asked, Done, Model, Page
from services.http.api import Api
from tidewheel.errors import ClientMistake

FILTER: Final = ("state", "topic", "key", "older-than")
STATES: Final = ("OPEN", "EXPIRED")
LIMIT: Final = 50
QUESTIONS_MAX: Final = 20


def read(broker: Api, asked: Asked) -> Model:
    """Return the transaction summary, a page of matching half messages, and the latest check-backs."""
    wanted = asked.given(*FILTER)
    if wanted.get("state", "OPEN") not in STATES:
        raise ClientMistake(f"state is {wanted['state'][:20]!r}: there are {', '.join(STATES)}.")
    found = broker.get("transactions", **wanted, **asked.given("after"), limit=LIMIT)
    halves = [half | {"needs": need_of(half)} for half in found["transactions"]]
    return {
        "filter": wanted,
        "summary": broker.get("transactions", "summary"),
        "transactions": sorted(halves, key=lambda half: not half["needs"]),
        "next": urlencode(wanted | {"after": found["after"]}) if found["after"] else "",
        "questions": broker.get("transactions", "log", limit=QUESTIONS_MAX)["questions"],
    }


def blank(broker: Api, asked: Asked) -> Model:
    """Return the transaction summary and the fields of the form, without half messages."""
    return {"filter": asked.given(*FILTER), "summary": broker.get("transactions", "summary"), "questions": []}


def need_of(half: dict[str, Any]) -> str:
    """Return why a half message requires an action, or an empty string."""
    if half["state"] == "EXPIRED":
        return "expired undecided: commit it, or roll it back"
    if half["state"] == "OPEN" and not half["producers"]:
        return f"nobody to ask: no producer of topic {half['topic']} is there"
    return ""


def read_one(broker: Api, asked: Asked) -> Model:
    """Return a transaction with its message and its check-backs."""
    half = broker.get("transactions", asked.required("id", "The transaction id"))
    return {"transaction": half | {"message": shown(half["message"]), "needs": need_of(half)}}


def check(broker: Api, asked: Asked) -> Done:
    """Send a check-back now."""
    name = asked.required("id", "The transaction id")
    question = broker.post("transactions", name, "check", body={})
    whom = question["client_id"]
    said = (
        f"{whom} was asked; its answer is in the list below."
        if whom
        else "No producer of its topic is connected."
    )
    return Done(said, page_of(name))


def resolve(broker: Api, asked: Asked) -> Done:
    """Commit or roll back a transaction."""
    name = asked.required("id", "The transaction id")
    resolution = asked.required("resolution", "The resolution")
    body = {"resolution": resolution, "reason": asked.required("reason", "The reason")}
    ended = broker.post("transactions", name, "resolve", body=body)
    again = ", as it had been before" if ended["repeated"] else ""
    verdict = f"; its verb on a timer: {ended['verdict']['verdict']}" if ended["verdict"] else ""
    return Done(f"{ended['resolution']} of {name}{again}{verdict}.", page_of(name))


def page_of(name: str) -> str:
    """Return the path of a transaction's page."""
    return f"/transactions/one?id={quote(name, safe='')}"


PAGE: Final = Page(
    "/transactions", "Transactions", "transactions.html", read, entry="Transactions", blank=blank
)
ONE: Final = Page(
    "/transactions/one",
    "Transaction",
    "transaction.html",
    read_one,
    acts={"check": check, "resolve": resolve},
)
