"""Orders whose counts do not come out, event by event."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_jobs.books.exact import EXACT, exactly
from spark_jobs.staging.acknowledged import Places
from spark_jobs.staging.events import CANCELLED, CREATED, PAID, TIMEOUTS, Code
from spark_jobs.staging.lookups import ORDER_EVENTS
from spark_jobs.staging.order_events import whole_orders

Row = dict[str, Any]

ACKNOWLEDGED = {CREATED: Places(np.array([0]), np.array([5])), TIMEOUTS: Places(np.array([0]), np.array([1]))}


def of_events(events: list[Row], acknowledged: dict[int, Places]) -> Row:
    """What is said of the one order that has these events."""
    (row,) = exactly(pa.Table.from_pylist(events, ORDER_EVENTS), acknowledged).to_pylist()
    return dict(row)


def event(code: Code, topic: int, offset: int, ref: int = -1, due_ms: int = -1, queue: int = 99) -> Row:
    place = {"physical_offset": offset, "store_ms": offset + 1_000, "queue": queue}
    return {"order_id": "o", "code": int(code), "topic": topic, "ref": ref, "due_ms": due_ms, **place}


def test_the_oldest_half_without_an_end_is_open() -> None:
    found = of_events(
        [
            event(Code.HALF, CREATED, 10),
            event(Code.COMMIT, CREATED, 20, ref=10),
            event(Code.HALF, PAID, 30),
            event(Code.HALF, PAID, 40),
            event(Code.ROLLBACK, PAID, 50, ref=30),
            event(Code.HALF, PAID, 60),
        ],
        ACKNOWLEDGED,
    )
    assert (found["open_half_offset"], found["open_half_ms"], found["open_half_topic"]) == (40, 1_040, PAID)
    assert (found["has_open_created"], found["has_open_paid"]) == (False, True)
    assert found["twice_committed_offset"] is None


def test_a_timer_of_a_half_ends_it() -> None:
    events = [event(Code.HALF, TIMEOUTS, 10), event(Code.TIMER, TIMEOUTS, 20, ref=10, due_ms=7)]
    found = of_events(events, ACKNOWLEDGED)
    assert found["open_half_offset"] is None
    assert (found["open_timer_offset"], found["open_timer_due_ms"]) == (20, 7)


def test_two_commits_of_one_half_and_two_halves_of_one_order() -> None:
    halves = [event(Code.HALF, CREATED, 10), event(Code.HALF, CREATED, 11)]
    commits = [event(Code.COMMIT, CREATED, 20, ref=10), event(Code.COMMIT, CREATED, 21, ref=11)]
    assert of_events([*halves, *commits], ACKNOWLEDGED)["twice_committed_offset"] is None
    again = event(Code.COMMIT, CREATED, 22, ref=11)
    assert of_events([*halves, *commits, again], ACKNOWLEDGED)["twice_committed_offset"] == 11


def test_a_moved_timer_lives_on_in_the_next() -> None:
    found = of_events(
        [
            event(Code.TIMER, TIMEOUTS, 10, due_ms=5),
            event(Code.TIMER, TIMEOUTS, 20, due_ms=9),
            event(Code.MOVED, TIMEOUTS, 20, ref=10),
        ],
        ACKNOWLEDGED,
    )
    assert (found["open_timer_offset"], found["open_timer_due_ms"]) == (20, 9)


def test_a_timer_cancelled_and_delivered_and_one_delivered_twice() -> None:
    timers = [event(Code.TIMER, TIMEOUTS, 10), event(Code.TIMER, TIMEOUTS, 11)]
    ends = [event(Code.CANCEL, TIMEOUTS, 20, ref=10), event(Code.DELIVERED, TIMEOUTS, 21, ref=11)]
    found = of_events([*timers, *ends], ACKNOWLEDGED)
    assert (found["cancelled_timer_delivered"], found["twice_delivered_offset"]) == (None, None)
    again = [event(Code.FIRED, TIMEOUTS, 22, ref=10), event(Code.DELIVERED, TIMEOUTS, 23, ref=11)]
    found = of_events([*timers, *ends, *again], ACKNOWLEDGED)
    assert (found["cancelled_timer_delivered"], found["twice_delivered_offset"]) == (10, 11)


def test_a_deadline_that_was_called_off_is_told_from_one_that_a_message_cancelled() -> None:
    timers = [event(Code.TIMER, TIMEOUTS, 10), event(Code.TIMER, TIMEOUTS, 30)]
    carried, called = event(Code.CANCEL, TIMEOUTS, 20, ref=10), event(Code.CALLED_OFF, TIMEOUTS, 40, ref=30)
    names = ("open_timer_offset", "last_cancel_offset", "last_cancel_ms", "is_called_off")
    for ends, expected in (
        ([carried, called], (None, 40, 1_040, True)),
        ([carried], (30, 20, 1_020, False)),
        ([], (10, None, None, None)),
    ):
        found = of_events([*timers, *ends], ACKNOWLEDGED)
        assert tuple(found[name] for name in names) == expected


def late(*events: Row) -> tuple[int | None, ...]:
    """When the latest deadline was due, and its half sent, itself armed and delivered."""
    found = of_events(list(events), ACKNOWLEDGED)
    return tuple(found[f"late_{name}_ms"] for name in ("due", "half", "armed", "delivered"))


def test_the_steps_of_the_deadline_that_came_latest() -> None:
    half = event(Code.HALF, TIMEOUTS, 10)
    timer = event(Code.TIMER, TIMEOUTS, 500, ref=10, due_ms=1_100)
    delivered = event(Code.DELIVERED, TIMEOUTS, 507, ref=500, due_ms=1_100)
    soon = (
        event(Code.TIMER, TIMEOUTS, 600, due_ms=1_700),
        event(Code.DELIVERED, TIMEOUTS, 701, ref=600, due_ms=1_700),
    )
    assert late(half, timer, delivered, *soon) == (1_100, 1_010, 1_500, 1_507)
    assert late(half, timer, *soon) == (1_100, 1_010, 1_500, None), "armed so late, although it has not come"
    assert late(*soon) == (1_700, None, 1_600, 1_701)
    assert late(delivered) == (1_100, None, None, 1_507), "its timer is not in the log"
    fired = event(Code.FIRED, TIMEOUTS, 900, ref=500, due_ms=1_100)
    assert late(half, timer, fired) == (1_100, 1_010, 1_500, None), "fired when somebody asked for it"
    assert late(half) == (None, None, None, None)


def test_a_rebuilt_timer_was_armed_when_the_first_one_was() -> None:
    first = event(Code.HALF, TIMEOUTS, 10), event(Code.TIMER, TIMEOUTS, 20, ref=10, due_ms=1_100)
    rebuilt = event(Code.TIMER, TIMEOUTS, 500, due_ms=1_100), event(Code.MOVED, TIMEOUTS, 500, ref=20)
    again = event(Code.TIMER, TIMEOUTS, 600, due_ms=1_100), event(Code.MOVED, TIMEOUTS, 600, ref=500)
    came = event(Code.DELIVERED, TIMEOUTS, 607, ref=600, due_ms=1_100)
    assert late(*first, *rebuilt, *again, came) == (1_100, 1_010, 1_020, 1_607)
    assert of_events([*first, *rebuilt], ACKNOWLEDGED)["open_timer_ms"] == 1_020
    assert late(*rebuilt, *again, came) == (1_100, None, None, 1_607), "the first is not in the log"
    moved = event(Code.TIMER, TIMEOUTS, 500, due_ms=1_200), event(Code.MOVED, TIMEOUTS, 500, ref=20)
    assert late(*first, *moved) == (1_200, None, 1_500, None), "another time is another setting"


def test_a_held_deadline_waits_and_is_not_late_when_it_comes_after_the_release() -> None:
    first = event(Code.HALF, TIMEOUTS, 10), event(Code.TIMER, TIMEOUTS, 20, ref=10, due_ms=1_100)
    held = event(Code.TIMER, TIMEOUTS, 101, due_ms=1_100), event(Code.HELD, TIMEOUTS, 101, ref=20)
    found = of_events([*first, *held], ACKNOWLEDGED)
    names = ("open_timer_offset", "open_timer_ms", "open_timer_held_ms")
    assert tuple(found[name] for name in names) == (101, 1_020, 1_101)
    came = event(Code.RELEASED, TIMEOUTS, 900, ref=101, due_ms=1_100)
    assert late(*first, *held, came) == (1_100, 1_010, 1_020, None), "an operator wanted it later"
    found = of_events([*first, *held, came], ACKNOWLEDGED)
    assert tuple(found[name] for name in names) == (None, None, None)
    assert (found["last_delivered_ms"], found["is_rearmed"]) == (1_900, False)
    moved = event(Code.TIMER, TIMEOUTS, 200, due_ms=1_300), event(Code.MOVED, TIMEOUTS, 200, ref=101)
    found = of_events([*first, *held, *moved], ACKNOWLEDGED)
    assert tuple(found[name] for name in names) == (200, 1_200, None), "a move ends the hold of it"


def test_a_redriven_message_counts_when_it_is_acknowledged_behind_the_last_dead_letter() -> None:
    commit = event(Code.COMMIT, CREATED, 20, ref=10, queue=0)
    dead, redriven = event(Code.DEAD, CREATED, 30), event(Code.NORMAL, CREATED, 40, queue=1)
    waiting = event(Code.NORMAL, CREATED, 40, queue=7)
    assert of_events([commit, dead], ACKNOWLEDGED)["is_redelivered"] is False
    assert of_events([commit, dead, waiting], ACKNOWLEDGED)["is_redelivered"] is False
    assert of_events([commit, dead, redriven], ACKNOWLEDGED)["is_redelivered"] is True
    dead_again = event(Code.DEAD, CREATED, 50)
    assert of_events([commit, dead, redriven, dead_again], ACKNOWLEDGED)["is_redelivered"] is False


ENDS_OF_HALVES = (Code.COMMIT, Code.ROLLBACK, Code.EXPIRED, Code.TIMER)
DELIVERIES = (Code.DELIVERED, Code.FIRED, Code.RELEASED)
MOVES = (Code.MOVED, Code.HELD)
CANCELS = (Code.CANCEL, Code.CALLED_OFF)
ENDS_OF_TIMERS = (*DELIVERIES, *CANCELS, *MOVES, Code.REPLACED)


def slowly(events: list[Row]) -> Row:
    """The same of one order, event by event."""
    of_timers = [one for one in events if one["topic"] == TIMEOUTS]
    halves = {one["ref"] for one in events if one["code"] in ENDS_OF_HALVES and one["ref"] >= 0}
    open_halves = [one for one in events if one["code"] == Code.HALF and one["physical_offset"] not in halves]
    commits = Counter(one["ref"] for one in events if one["code"] in (Code.COMMIT, Code.TIMER))
    delivered = Counter(one["ref"] for one in of_timers if one["code"] in DELIVERIES)
    cancelled = {one["ref"] for one in of_timers if one["code"] in CANCELS}
    last_cancel: Row = ([{}] + [one for one in of_timers if one["code"] in CANCELS])[-1]
    ended = {one["ref"] for one in of_timers if one["code"] in ENDS_OF_TIMERS}
    timers = [one for one in of_timers if one["code"] == Code.TIMER and one["physical_offset"] not in ended]
    first_half: Row = next(iter(open_halves), {})
    first_due: Row = min(timers, key=lambda one: one["due_ms"], default={})
    marks = [
        one
        for one in of_timers
        if one["code"] == Code.HELD and one["physical_offset"] == first_due.get("physical_offset")
    ]
    topics = {half["topic"] for half in open_halves}
    return {
        "order_id": events[0]["order_id"],
        "is_acknowledged": any(is_acknowledged(one, CREATED) for one in events),
        "is_redelivered": is_redelivered(events, CREATED),
        "is_deadline_redelivered": is_redelivered(events, TIMEOUTS),
        "open_half_offset": first_half.get("physical_offset"),
        "open_half_ms": first_half.get("store_ms"),
        "open_half_topic": first_half.get("topic"),
        "has_open_created": CREATED in topics,
        "has_open_paid": PAID in topics,
        "has_open_cancelled": CANCELLED in topics,
        "twice_committed_offset": min(
            (ref for ref in commits if commits[ref] > 1 and ref >= 0), default=None
        ),
        "twice_delivered_offset": min((ref for ref in delivered if delivered[ref] > 1), default=None),
        "cancelled_timer_delivered": min(cancelled & delivered.keys(), default=None),
        "last_cancel_offset": last_cancel.get("physical_offset"),
        "last_cancel_ms": last_cancel.get("store_ms"),
        "is_called_off": last_cancel["code"] == Code.CALLED_OFF if last_cancel else None,
        "open_timer_offset": first_due.get("physical_offset"),
        "open_timer_due_ms": first_due.get("due_ms"),
        "open_timer_ms": (armed_by(first_due, of_timers) if first_due else {}).get("store_ms"),
        "open_timer_held_ms": marks[0]["store_ms"] if marks else None,
        "last_delivered_ms": max(
            (one["store_ms"] for one in of_timers if one["code"] in (*DELIVERIES, Code.NORMAL)), default=None
        ),
        "is_rearmed": is_rearmed(of_timers),
        **latest(events, of_timers),
    }


def is_rearmed(of_timers: list[dict[str, Any]]) -> bool:
    """Whether a deadline was set after the last one came."""
    kinds = [one["code"] for one in of_timers if one["code"] in (*DELIVERIES, Code.NORMAL, Code.TIMER)]
    has_come = any(kind != Code.TIMER for kind in kinds)
    return has_come and kinds[-1] == Code.TIMER


def latest(events: list[Row], of_timers: list[Row]) -> Row:
    """The deadline that came latest after its time, or was armed latest."""
    timers = {one["physical_offset"]: one for one in of_timers if one["code"] == Code.TIMER}
    halves = {one["physical_offset"]: one for one in events if one["code"] == Code.HALF}
    came = [(timers.get(one["ref"], {}), one) for one in of_timers if one["code"] == Code.DELIVERED]
    found: Row = {}
    for timer, delivered in (*came, *((one, {}) for one in timers.values())):
        armed = armed_by(timer, of_timers) if timer else {}
        due_ms = (delivered or timer)["due_ms"]
        late_ms = (delivered or armed).get("store_ms", due_ms) - due_ms
        if not found or late_ms > found["late_ms"]:
            found = {
                "late_ms": late_ms,
                "late_timer_offset": timer.get("physical_offset"),
                "late_due_ms": due_ms,
                "late_half_ms": halves.get(armed.get("ref"), {}).get("store_ms"),
                "late_armed_ms": armed.get("store_ms"),
                "late_delivered_ms": delivered.get("store_ms"),
            }
    return {name: found.get(name) for name in EXACT.names if name.startswith("late_")}


def armed_by(timer: Row, of_timers: list[Row]) -> Row:
    """The timer that this one was rebuilt from, or itself; nothing if the log does not have it."""
    for move in of_timers:
        if move["code"] in MOVES and move["physical_offset"] == timer["physical_offset"]:
            olds = [one for one in of_timers if one["physical_offset"] == move["ref"]]
            old = next((one for one in olds if one["code"] == Code.TIMER), None)
            if old is None:
                return {}
            if old["due_ms"] == timer["due_ms"] and move["ref"] < timer["physical_offset"]:
                return armed_by(old, of_timers)
    return timer


def is_acknowledged(one: Row, topic: int) -> bool:
    is_message = one["topic"] == topic and one["code"] in (Code.COMMIT, Code.NORMAL, *DELIVERIES)
    return is_message and bool(ACKNOWLEDGED[topic].has(np.array([one["queue"]]))[0])


def is_redelivered(events: list[Row], topic: int) -> bool:
    dead = [place for place, one in enumerate(events) if (one["code"], one["topic"]) == (Code.DEAD, topic)]
    return bool(dead) and any(is_acknowledged(one, topic) for one in events[dead[-1] + 1 :])


@pytest.mark.parametrize("seed", range(5))
def test_orders_together_are_as_each_alone_event_by_event(seed: int) -> None:
    random, events = Random(seed), list[Row]()
    for number in range(80):
        for place in range(random.randrange(1, 30)):
            ref = random.randrange(-1, 30)  # now and then another order's
            made = event(
                random.choice(list(Code)),
                random.randrange(5),
                place,
                ref,
                random.randrange(5),
                random.randrange(8),
            )
            if made["code"] in MOVES:
                events.append(made | {"order_id": f"o{number:02d}", "code": int(Code.TIMER), "ref": -1})
            events.append(made | {"order_id": f"o{number:02d}"})
    table = pa.Table.from_pylist(events, ORDER_EVENTS)
    turns = list(whole_orders(table.to_batches(random.randrange(1, 200)), random.randrange(1, 500)))
    found = pa.concat_tables([exactly(turn, ACKNOWLEDGED) for turn in turns])
    assert found.schema == EXACT
    expected = [slowly(list(its)) for _, its in groupby(events, lambda one: one["order_id"])]
    assert found.to_pylist() == expected
    assert sum(map(len, turns)) == len(events)
