"""`/topics/change`: the use of a topic, and operations to alter, hold, release, purge and delete it.

The broker refuses a change that would discard messages and reports the reason. Unfinished messages are
discarded only if this is requested, and not if they are more than the form showed. For a purge or a deletion,
the name of the topic must be typed, and the topic must have the settings that the form showed. Another topic
of the same name is therefore detected only by its settings.

The form that alters a topic contains the settings that it showed (`was_*`). Only settings that differ from
these are sent. A change is sent with what its form showed (`seen`), and the broker refuses the change if
another operator has changed that since. A retention that discards messages at once is first refused: the form
is shown again with their numbers and a box, and no more of them are discarded than it showed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from services.console.forms import is_count, not_shown, rate_of
from services.console.page import Asked, Done, Model, Page, Unconfirmed
from services.console.pages.topics import TYPES, page_of
from services.http.api import Api
from services.status.judgement import counted
from services.times import rates
from tidewheel.durations import span_ms, span_text
from tidewheel.errors import ClientMistake, RefusedByState

WORDS: Final = {"type": "type", "queues": "number of queues", "retention": "retention"}
"""The settings of a topic in sentences, by field of the form."""
SETTINGS: Final = {"type": "message_type", "queues": "queue_count", "retention": "retention"}
"""The settings of a topic, by field of the form, with their names in the HTTP interface."""
NO_RETENTION: Final = "none"


def read(broker: Api, asked: Asked) -> Model:
    """Return the use of a topic, and its settings as the form shows them."""
    use = use_of(broker, asked.required("name", "The topic"))
    settings = settings_of(use)
    entered = settings | {"reason": ""}
    return {"use": use, "settings": settings, "entered": entered, "expired": None, "types": list(TYPES)}


def use_of(broker: Api, name: str) -> Model:
    """Return the use of a topic."""
    use: Model = broker.get("topics", name, "use")
    return use


def alter(broker: Api, asked: Asked) -> Done:
    """Change the settings of a topic that differ from those which the form showed."""
    name = asked.required("name", "The topic")
    wanted = changed(asked)
    if not wanted:
        return Done(f"Nothing was changed: {name} has the settings that the form showed.", page_of(name))
    if "retention" in wanted:
        confirm_discard(broker, asked, wanted)
    topic = broker.put("topics", name, body=wanted | asked.given("reason"))
    kind = topic["message_type"].lower()
    said = f"{name} takes {kind}, and has {counted(topic['queue_count'], 'queue')}."
    if "retention" in wanted:
        said += f" It keeps {kept(topic)}."
    if (expired := topic.get("expired")) and expired["messages"]:
        said += f" {lost(expired)}."
    return Done(said, page_of(name))


def confirm_discard(broker: Api, asked: Asked, wanted: Model) -> None:
    """Let a new retention discard as many messages as the form showed.

    Raises `Unconfirmed` if it would discard messages immediately, and the box was not ticked or the form
    showed fewer.
    """
    retention, shown, shown_messages = wanted["retention"], asked.get("unfinished"), asked.get("messages")
    expired = broker.get("topics", asked.get("name"), "use", retention=retention)["expired"]
    if not expired["messages"]:
        return
    is_shown = is_count(shown) and expired["unfinished"] <= int(shown)
    is_shown = is_shown and is_count(shown_messages) and expired["messages"] <= int(shown_messages)
    if asked.get("discard") and is_shown:
        wanted["discard"] = True
        wanted["seen"]["unfinished"] = int(shown)
        return
    before = f" (the form showed {int(shown):,} unfinished)" if is_count(shown) else ""
    raise Unconfirmed(
        f"The retention {retention} discards {counted(expired['messages'], 'message')} at once, "
        f"{expired['unfinished']:,} of them unfinished{before}: nothing was changed. "
        "Check the box to allow it.",
        {
            "settings": shown_in(asked),
            "entered": as_entered(asked),
            "expired": expired,
            "here": urlencode(asked.given("name")),
        },
    )


def shown_in(asked: Asked) -> dict[str, str]:
    """Return the settings that the form showed."""
    return {field: asked.get(f"was_{field}") for field in SETTINGS}


def as_entered(asked: Asked) -> dict[str, str]:
    """Return the fields that the user entered."""
    return {field: asked.get(field) for field in (*SETTINGS, "reason")}


def changed(asked: Asked) -> Model:
    """Return the settings that differ from those which the form showed, with these, for the HTTP interface.

    Raises `ClientMistake`.
    """
    shown = shown_in(asked)
    wanted = {field: text for field, text in entered(asked).items() if as_shown(field, text) != shown[field]}
    if not wanted:
        return {}
    seen = {field: shown[field] for field in wanted if shown[field]}
    return typed(wanted) | {"seen": typed(seen)}


def typed(settings: dict[str, str]) -> Model:
    """Return settings of the form for the HTTP interface.

    Raises `ClientMistake` for a number of queues that is none: `entered` has checked those that were entered.
    """
    found: Model = {SETTINGS[field]: text for field, text in settings.items()}
    if "queues" not in settings:
        return found
    if not is_count(settings["queues"]):
        raise not_shown()
    return found | {"queue_count": int(settings["queues"])}


def settings_of(topic: Model) -> dict[str, str]:
    """Return the settings of a topic as the form shows them."""
    return {
        "type": topic["message_type"],
        "queues": str(topic["queue_count"]),
        "retention": span_text(int(topic["retention_ms"])) if "retention_ms" in topic else NO_RETENTION,
    }


def entered(asked: Asked) -> dict[str, str]:
    """Return the settings in the form without those that are empty.

    Raises `ClientMistake` for a number of queues that is none. The broker checks the other settings.
    """
    found = asked.given(*SETTINGS)
    if (queues := found.get("queues")) and not is_count(queues):
        raise ClientMistake(f"{queues[:20]!r} is no number of queues.")
    return found


def as_shown(field: str, text: str) -> str:
    """Return a setting that was entered as `settings_of` writes it, if it is valid."""
    if field == "queues":
        return str(int(text))
    with suppress(KeyError, ValueError):
        return span_text(span_ms(text)) if field == "retention" else text
    return text


def kept(topic: Model) -> str:
    """Return the retention of a topic as part of a sentence."""
    if "retention_ms" in topic:
        return span_text(int(topic["retention_ms"]))
    return "its messages as long as the log does"


def hold(broker: Api, asked: Asked) -> Done:
    """Hold the due timers of a topic."""
    name, reason = asked.required("name", "The topic"), asked.required("reason", "The reason")
    use = broker.post("topics", name, "hold", body={"reason": reason})
    return Done(
        f"The timers of {name} are held when they are due; {counted(use['timers'], 'timer')} pending.",
        back(name),
    )


def release(broker: Api, asked: Asked) -> Done:
    """Deliver the held timers of a topic, optionally at a limited rate, if its hold is as the form showed."""
    name, reason, rate = (
        asked.required("name", "The topic"),
        asked.required("reason", "The reason"),
        asked.get("rate"),
    )
    per_second = rate_of(rate or "0", rates.whole_per_second)
    body: Model = {"per_second": per_second, "reason": reason}
    if since_ms := asked.get("since_ms"):
        if not is_count(since_ms):
            raise not_shown()
        body["seen"] = {"since_ms": since_ms, "per_second": asked.get("per_second") or None}
    use = broker.post("topics", name, "release", body=body)
    held = use["hold"]["held"] if use["hold"] else 0
    pace = f"at most {per_second:,} a second" if per_second else "at once"
    return Done(f"{name} is released: {pace}, {counted(held, 'held timer')} left.", back(name))


def back(name: str) -> str:
    """Return the path of the page that changes a topic."""
    return f"/topics/change?{urlencode({'name': name})}"


def purge(broker: Api, asked: Asked) -> Done:
    """Discard the messages of a topic after its name was confirmed."""
    name, discards = typed_name(asked), bool(asked.get("discard"))
    body: Model = {"discard": discards, "reason": asked.required("reason", "The reason")}
    refuse_changed(broker, name, asked)
    if discards:
        body["seen"] = {"unfinished": shown_unfinished(asked)}
    return Done(f"{name} is empty; {lost(broker.post('topics', name, 'purge', body=body))}.", page_of(name))


def delete(broker: Api, asked: Asked) -> Done:
    """Delete a topic after its name was confirmed."""
    name, discards = typed_name(asked), bool(asked.get("discard"))
    query: Model = {"discard": str(discards).lower(), "reason": asked.required("reason", "The reason")}
    refuse_changed(broker, name, asked)
    if discards:
        query["seen_unfinished"] = shown_unfinished(asked)
    return Done(f"{name} is deleted; {lost(broker.delete('topics', name, **query))}.", "/topics")


def refuse_changed(broker: Api, name: str, asked: Asked) -> None:
    """Raise `RefusedByState` if the topic has other settings than the form showed.

    The topic may have been deleted and created again.
    """
    now, shown = settings_of(use_of(broker, name)), shown_in(asked)
    changes = [
        f"its {what} from {shown[field][:20]} to {now[field]}"
        for field, what in WORDS.items()
        if shown[field] and shown[field] != now[field]
    ]
    if changes:
        raise RefusedByState(
            f"{name!r} was changed since you saw it: {'; '.join(changes)}. Look at it again, and decide anew."
        )


def shown_unfinished(asked: Asked) -> int:
    """Return the number of unfinished messages that the form showed, or 0 if it is missing."""
    shown = asked.get("unfinished")
    return int(shown) if is_count(shown) else 0


def typed_name(asked: Asked) -> str:
    """Return the topic if its name was confirmed. Raises `ClientMistake` otherwise."""
    name = asked.required("name", "The topic")
    if asked.required("typed", "The topic's name, typed once more,") != name:
        raise ClientMistake(f"Another name was typed than {name}: nothing was changed.")
    return name


def lost(use: Model) -> str:
    """Return how many messages were discarded, as part of a sentence."""
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
