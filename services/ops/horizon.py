"""How many timers are due within each of some spans from now, and not within the one before.

What is overdue counts as within the first. Cost: a count in the core for each span.
"""

from __future__ import annotations

from itertools import pairwise

from services.broker.values import TimerFilter
from services.live.live_broker import LiveBroker


def counts_within(live: LiveBroker, spans_ms: tuple[int, ...]) -> list[int]:
    """Return the counts, one for each span; spans ascend."""
    now_ms = live.now_ms()
    within = [
        live.look(live.core.timer_views.count, TimerFilter(until_ms=now_ms + span)) for span in spans_ms
    ]
    return [upper - lower for lower, upper in pairwise([0, *within])]
