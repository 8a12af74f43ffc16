"""Meaning of each status of the orders, by the messages of its orders or by its word.

If the two differ, the word is used and a doubt is reported, because wrong rows are what an audit has to find.
A word for waiting orders (`confirmed`) yields to payments if no other status means paid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from spark_jobs.proposing.agreement import Share, share
from spark_jobs.proposing.facts import Row, Table
from spark_jobs.proposing.proposal import Choice, Doubt, Part, StatusCount
from spark_jobs.proposing.topics import OrderTopics
from spark_jobs.proposing.words import COLUMNS, STATUSES, likeness, meaning

_ORDER: Final = ("PLACED", "PAID", "TIMED_OUT", "CANCELLED")
_STATUSES_MAX: Final = 30


def status_column(table: Table, key: str) -> str:
    """Return the column of the orders' status; "" if there is none."""
    weights: dict[str, tuple[int, int, int]] = {}
    for column in table.columns:
        values = [value for value in column.counts or {} if value]
        if column.name == key or not values or len(values) > _STATUSES_MAX or column.refers_to:
            continue
        meant = {meaning(value, STATUSES) for value in values} - {""}
        named = likeness(column.name, COLUMNS["status"])
        if named or meant:
            weights[column.name] = (len(meant) + 2 * (named > 0), named, len(values))
    return max(weights, key=lambda name: weights[name]) if weights else ""


def choose_statuses(
    table: Table, column: str, rows: Mapping[str, Row], topics: OrderTopics, last_ms: int
) -> Part:
    """Return the meaning of each status, with its number of orders.

    `rows` are the sampled orders by key, and `last_ms` is the newest store time in the log.
    """
    seen = _Seen(column, rows, topics, last_ms)
    counts = table.column(column).counts or {}
    ordered = sorted(counts, key=lambda value: (-counts[value], value or ""))
    found = _with_paid(_alike_without([_status(value, counts[value], seen) for value in ordered]), seen)
    choices = []
    for ours in _ORDER:
        theirs = [one for one in found if one.meaning == ours]
        if theirs:
            values = list(dict.fromkeys(one.value or "" for one in theirs))
            why = "; ".join(f"{shown(one.value)}: {one.why}" for one in theirs)
            choices.append(Choice("orders.statuses", ours, values if len(values) > 1 else values[0], why))
    doubts = [*_unknown(found, seen), *_contradicted(found, seen)]
    return Part(tuple(choices), tuple(doubts), tuple(found))


def shown(value: str | None) -> str:
    """Return a status as it is shown in a sentence: quoted, or NULL for None."""
    return "NULL" if value is None else repr(value)


def _alike_without(found: list[StatusCount]) -> list[StatusCount]:
    """Return the statuses; NULL and "" lose their meanings if these differ: a mapping names both as ""."""
    meanings = {one.meaning for one in found if not one.value}
    return [one if one.value or len(meanings) < 2 else one._replace(meaning="") for one in found]


def _with_paid(found: list[StatusCount], seen: _Seen) -> list[StatusCount]:
    """Return the statuses; if none means paid, those of waiting orders do if most of these have a payment."""
    if any(one.meaning == "PAID" for one in found):
        return found
    return [_paid(one, seen) if one.meaning == "PLACED" else one for one in found]


def _paid(one: StatusCount, seen: _Seen) -> StatusCount:
    said, why = seen.by_messages(one.value)
    return one._replace(meaning=said, why=why) if said == "PAID" else one


def _status(value: str | None, count: int, seen: _Seen) -> StatusCount:
    word = meaning(value or "", STATUSES)
    said, why = seen.by_messages(value)
    if word and (not said or word == said):
        return StatusCount(value, count, word, f"{why}; its word" if said else "its word")
    return StatusCount(value, count, word or said, "its word" if word else why)


class _Seen(NamedTuple):
    """The sampled orders by key, the column of their status, the topics, and the log's newest store time."""

    column: str
    rows: Mapping[str, Row]
    topics: OrderTopics
    last_ms: int

    def keys(self, value: str | None) -> frozenset[str]:
        """Return the keys of the sampled orders with a status."""
        return frozenset(key for key, row in self.rows.items() if row.texts.get(self.column) == value)

    def by_messages(self, value: str | None) -> tuple[str, str]:
        """Return the meaning of a status by the messages of its orders, and the reason; "" if undecided."""
        keys = self.keys(value)
        for ours, name in (("PAID", "order_paid"), ("CANCELLED", "order_cancelled")):
            of = self._having(keys, name)
            if of.is_most:
                return ours, f"{of} of them have a message in {self.topics.chosen[name].topic.name}"
        waiting = self._waiting(keys)
        if self._is_unended(keys) and waiting.count == waiting.of > 0:
            return "PLACED", f"the deadlines of {waiting} of them are still to come"
        return "", ""

    def are_over(self, value: str | None) -> bool:
        """Return whether all known deadlines of orders with a status are over and none is paid or cancelled.

        False if there is no topic of payments, or if an order has a message in a topic of `unsure`.
        """
        keys = self.keys(value)
        waiting = self._waiting(keys)
        if any(keys & one.keys for one in self.topics.unsure):
            return False
        return self._is_unended(keys) and waiting.of > 0 and waiting.count == 0

    def unsure(self, value: str | None) -> str:
        """Return the unsure topic with messages of most orders with a status; "" if there is none."""
        keys = self.keys(value)
        of = {one.name: Share(len(keys & one.keys), len(keys)) for one in self.topics.unsure}
        return next((name for name in of if of[name].is_most), "")

    def has_created(self, value: str | None) -> Share:
        """Return the share of the orders with a status that have a first message."""
        return self._having(self.keys(value), "order_created")

    def _having(self, keys: frozenset[str], name: str) -> Share:
        topic = self.topics.topic(name)
        return Share(len(keys & topic.keys) if topic else 0, len(keys))

    def _is_unended(self, keys: frozenset[str]) -> bool:
        ended = sum(self._having(keys, name).count for name in ("order_paid", "order_cancelled"))
        return self.topics.topic("order_paid") is not None and not ended

    def _waiting(self, keys: frozenset[str]) -> Share:
        """Return the share of the orders' known deadlines that are due after the log's newest store time."""
        topic = self.topics.topic("order_timeouts")
        due = [one.due_ms for one in topic.messages if one.key in keys] if topic else []
        return share(due_ms > self.last_ms for due_ms in due if due_ms is not None)


def _unknown(found: list[StatusCount], seen: _Seen) -> list[Doubt]:
    """Return the doubts about statuses of unknown meaning, which an audit refuses, and missing ones."""
    unknown = [one for one in found if not one.meaning]
    missing = [_not_seen(ours) for ours in ("PLACED", "PAID") if ours not in {one.meaning for one in found}]
    if not unknown:
        return missing
    listed = ", ".join(f"{shown(one.value)} ({one.rows:,} rows{_hint(one, seen)})" for one in unknown)
    return [
        Doubt(
            f"What these statuses mean is not known: {listed}. Write each in [orders.statuses] as PLACED, "
            'PAID, TIMED_OUT or CANCELLED ("" is NULL, too), or name a view without such rows as the table.',
            is_blocking=any(one.rows for one in unknown),
        ),
        *missing,
    ]


def _not_seen(ours: str) -> Doubt:
    """Return the doubt about a status of the mapping that no status of the orders means."""
    return Doubt(
        f"No order has a status that is known to mean {ours} now. An audit refuses a status that it does not "
        f'know: write what yours will be called as {ours} = "..." in [orders.statuses].'
    )


def _hint(one: StatusCount, seen: _Seen) -> str:
    if topic := seen.unsure(one.value):
        return f"; a message in {topic} cancels their deadlines: CANCELLED, or PAID if that is a payment"
    if seen.are_over(one.value):
        return "; their deadlines are over and none is paid: TIMED_OUT, or PLACED if they still wait"
    if seen.keys(one.value) and not seen.has_created(one.value).count:
        return "; none of them has a message: a draft, perhaps"
    return ""


def _contradicted(found: list[StatusCount], seen: _Seen) -> list[Doubt]:
    doubts = []
    for one in found:
        said, why = seen.by_messages(one.value)
        if said and said != one.meaning:
            doubts.append(
                Doubt(
                    f"Status {shown(one.value)} is taken for {one.meaning} by its word, but {why}. If it is "
                    f"{said}, write it there in [orders.statuses]."
                )
            )
    return doubts
