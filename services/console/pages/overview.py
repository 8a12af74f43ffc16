"""`/`: the lights of `tidewheel status`, and what needs a person now.

The rows are those of the command, from the same answers (`services.status`).
Cost: nine requests to the broker, of which groups and metrics are full scans.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from services.console.links import page_of
from services.console.page import Asked, Model, Page
from services.console.sparklines import Samples
from services.http.api import Api
from services.status.asking import answers_of
from services.status.judgement import Row, State, Unread, as_plain, screen, worst

NEEDING: Final = (State.WARN, State.CRIT)
"""The states of an alarm; an audit that was never run is unknown, and none."""


def page(audits: Path, samples: Samples) -> Page:
    """Return the page; `audits` is the folder of audits of this machine."""
    return Page("/", "Overview", "overview.html", partial(read, audits, samples), entry="Overview")


def read(audits: Path, samples: Samples, broker: Api, asked: Asked) -> Model:
    """Return the rows, worst first in `act_now`."""
    broker.get("whoami")  # raises `SignedOut`; the rows below take a refusal for something not known
    answers = answers_of(broker, {}, audits)
    rows = screen(answers)
    may_see = not isinstance(answers["figures"], Unread)
    if may_see:
        samples.add(broker.address, answers["figures"])
    needing = sorted((row for row in rows if row.state in NEEDING), key=lambda row: -row.state)
    return {
        "address": broker.address,
        "state": worst(rows).name,
        "rows": [linked(row) for row in rows],
        "lines": samples.lines() if may_see else [],
        "act_now": [linked(row) for row in needing],
    }


def linked(row: Row) -> Model:
    """Return a row with the path of its page, which is empty if it has none."""
    return as_plain(row) | {"page": page_of(row.see)}
