"""Facts of each order in the log, as one row of numbers per part of the log, merged over all parts.

A fact is the first or last offset (or time) of some kinds of events, a count, or a link. A link is the XOR of
the hashes of every half and of every end of a half (or of every timer and every end of a timer). If each half
has exactly one end, the counts are equal and the link is 0 in any order of events, so halves need no join
with their ends. The events of an order with inconsistent numbers (`is_regular`) are processed one by one
(`books.exact`). The probability that a link is 0 by chance is 2^-64.

Facts are merged by column with `min`, `max`, `sum`, or `bit_xor` (`books.joining`). Parts can therefore be
read in any order, and one row per order and part replaces all its events.

Cost: a scatter over the part's events for each fact (37 of orders, 13 of pushes), without a loop over orders.

Limitation: a fact is one number. It does not show which of two commits belongs to which half. Orders that are
not `is_regular` are therefore processed by event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.log.columns.ragged import Flags, Integers
from spark_jobs.staging.events import CANCELLED, CREATED, PAID, PUSHES, TIMEOUTS, Code, Events

MERGES: Final = {"min": np.minimum, "max": np.maximum, "sum": np.add, "bit_xor": np.bitwise_xor}
"""Functions that merge the rows of several parts into one, by column."""

ENDS_OF_HALVES: Final = (Code.COMMIT, Code.ROLLBACK, Code.EXPIRED, Code.TIMER)
"""Events that end the half in `ref`, if `ref` is not -1."""

CANCELS_OF_TIMERS: Final = (Code.CANCEL, Code.CALLED_OFF)
DELIVERIES: Final = (Code.DELIVERED, Code.FIRED, Code.RELEASED)
MOVES: Final = (Code.MOVED, Code.HELD)
ENDS_OF_TIMERS: Final = (*DELIVERIES, *CANCELS_OF_TIMERS, *MOVES, Code.REPLACED)
"""Events that end the timer in `ref`."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A column of facts: topics and codes of its events, the value taken of each, and the merge function."""

    name: str
    topics: tuple[int, ...]
    codes: tuple[Code, ...]
    value: str
    merge: str


_ORDERS: Final = (CREATED, TIMEOUTS, PAID, CANCELLED)

_CAME: Final = (*DELIVERIES, Code.COMMIT, Code.NORMAL)
"""Messages that consumers of the deadlines' topic receive, also if sent without a delay, or again."""

_SENT: Final = (Code.NORMAL, *DELIVERIES)
"""Messages that consumers receive, sent without a transaction (as from an outbox), again, or with a delay."""

ORDER_FACTS: Final = (
    Fact("half_offset", (CREATED,), (Code.HALF,), "physical_offset", "min"),
    Fact("half_ms", (CREATED,), (Code.HALF,), "store_ms", "min"),
    Fact("committed_offset", (CREATED,), (Code.COMMIT,), "physical_offset", "min"),
    Fact("committed_ms", (CREATED,), (Code.COMMIT,), "store_ms", "min"),
    Fact("queue_place", (CREATED,), (Code.COMMIT, *_SENT), "queue", "max"),
    Fact("sent_offset", (CREATED,), _SENT, "physical_offset", "min"),
    Fact("sent_ms", (CREATED,), _SENT, "store_ms", "min"),
    Fact("rollback_offset", (CREATED,), (Code.ROLLBACK,), "physical_offset", "min"),
    Fact("expired_offset", (CREATED,), (Code.EXPIRED,), "physical_offset", "min"),
    Fact("dead_letter_offset", (CREATED,), (Code.DEAD,), "physical_offset", "max"),
    Fact("timer_offset", (TIMEOUTS,), (Code.TIMER,), "physical_offset", "max"),
    Fact("timer_due_ms", (TIMEOUTS,), (Code.TIMER,), "due_ms", "max"),
    Fact("timer_ms", (TIMEOUTS,), (Code.TIMER,), "store_ms", "max"),
    Fact("deadline_half_ms", (TIMEOUTS,), (Code.HALF,), "store_ms", "max"),
    Fact("delivered_offset", (TIMEOUTS,), DELIVERIES, "physical_offset", "min"),
    Fact("delivered_ms", (TIMEOUTS,), DELIVERIES, "store_ms", "min"),
    Fact("deadline_came_ms", (TIMEOUTS,), _CAME, "store_ms", "min"),
    Fact("late_ms_max", (TIMEOUTS,), (Code.DELIVERED,), "late_ms", "max"),
    Fact("late_ms_min", (TIMEOUTS,), (Code.DELIVERED, Code.RELEASED), "late_ms", "min"),
    Fact("timer_cancel_offset", (TIMEOUTS,), CANCELS_OF_TIMERS, "physical_offset", "min"),
    Fact("deadline_dead_offset", (TIMEOUTS,), (Code.DEAD,), "physical_offset", "max"),
    Fact("paid_offset", (PAID,), (Code.COMMIT,), "physical_offset", "min"),
    Fact("paid_message_ms", (PAID,), (Code.COMMIT,), "store_ms", "min"),
    Fact("paid_sent_offset", (PAID,), _SENT, "physical_offset", "min"),
    Fact("paid_sent_ms", (PAID,), _SENT, "store_ms", "min"),
    Fact("paid_end_offset", (PAID,), (Code.ROLLBACK, Code.EXPIRED), "physical_offset", "max"),
    Fact("cancelled_offset", (CANCELLED,), (Code.COMMIT,), "physical_offset", "min"),
    Fact("cancelled_sent_offset", (CANCELLED,), _SENT, "physical_offset", "min"),
    Fact("cancelled_end_offset", (CANCELLED,), (Code.ROLLBACK, Code.EXPIRED), "physical_offset", "max"),
    Fact("halves", _ORDERS, (Code.HALF,), "count", "sum"),
    Fact("half_ends", _ORDERS, ENDS_OF_HALVES, "count of ref", "sum"),
    Fact("half_link", _ORDERS, (Code.HALF, *ENDS_OF_HALVES), "half link", "bit_xor"),
    Fact("commits", (CREATED,), (Code.COMMIT,), "count", "sum"),
    Fact("redriven", (CREATED, TIMEOUTS), (Code.NORMAL,), "count", "sum"),
    Fact("timers", (TIMEOUTS,), (Code.TIMER,), "count", "sum"),
    Fact("timer_ends", (TIMEOUTS,), ENDS_OF_TIMERS, "count", "sum"),
    Fact("timer_link", (TIMEOUTS,), (Code.TIMER, *ENDS_OF_TIMERS), "timer link", "bit_xor"),
)
PUSH_FACTS: Final = (
    Fact("delivered_offset", (PUSHES,), _SENT, "physical_offset", "min"),
    Fact("delivered_ms", (PUSHES,), _SENT, "store_ms", "min"),
    Fact("queue_place", (PUSHES,), _SENT, "queue", "max"),
    Fact("first_timer", (PUSHES,), DELIVERIES, "ref", "min"),
    Fact("deliveries", (PUSHES,), _SENT, "count", "sum"),
    Fact("dead_letter_offset", (PUSHES,), (Code.DEAD,), "physical_offset", "max"),
    Fact("timer_offset", (PUSHES,), (Code.TIMER,), "physical_offset", "max"),
    Fact("timer_due_ms", (PUSHES,), (Code.TIMER,), "due_ms", "max"),
    Fact("held_offset", (PUSHES,), (Code.HELD,), "physical_offset", "max"),
    Fact("held_ms", (PUSHES,), (Code.HELD,), "store_ms", "max"),
    Fact("dead_letters", (PUSHES,), (Code.DEAD,), "count", "sum"),
    Fact("timers", (PUSHES,), (Code.TIMER,), "count", "sum"),
    Fact("timer_ends", (PUSHES,), ENDS_OF_TIMERS, "count", "sum"),
)

COUNTS: Final = (
    "halves", "half_ends", "half_link", "commits", "redriven", "timers", "timer_ends", "timer_link",
)  # fmt: skip
"""Counts and links that must be consistent (`is_regular`)."""

_NEEDS: Final = {"count of ref": "ref", "late_ms": "due_ms"}
"""Column that must not be -1 for an event to have a value, by value."""

_CODES: Final = 1 + max(Code)
_TOPICS: Final = 1 + PUSHES
EMPTY: Final = {"min": np.iinfo(np.int64).max, "max": np.iinfo(np.int64).min, "sum": 0, "bit_xor": 0}
"""Initial value of each merge. After `min` and `max` it means that there was no event."""


def schema(facts: tuple[Fact, ...]) -> pa.Schema:
    """Return the columns of fact rows. `order_row` combines the part's number and the row (`ROW_BITS`)."""
    columns = [(fact.name, pa.int64()) for fact in facts]
    return pa.schema([("order_id", pa.string()), ("order_row", pa.int64()), *columns])


def facts_of(events: Events, rows: Integers, row_count: int, facts: tuple[Fact, ...]) -> list[pa.Array]:
    """Return one column per fact, each with `row_count` rows. `rows` has the row of each event's order.

    First and last offsets are assigned in reverse log order and in log order, because the last of several
    assignments to a row remains.
    """
    kinds = _Kinds(events)
    return [_column(fact, events, rows, row_count, kinds.places(fact)) for fact in facts]


class _Kinds:
    """Events grouped by topic and code. The events of each group keep their order."""

    def __init__(self, events: Events) -> None:
        kinds = events.topic.astype(np.int16) * _CODES + events.code
        self._order = np.argsort(kinds, kind="stable")
        self._edges = np.searchsorted(kinds[self._order], np.arange(_CODES * _TOPICS + 1))

    def places(self, fact: Fact) -> Integers:
        """Return the indexes of the events of a fact, ascending if their order can matter."""
        kinds = [topic * _CODES + code for topic in fact.topics for code in fact.codes]
        runs = [self._order[self._edges[kind] : self._edges[kind + 1]] for kind in kinds]
        runs = [run for run in runs if len(run)]
        if len(runs) == 1:
            return runs[0]
        places = np.concatenate([*runs, np.zeros(0, np.int64)])
        return np.sort(places) if fact.merge in ("min", "max") else places


def _column(fact: Fact, events: Events, rows: Integers, row_count: int, places: Integers) -> pa.Array:
    if fact.value in _NEEDS:
        places = places[getattr(events, _NEEDS[fact.value])[places] >= 0]
    if fact.merge == "min":
        # NumPy keeps the last of several assignments to one row, so the first event is assigned last.
        places = places[::-1]
    column = np.full(row_count, EMPTY[fact.merge], np.int64)
    if fact.merge == "sum":
        column += np.bincount(rows[places], minlength=row_count)
    elif fact.merge == "bit_xor":
        np.bitwise_xor.at(column, rows[places], _link(fact, events, places))
    else:
        values = _value(fact, events, places)
        column[rows[places]] = values
        _settle(fact, column, rows[places], values)
    is_null = column == EMPTY[fact.merge] if fact.merge in ("min", "max") else None
    return pa.array(column, mask=is_null)


def _settle(fact: Fact, column: Integers, rows: Integers, values: Integers) -> None:
    """Correct the values that do not ascend with the events.

    These are times, lateness, places in queues, and the offsets of cancels that other records contain.
    """
    merge = np.minimum if fact.merge == "min" else np.maximum
    is_other = (values < column[rows]) if fact.merge == "min" else (values > column[rows])
    if is_other.any():
        merge.at(column, rows[is_other], values[is_other])


def _value(fact: Fact, events: Events, places: Integers) -> Integers:
    if fact.value == "late_ms":
        late_ms: Integers = events.store_ms[places] - events.due_ms[places]
        return late_ms
    values: Integers = getattr(events, fact.value)[places]
    return values


def _link(fact: Fact, events: Events, places: Integers) -> Integers:
    """Return the hash (`mixed`) of the half or timer that each event sets or ends, or 0 for none."""
    first = Code.HALF if fact.value == "half link" else Code.TIMER
    is_first = events.code[places] == first
    about = np.where(is_first, events.physical_offset[places], events.ref[places])
    return np.where(about >= 0, mixed(about), 0)


def mixed(numbers: Integers) -> Integers:
    """Return the splitmix64 hash of each number."""
    with np.errstate(over="ignore"):
        words = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Integers = (words ^ (words >> np.uint64(31))).view(np.int64)
    return found


def is_regular(rows: pa.Table) -> Flags:
    """Return which orders have consistent numbers, so that the row alone is sufficient.

    Each half has exactly one end. There is at most one commit, and at most one timer with at most one end,
    which refers to this timer. Nothing was redriven.
    """
    count = {name: pc.fill_null(rows[name], 0).to_numpy() for name in COUNTS}
    # Equal counts alone would accept a half without an end and an end without a half. The link detects them.
    flags: Flags = (count["halves"] == count["half_ends"]) & (count["half_link"] == 0)
    flags &= (count["commits"] <= 1) & (count["redriven"] == 0) & (count["timers"] <= 1)
    is_ended_once = (count["timer_ends"] == 1) & (count["timer_link"] == 0)
    flags &= (count["timer_ends"] == 0) | is_ended_once
    return flags


def may_cancel_others(rows: pa.Table) -> Flags:
    """Return which orders may have an end of another order's timer among their events."""
    ends, link = (pc.fill_null(rows[name], 0).to_numpy() for name in ("timer_ends", "timer_link"))
    flags: Flags = (ends > 0) & (link != 0)
    return flags
