"""Choice of the table and topic of pushes: delayed messages with the keys of a table besides the orders."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jobs.proposing.agreement import field_names, pairs, rows_by, share, text_of, time_is_near
from spark_jobs.proposing.facts import Kind, Table, Topic
from spark_jobs.proposing.orders import FoundOrders, covered, is_unique
from spark_jobs.proposing.proposal import Choice, Doubt, Part
from spark_jobs.proposing.statuses import shown
from spark_jobs.proposing.topics import choose_group
from spark_jobs.proposing.words import COLUMNS, PUSH_STATUSES, likeness, meaning


def choose_pushes(tables: Sequence[Table], topics: Sequence[Topic], orders: FoundOrders) -> Part:
    """Return the choices for pushes.

    The part is empty unless a table has the keys of other delayed messages, a status and a due time.
    """
    ours = {one.name for one in orders.topics}
    delayed = [one for one in topics if one.is_delayed and one.name not in ours]
    for table in tables:
        if table.name == orders.table.name:
            continue
        for column in table.columns:
            if is_unique(table, column) and (here := covered(delayed, column.keys)):
                found = _pushes(table, column.name, max(here, key=lambda one: len(one.messages)))
                if found.choices:
                    return found
    return Part()


def _pushes(table: Table, key: str, topic: Topic) -> Part:
    status = max(
        (one.name for one in table.columns if one.counts and one.name != key),
        key=lambda name: (
            sum(bool(meaning(value or "", PUSH_STATUSES)) for value in table.column(name).counts or {}),
            likeness(name, COLUMNS["status"]),
        ),
        default="",
    )
    due, delivered = _times(table, key, topic)
    if not status or not due:
        return Part()
    held = share(one in table.column(key).keys for one in topic.keys)
    choices = [
        Choice("pushes", "table", table.name, f"{key} holds {held} keys of {topic.name}"),
        Choice("pushes", "push_id", key, "the messages' keys"),
        Choice("pushes", "schedule_id", _named(table, "schedule_id"), ""),
        Choice("pushes", "message_id", _named(table, "message_id"), ""),
        Choice("pushes", "status", status, "its values"),
        Choice("pushes", "due_ms", due, "its messages are due about then"),
        Choice("pushes", "delivered_ms", delivered, "its name" if delivered else "none was found"),
    ]
    doubts = []
    counts = table.column(status).counts or {}
    meanings = {value: meaning(value or "", PUSH_STATUSES) for value in counts}
    for one in PUSH_STATUSES:
        values = [value or "" for value, meant in meanings.items() if meant == one]
        if values:
            listed = values if len(values) > 1 else values[0]
            choices.append(Choice("pushes.statuses", one, listed, "its word"))
    if unknown := [value for value, meant in meanings.items() if not meant]:
        listed = ", ".join(map(shown, unknown))
        doubts.append(
            Doubt(f"What these statuses of pushes mean is not known: {listed}. Write [pushes.statuses].")
        )
    choices.append(Choice("topics", "pushes", topic.name, "delayed messages that are no deadlines of orders"))
    group, why, _ = choose_group(topic)
    if group:
        choices.append(Choice("groups", "pushes", group, why))
    for field in field_names(topic.messages):
        if share(text_of(one.body.get(field)) == one.key for one in topic.messages).is_most:
            choices.append(Choice("bodies", "push_id", field, "it is the messages' key"))
            break
    return Part(tuple(choices), tuple(doubts))


def _times(table: Table, key: str, topic: Topic) -> tuple[str, str]:
    """Return the columns of the due time and of the delivery time of a push; "" for none."""
    found = pairs(topic, rows_by(table, key))
    times = [one.name for one in table.columns if any(one.name in row.times for row in table.rows)]
    near = {name: time_is_near([(one.due_ms, row.times.get(name)) for one, row in found]) for name in times}
    sure = [name for name in times if near[name].is_most]
    due = max(sure, key=lambda name: (likeness(name, COLUMNS["due_ms"]), near[name].of), default="")
    sent = [name for name in times if name != due and likeness(name, COLUMNS["delivered_ms"])]
    return due, sent[0] if sent else ""


def _named(table: Table, ours: str) -> str:
    named = {
        one.name: likeness(one.name, COLUMNS[ours])
        for one in table.columns
        if one.kind not in (Kind.TIME, Kind.BOOLEAN)
    }
    best = max(named, key=lambda name: named[name], default="")
    return best if best and named[best] else ""
