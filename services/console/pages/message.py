"""`/messages`: the history of messages by key, message id, timer key, transaction or log offset.

The events are those of `tidewheel explain`, searched by the broker; of the first messages the content is read
from its queue, or, while it waits for its due time, from its timer. For a message that is not finished,
the page gives the reason for each group. The entries of the journal about the name show who changed it.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Any, Final

from services.console.bodies import shown
from services.console.page import Asked, Model, Page
from services.http.api import Api
from services.status.waiting import waiting
from tidewheel.errors import NotFound

CONTENTS_MAX: Final = 5
EVENTS_MAX: Final = 500
ACTS_MAX: Final = 20
NOTHING: Final[Model] = {
    "name": "",
    "events": [],
    "messages": [],
    "contents": [],
    "waiting": [],
    "acts": [],
    "more_events": 0,
    "is_cut": False,
    "missing": "",
    "searched_from_ms": None,
    "followed_until_ms": None,
}


def read(broker: Api, asked: Asked) -> Model:
    """Return the events and messages of `name`, in `topic` if given.

    If there are none, `missing` contains the error.
    """
    name, topic = asked.get("name"), asked.get("topic")
    if not name:
        return NOTHING | {"topic": topic}
    name = name.removeprefix("@").replace(",", "").join(("@", "")) if is_offset(name) else name
    try:
        told = broker.search("explain", name=name, topic=topic)
    except NotFound as error:
        return NOTHING | {"name": name, "topic": topic, "missing": str(error)}
    found = (content_of(broker, message, told["events"]) for message in told["messages"][:CONTENTS_MAX])
    return {
        "name": name,
        "topic": topic,
        "events": told["events"][:EVENTS_MAX],
        "more_events": max(0, len(told["events"]) - EVENTS_MAX),
        "messages": told["messages"],
        "contents": [one for one in found if one is not None],
        "waiting": [one._asdict() for one in waiting(broker, told)],
        "acts": acts_on(broker, name, told["messages"]),
        "is_cut": told["is_cut"],
        "missing": "",
        "searched_from_ms": told.get("searched_from_ms"),
        "followed_until_ms": told.get("followed_until_ms"),
    }


def acts_on(broker: Api, name: str, messages: list[Model]) -> list[Model]:
    """Return the entries of the journal about a name or the id of its first message, the newest first."""
    found: dict[int, Model] = {}
    for text in dict.fromkeys([name, *(one["message_id"] for one in messages[:1])]):
        for entry in broker.get("journal", limit=ACTS_MAX, about=text)["entries"]:
            if text in entry["about"].replace("=", " ").split():  # order:7, and not order:71
                found[int(entry["offset"])] = entry
    return [found[offset] for offset in sorted(found, reverse=True)]


def is_offset(name: str) -> bool:
    """Return whether a name is a log offset in display format, such as @1,204."""
    return name.startswith("@") and name[1:].replace(",", "").isdecimal()


def content_of(broker: Api, message: dict[str, Any], events: list[dict[str, Any]]) -> Model | None:
    """Return the content of a message, or None if it cannot be read."""
    topic, message_id = message["topic"], message["message_id"]
    places = (
        (event["queue_id"], event["queue_offset"])
        for event in events
        if event["message_id"] == message_id and event["topic"] == topic and event["queue_id"] is not None
    )
    with suppress(NotFound):
        for queue, offset in islice(places, 1):
            found = broker.get("topics", topic, "messages", queue=queue, offset=offset, limit=1)["messages"]
            if found and found[0]["message_id"] == message_id:
                return shown(found[0])
    with suppress(NotFound):
        timer = broker.get("timers", "one", topic=topic, id=message_id)
        if timer.get("message"):
            return shown(timer["message"])
    return None


PAGE: Final = Page("/messages", "Message", "message.html", read, entry="Message")
