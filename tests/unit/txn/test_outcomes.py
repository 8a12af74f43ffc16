"""Tests the contents and order of the half message tables, and their garbage collection cost."""

from __future__ import annotations

import gc
import json

from txn.outcomes import LATE_ENDS_MAX, OpenHalf, Outcomes
from txn.states import State

COUNT = 3_000


def filled() -> Outcomes:
    """Create tables in which one third each of the half messages are open, expired, and committed.

    For one of the expired half messages, a late attempt to end it is recorded.
    """
    outcomes = Outcomes()
    for number in range(COUNT):
        outcomes.open_half(
            number * 100, OpenHalf(1_000 + number, 7_000 + number, 0, f"topic-{number}", number)
        )
    for number in range(0, COUNT, 3):
        outcomes.end(number * 100, State.EXPIRED, 9_000, 500_000 + number)
        outcomes.end(number * 100 + 100, State.COMMITTED, 9_000, 600_000 + number)
    outcomes.record_late_request(0, "COMMIT", 9_500)
    outcomes.record_check_back(200, 1, 20_000)
    return outcomes


def test_the_collector_tracks_tables_and_no_rows() -> None:
    gc.collect()
    before = len(gc.get_objects())
    outcomes = filled()
    gc.collect()
    assert outcomes.oldest_ms() == 1_002
    assert len(gc.get_objects()) - before < 20


def test_thawed_they_are_the_same_and_as_small() -> None:
    outcomes, again = filled(), Outcomes()
    frozen = {name: [list(row) for row in rows] for name, rows in outcomes.freeze().items()}
    gc.collect()
    before = len(gc.get_objects())
    again.thaw(json.loads(json.dumps(frozen)))
    gc.collect()
    assert len(gc.get_objects()) - before < 20
    for name in ("open", "expired", "_ended"):
        assert [*getattr(again, name).items()] == [*getattr(outcomes, name).items()]
    assert again.waiting(200) == outcomes.waiting(200)
    assert again.expiry(0) == outcomes.expiry(0)
    assert again.ended(100) == outcomes.ended(100)


def test_what_waits_in_a_part_of_the_log_is_told_in_its_order() -> None:
    outcomes = filled()
    waiting = sorted({*outcomes.open, *outcomes.expired})
    for first, end in ((0, 1_000), (250, 950), (299_700, 1 << 40), (5, 5), (0, 1 << 40)):
        assert [*outcomes.between(first, end)] == [one for one in waiting if first <= one < end]


def test_halves_of_a_state_are_listed_in_the_order_of_the_log() -> None:
    outcomes = filled()
    for state, table in ((State.OPEN, outcomes.open), (State.EXPIRED, outcomes.expired)):
        assert outcomes.some_from(state, 250, 20) == sorted(one for one in table if one >= 250)[:20]
    waiting = sorted({*outcomes.open, *outcomes.expired})
    assert outcomes.some_from(None, 250, 20) == [one for one in waiting if one >= 250][:20]


def test_the_first_late_ends_of_what_expired_are_noted_and_no_others() -> None:
    outcomes = filled()
    # The half messages are expired, committed, open, and unknown, in this order.
    for half_offset in (0, 100, 200, 7):
        for number in range(LATE_ENDS_MAX + 2):
            if outcomes.accepts_late_request(half_offset):
                outcomes.record_late_request(half_offset, "ROLLBACK", number)
    expired = outcomes.expiry(0)
    assert expired is not None
    assert expired.late == (("COMMIT", 9_500), *(("ROLLBACK", n) for n in range(LATE_ENDS_MAX - 1)))
    assert [outcomes.accepts_late_request(half_offset) for half_offset in (0, 300, 100, 200, 7)] == [
        False, True, False, False, False
    ]  # fmt: skip
    assert [outcomes.expiry(half_offset) for half_offset in (100, 200, 7)] == [None] * 3


def test_a_question_counts_and_brings_the_next_one_no_nearer() -> None:
    outcomes = filled()
    before = OpenHalf(1_005, 7_005, 0, "topic-5", 5)
    assert outcomes.waiting(500) == before
    assert outcomes.record_check_back(500, 1, 7_004) == before._replace(check_count=1), (
        "by hand, before its time"
    )
    assert outcomes.record_check_back(500, 2, 7_006) == before._replace(check_count=2, next_check_ms=7_006)
    assert outcomes.waiting(500) == before._replace(check_count=2, next_check_ms=7_006)
    assert [outcomes.record_check_back(half_offset, 1, 9_999) for half_offset in (0, 100, 7)] == [None] * 3
    assert [outcomes.waiting(half_offset) for half_offset in (0, 100, 7)] == [None] * 3
