"""Orders whose counts do not come out, event by event."""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_jobs.acknowledged import Places
from spark_jobs.events import CREATED, PAID, TIMEOUTS, Code
from spark_jobs.exact import of_events

ACKNOWLEDGED = {CREATED: Places(np.array([0]), np.array([5])), TIMEOUTS: Places(np.array([0]), np.array([1]))}


def event(
    code: Code, topic: int, offset: int, ref: int = -1, due_ms: int = -1, queue: int = 99
) -> dict[str, Any]:
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


def test_a_redriven_message_counts_when_it_is_acknowledged_behind_the_last_dead_letter() -> None:
    commit = event(Code.COMMIT, CREATED, 20, ref=10, queue=0)
    dead, redriven = event(Code.DEAD, CREATED, 30), event(Code.NORMAL, CREATED, 40, queue=1)
    waiting = event(Code.NORMAL, CREATED, 40, queue=7)
    assert of_events([commit, dead], ACKNOWLEDGED)["is_redelivered"] is False
    assert of_events([commit, dead, waiting], ACKNOWLEDGED)["is_redelivered"] is False
    assert of_events([commit, dead, redriven], ACKNOWLEDGED)["is_redelivered"] is True
    dead_again = event(Code.DEAD, CREATED, 50)
    assert of_events([commit, dead, redriven, dead_again], ACKNOWLEDGED)["is_redelivered"] is False
