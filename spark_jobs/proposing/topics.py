"""Roles of the topics, by which messages come first, which are delayed, and which cancel the delayed ones.

Payments and cancellations are distinguished by words: of the topics' names, and of the statuses of their
orders. If exactly one remaining topic cancels deadlines, it is that of payments if none was found. Otherwise
it is that of cancellations if none was found, none of its orders has a payment, and most of them have the
same status, of unknown meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from spark_jobs.proposing.agreement import Share, pairs, share
from spark_jobs.proposing.facts import Row, Topic
from spark_jobs.proposing.words import COLUMNS, STATUSES, likeness, meaning

_ENDS: Final = {"order_paid": "PAID", "order_cancelled": "CANCELLED"}
_END_WORDS: Final = {"PAID": COLUMNS["paid_ms"], "CANCELLED": COLUMNS["cancelled_ms"]}


class ChosenTopic(NamedTuple):
    """A topic and the reason for its role."""

    topic: Topic
    why: str


class OrderTopics(NamedTuple):
    """The topics of orders by mapping name. Topics that were not found are missing."""

    chosen: Mapping[str, ChosenTopic]
    unsure: tuple[Topic, ...] = ()
    """Topics whose messages cancel deadlines and may be payments, cancellations or something else."""

    def topic(self, name: str) -> Topic | None:
        """Return a topic by mapping name; None if it was not found."""
        found = self.chosen.get(name)
        return found.topic if found else None


def choose_topics(topics: Sequence[Topic], rows: Mapping[str, Row], status: str) -> OrderTopics:
    """Return the topics of orders by role; `status` is the column of the orders' status, "" for none."""
    chosen: dict[str, ChosenTopic] = {}
    delayed = [one for one in topics if one.is_delayed]
    at_once = [one for one in topics if not one.is_delayed]
    if at_once:
        chosen["order_created"] = _created(at_once)
    if delayed:
        chosen["order_timeouts"] = _timeouts(delayed, topics)
    created = chosen["order_created"].topic.name if at_once else ""
    rest = [one for one in at_once if one.name != created]
    timeouts = chosen["order_timeouts"].topic.name if delayed else ""
    for ours in _ENDS:
        taken = {one.topic.name for one in chosen.values()}
        said = {
            one.name: evidence
            for one in rest
            if one.name not in taken and (evidence := _end(ours, one, rows, status, timeouts)) is not None
        }
        if said:
            best = max(said, key=lambda name: said[name][0])
            chosen[ours] = ChosenTopic(_named(rest, best), said[best][1])
    taken = {one.topic.name for one in chosen.values()}
    left = [one for one in rest if one.name not in taken]
    cancelling = [one for one in left if timeouts and one.cancels.get(timeouts)]
    if len(cancelling) == 1:
        (one,) = cancelling
        why = f"its messages have cancelled {one.cancels[timeouts]:,} timers of {timeouts}"
        if "order_paid" not in chosen:
            chosen["order_paid"] = ChosenTopic(one, why)
            return OrderTopics(chosen)
        if "order_cancelled" not in chosen and _is_another_end(one, chosen["order_paid"].topic, rows, status):
            chosen["order_cancelled"] = ChosenTopic(one, f"{why}; none of its orders is paid")
            return OrderTopics(chosen)
    return OrderTopics(chosen, tuple(cancelling))


def _is_another_end(topic: Topic, paid: Topic, rows: Mapping[str, Row], status: str) -> bool:
    """Return whether the orders of a topic are unpaid, and most have one status of unknown meaning."""
    counts = Counter(row.texts.get(status) for _, row in pairs(topic, rows))
    (value, count), *_ = counts.most_common(1) or [(None, 0)]
    is_unknown = not meaning(value or "", STATUSES)
    return is_unknown and Share(count, counts.total()).is_most and not topic.keys & paid.keys


def is_plain(topic: Topic) -> bool:
    """Return whether most messages of a topic are sent without a transaction."""
    return topic.plain > topic.halves


def _created(topics: Sequence[Topic]) -> ChosenTopic:
    """Return the topic that most often has the first message of an order."""
    firsts: Counter[str] = Counter()
    earliest: dict[str, tuple[int, str]] = {}
    for topic in topics:
        for one in topic.messages:
            earliest[one.key] = min(
                earliest.get(one.key, (one.stored_ms, topic.name)), (one.stored_ms, topic.name)
            )
    firsts.update(name for _, name in earliest.values())
    best = max(topics, key=lambda one: (firsts[one.name], likeness(one.name, COLUMNS["placed_ms"])))
    of = Share(firsts[best.name], len(earliest))
    return ChosenTopic(best, f"its message is the first of {of} orders")


def _timeouts(delayed: Sequence[Topic], topics: Sequence[Topic]) -> ChosenTopic:
    cancelled = {one.name: sum(other.cancels.get(one.name, 0) for other in topics) for one in delayed}
    best = max(
        delayed,
        key=lambda one: (cancelled[one.name], likeness(one.name, COLUMNS["due_ms"]), len(one.messages)),
    )
    why = f"its messages are delayed ({best.delayed:,} timers)"
    if cancelled[best.name]:
        why += f", and others cancel them ({cancelled[best.name]:,} times)"
    return ChosenTopic(best, why)


def _end(
    ours: str, topic: Topic, rows: Mapping[str, Row], status: str, timeouts: str
) -> tuple[int, str] | None:
    """Return the weight and the reason of the evidence that a topic is that of payments (or cancellations).

    Return None without evidence, or if the topic's name has the word of the other end.
    """
    wanted, reasons, weight = _ENDS[ours], [], 0
    word = meaning(topic.name, _END_WORDS)
    if word == wanted:
        weight += 2
        reasons.append("its name")
    elif word:
        return None
    said = [meaning(row.texts.get(status) or "", STATUSES) for _, row in pairs(topic, rows)]
    alike = share(one == wanted for one in said if one)
    if alike.is_most:
        weight += 3
        reasons.append(f"{alike} of its orders have a status that says so")
    if weight and (cancelled := topic.cancels.get(timeouts, 0)):
        weight += 1
        reasons.append(f"its messages have cancelled {cancelled:,} timers of {timeouts}")
    return (weight, "; ".join(reasons)) if weight else None


def _named(topics: Sequence[Topic], name: str) -> Topic:
    return next(one for one in topics if one.name == name)


def choose_group(topic: Topic) -> tuple[str, str, tuple[str, ...]]:
    """Return the group with the most acknowledgements in a topic, the reason, and the other groups.

    The group and the reason are "" if no group acknowledges messages of the topic.
    """
    if not topic.groups:
        return "", "", ()
    ordered = sorted(topic.groups, key=lambda one: (-topic.groups[one], one))
    why = f"has acknowledged {topic.groups[ordered[0]]:,} messages of {topic.name}"
    return ordered[0], why, tuple(ordered[1:])
