"""Every view of the pending timers of a time window has the timers that are due then, and no others.

After the clock was ahead, a new timer may be due before the time from which the partitions accept timers
(`services.broker.timers.timers`): it is then stored under a later time than its due time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from services.broker.spine.values import PendingTimer, TimerFilter
from tests.unit.services.broker.timers.test_timers import HOUR, MINUTE, SECOND, Store

Window = tuple[int, int]
View = Callable[[Store, TimerFilter], int | list[str]]


def page(store: Store, wanted: TimerFilter) -> list[str]:
    return [one.message_id for one in store.broker.timer_views.read_page(wanted, None, 999).timers]


def pages(store: Store, wanted: TimerFilter) -> list[str]:
    views, found, after = store.broker.timer_views, list[PendingTimer](), None
    while True:
        one = views.read_page(wanted, after, 2)
        found += one.timers
        if (after := one.after) is None:
            return [timer.message_id for timer in found]


def search(store: Store, wanted: TimerFilter) -> list[str]:
    searching, found = store.broker.timer_views.open_search(wanted, None), list[str]()
    while True:
        one = searching.step()
        found += [timer.message_id for timer in one.timers]
        if one.after is None:
            return found


def count(store: Store, wanted: TimerFilter) -> int:
    return store.broker.timer_views.count(wanted)


def histogram(store: Store, wanted: TimerFilter) -> int:
    windows = store.broker.timer_views.histogram(wanted, SECOND)
    assert all(wanted.from_ms <= start_ms < wanted.until_ms for start_ms, _ in windows)
    return sum(number for _, number in windows)


def steps(store: Store, wanted: TimerFilter) -> int:
    counting, number = store.broker.timer_views.open_count(wanted), 0
    while True:
        due_ms, place = counting.step()
        assert all(wanted.from_ms <= one < wanted.until_ms for one in due_ms.tolist())
        number += len(due_ms)
        if place is None:
            return number


VIEWS: tuple[View, ...] = (page, pages, search, count, histogram, steps)
FILTERS = ({}, {"topic": "t"}, {"topic_prefix": "t"}, {"is_held": False})


def ahead_and_back(ahead_ms: int) -> Store:
    """Return a store whose clock was ahead for a moment, in which a timer was delivered."""
    store = Store()
    store.go(ahead_ms)
    store.send("ahead", 0)
    store.go(1)
    store.now_ms -= ahead_ms
    store.go(1)
    return store


@pytest.mark.parametrize("view", VIEWS)
def test_a_timer_set_after_the_clock_was_ahead_is_in_the_window_of_its_due_time(view: View) -> None:
    store = ahead_and_back(2 * HOUR)
    store.send("soon", 10 * MINUTE)
    store.send("later", 5 * HOUR)
    assert len(store.broker.timers.near.deviating) == 1
    wanted = TimerFilter(from_ms=store.now_ms, until_ms=store.now_ms + HOUR)
    assert view(store, wanted) in (["soon"], 1)
    after = TimerFilter(from_ms=store.now_ms + HOUR, until_ms=store.now_ms + 4 * HOUR)
    assert view(store, after) in ([], 0)


@settings(max_examples=60)
@given(
    some.integers(0, 3 * HOUR),
    some.lists(some.integers(0, 4 * HOUR), max_size=12),
    some.sampled_from(["", "checkpoint", "crash", "both"]),
    some.lists(some.tuples(some.integers(0, 5 * HOUR), some.integers(0, 2 * HOUR)), min_size=1, max_size=4),
)
def test_each_view_has_what_is_due_in_its_window(
    ahead_ms: int, delays_ms: list[int], then: str, windows: list[Window]
) -> None:
    store = ahead_and_back(ahead_ms)
    for number, delay_ms in enumerate(delays_ms):
        store.send(f"M{number}", MINUTE + delay_ms, **({"NAME": "x"} if number % 2 else {}))
    if then in ("checkpoint", "both"):
        store.checkpoint()
    if then in ("crash", "both"):
        store.crash()
    whole = store.broker.timer_views.read_page(TimerFilter(), None, 999).timers
    assert len(whole) == store.broker.timer_views.count(TimerFilter())
    assert {one.message_id for one in whole} >= {f"M{number}" for number in range(len(delays_ms))}
    for from_ms, length_ms in windows:
        begin_ms, end_ms = store.now_ms + from_ms, store.now_ms + from_ms + length_ms
        due = sorted((one.due_ms, one.timer_offset, one.message_id) for one in whole)
        expected = [name for due_ms, _, name in due if begin_ms <= due_ms < end_ms]
        for more in FILTERS:
            wanted = TimerFilter(from_ms=begin_ms, until_ms=end_ms, **more)
            for view in VIEWS:
                assert view(store, wanted) in (expected, len(expected)), (view, more)


def test_a_timer_key_of_two_topics_lists_both_in_any_order() -> None:
    store = Store()
    messages = [replace(store.message(f"M{topic}", HOUR, "k"), topic=topic) for topic in ("b", "a")]
    for message in messages:
        store.broker.sending.send(message, store.now_ms)
    store.flush()
    store.checkpoint()
    for view in (page, pages, search, count, histogram):
        assert view(store, TimerFilter(key="k")) in (["Mb", "Ma"], 2)
    store.broker.sending.send(replace(store.message("Mb2", HOUR, "k"), topic="b"), store.now_ms)
    store.flush()
    store.checkpoint()
    for view in (page, pages, search, count, histogram):
        assert view(store, TimerFilter(key="k")) in (["Ma", "Mb2"], 2)
