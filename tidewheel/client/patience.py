"""Retry policy of long-running tasks: transient errors and the pauses between calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from itertools import count
from typing import Final, TypeVar

from tidewheel.errors import AnswerLate, AnswerLost, BrokerUnreachable, Busy

T = TypeVar("T")

PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses in seconds between calls while the broker is unreachable or busy. The last value repeats."""
PASSING: Final = (Busy, BrokerUnreachable, AnswerLate, AnswerLost)
"""Transient errors."""


def pause_after(failures: int) -> float:
    """Return the pause in seconds after a number of consecutive failures."""
    return PAUSES_S[min(failures, len(PAUSES_S) - 1)]


def pauses() -> Iterator[float]:
    """Yield the pauses between attempts in seconds. The iterator is infinite."""
    return map(pause_after, count())


async def unless(stop: asyncio.Event, waiting: Awaitable[T]) -> T | None:
    """Await a result. If the event is set first, cancel the awaitable and return None."""
    work, stopped = asyncio.ensure_future(waiting), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        for one in (work, stopped):
            one.cancel()
        await asyncio.gather(work, stopped, return_exceptions=True)
