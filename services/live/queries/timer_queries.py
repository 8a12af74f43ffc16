"""Queries for timers, which run in short steps so that the event loop is not blocked.

The core runs each call to completion, and a query with certain filters must read the record of every timer. A
search (`TimerSearch`) or a count (`TimerCount`) therefore runs one step per event loop iteration, and other
calls are served between steps. A query may or may not reflect concurrent changes, but each unchanged timer is
returned exactly once. When the time limit expires, a query returns the timers found so far and the position
at which the next query continues.

Cost: a step performs at most `TIMERS_QUERY_WORK_MAX` units of work and scans at most the rows of one slot.
For a filter with text, each event loop iteration looks up the key in up to `KEYS_AT_ONCE` topics, or searches
up to `RECORDS_AT_ONCE` log records. Limitation: the time limit does not apply to these lookups. After long
lookups, at least half of the time limit remains for the query, so that the results of the lookups are used.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from math import inf
from time import monotonic
from typing import NamedTuple

import numpy as np

from commitlog.records.bulk import Integers
from services.broker.spine.values import PendingTimer, TimerFilter, TimerPage
from services.broker.timers.timer_source import Offsets
from services.broker.timers.timer_views import LookupResults
from services.live.errors import StoreUnavailable
from services.live.live_broker import LiveBroker
from timingwheel.due_run import SortKey

KEYS_AT_ONCE = 200
RECORDS_AT_ONCE = 2_000


class TimeLimit:
    """The time limit of a query.

    A query ends `seconds_max` seconds after its start, or half of `seconds_max` after its first step if that
    is later.
    """

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max, self._ends_s = seconds_max, monotonic() + seconds_max
        self._has_begun = False

    def is_over(self) -> bool:
        """Return whether the query must end.

        This method is called after each step. The first step includes the lookups.
        """
        now_s = monotonic()
        if not self._has_begun:
            self._has_begun, self._ends_s = True, max(self._ends_s, now_s + self._seconds_max / 2)
        return now_s >= self._ends_s


class DueCounts(NamedTuple):
    """The number of timers per time window.

    `windows` contains (window start in ms, count) pairs, sorted by start. `counted_until_ms` is the due time
    up to which timers were counted, or None if all timers were counted.
    """

    windows: list[tuple[int, int]]
    counted_until_ms: int | None

    @property
    def total(self) -> int:
        """Return the total number of timers in all windows."""
        return sum(count for _, count in self.windows)


def check_topic(live: LiveBroker, wanted: TimerFilter) -> None:
    """Raise `TopicNotFound` if the topic of a filter is unknown and has no pending timers.

    An unknown topic can have pending timers if its record was damaged.
    """
    if wanted.topic and not live.core.timers.pending_by_topic[wanted.topic]:
        live.core.topics.get(wanted.topic)


async def count_timers(live: LiveBroker, wanted: TimerFilter, seconds_max: float = inf) -> DueCounts:
    """Count the timers that match a filter, in a single window. Stop after about `seconds_max` seconds."""
    if is_simple(wanted):
        return DueCounts([(wanted.from_ms, live.query(live.core.timer_views.count, wanted))], None)
    return await count_by_window(live, wanted, 1 << 62, seconds_max)


async def count_by_window(
    live: LiveBroker, wanted: TimerFilter, width_ms: int, seconds_max: float = inf
) -> DueCounts:
    """Count the matching timers per time window of `width_ms` milliseconds.

    Stop after about `seconds_max` seconds. The first window begins at `from_ms`. Windows without timers are
    omitted from the result.
    """
    counts, limit = Counter[int](), TimeLimit(seconds_max)
    async for due_ms, end in _due_times(live, wanted):
        starts = wanted.from_ms + (due_ms - wanted.from_ms) // width_ms * width_ms
        for start_ms, count in zip(*np.unique(starts, return_counts=True), strict=True):
            counts[int(start_ms)] += int(count)
        if limit.is_over() and end is not None:
            return DueCounts(sorted(counts.items()), end[0])
    return DueCounts(sorted(counts.items()), None)


async def _due_times(live: LiveBroker, wanted: TimerFilter) -> AsyncIterator[tuple[Integers, SortKey | None]]:
    """Yield arrays of due times (int64, ms), each with the sort key reached, or None at the end."""
    if wanted.reads_records:
        async for page in query_pages(live, wanted):
            yield (
                np.fromiter((timer.due_ms for timer in page.timers), np.int64),
                _to_real_sort_key(live, page.after),
            )
        return
    views = live.core.timer_views
    count = live.query(views.open_count, wanted)
    while True:
        if views is not live.core.timer_views:
            raise StoreUnavailable(
                "The store was reopened after a failure while timers were counted: try again."
            )
        due_ms, end = live.query(count.step)
        yield due_ms - live.clock.offset_ms, _to_real_sort_key(live, end)
        await asyncio.sleep(0)
        if end is None:
            return


def _to_real_sort_key(live: LiveBroker, end: SortKey | None) -> SortKey | None:
    """Convert a sort key from broker time to real time."""
    return None if end is None else (end[0] - live.clock.offset_ms, end[1])


async def query_page(
    live: LiveBroker,
    wanted: TimerFilter,
    after: SortKey | None,
    count_max: int,
    seconds_max: float = inf,
) -> TimerPage:
    """Return up to `count_max` matching timers after the sort key `after`, sorted by due time.

    After about `seconds_max` seconds, a search returns the timers found so far. The sort key `after` of the
    page is None only if no timers remain. Sort keys are in broker time, so an advance of a virtual clock does
    not change them. The sort key of a timer may differ from its due time.
    """
    found: list[PendingTimer] = []
    limit, place = TimeLimit(seconds_max), after
    search = _search if is_simple(wanted) else query_pages
    async for page in search(live, wanted, after, count_max=count_max):
        if page.timers and len(found) == count_max:
            return TimerPage(found, place)
        found += page.timers
        place = page.after
        if limit.is_over() and place is not None:
            return TimerPage(found, place)
    return TimerPage(found, None)


async def query_pages(
    live: LiveBroker, wanted: TimerFilter, after: SortKey | None = None, *, count_max: int | None = None
) -> AsyncIterator[TimerPage]:
    """Yield pages of matching timers, sorted by due time.

    If `count_max` is given, one page ends with timer number `count_max`.
    """
    real = _to_real_sort_key(live, after)
    rest = wanted if real is None else replace(wanted, from_ms=max(wanted.from_ms, real[0]))
    looked_up = await _look_up(live, rest)
    async for page in _search(live, wanted, after, looked_up, count_max=count_max):
        yield page


async def _look_up(live: LiveBroker, wanted: TimerFilter) -> LookupResults | None:
    """Look up the texts of a filter in batches of limited size. Return None if the filter has no texts."""
    if not wanted.texts():
        return None
    views, keyed, found = live.core.timer_views, list[int](), list[Offsets]()
    topics = views.topics_of(wanted) if wanted.key else []
    for first in range(0, len(topics), KEYS_AT_ONCE):
        keyed += views.offsets_of_key(wanted.key, topics[first : first + KEYS_AT_ONCE])
        await asyncio.sleep(0)
    unwritten = live.query(views.unwritten, wanted)
    for first in range(0, len(unwritten), RECORDS_AT_ONCE):
        found.append(views.search_log(unwritten[first : first + RECORDS_AT_ONCE], wanted.texts()))
        await asyncio.sleep(0)
    return LookupResults(
        np.sort(np.array(keyed, np.uint64)), unwritten, np.concatenate([unwritten[:0], *found])
    )


async def _search(
    live: LiveBroker,
    wanted: TimerFilter,
    after: SortKey | None,
    looked_up: LookupResults | None = None,
    *,
    count_max: int | None = None,
) -> AsyncIterator[TimerPage]:
    """Yield the matching timers in order of due time, with one page for each step of the search.

    If `count_max` is given, one page ends with timer number `count_max`, and each later page contains at most
    one timer.
    """
    views, count_left = None, count_max
    while True:
        if views is not live.core.timer_views:  # This is the first step, or the store was reopened.
            views = live.core.timer_views
            search = live.query(views.open_search, wanted, after, looked_up)
        page = live.query(search.step, count_left)
        count_left = None if count_left is None else max(1, count_left - len(page.timers))
        yield page
        await asyncio.sleep(0)
        after = page.after
        if after is None:
            return


def is_window(wanted: TimerFilter) -> bool:
    """Return whether a filter consists only of a time window."""
    return wanted == TimerFilter(from_ms=wanted.from_ms, until_ms=wanted.until_ms)


def is_simple(wanted: TimerFilter) -> bool:
    """Return whether a filter consists only of a time window or only of a topic."""
    return is_window(wanted) or wanted == TimerFilter(topic=wanted.topic)
