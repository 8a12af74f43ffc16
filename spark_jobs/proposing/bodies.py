"""Choice of the body fields: those that equal the key or a column of the order, or have a fitting name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark_jobs.proposing.agreement import field_equals, field_names, pairs, share, text_of, times_apart
from spark_jobs.proposing.facts import Message, Row, Topic
from spark_jobs.proposing.proposal import Choice, Doubt, Part
from spark_jobs.proposing.topics import OrderTopics
from spark_jobs.proposing.words import COLUMNS, likeness

_TIMES: Final = {"order_timeouts": "due_ms", "order_paid": "paid_ms", "order_cancelled": "cancelled_ms"}
_FORMS_APART_MS: Final = 1_000
"""Maximum difference between a time and the same time without its fraction of a second."""
_SAYS_WHEN: Final = COLUMNS["at_ms"]


def choose_bodies(topics: OrderTopics, rows: Mapping[str, Row], key: str, columns: Mapping[str, str]) -> Part:
    """Return the choices for body fields. `columns` are the columns of the orders by mapping name."""
    created = topics.topic("order_created")
    if created is None:
        return Part()
    found = [_key_field(created)]
    fields = field_names(created.messages)
    for ours in ("customer_id", "placed_ms"):
        found.append(_field(ours, created, fields, rows, columns.get(ours, "")))
    found += _lines(created)
    for name, ours in _TIMES.items():
        topic = topics.topic(name)
        if topic is not None:
            found.append(_time(ours, topic, rows, columns.get(ours, "")))
    paid = topics.topic("order_paid")
    total = columns.get("total_pence", "")
    if paid is not None:
        found.append(_field("total_pence", paid, field_names(paid.messages), rows, total))
    doubts = [] if found[0].value else [_no_key(created, key)]
    return Part(tuple(one for one in found if one.value or one.name != "order_id"), tuple(doubts))


def _key_field(topic: Topic) -> Choice:
    for field in field_names(topic.messages):
        alike = share(text_of(one.body.get(field)) == one.key for one in topic.messages)
        if alike.is_most:
            return Choice("bodies", "order_id", field, f"it is the key of {alike} messages of {topic.name}")
    return Choice("bodies", "order_id", "", "none was found")


def _no_key(topic: Topic, key: str) -> Doubt:
    fields = ", ".join(field_names(topic.messages)) or "none: they are no JSON objects"
    return Doubt(
        f"No field of {topic.name}'s bodies is the order's id ({key} of the table; their fields: {fields}). "
        "The audit goes by the messages' keys; the report counts their bodies as unreadable."
    )


def _moment(
    ours: str, topic: Topic, fields: Sequence[str], rows: Mapping[str, Row], column: str
) -> Choice | None:
    """Return the field with the time of a column, in another form or less exact; None if there is none."""
    found = pairs(topic, rows)
    apart = {field: times_apart(found, field, column) for field in fields}
    near = {field: share(ms <= _FORMS_APART_MS for ms in apart[field]) for field in fields}
    said = [field for field in fields if near[field].is_most]
    if not column or not said:
        return None
    best = min(said, key=lambda field: sum(apart[field]) / len(apart[field]))
    return Choice("bodies", ours, best, f"it is the time {column} of {near[best]} messages of {topic.name}")


def _field(ours: str, topic: Topic, fields: Sequence[str], rows: Mapping[str, Row], column: str) -> Choice:
    for field in fields:
        alike = field_equals(pairs(topic, rows), field, column)
        if column and alike.is_most:
            return Choice("bodies", ours, field, f"it is {column} of {alike} messages of {topic.name}")
    if moment := _moment(ours, topic, fields, rows, column):
        return moment
    named = [field for field in fields if likeness(field, COLUMNS[ours])]
    if len(named) == 1 and ours != "total_pence":
        return Choice("bodies", ours, named[0], f"its name, in {topic.name}")
    return Choice("bodies", ours, "", f"no field of {topic.name} is that")


def _time(ours: str, topic: Topic, rows: Mapping[str, Row], column: str) -> Choice:
    fields = field_names(topic.messages)
    known = _field(ours, topic, fields, rows, column)
    if known.value:
        return known
    named = [field for field in fields if likeness(field, _SAYS_WHEN)]
    if len(named) == 1:
        return Choice("bodies", ours, named[0], f"its name, in {topic.name}")
    return known


def _lines(topic: Topic) -> list[Choice]:
    """Return the choices for the field with the order lines, and for article and quantity of a line."""
    for field in field_names(topic.messages):
        lines = [line for one in topic.messages for line in _objects(one, field)]
        if lines:
            why = f"a list of objects in {topic.name}"
            return [Choice("bodies", "lines", field, why), *_line_fields(lines, field)]
    none = f"no field of {topic.name} is a list of objects"
    return [Choice("bodies", name, "", none) for name in ("lines", "sku", "quantity")]


def _objects(message: Message, field: str) -> list[dict[str, Any]]:
    listed = message.body.get(field)
    is_list = isinstance(listed, list) and all(isinstance(line, dict) for line in listed)
    return listed if is_list and isinstance(listed, list) else []


def _line_fields(lines: Sequence[Mapping[str, Any]], field: str) -> list[Choice]:
    names = list(dict.fromkeys(name for line in lines for name in line))
    chosen: dict[str, str] = {}
    for ours in ("quantity", "sku"):
        likely = {name: likeness(name, COLUMNS[ours]) for name in names if name not in chosen.values()}
        best = max(likely, key=lambda name: likely[name], default="")
        chosen[ours] = best if best and likely[best] else ""
    return [
        Choice(
            "bodies", ours, chosen[ours], f"its name, in {field}" if chosen[ours] else f"no field of {field}"
        )
        for ours in ("sku", "quantity")
    ]
