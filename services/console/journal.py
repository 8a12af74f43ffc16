"""`/journal`: the acts of operators, the newest first, with a search for a text in them.

The page shows `PAGE_ENTRIES` entries; a search may look at many entries that do not match, so it reads on for
`READS_MAX` requests and then offers the rest as the next page.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from services.console.page import Asked, Model, Page
from services.http.api import Api
from tidewheel.errors import ClientMistake

PAGE_ENTRIES: Final = 50
READS_MAX: Final = 10


def read(broker: Api, asked: Asked) -> Model:
    """Return a page of entries, those before `before` and with `about` in a field if these are given."""
    about, before = asked.get("about"), asked.get("before")
    if before and not (before.isascii() and before.isdigit()):
        raise ClientMistake(f"{before[:20]!r} is no place in the journal.")
    entries, place = list[Model](), before
    for _ in range(READS_MAX):
        given = {"before": place} if place else {}
        found = broker.get("journal", limit=PAGE_ENTRIES - len(entries), about=about, **given)
        entries += found["entries"]
        place = found["before"] or ""
        if not place or len(entries) == PAGE_ENTRIES:
            break
    following = urlencode({"about": about, "before": place}) if place else ""
    return {"about": about, "entries": entries, "next": following, "is_newest": not before}


PAGE: Final = Page("/journal", "Journal", "journal.html", read, entry="Journal")
