"""`/`: the states of `tidewheel status`, and the problems that require an action.

The rows are computed by the same code as in the command (`services.status`). Cost: nine requests to the
broker, of which the requests for groups and metrics are full scans.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from services.console.links import page_of
from services.console.page import Asked, Model, Page
from services.console.pages.groups import behind
from services.console.sparklines import Samples
from services.http.api import Api
from services.status.asking import answers_of
from services.status.judgement import Answers, Row, State, Unread, as_plain, screen, worst

NEEDING: Final = (State.WARN, State.CRIT)
"""The states that require an action. An audit that was never run has an unknown state."""

THINGS_MAX: Final = 5
THINGS: Final = {
    "keeping up": ("groups", "tidewheel group lag"),
    "given up": ("dead_letters", "tidewheel dlq ls"),
    "held": ("timers", "tidewheel topic show"),
}
"""The answer that names the things of a row, and the command that shows one of them."""


def page(audits: Path, samples: Samples) -> Page:
    """Return the page. `audits` is the local audit directory."""
    return Page("/", "Overview", "overview.html", partial(read, audits, samples), entry="Overview")


def read(audits: Path, samples: Samples, broker: Api, asked: Asked) -> Model:
    """Return the rows. `act_now` contains the problems, most severe first.

    Audits name orders of all topics, so only an administrator gets their row, as on the page of audits.
    """
    is_administrator = broker.get("whoami")["is_administrator"]
    answers = answers_of(broker, {}, audits if is_administrator else None)
    rows = screen(answers)
    may_see = not isinstance(answers["figures"], Unread)
    if may_see:
        samples.add(broker.address, answers["figures"])
    needing = sorted((row for row in rows if row.state in NEEDING), key=lambda row: -row.state)
    return {
        "address": broker.address,
        "state": worst(rows).name,
        "rows": [linked(row, answers) for row in rows],
        "lines": samples.lines() if may_see else [],
        "act_now": [linked(row, answers) for row in needing],
    }


def linked(row: Row, answers: Answers) -> Model:
    """Return a row with the path of its page, empty if it has none, and the things that it concerns."""
    return as_plain(row) | {"page": page_of(row.see), "things": list(things_of(row, answers))[:THINGS_MAX]}


def things_of(row: Row, answers: Answers) -> Iterator[Model]:
    """Yield the groups that are behind or have dead letters, or the held topics, with their pages."""
    needs, command = THINGS.get(row.name, ("", ""))
    if not needs or isinstance(answers[needs], Unread):
        return
    if needs == "timers":
        names = [one["topic"] for one in answers[needs].get("held", [])]
    elif needs == "groups":
        names = [one["name"] for one in sorted(answers[needs]["groups"], key=behind) if one["lag"]]
    else:
        found = [one for one in answers[needs]["groups"] if one["count"]]
        names = [one["group"] for one in sorted(found, key=lambda one: -one["count"])]
    yield from ({"name": name, "page": page_of(f"{command} {name}")} for name in names)
