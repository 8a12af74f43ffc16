"""`/topics`: topics and their messages, with forms to send a message or resend an existing message.

    /topics           the topics with their message counts and retention
    /topics/one       a topic with its queues and its newest messages (refreshed every second), or the
                      messages of a queue from an offset
    /topics/message   a message and a form to resend it
    /topics/send      the form of a new message or of an edited existing message

A resent message is a new message with the same body, keys, tag, group and properties. It is delivered
immediately to all groups. Timer properties of the original message are not copied.
"""

from __future__ import annotations

import base64
from typing import Any, Final
from urllib.parse import urlencode

from services.console.bodies import shown
from services.console.forms import (
    TEXT,
    TEXTS,
    body_fields,
    body_of,
    is_count,
    lines_of,
    pairs_of,
    pairs_text,
    unfit,
)
from services.console.page import Asked, Done, Model, Page
from services.http.api import Api
from services.status.created_topics import created_sentence, created_shape
from services.status.holds import is_held
from tidewheel.errors import ClientMistake, NotFound

SHOWN_MAX: Final = 500
NEWEST: Final = 20
NEWEST_BYTES: Final = 1 << 20
TYPES: Final = ("MIXED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE")
OF_TIMERS: Final = "TW_TIMER_"
"""The prefix of properties that set a timer or contain an operation on a timer."""
FIELDS: Final = ("topic", "keys", "tag", "message_group", "lite_topic", "priority", "in", "timer_key")
EMPTY: Final[Model] = {
    **dict.fromkeys((*FIELDS, "body", "properties", "unfit"), ""),
    "encoding": TEXT,
    "is_long": False,
}


def read(broker: Api, asked: Asked) -> Model:
    """Return the topics whose names contain `name`."""
    name = asked.get("name")
    answer = broker.get("topics", counts="true")
    found = [one for one in answer["topics"] if name.lower() in one["name"].lower()]
    return {
        "name": name,
        "count": len(answer["topics"]),
        "topics": found[:SHOWN_MAX],
        "more": len(found[SHOWN_MAX:]),
        "retention": answer["retention"],
        "types": list(TYPES),
    }


def read_one(broker: Api, asked: Asked) -> Model:
    """Return a topic and its newest messages, or the messages of `queue` from `offset`."""
    name, place = asked.required("name", "The topic"), asked.given("queue", "offset")
    topic = broker.get("topics", name, oldest="true")
    following = ""
    if place:
        found = broker.get("topics", name, "messages", limit=NEWEST, **place)["messages"]
        if len(found) == NEWEST:
            after = {"queue": found[-1]["queue_id"], "offset": int(found[-1]["queue_offset"]) + 1}
            following = urlencode({"name": name} | after)
    else:
        found = broker.get("topics", name, "newest", limit=NEWEST, bytes_max=NEWEST_BYTES)["messages"]
    kept = sum(int(queue["end_offset"]) - int(queue["min_offset"]) for queue in topic["queues"])
    oldest = min((int(queue["oldest_ms"]) for queue in topic["queues"] if queue["oldest_ms"]), default=None)
    return {
        "topic": topic,
        "message_count": kept,
        "oldest_ms": None if oldest is None else str(oldest),
        "is_newest": not place,
        "queue": asked.get("queue", "0"),
        "offset": asked.get("offset"),
        "messages": [shown(one) for one in found],
        "next": following,
    }


def read_message(broker: Api, asked: Asked) -> Model:
    """Return a message of a queue."""
    return {"message": shown(message_of(broker, asked))}


def read_send(broker: Api, asked: Asked) -> Model:
    """Return the form fields. If `queue` and `offset` are given, they contain the values of that message."""
    if not asked.given("queue", "offset"):
        return {"fields": EMPTY | asked.given("topic"), "origin": ""}
    found = message_of(broker, asked)
    fields: Model = {
        "topic": found["topic"],
        "keys": "\n".join(found["keys"]),
        "properties": pairs_text(kept_properties(found)),
        "priority": "" if found["priority"] is None else str(found["priority"]),
    }
    fields |= {name: found[name] for name in TEXTS}
    fields["unfit"] = unfit(found | {"properties": kept_properties(found)})
    return {"fields": EMPTY | fields | body_fields(found), "origin": found["message_id"]}


def create(broker: Api, asked: Asked) -> Done:
    """Create a topic."""
    queues = asked.get("queues")
    if queues and not is_count(queues):
        raise ClientMistake(f"{queues[:20]!r} is no number of queues.")
    wanted = {"name": asked.required("name", "The name"), "message_type": asked.get("type", TYPES[0])}
    topic = broker.post("topics", body=wanted | ({"queue_count": int(queues)} if queues else {}))
    return Done(f"{topic['name']} is there, with {topic['queue_count']} queues.", page_of(topic["name"]))


def send(broker: Api, asked: Asked) -> Done:
    """Send the message from the form."""
    message: Model = asked.given("in", "timer_key") | asked.as_typed(*TEXTS)
    message["topic"] = asked.required("topic", "The topic")
    message |= {"keys": lines_of(asked.whole("keys")), "properties": pairs_of(asked.whole("properties"))}
    if priority := asked.get("priority"):
        if not is_count(priority):
            raise ClientMistake(f"{priority[:20]!r} is no priority, which is a number from 0 on.")
        message["priority"] = int(priority)
    return sent(broker, message | body_of(asked))


def again(broker: Api, asked: Asked) -> Done:
    """Resend a message of a queue without changes."""
    found = message_of(broker, asked)
    message = {name: found[name] for name in ("topic", "keys", "tag", "message_group", "lite_topic")}
    # JSON may take six times the bytes of a text, more than a request may have; base64 takes a third more.
    message["body_base64"] = found.get("body_base64") or base64.b64encode(found["body"].encode()).decode()

    if found["priority"] is not None:
        message["priority"] = found["priority"]
    return sent(broker, message | {"properties": kept_properties(found)})


def sent(broker: Api, message: Model) -> Done:
    """Send a message. Returns its id and the path of its topic."""
    answer = broker.post("messages", body=message)
    verdict = f" Its verb on a timer: {answer['verdict']['verdict']}." if answer["verdict"] else ""
    when = waiting(broker, message) if answer["recall_handle"] else ""
    created = created_shape(broker, answer.get("created_topic"))
    new = f" {created_sentence(created)}" if created else ""
    replaced = answer["replaced_offset"]
    instead = "" if replaced is None else f", in place of the timer at log offset {replaced}"
    said = f"Sent to {message['topic']} as {answer['message_id']}{instead}.{when}{verdict}{new}"
    return Done(said, page_of(message["topic"]))


def waiting(broker: Api, message: Model) -> str:
    """Return what a message that was sent with a delay waits for, as a sentence."""
    topic, is_due = message["topic"], set(message.get("in", "1")).isdisjoint("123456789")
    if not is_held(broker, topic):
        return " It is delivered at once." if is_due else " It waits for its time."
    if is_due:
        return f" It is held until the release of {topic}."
    return f" It waits for its time, and is then held until the release of {topic}."


def message_of(broker: Api, asked: Asked) -> Any:
    """Return the message at an offset. Raises `NotFound` if there is none."""
    topic, queue = asked.required("topic", "The topic"), asked.required("queue", "The queue")
    offset = asked.required("offset", "The offset")
    found = broker.get("topics", topic, "messages", queue=queue, offset=offset, limit=1)["messages"]
    if not found or found[0]["queue_offset"] != offset:
        raise NotFound(f"Topic {topic} has no message in queue {queue} at offset {offset} (any more).")
    return found[0]


def kept_properties(found: Model) -> dict[str, str]:
    """Return the properties that a resent message keeps."""
    return {name: value for name, value in found["properties"].items() if not name.startswith(OF_TIMERS)}


def page_of(name: str) -> str:
    """Return the path of a topic's page."""
    return f"/topics/one?{urlencode({'name': name})}"


PAGE: Final = Page("/topics", "Topics", "topics.html", read, entry="Topics", acts={"create": create})
ONE: Final = Page("/topics/one", "Topic", "topic.html", read_one, every_ms=1_000)
MESSAGE: Final = Page("/topics/message", "Message", "topic_message.html", read_message, acts={"again": again})
SEND: Final = Page("/topics/send", "Send a message", "send.html", read_send, acts={"now": send}, every_ms=0)
