"""Choice of the table of orders: the one whose unique column contains the keys of messages.

Small integers are keys in every table. Hence further evidence is weighed: a column of statuses, a column with
the store times of the messages, columns that equal fields of their bodies, and the table's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from spark_jobs.errors import NothingProposed
from spark_jobs.proposing.agreement import field_equals, field_names, pairs, rows_by, share, time_is_near
from spark_jobs.proposing.facts import Column, Table, Topic
from spark_jobs.proposing.words import COLUMNS, STATUSES, TABLES, likeness, meaning

_SHOWN_MAX: Final = 10
_KEYS_SHOWN: Final = 3
_WEIGHTS: Final = {"status": 3, "time": 3, "field": 3, "name": 2, "other name": -3, "view": -1}
_SIGN: Final = re.compile(r"[\W_]")
_PREFIXES_MAX: Final = 4
_CLOSE: Final = 1
"""Maximum difference in weight at which another table may be the orders as well."""


class FoundOrders(NamedTuple):
    """The table of orders, its key, the topics whose keys it contains, and the reason for the choice."""

    table: Table
    key: str
    topics: tuple[Topic, ...]
    why: str
    also: tuple[str, ...] = ()
    """Other tables that may be the orders."""


class _Candidate(NamedTuple):
    weight: int
    found: FoundOrders


def find_orders(tables: Sequence[Table], topics: Sequence[Topic]) -> FoundOrders:
    """Return the table of orders; raise `NothingProposed` if no table contains the keys of messages."""
    keyed = [topic for topic in topics if topic.messages]
    found = _best(tables, keyed)
    if found is None:
        raise NothingProposed(_none(tables, topics, keyed))
    return found


def _best(tables: Sequence[Table], topics: Sequence[Topic]) -> FoundOrders | None:
    candidates = [
        one
        for table in tables
        for column in table.columns
        if is_unique(table, column)
        for one in _candidates(table, column, topics)
    ]
    if not candidates:
        return None
    best = max(candidates, key=lambda one: one.weight)
    others = [
        one.found.table.name
        for one in candidates
        if one.found.table.name != best.found.table.name and best.weight - one.weight <= _CLOSE
    ]
    return best.found._replace(also=tuple(dict.fromkeys(others)))


def keys_to_look_for(topics: Iterable[Topic]) -> list[str]:
    """Return the sorted keys to look up in a database: those of messages, also without common prefixes.

    If all keys of a topic have a prefix before the id (`order-7`), they are not the ids that the audit needs.
    The lookup without the prefix finds the table that the error message names.
    """
    found: set[str] = set()
    for topic in topics:
        for prefix in ("", *_prefixes(topic)):
            found |= {key.removeprefix(prefix) for key in topic.keys}
    return sorted(found)


def _prefixes(topic: Topic) -> list[str]:
    """Return the common prefixes of all keys of a topic, one up to each sign: `shop/`, `shop/order-`."""
    first = min(topic.keys, default="")
    found = [first[: sign.end()] for sign in _SIGN.finditer(first)][:_PREFIXES_MAX]
    return [one for one in found if all(key.startswith(one) and key != one for key in topic.keys)]


def is_unique(table: Table, column: Column) -> bool:
    """Return whether a column is unique, by a constraint or in the sample (of two values or more)."""
    values = table.values(column.name)
    return column.is_unique or (len(values) > 1 and len(values) == len(set(values)))


def covered(topics: Sequence[Topic], held: frozenset[str]) -> tuple[Topic, ...]:
    """Return the topics with at least half of their keys in `held`."""
    return tuple(one for one in topics if one.keys and 2 * len(one.keys & held) >= len(one.keys))


def _candidates(table: Table, column: Column, topics: Sequence[Topic]) -> list[_Candidate]:
    here = covered(topics, column.keys)
    if not any(not one.is_delayed for one in here):
        return []
    rows = rows_by(table, column.name)
    evidence: dict[str, str] = {}
    names = [one.name for one in table.columns if one.name != column.name]
    if status := next((one for one in names if _is_status(table.column(one))), ""):
        evidence["status"] = f"{status} looks like its status"
    for topic in here:
        found = pairs(topic, rows)
        for name in names:
            near = time_is_near([(one.stored_ms, row.times.get(name)) for one, row in found])
            if near.is_most and not topic.is_delayed:
                evidence.setdefault("time", f"{name} is the time of {near} messages of {topic.name}")
        for field in field_names(topic.messages):
            alike = [
                name
                for name in names
                if (is_same := field_equals(found, field, name)).is_most and is_same.of > 1
            ]
            if alike:
                evidence.setdefault("field", f"{alike[0]} is the field {field} of its messages")
    is_named = likeness(table.name, TABLES["orders"])
    others = [words for name, words in TABLES.items() if name != "orders"]
    is_other = max(likeness(table.name, words) for words in (*others, COLUMNS["customer_id"]))
    if is_named > is_other:
        evidence["name"] = "its name"
    elif is_other > is_named:
        evidence["other name"] = ""
    weight = min(len(here), 3) + sum(_WEIGHTS[name] for name in evidence) + column.is_unique
    held = ", ".join(f"{one.name} ({share(key in column.keys for key in one.keys)})" for one in here)
    more = next((evidence[name] for name in ("time", "field", "status", "name") if name in evidence), "")
    why = "; ".join([f"{column.name} holds the keys of {held}", *filter(None, [more])])
    return [_Candidate(weight, FoundOrders(table, column.name, here, why))]


def _is_status(column: Column) -> bool:
    values = [value for value in column.counts or {} if value]
    return len(values) > 0 and (
        likeness(column.name, COLUMNS["status"]) > 0 or any(meaning(value, STATUSES) for value in values)
    )


def _none(tables: Sequence[Table], topics: Sequence[Topic], keyed: Sequence[Topic]) -> str:
    """Return the text of the error that no table of orders was found, with the remedy."""
    if not keyed:
        listed = ", ".join(one.name for one in topics[:_SHOWN_MAX])
        return (
            f"No message of the log has a key (its topics are {listed}). Send each order's messages with the "
            "order's id as their first key, as NewMessage(..., keys=[id]), and try again."
        )
    if told := _prefixed(tables, keyed):
        return told
    examples = ", ".join(f"{key!r}" for key in sorted(keyed[0].keys)[:_KEYS_SHOWN])
    named = ", ".join(one.name for one in tables[:_SHOWN_MAX])
    more = f" and {len(tables) - _SHOWN_MAX} more" if len(tables) > _SHOWN_MAX else ""
    return (
        "No table looks like orders: no column without repeated values holds the keys of messages, such as "
        f"{examples} of {keyed[0].name}. Tables that can be read: {named}{more}. If the orders are in "
        "another database, give it by --db; if this user may not read their table, grant it SELECT; if their "
        "ids are written otherwise, send messages with the id as their first key."
    )


def _prefixed(tables: Sequence[Table], keyed: Sequence[Topic]) -> str:
    """Return the text of the error that keys are ids with a prefix, with the remedy; "" if they are not."""
    for prefix in dict.fromkeys(prefix for topic in keyed for prefix in _prefixes(topic)):
        bare = [_without(prefix, topic) for topic in keyed]
        found = _best(tables, bare)
        if found is None:
            continue
        topic = next(one for one in found.topics if f"{prefix}{min(one.keys)}" in _keys_of(keyed, one.name))
        tail = min(topic.keys)
        return (
            f"The keys of {topic.name} are such as {prefix + tail!r} where {found.key} of table "
            f"{found.table.name} is {tail!r}, and the audit takes the first key for the id. Send the id "
            f"alone as the first key, or make a view of the table in which {found.key} begins with "
            f"{prefix!r}, and try again."
        )
    return ""


def _without(prefix: str, topic: Topic) -> Topic:
    messages = (replace(one, key=one.key.removeprefix(prefix)) for one in topic.messages)
    return replace(topic, messages=tuple(messages))


def _keys_of(topics: Sequence[Topic], name: str) -> frozenset[str]:
    return next(one.keys for one in topics if one.name == name)
