"""`/journal`: the journal of operator actions, newest first, with the user, the origin, the reason and the
result.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from services.console.page import Asked, Model, Page
from services.http.api import Api

LIMIT: Final = 50


def read(broker: Api, asked: Asked) -> Model:
    """Return a page of the journal. If `about` is given, only entries that contain this text are returned."""
    about = asked.get("about")
    found = broker.get("journal", limit=LIMIT, about=about, **asked.given("before"))
    following = {"about": about, "before": found["before"]} if found["before"] else {}
    return {"about": about, "entries": found["entries"], "next": urlencode(following)}


def blank(broker: Api, asked: Asked) -> Model:
    """Return the field of the form, without entries."""
    return {"about": asked.get("about")}


PAGE: Final = Page("/journal", "Journal", "journal.html", read, entry="Journal", blank=blank)
