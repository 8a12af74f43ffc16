"""`/topics/change`: what uses a topic, and its verbs: altered, held, released, purged, deleted.

The broker refuses what would lose something, and says what is in the way; unfinished messages are lost only
where that is asked for. A purge and a deletion take the name of the topic, typed.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from services.console.forms import rate_of
from services.console.page import Asked, Done, Model, Page
from services.console.pages.topics import TYPES, page_of
from services.http.api import Api
from services.status.judgement import counted
from services.times import rates
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
    said = f"{name} takes {kind}, and has {counted(topic['queue_count'], 'queue')}."
    if (expired := topic.get("expired")) and expired["messages"]:
        said += f" {lost(expired)}."
    return Done(said, page_of(name))


def hold(broker: Api, asked: Asked) -> Done:
    """Hold back the timers of a topic when they are due."""
    name, reason = asked.required("name", "The topic"), asked.required("reason", "The reason")
    use = broker.post("topics", name, "hold", body={"reason": reason})
    return Done(
        f"The timers of {name} are held when they are due; {counted(use['timers'], 'timer')} pending.",
        back(name),
    )


def release(broker: Api, asked: Asked) -> Done:
    """Deliver the held timers of a topic, at once or at a pace."""
    name, reason, rate = (
        asked.required("name", "The topic"),
        asked.required("reason", "The reason"),
        asked.get("rate"),
    )
    per_second = rate_of(rate or "0", rates.whole_per_second)
    use = broker.post("topics", name, "release", body={"per_second": per_second, "reason": reason})
    held = use["hold"]["held"] if use["hold"] else 0
    return Done(
        f"{name} is released; {counted(held, 'held timer')} {'is' if held == 1 else 'are'} delivered.",
        back(name),
    )


def back(name: str) -> str:
    """Return the path of the page that changes a topic."""
    return f"/topics/change?{urlencode({'name': name})}"


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
    were = "was" if use["messages"] == 1 else "were"
    return f"{counted(use['messages'], 'message')} {were} discarded, {use['unfinished']:,} of them unfinished"


PAGE: Final = Page(
    "/topics/change",
    "Change a topic",
    "topic_change.html",
    read,
    acts={"alter": alter, "hold": hold, "release": release, "purge": purge, "delete": delete},
    every_ms=0,
)
