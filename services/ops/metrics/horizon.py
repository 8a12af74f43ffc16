"""The number of timers that are due within each of several durations from now.

Each number excludes the timers of the previous duration. Overdue timers are included in the first number, and
held timers in none. Cost: a count in the core for each duration.
"""

from __future__ import annotations

from collections.abc import Iterator

from services.broker.spine.values import TimerFilter
from services.live.live_broker import LiveBroker


def counts_within(live: LiveBroker, spans_ms: tuple[int, ...]) -> Iterator[int]:
    """Yield a count for each of the durations, which must be in ascending order.

    Each count reflects the state at the time of the count.
    """
    assert [*spans_ms] == sorted(spans_ms), "spans must ascend: a count leaves out the span before"
    now_ms, lower = live.now_ms(), 0
    for span in spans_ms:
        wanted = TimerFilter(until_ms=now_ms + span, is_held=False)
        upper = live.query(live.core.timer_views.count, wanted)
        yield max(0, upper - lower)
        lower = upper
