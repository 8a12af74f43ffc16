"""Exact facts of orders with inconsistent numbers, from single events (see `order_facts.is_regular`).

Such orders have several halves or timers, an end without a beginning, a message that was sent again, or
something still open. Even in a good shop, one order in fifty is like this, so whole orders are processed
together as columns of their events. The half or timer of an event is looked up among the events of its own
order: a key is a number together with its order.

Rules:
- A half is open if no end (commit, rollback, expiry, or the timer of its message) names it. The oldest one
  counts.
- The same applies to timers. The one due first counts.
- A timer that was rebuilt from a damaged file or held has the same message and time. It was armed when the
  first one was.
- A delivery after a hold is not late, because an operator delayed it.
- Twice means two commits or timers of a half, or two deliveries of a timer, with the same `ref`.

Limitation: an end whose record names another order is not found, because every key includes the order. Only
the cancels in payments and cancellations are compared with all timers (`foreign_cancels`), and then count for
the order of the timer. Cost: about 1 µs per event.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.log.columns.ragged import Flags, Integers
from spark_jobs.staging.acknowledged import Places
from spark_jobs.staging.events import CANCELLED, CREATED, MESSAGE_CODES, PAID, TIMEOUTS, Code
from spark_jobs.staging.order_events import events_of_orders, of_whole_orders
from spark_jobs.staging.order_facts import (
    CANCELS_OF_TIMERS,
    DELIVERIES,
    ENDS_OF_HALVES,
    ENDS_OF_TIMERS,
    MOVES,
)
from spark_jobs.staging.staged import EVENTS, Staged

EXACT: Final = pa.schema([
    ("order_id", pa.string()),
    ("is_acknowledged", pa.bool_()),
    ("is_redelivered", pa.bool_()),
    ("is_deadline_redelivered", pa.bool_()),
    ("open_half_offset", pa.int64()),
    ("open_half_ms", pa.int64()),
    ("open_half_topic", pa.int8()),
    ("has_open_created", pa.bool_()),
    ("has_open_paid", pa.bool_()),
    ("has_open_cancelled", pa.bool_()),
    ("twice_committed_offset", pa.int64()),
    ("twice_delivered_offset", pa.int64()),
    ("cancelled_timer_delivered", pa.int64()),
    ("last_cancel_offset", pa.int64()),
    ("last_cancel_ms", pa.int64()),
    ("is_called_off", pa.bool_()),
    ("open_timer_offset", pa.int64()),
    ("open_timer_due_ms", pa.int64()),
    ("open_timer_ms", pa.int64()),
    ("open_timer_held_ms", pa.int64()),
    ("last_delivered_ms", pa.int64()),
    ("is_rearmed", pa.bool_()),
    ("late_timer_offset", pa.int64()),
    ("late_due_ms", pa.int64()),
    ("late_half_ms", pa.int64()),
    ("late_armed_ms", pa.int64()),
    ("late_delivered_ms", pa.int64()),
])  # fmt: skip
"""is_acknowledged: order-created was acknowledged by the acting group. is_redelivered: it was sent again
after its last dead letter, and acknowledged. open_half_*: the oldest half without an end.
twice_committed_offset: log offset of the half. twice_delivered_offset, cancelled_timer_delivered: log offset
of the timer.

last_cancel_*: the last cancel of a deadline. is_called_off: it was a separate call by an operator or a
client, not part of a message.

open_timer_*: the open timer that is due first. open_timer_ms: when it was armed. open_timer_held_ms: when it
was due and held, or null. late_*: the deadline with the greatest delay after its due time, of its delivery or
of its arming (on a tie, of its delivery): its timer, due time, half, arming, and delivery. A time is null
without a half or a delivery (fired by hand and held do not count), or if the log does not have it.
last_delivered_ms: of the deadline, by its timer or as a message without delay, such as a redriven dead
letter. is_rearmed: a deadline was set again after that."""

Acknowledged = dict[int, Places]
"""Acknowledged places of the acting consumer group, by shop topic."""

_NONE: Final = -1


def exact_facts(
    spark: SparkSession, staged: Staged, ids: DataFrame, id_count: int, acknowledged: Acknowledged
) -> DataFrame:
    """Return a row of `EXACT` per order of `ids` with events."""
    events = events_of_orders(spark, staged, ids, id_count)
    return of_whole_orders(events, lambda its: exactly(its, acknowledged), EXACT)


def exactly(events: pa.Table, acknowledged: Acknowledged) -> pa.Table:
    """Return a row of `EXACT` per order. `events` must be sorted by order, and then in log order."""
    orders = _Orders(events)
    armed = _armed(orders)
    facts = {
        "order_id": orders.ids,
        "is_acknowledged": orders.have(orders.messages(CREATED, acknowledged)),
        "is_redelivered": orders.have(_redelivered(orders, CREATED, acknowledged)),
        "is_deadline_redelivered": orders.have(_redelivered(orders, TIMEOUTS, acknowledged)),
        **_of_halves(orders),
        **_of_timers(orders, armed),
        **_of_lateness(orders, armed),
    }
    return pa.table([facts[field.name] for field in EXACT], schema=EXACT)


def foreign_cancels(spark: SparkSession, staged: Staged, ids: DataFrame, id_count: int) -> pa.Table:
    """Return the cancels in these orders' messages of timers of other orders, as `EVENTS` without order."""
    events = events_of_orders(spark, staged, ids, id_count)
    return of_whole_orders(events, _foreign_cancels, EVENTS).toArrow().cast(EVENTS)


def _foreign_cancels(events: pa.Table) -> pa.Table:
    orders = _Orders(events)
    is_cancel = (orders.topic == TIMEOUTS) & orders.are(Code.CANCEL)
    own = orders.own[orders.are(Code.TIMER)]
    found = events.filter(pa.array(is_cancel & ~np.isin(orders.about, own)))
    columns = [
        pa.nulls(len(found), field.type) if field.name == "order_row" else found[field.name]
        for field in EVENTS
    ]
    return pa.table(columns, schema=EVENTS)


class _Orders:
    """Events of whole orders as columns. `order` is the index in `ids` of each event's order."""

    def __init__(self, events: pa.Table) -> None:
        encoded = events["order_id"].combine_chunks().dictionary_encode()
        self.ids, self.order = encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)
        self.code, self.topic = events["code"].to_numpy(), events["topic"].to_numpy()
        self.ref, self.due_ms = events["ref"].to_numpy(), events["due_ms"].to_numpy()
        self.offset, self.store_ms = events["physical_offset"].to_numpy(), events["store_ms"].to_numpy()
        self.queue = events["queue"].to_numpy()

    def are(self, *codes: Code) -> Flags:
        """Return which events have one of these codes."""
        flags: Flags = np.isin(self.code, codes)
        return flags

    def have(self, flags: Flags) -> Flags:
        """Return which orders have any of these events."""
        found: Flags = np.bincount(self.order[flags], minlength=len(self.ids)) > 0
        return found

    def firsts(self, places: Integers) -> Integers:
        """Return the first of these ascending event places per order, or `_NONE`."""
        found = np.full(len(self.ids), _NONE)
        found[self.order[places][::-1]] = places[::-1]
        return found

    def lasts(self, places: Integers) -> Integers:
        """Return the last of these ascending event places per order, or `_NONE`."""
        found = np.full(len(self.ids), _NONE)
        found[self.order[places]] = places  # the last of several assignments wins
        return found

    def messages(self, topic: int, acknowledged: Acknowledged) -> Flags:
        """Return which events are messages of a topic that its acting group has acknowledged."""
        flags: Flags = (self.topic == topic) & self.are(*MESSAGE_CODES)
        flags[flags] = acknowledged[topic].has(self.queue[flags]) if topic in acknowledged else False
        return flags

    @cached_property
    def _ranks(self) -> tuple[Integers, Integers]:
        """The distinct offsets and refs of events, ascending, and the keys of each event for both."""
        # Ranks instead of log offsets, so that a number together with its order fits 64 bits in any log.
        numbers, ranks = np.unique(np.concatenate([self.offset, self.ref]), return_inverse=True)
        return numbers, ranks + np.tile(self.order, 2) * len(numbers)

    @property
    def own(self) -> Integers:
        """Key of each event's own log offset."""
        return self._ranks[1][: len(self.order)]

    @property
    def about(self) -> Integers:
        """Key of each event's `ref`."""
        return self._ranks[1][len(self.order) :]

    def least(self, keys: Integers) -> pa.Array:
        """Return the least log offset among these ascending keys per order, or null."""
        numbers = self._ranks[0]
        orders, ranks = np.divmod(keys[::-1], max(1, len(numbers)))
        found = np.full(len(self.ids), _NONE)
        found[orders] = ranks
        return _taken(numbers, found)


def _redelivered(orders: _Orders, topic: int, acknowledged: Acknowledged) -> Flags:
    """Return which messages followed the last dead letter of their order and were acknowledged."""
    dead = np.flatnonzero((orders.topic == topic) & orders.are(Code.DEAD))
    last = np.full(len(orders.ids), np.iinfo(np.int64).max)
    last[orders.order[dead]] = orders.offset[dead]
    is_later: Flags = orders.messages(topic, acknowledged) & (orders.offset > last[orders.order])
    return is_later


def _of_halves(orders: _Orders) -> dict[str, Any]:
    names_half = orders.ref >= 0
    ends = orders.about[orders.are(*ENDS_OF_HALVES) & names_half]
    is_open = orders.are(Code.HALF) & ~np.isin(orders.own, ends)
    oldest = orders.firsts(np.flatnonzero(is_open))
    commits = orders.about[orders.are(Code.COMMIT, Code.TIMER) & names_half]
    return {
        "open_half_offset": _taken(orders.offset, oldest),
        "open_half_ms": _taken(orders.store_ms, oldest),
        "open_half_topic": _taken(orders.topic, oldest),
        "has_open_created": orders.have(is_open & (orders.topic == CREATED)),
        "has_open_paid": orders.have(is_open & (orders.topic == PAID)),
        "has_open_cancelled": orders.have(is_open & (orders.topic == CANCELLED)),
        "twice_committed_offset": orders.least(_repeated(commits)),
    }


def _of_timers(orders: _Orders, armed: Integers) -> dict[str, Any]:
    is_deadline = orders.topic == TIMEOUTS
    delivered = orders.about[is_deadline & orders.are(*DELIVERIES)]
    cancelled = orders.about[is_deadline & orders.are(*CANCELS_OF_TIMERS)]
    ended = orders.about[is_deadline & orders.are(*ENDS_OF_TIMERS)]
    still_open = np.flatnonzero(is_deadline & orders.are(Code.TIMER) & ~np.isin(orders.own, ended))
    last = orders.lasts(np.flatnonzero(is_deadline & orders.are(*CANCELS_OF_TIMERS)))
    first_due = orders.firsts(still_open[np.argsort(orders.due_ms[still_open], kind="stable")])
    marks = np.flatnonzero(is_deadline & orders.are(Code.HELD))
    first_keys = np.append(orders.own, _NONE)[first_due]
    return {
        "twice_delivered_offset": orders.least(_repeated(delivered)),
        "cancelled_timer_delivered": orders.least(np.intersect1d(cancelled, delivered)),
        "last_cancel_offset": _taken(orders.offset, last),
        "last_cancel_ms": _taken(orders.store_ms, last),
        "is_called_off": _taken(orders.are(Code.CALLED_OFF), last),
        "open_timer_offset": _taken(orders.offset, first_due),
        "open_timer_due_ms": _taken(orders.due_ms, first_due),
        "open_timer_ms": _taken(orders.store_ms, armed[first_due]),
        "open_timer_held_ms": _taken(
            orders.store_ms, _taken_places(marks, _found(orders.own[marks], first_keys))
        ),
    }


def _of_lateness(orders: _Orders, armed: Integers) -> dict[str, Any]:
    is_deadline = orders.topic == TIMEOUTS
    came = np.flatnonzero(is_deadline & orders.are(*DELIVERIES, Code.NORMAL))
    last = orders.lasts(came)
    last_set = orders.lasts(np.flatnonzero(is_deadline & orders.are(Code.TIMER)))
    timers = np.flatnonzero(is_deadline & orders.are(Code.TIMER) & (orders.due_ms >= 0))
    came = np.flatnonzero(is_deadline & orders.are(Code.DELIVERED) & (orders.due_ms >= 0))
    # Each delivery with its timer, then each timer by itself, so that the delivery counts on a tie.
    of_came = _taken_places(timers, _found(orders.own[timers], orders.about[came]))
    timer, came = np.append(of_came, timers), np.append(came, np.full(len(timers), _NONE))
    armed = armed[timer]
    dated = np.where(came == _NONE, timer, came)
    reached = np.where(came == _NONE, armed, came)
    late_ms = np.where(reached == _NONE, 0, orders.store_ms[reached] - orders.due_ms[dated])
    by_lateness = np.argsort(-late_ms, kind="stable")
    latest = np.full(len(orders.ids), _NONE)
    latest[orders.order[dated][by_lateness][::-1]] = by_lateness[::-1]
    halves = np.flatnonzero(orders.are(Code.HALF))
    half = _taken_places(halves, _found(orders.own[halves], orders.about[armed]))
    half[armed == _NONE] = _NONE
    return {
        "last_delivered_ms": _taken(orders.store_ms, last),
        "is_rearmed": (last != _NONE) & (last_set > last),
        "late_timer_offset": _taken(orders.offset, _taken_places(timer, latest)),
        "late_due_ms": _taken(orders.due_ms, _taken_places(dated, latest)),
        "late_half_ms": _taken(orders.store_ms, _taken_places(half, latest)),
        "late_armed_ms": _taken(orders.store_ms, _taken_places(armed, latest)),
        "late_delivered_ms": _taken(orders.store_ms, _taken_places(came, latest)),
    }


def _armed(orders: _Orders) -> Integers:
    """Return by event place the place at which a deadline's timer was armed: its own, or of its original.

    The result is `_NONE` if the log does not have the original, for other events, and in an additional last
    element.
    """
    timers = np.flatnonzero((orders.topic == TIMEOUTS) & orders.are(Code.TIMER))
    moves = np.flatnonzero((orders.topic == TIMEOUTS) & orders.are(*MOVES))
    new, old = (_found(orders.own[timers], keys) for keys in (orders.own[moves], orders.about[moves]))
    new, old = new[new != _NONE], old[new != _NONE]
    # A timer moved to the same due time was rebuilt or held. Its predecessor has a lower log offset.
    is_rebuilt = (old != _NONE) & (old < new) & (orders.due_ms[timers[old]] == orders.due_ms[timers[new]])
    first = np.arange(len(timers))
    first[new[is_rebuilt]] = old[is_rebuilt]
    while (first[first] != first).any():
        first = first[first]
    is_lost = np.zeros(len(timers), np.bool_)
    is_lost[new[old == _NONE]] = True
    armed = np.full(len(orders.order) + 1, _NONE)
    armed[timers] = np.where(is_lost[first], _NONE, timers[first])
    return armed


def _found(keys: Integers, wanted: Integers) -> Integers:
    """Return the place of each wanted key in `keys`, or `_NONE`."""
    if not len(keys):
        return np.full(len(wanted), _NONE)
    by_key = np.argsort(keys, kind="stable")
    places = by_key[np.minimum(np.searchsorted(keys[by_key], wanted), len(keys) - 1)]
    return np.where(keys[places] == wanted, places, _NONE)


def _taken_places(places: Integers, at: Integers) -> Integers:
    """Return the places at `at`, or `_NONE` where that is `_NONE`."""
    return np.append(places, _NONE)[at]


def _repeated(keys: Integers) -> Integers:
    """Return the keys that occur more than once, in ascending order."""
    found, counts = np.unique(keys, return_counts=True)
    repeated: Integers = found[counts > 1]
    return repeated


def _taken(values: Any, places: Integers) -> pa.Array:
    """Return the values at these places, or null for `_NONE`."""
    return pa.array(values).take(pa.array(places, mask=places == _NONE))
