"""Looking at many timers without holding up the loop: by pieces of time that hold only so many.

The core answers a look at once, and for a filter by key or tag it reads a record for each timer. So a long
look is cut: a piece is as wide as its timers are sparse, and between pieces others are served. What changes
meanwhile is seen or not, as with any look that takes time; what stays is seen once.

Cost: a count of a window (which reads no record) or two for each piece. A single millisecond is never cut.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

from commitlog import limits
from services.broker.values import PendingTimer, TimerFilter, TimerPage
from services.live.live_broker import LiveBroker

FIRST_MS = 60_000
GROWTH = 4


async def pieces(live: LiveBroker, wanted: TimerFilter) -> AsyncIterator[TimerFilter]:
    """Yield the filter for one piece of its window after the other, leaving out those without any timer."""
    timers_max = limits.TIMERS_COUNTED_AT_ONCE_MAX if is_simple(wanted) else limits.TIMERS_READ_AT_ONCE_MAX
    start_ms = wanted.from_ms
    width_ms = max(FIRST_MS, live.now_ms() + FIRST_MS - start_ms)
    while start_ms < wanted.until_ms:
        end_ms = min(start_ms + width_ms, wanted.until_ms)
        count = live.count_timers(TimerFilter(from_ms=start_ms, until_ms=end_ms))
        if count > timers_max and end_ms - start_ms > 1:
            width_ms = max(1, (end_ms - start_ms) // GROWTH)
            continue
        if count:
            yield replace(wanted, from_ms=start_ms, until_ms=end_ms)
            await asyncio.sleep(0)
        if count < timers_max // GROWTH:
            width_ms *= GROWTH
        start_ms = end_ms


async def count(live: LiveBroker, wanted: TimerFilter) -> int:
    """Count timers."""
    if is_simple(wanted):
        return live.count_timers(wanted)
    return sum([live.count_timers(piece) async for piece in pieces(live, wanted)])


async def histogram(live: LiveBroker, wanted: TimerFilter, width_ms: int) -> list[tuple[int, int]]:
    """Count timers by windows of time from `from_ms` on: (start, count) of those that have any."""
    counts: Counter[int] = Counter()
    async for piece in pieces(live, wanted):
        for due_ms, number in live.timer_histogram(piece, 1):
            counts[wanted.from_ms + (due_ms - wanted.from_ms) // width_ms * width_ms] += number
    return sorted(counts.items())


async def page(
    live: LiveBroker, wanted: TimerFilter, after: tuple[int, int] | None, count_max: int
) -> TimerPage:
    """Return up to `count_max` timers by due time, from behind the place `after`."""
    if is_simple(wanted):
        return live.timers(wanted, after, count_max)
    rest = wanted if after is None else replace(wanted, from_ms=max(wanted.from_ms, after[0]))
    found: list[PendingTimer] = []
    async for piece in pieces(live, rest):
        more = live.timers(piece, after, count_max - len(found) or 1)
        if len(found) == count_max and more.timers:
            return TimerPage(found, (found[-1].due_ms, found[-1].timer_offset))
        found += more.timers
        if more.after is not None:
            return TimerPage(found, more.after)
    return TimerPage(found, None)


def is_simple(wanted: TimerFilter) -> bool:
    """Whether the core answers without reading records that do not match."""
    window = TimerFilter(from_ms=wanted.from_ms, until_ms=wanted.until_ms)
    return wanted in (window, TimerFilter(topic=wanted.topic))
