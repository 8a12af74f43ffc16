"""Wall-clock time of the services. Functions take the clock as a parameter so that tests can replace it."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""A function that returns milliseconds since 1970."""


def wall_clock_ms() -> int:
    """Return the system time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def next_full_second_ms(at_ms: int) -> int:
    """Round a time up to a full second. The official Python client sends delivery times in seconds."""
    return -(-at_ms // 1000) * 1000
