"""Compares the timing wheel with a sorted list on all levels."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timingwheel import levels, wheel
from timingwheel.wheel import Wheel

START_MS = 1_763_700_000_123
delays = st.one_of(
    st.integers(0, 600), st.integers(0, 200_000), st.integers(0, 10**8), st.integers(0, 3 * 10**11)
)
actions = st.one_of(
    st.tuples(st.just("place"), st.integers(0, 30), delays),
    st.tuples(st.just("place many"), st.integers(0, 30), delays),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("advance"), st.integers(1, 5), delays),
)


@settings(max_examples=400)
@given(st.lists(actions, max_size=60))
def test_agrees_with_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    agree(steps)


@settings(max_examples=400)
@given(st.lists(actions, max_size=60), st.integers(1, 3))
def test_agrees_with_a_sorted_list_while_it_is_swept_all_the_time(
    steps: list[tuple[str, int, int]], swept_each: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wheel, "_STALE_MIN", 0)
        patch.setattr(wheel, "_SWEPT_EACH", swept_each)
        patch.setattr(wheel, "_SWEPT_AT_ONCE", 1)
        agree(steps)


def test_timers_that_are_cancelled_long_before_their_time_leave_little_behind() -> None:
    wheel = Wheel(START_MS)
    for timer in range(10):
        wheel.schedule(timer, START_MS + 1_000 + timer)
    for timer in range(10, 200_000):
        wheel.schedule(timer, START_MS + 43_200_000 + timer)
        wheel.schedule(timer, START_MS + 43_200_000)
        assert wheel.cancel(timer)
    held = sum(len(slot) for level in wheel._slots for slot in level.values()) // 2
    assert held < 50_000
    assert [timer for _, timer in wheel.advance(START_MS + 50_000_000, 100)] == list(range(10))
    assert wheel._pair_count == sum(len(slot) for level in wheel._slots for slot in level.values()) == 0


def agree(steps: list[tuple[str, int, int]]) -> None:
    wheel = Wheel(START_MS)
    oracle: dict[int, int] = {}
    now_ms = START_MS
    for action, number, delay_ms in steps:
        if action == "place":
            due_ms = max(now_ms, wheel.now_ms) + delay_ms
            oracle[number] = due_ms
            wheel.schedule(number, due_ms)
        elif action == "place many":
            timers = [timer for timer in range(number, number + 4) if timer not in oracle]
            due_ms = max(now_ms, wheel.now_ms) + delay_ms
            oracle |= dict.fromkeys(timers, due_ms)
            wheel.schedule_many(timers, due_ms)
        elif action == "cancel":
            assert wheel.cancel(number) == (oracle.pop(number, None) is not None)
        else:
            now_ms += delay_ms
            expected = sorted((due, timer) for timer, due in oracle.items() if due <= now_ms)
            got: list[int] = []
            while part := wheel.advance(now_ms, number):
                got += [timer for _, timer in part]
            assert [oracle[timer] for timer in got] == [due for due, _ in expected]
            assert sorted(got) == sorted(timer for _, timer in expected)
            for timer in got:
                del oracle[timer]
        upcoming = wheel.next_due_ms()
        assert len(wheel) == len(oracle)
        assert wheel._pair_count == sum(len(slot) for level in wheel._slots for slot in level.values()) // 2
        assert upcoming is not None or not oracle
        first = wheel._next_slot()
        assert wheel._expired or upcoming == (None if first is None else first[2]), (
            "the next is kept too long"
        )
        if oracle and upcoming is not None:
            assert upcoming <= min(oracle.values())


def test_ties_come_in_the_order_of_placing_from_whichever_level() -> None:
    wheel = Wheel(START_MS)
    due_ms = START_MS + 70_000
    for timer in (5, 3):
        wheel.schedule(timer, due_ms)
    wheel.advance(due_ms - 300, 10)
    wheel.schedule(9, due_ms)
    wheel.advance(due_ms - 1, 10)
    wheel.schedule(1, due_ms)
    assert [timer for _, timer in wheel.advance(due_ms, 10)] == [5, 3, 9, 1]


def test_next_due_reaches_every_timer_in_few_steps() -> None:
    wheel = Wheel(START_MS)
    due_ms = START_MS + 40 * 86_400_000 + 17
    wheel.schedule(1, due_ms)
    steps = 0
    while not wheel.advance(wheel.next_due_ms() or 0, 10):
        steps += 1
    assert wheel.now_ms == due_ms
    assert steps <= levels.LEVEL_COUNT
    assert wheel.next_due_ms() is None


def test_time_that_goes_back_changes_nothing() -> None:
    wheel = Wheel(START_MS)
    wheel.schedule(1, START_MS + 50)
    assert wheel.advance(START_MS - 10_000, 10) == []
    assert wheel.now_ms == START_MS
    assert wheel.advance(START_MS + 50, 10) == [(START_MS + 50, 1)]


def test_a_timer_moved_after_it_expired_but_before_it_was_taken_waits_for_its_new_time() -> None:
    wheel = Wheel(START_MS)
    for timer in (1, 2):
        wheel.schedule(timer, START_MS + 5)
    assert wheel.advance(START_MS + 5, 1) == [(START_MS + 5, 1)]
    wheel.schedule(2, START_MS + 9)
    assert wheel.advance(START_MS + 5, 10) == []
    assert wheel.advance(START_MS + 9, 10) == [(START_MS + 9, 2)]


def test_a_clock_set_back_is_followed_by_what_is_placed_afterwards() -> None:
    wheel = Wheel(START_MS)
    wheel.schedule(1, START_MS + 50)
    wheel.advance(START_MS + 40, 10)
    back = wheel.rebased(START_MS - 3_600_000)
    back.schedule(2, START_MS - 3_599_000)
    assert back.advance(START_MS - 3_599_000, 10) == [(START_MS - 3_599_000, 2)]
    assert back.advance(START_MS + 50, 10) == [(START_MS + 50, 1)]


def test_a_call_sweeps_few_pairs_however_many_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    keep_counting = Wheel._keep_counting

    def counted(one: Wheel, pairs: array[int]) -> None:
        looked_at.append(len(pairs) // 2)
        keep_counting(one, pairs)

    monkeypatch.setattr(Wheel, "_keep_counting", counted)
    crowd, most = Wheel(START_MS), 0
    for timer in range(50_000):
        crowd.schedule(timer, START_MS + 3_600_000 + timer * 100)
    for timer in range(50_000):
        looked_at.clear()
        crowd.cancel(timer)
        most = max(most, sum(looked_at))
    assert 0 < most < 2 * wheel._SWEPT_AT_ONCE
