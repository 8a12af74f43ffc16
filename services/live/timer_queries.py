"""Splits queries over many timers into short steps, so that the queries do not block the event loop.

The core runs each call to completion, and a query with certain filters must read the record of every timer. A
search (`TimerSearch`) therefore advances by one step in each event loop iteration, and other calls are served
between the steps. A count of all timers by due time is split into time windows instead. Windows are wider
where timers are sparse, and the number of timers in a window is adapted to the duration of the previous call
(`QueryPace`). A query may or may not reflect concurrent changes, but returns each unchanged timer exactly
once.

Cost: a step reads up to `TIMERS_LOOK_WORK_MAX` of records, and scans the rows of one slot. For each window,
the timers are counted once or twice, without reading any records. For a filter with texts, each event loop
iteration looks up the key in up to `KEYS_AT_ONCE` topics, or searches up to `RECORDS_AT_ONCE` records in the
log. Weak spot: each window scans the rows of its slot again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

import numpy as np

from commitlog import limits
from services.broker.spine.values import PendingTimer, TimerFilter, TimerPage
from services.broker.timers.timer_source import Offsets
from services.broker.timers.timer_views import LookupResults
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses

FIRST_MS = 60_000
GROWTH = 4
KEYS_AT_ONCE = 200
RECORDS_AT_ONCE = 2_000
LONG_SECONDS = 0.01

Seen = TypeVar("Seen")


class QueryPace:
    """Determines the number of timers to query in each event loop iteration."""

    def __init__(self) -> None:
        self.timers_max = limits.TIMERS_LOOKED_AT_FIRST

    def run_query(self, look: Callable[..., Seen], *arguments: object) -> Seen:
        """Run a query, and adapt `timers_max` to the duration of the query."""
        began = perf_counter()
        seen = look(*arguments)
        took = perf_counter() - began
        if took > LONG_SECONDS:
            self.timers_max = max(limits.TIMERS_LOOKED_AT_MIN, self.timers_max // 2)
        elif took < LONG_SECONDS / GROWTH:
            self.timers_max = min(limits.TIMERS_LOOKED_AT_MAX, self.timers_max * 2)
        return seen


async def split_window(
    live: LiveBroker, wanted: TimerFilter, pace: QueryPace | None = None
) -> AsyncIterator[TimerFilter]:
    """Yield filters that divide the time window of `wanted` into parts. Parts without timers are skipped."""
    pace, pauses = pace or QueryPace(), Pauses()
    start_ms = wanted.from_ms
    width_ms = max(FIRST_MS, live.now_ms() + FIRST_MS - start_ms)
    while start_ms < wanted.until_ms:
        await pauses.pause()
        end_ms = min(start_ms + width_ms, wanted.until_ms)
        count = live.query(live.core.timer_views.count, TimerFilter(from_ms=start_ms, until_ms=end_ms))
        if count > pace.timers_max and end_ms - start_ms > 1:
            width_ms = max(1, (end_ms - start_ms) // GROWTH)
            continue
        assert end_ms > start_ms, "a piece of no width: the look would not end"
        if count:
            yield replace(wanted, from_ms=start_ms, until_ms=end_ms)
            await asyncio.sleep(0)
        if count < pace.timers_max // GROWTH:
            width_ms *= GROWTH
        start_ms = end_ms


async def count_timers(live: LiveBroker, wanted: TimerFilter) -> int:
    """Return the number of timers that match a filter."""
    if is_simple(wanted):
        return live.query(live.core.timer_views.count, wanted)
    return sum([len(page.timers) async for page in query_pages(live, wanted)])


async def count_by_window(live: LiveBroker, wanted: TimerFilter, width_ms: int) -> list[tuple[int, int]]:
    """Return a (window start, count) pair for each window of length `width_ms` that contains matching timers.

    The first window begins at `from_ms`.
    """
    counts: Counter[int] = Counter()
    async for due_ms, number in _count_by_due_time(live, wanted):
        counts[wanted.from_ms + (due_ms - wanted.from_ms) // width_ms * width_ms] += number
    return sorted(counts.items())


async def _count_by_due_time(live: LiveBroker, wanted: TimerFilter) -> AsyncIterator[tuple[int, int]]:
    """Yield (due time, count) pairs for the matching timers. A due time may occur in several pairs."""
    if is_window(wanted):  # No records are read if the filter consists only of a window.
        pace = QueryPace()
        async for piece in split_window(live, wanted, pace):
            for found in pace.run_query(live.timer_histogram, piece, 1):
                yield found
    else:
        async for page in query_pages(live, wanted):
            for timer in page.timers:
                yield timer.due_ms, 1


async def query_page(
    live: LiveBroker, wanted: TimerFilter, after: tuple[int, int] | None, count_max: int
) -> TimerPage:
    """Return up to `count_max` matching timers after the sort key `after`, sorted by due time."""
    found: list[PendingTimer] = []
    look_through = _search if is_simple(wanted) else query_pages
    async for look in look_through(live, wanted, after):
        found += look.timers
        if len(found) > count_max:
            last = found[count_max - 1]
            return TimerPage(found[:count_max], (last.due_ms, last.timer_offset))
    return TimerPage(found, None)


async def query_pages(
    live: LiveBroker, wanted: TimerFilter, after: tuple[int, int] | None = None
) -> AsyncIterator[TimerPage]:
    """Yield pages of matching timers, sorted by due time."""
    rest = wanted if after is None else replace(wanted, from_ms=max(wanted.from_ms, after[0]))
    async for page in _search(live, rest, after, await _look_up(live, rest)):
        yield page


async def _look_up(live: LiveBroker, wanted: TimerFilter) -> LookupResults | None:
    """Look up the texts of a filter, if it has any, in batches of bounded size."""
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
    after: tuple[int, int] | None,
    looked_up: LookupResults | None = None,
) -> AsyncIterator[TimerPage]:
    """Yield the matching timers in due order, a page for each step of the search."""
    views = None
    while True:
        if views is not live.core.timer_views:  # The first step, or the store was reopened after a failure.
            views = live.core.timer_views
            place = None if after is None else (after[0] + live.clock.offset_ms, after[1])
            search = live.query(views.open_search, wanted, place, looked_up)
        page = live.query(search.step)
        yield page
        await asyncio.sleep(0)
        after = page.after
        if after is None:
            return


def is_window(wanted: TimerFilter) -> bool:
    """Return whether a filter consists only of a time window."""
    return wanted == TimerFilter(from_ms=wanted.from_ms, until_ms=wanted.until_ms)


def is_simple(wanted: TimerFilter) -> bool:
    """Return whether a filter can be evaluated without reading the records of timers that do not match."""
    return is_window(wanted) or wanted == TimerFilter(topic=wanted.topic)
