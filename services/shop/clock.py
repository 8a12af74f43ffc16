"""Wall time for the services; logic takes it as a parameter so that tests can hold it still."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns milliseconds since 1970."""


def wall_clock_ms() -> int:
    """Return milliseconds since 1970, from the machine's clock."""
    return time.time_ns() // 1_000_000


def next_full_second_ms(at_ms: int) -> int:
    """Return the first full second that is not before a time: the official Python client sends delays in
    seconds.
    """
    return -(-at_ms // 1000) * 1000
