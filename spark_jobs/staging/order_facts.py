"""What the log says of each order, as one row of numbers: made per slice of the log, merged over all slices.

A fact is the first or last place (or time) of one kind of event, a count, or a link: the exclusive or of a
mixed number of every half and of every end of a half. Where each half has exactly one end the counts are
equal and the link is 0, whatever their order, so that nobody has to join halves with their ends; an order
whose numbers do not come out (`is_regular`) is looked at event by event (`exact`). That a link is 0 by
chance has a likelihood of 2^-64.

Merging is `min`, `max`, `sum` or `bit_xor` by column (`joining.merged`), so slices may be read in any order,
and a fact row of a slice is worth as much as all its events: one row per order and slice, not one per record.

Cost: a scatter over the slice's events for each fact (37 of orders, 13 of pushes), no loop over orders.

Limitation: a fact is one number. Which of two commits came with which half cannot be said from it; hence
`is_regular`, and event by event for the orders that are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.log.ragged import Flags, Integers
from spark_jobs.staging.events import CANCELLED, CREATED, PAID, PUSHES, TIMEOUTS, Code, Events

MERGES: Final = {"min": np.minimum, "max": np.maximum, "sum": np.add, "bit_xor": np.bitwise_xor}
"""How the rows of several slices become one."""

ENDS_OF_HALVES: Final = (Code.COMMIT, Code.ROLLBACK, Code.EXPIRED, Code.TIMER)
"""Events that end the half in `ref`, if there is one there."""

CANCELS_OF_TIMERS: Final = (Code.CANCEL, Code.CALLED_OFF)
DELIVERIES: Final = (Code.DELIVERED, Code.FIRED, Code.RELEASED)
MOVES: Final = (Code.MOVED, Code.HELD)
ENDS_OF_TIMERS: Final = (*DELIVERIES, *CANCELS_OF_TIMERS, *MOVES, Code.REPLACED)
"""Events that end the timer in `ref`."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One column: of which events about which topic, what of them, and how it is merged."""

    name: str
    topics: tuple[int, ...]
    codes: tuple[Code, ...]
    value: str
    merge: str


_ORDERS: Final = (CREATED, TIMEOUTS, PAID, CANCELLED)

_CAME: Final = (*DELIVERIES, Code.COMMIT, Code.NORMAL)
"""What of the deadlines' topic its consumers get: also what was sent without a delay, or again."""

_SENT: Final = (Code.NORMAL, *DELIVERIES)
"""What consumers get that was sent without a transaction, as by an outbox; or again; or with a delay."""

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
"""The numbers that must come out."""

_NEEDS: Final = {"count of ref": "ref", "late_ms": "due_ms"}
"""Values that an event has only where it has that number."""

_CODES: Final = 1 + max(Code)
_TOPICS: Final = 1 + PUSHES
EMPTY: Final = {"min": np.iinfo(np.int64).max, "max": np.iinfo(np.int64).min, "sum": 0, "bit_xor": 0}
"""What a merge begins with; after `min` and `max` it means that there was nothing."""


def schema(facts: tuple[Fact, ...]) -> pa.Schema:
    """Return the columns of fact rows of one slice: `order_row` is the slice and the row's place in it."""
    columns = [(fact.name, pa.int64()) for fact in facts]
    return pa.schema([("order_id", pa.string()), ("order_row", pa.int64()), *columns])


def facts_of(events: Events, rows: Integers, row_count: int, facts: tuple[Fact, ...]) -> list[pa.Array]:
    """Return a column for each fact, with a row for each order; `rows` has each event's.

    First and last places come of assignments in log order and against it: of several to one row the last
    one stays.
    """
    kinds = _Kinds(events)
    return [_column(fact, events, rows, row_count, kinds.places(fact)) for fact in facts]


class _Kinds:
    """Events put together by topic and code, in log order each."""

    def __init__(self, events: Events) -> None:
        kinds = events.topic.astype(np.int16) * _CODES + events.code
        self._order = np.argsort(kinds, kind="stable")
        self._edges = np.searchsorted(kinds[self._order], np.arange(_CODES * _TOPICS + 1))

    def places(self, fact: Fact) -> Integers:
        """Return where the events lie that a fact is about; in log order if their order can matter."""
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
        # Of several assignments to one row numpy keeps the last: so the first event has to come last.
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
    """Put right what does not ascend with the log: times, lateness, places in queues, cancels that other
    records carry.
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
    """Return the mixed number of the half, or timer, that each event sets or ends; 0 for none."""
    first = Code.HALF if fact.value == "half link" else Code.TIMER
    is_first = events.code[places] == first
    about = np.where(is_first, events.physical_offset[places], events.ref[places])
    return np.where(about >= 0, mixed(about), 0)


def mixed(numbers: Integers) -> Integers:
    """Return each number as another that looks like chance (splitmix64)."""
    with np.errstate(over="ignore"):
        words = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Integers = (words ^ (words >> np.uint64(31))).view(np.int64)
    return found


def is_regular(rows: pa.Table) -> Flags:
    """Return whether the numbers of each order's row come out: each half has one end and one commit, one
    timer at most and one end of it, nothing redriven. All of it can then be said by the row alone.
    """
    count = {name: pc.fill_null(rows[name], 0).to_numpy() for name in COUNTS}
    # Equal counts alone would pass a half without an end beside an end without a half; the link tells them.
    flags: Flags = (count["halves"] == count["half_ends"]) & (count["half_link"] == 0)
    flags &= (count["commits"] <= 1) & (count["redriven"] == 0) & (count["timers"] <= 1)
    is_ended_once = (count["timer_ends"] == 1) & (count["timer_link"] == 0)
    flags &= (count["timer_ends"] == 0) | is_ended_once
    return flags


def may_cancel_others(rows: pa.Table) -> Flags:
    """Return whether an end of a timer in an order's events may be that of another order's timer."""
    ends, link = (pc.fill_null(rows[name], 0).to_numpy() for name in ("timer_ends", "timer_link"))
    flags: Flags = (ends > 0) & (link != 0)
    return flags
