"""`/search`: a content search in the messages of a topic.

A page shows the result of one request, for which the broker reads several thousand messages. Without
JavaScript a link leads to the next part. With JavaScript, `console.js` loads the following parts and appends
their results until the user stops it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from services.console.bodies import shown
from services.console.page import Asked, Model, Page
from services.http.api import Api
from tidewheel.errors import AccessRefused

CONTENT: Final = ("text", "json", "property", "error")
FILTER: Final = ("topic", *CONTENT, "from", "until")
LIMIT: Final = 50
SCAN: Final = 5_000
RECENT: Final = "1h ago"
NAMES_MAX: Final = 500


def read(broker: Api, asked: Asked) -> Model:
    """Return a part of a search and the link to the next part, or the form if nothing is searched for."""
    wanted = asked.given(*FILTER)
    if asked.given(*CONTENT):
        asked.required("topic", "The topic")
    if not wanted.get("topic"):
        return EMPTY | {"filter": {"from": RECENT} | wanted} | names_of_topics(broker)
    given = {name: text for name, text in wanted.items() if name != "topic"}
    path = ("topics", wanted["topic"], "search")
    part = broker.search(*path, **given, **asked.given("after"), limit=LIMIT, scan=SCAN)
    following = wanted | {"after": part["after"]} if part["after"] else {}
    return EMPTY | {
        "filter": wanted,
        "is_asked": True,
        "messages": [shown(one) for one in part["messages"]],
        "scanned": part["scanned"],
        "scanned_ms": part["scanned_ms"],
        "next": urlencode(following),
    }


def blank(broker: Api, asked: Asked) -> Model:
    """Return the fields of the form, without a search."""
    return EMPTY | {"filter": asked.given(*FILTER)} | names_of_topics(broker)


def names_of_topics(broker: Api) -> Model:
    """Return the topics for the selection.

    The result is empty if the user is not allowed to list all topics.
    """
    with suppress(AccessRefused):
        names = [one["name"] for one in broker.get("topics")["topics"]]
        return {"topics": names[:NAMES_MAX], "has_topics": bool(names)}
    return {}


EMPTY: Final[Model] = {
    "is_asked": False,
    "topics": [],
    "has_topics": True,
    "messages": [],
    "scanned": 0,
    "scanned_ms": None,
    "next": "",
}
PAGE: Final = Page("/search", "Search", "search.html", read, entry="Search", every_ms=0, blank=blank)
