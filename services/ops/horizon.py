"""How many timers are due within each of some spans from now, and not within the one before.

What is overdue counts as within the first. Cost: a count in the core for each span.
"""

from __future__ import annotations

from collections.abc import Iterator

from services.broker.spine.values import TimerFilter
from services.live.live_broker import LiveBroker


def counts_within(live: LiveBroker, spans_ms: tuple[int, ...]) -> Iterator[int]:
    """Yield a count for each span; spans ascend. Each count is of the moment when it is taken."""
    assert [*spans_ms] == sorted(spans_ms), "spans must ascend: a count leaves out the span before"
    now_ms, lower = live.now_ms(), 0
    for span in spans_ms:
        upper = live.query(live.core.timer_views.count, TimerFilter(until_ms=now_ms + span))
        yield max(0, upper - lower)
        lower = upper
