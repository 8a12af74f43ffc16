"""`/topics/change`: what uses a topic, and its verbs: altered, purged, deleted.

The broker refuses what would lose something, and says what is in the way; unfinished messages are lost only
where that is asked for. A purge and a deletion take the name of the topic, typed.
"""

from __future__ import annotations

from typing import Final

from services.console.page import Asked, Done, Model, Page
from services.console.topics import TYPES, page_of
from services.http.api import Api
from tidewheel.errors import ClientMistake


def read(broker: Api, asked: Asked) -> Model:
    """Return what a change of a topic concerns; nothing is changed."""
    return {"use": broker.get("topics", asked.required("name", "The topic"), "use"), "types": list(TYPES)}


def alter(broker: Api, asked: Asked) -> Done:
    """Change the type or the retention of a topic, or add queues."""
    name, queues = asked.required("name", "The topic"), asked.get("queues")
    if queues and not (queues.isascii() and queues.isdigit()):
        raise ClientMistake(f"{queues[:20]!r} is no number of queues.")
    wanted: Model = {"message_type": asked.required("type", "The type")} | asked.given("retention", "reason")
    if asked.get("discard"):
        wanted["discard"] = True
    topic = broker.put("topics", name, body=wanted | ({"queue_count": int(queues)} if queues else {}))
    kind = topic["message_type"].lower()
    said = f"{name} takes {kind}, and has {topic['queue_count']} queues."
    if (expired := topic.get("expired")) and expired["messages"]:
        said += f" {lost(expired)}."
    return Done(said, page_of(name))


def purge(broker: Api, asked: Asked) -> Done:
    """Discard the messages of a topic whose name was typed."""
    name, discards = typed_name(asked), bool(asked.get("discard"))
    body = {"discard": discards, "reason": asked.required("reason", "The reason")}
    return Done(f"{name} is empty; {lost(broker.post('topics', name, 'purge', body=body))}.", page_of(name))


def delete(broker: Api, asked: Asked) -> Done:
    """Delete a topic whose name was typed."""
    name, discards = typed_name(asked), bool(asked.get("discard"))
    query = {"discard": str(discards).lower(), "reason": asked.required("reason", "The reason")}
    return Done(f"{name} is deleted; {lost(broker.delete('topics', name, **query))}.", "/topics")


def typed_name(asked: Asked) -> str:
    """Return the topic, if its name was typed; raise `ClientMistake`."""
    name = asked.required("name", "The topic")
    if asked.required("typed", "The topic's name, typed once more,") != name:
        raise ClientMistake(f"Another name was typed than {name}: nothing was changed.")
    return name


def lost(use: Model) -> str:
    """Return how many messages a purge or a deletion discarded."""
    return f"{use['messages']:,} messages were discarded, {use['unfinished']:,} of them unfinished"


PAGE: Final = Page(
    "/topics/change",
    "Change a topic",
    "topic_change.html",
    read,
    acts={"alter": alter, "purge": purge, "delete": delete},
    every_ms=0,
)
