"""Patience of what runs for as long as its application: which errors pass, and pauses between calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from itertools import count
from typing import Final, TypeVar

from tidewheel.errors import AnswerLate, AnswerLost, BrokerUnreachable, Busy

T = TypeVar("T")

PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses between calls while the broker is gone or busy; the last one repeats."""
PASSING: Final = (Busy, BrokerUnreachable, AnswerLate, AnswerLost)
"""Errors that may pass by themselves."""


def pause_after(failures: int) -> float:
    """Return the pause after so many failures, in seconds."""
    return PAUSES_S[min(failures, len(PAUSES_S) - 1)]


def pauses() -> Iterator[float]:
    """Yield pauses between tries in seconds, without end."""
    return map(pause_after, count())


async def unless(stop: asyncio.Event, waiting: Awaitable[T]) -> T | None:
    """Return the result of a wait; if an event is set first, cancel the wait and return None."""
    work, stopped = asyncio.ensure_future(waiting), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        for one in (work, stopped):
            one.cancel()
        await asyncio.gather(work, stopped, return_exceptions=True)
