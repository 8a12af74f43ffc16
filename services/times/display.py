"""Moments and spans as people read them: local wall time, and how far away that is."""

from __future__ import annotations

import time
from datetime import datetime

UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def wall(moment_ms: int) -> str:
    """Return local wall time to the second; without the date if that is today."""
    moment = datetime.fromtimestamp(moment_ms / 1000)
    is_today = moment.date() == datetime.now().date()
    return moment.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def exactly(moment_ms: int) -> str:
    """Return local wall time to the millisecond."""
    return f"{wall(moment_ms)}.{moment_ms % 1000:03d}"


def away(moment_ms: int) -> str:
    """Return how far away a moment is: in 16m52s, 38s ago."""
    ahead_ms = moment_ms - now_ms()
    return f"in {span(ahead_ms)}" if ahead_ms >= 0 else f"{span(-ahead_ms)} ago"


def both(moment_ms: int) -> str:
    """Return wall time and distance: 10:58:00 (in 16m52s)."""
    return f"{wall(moment_ms)} ({away(moment_ms)})"


def span(span_ms: int) -> str:
    """Return a span by its two largest units: 16m52s, 640ms."""
    for number, (unit, unit_ms) in enumerate(UNITS_MS):
        if span_ms >= unit_ms:
            smaller, smaller_ms = UNITS_MS[min(number + 1, len(UNITS_MS) - 1)]
            rest = span_ms % unit_ms // smaller_ms
            return f"{span_ms // unit_ms}{unit}" + (
                f"{rest}{smaller}" if rest and unit not in ("s", "ms") else ""
            )
    return "0ms"
