"""Periodic checks of all connections, in batches.

A timer per connection would cost as much as the check itself. Connections opened at the same time would also
always be checked at the same time. Connections are therefore checked in rounds of fixed duration, and the
batches of a round are checked at regular intervals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Generic, TypeVar

SLICE: Final = 256
T = TypeVar("T")


class ConnectionSweep(Generic[T]):
    """Checks all items of a collection in periodic rounds.

    In each round, `look` is called once for each item that is still in the collection. The arguments are the
    item and the event loop time in seconds.
    """

    def __init__(self, seconds: float, there_are: Collection[T], look: Callable[[T, float], None]) -> None:
        self._seconds, self._there_are, self._look = seconds, there_are, look
        self._loop = asyncio.get_running_loop()
        self._left: list[T] = []
        self._pause_seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer. The first round begins one round's duration later."""
        self._timer = self._loop.call_later(self._pause_seconds, self._check_slice)

    def stop(self) -> None:
        """Stop the timer, which ends the current round."""
        if self._timer is not None:
            self._timer.cancel()

    def _check_slice(self) -> None:
        if not self._left:
            self._left = list(self._there_are)
            self._pause_seconds = self._seconds / max(1, -(-len(self._left) // SLICE))
        self._timer = self._loop.call_later(self._pause_seconds, self._check_slice)
        now, slice_of = self._loop.time(), self._left[-SLICE:]
        del self._left[-SLICE:]
        for one in slice_of:
            if one in self._there_are:
                self._look(one, now)
