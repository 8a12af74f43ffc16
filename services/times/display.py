"""Formatting of times for users: local time, and distance from now."""

from __future__ import annotations

import time
from datetime import datetime

from tidewheel import durations


def now_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def wall(moment_ms: int) -> str:
    """Return local time in seconds. The date is omitted if it is today."""
    moment = datetime.fromtimestamp(moment_ms / 1000)
    is_today = moment.date() == datetime.now().date()
    return moment.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def exactly(moment_ms: int) -> str:
    """Return local time with milliseconds."""
    return f"{wall(moment_ms)}.{moment_ms % 1000:03d}"


def away(moment_ms: int) -> str:
    """Return the distance of a time from now, such as "in 16m52s" or "38s ago"."""
    return durations.away(moment_ms - now_ms())


def both(moment_ms: int) -> str:
    """Return local time and distance, such as "10:58:00 (in 16m52s)"."""
    return f"{wall(moment_ms)} ({away(moment_ms)})"


def span(span_ms: int) -> str:
    """Return a time span in its two largest units, such as "16m52s" or "640ms"."""
    return durations.rounded(span_ms)
