"""Periodic checks of all connections, with bounded work in each iteration of the event loop.

A timer for each connection would cost as much as the check, and connections that were opened together would
always be checked together. Therefore a round of checks has a fixed duration, and is divided into evenly
spaced slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Generic, TypeVar

SLICE: Final = 256
T = TypeVar("T")


class Sweep(Generic[T]):
    """Rounds over a collection. A round calls `look` with the time and each item that is still present."""

    def __init__(self, seconds: float, there_are: Collection[T], look: Callable[[T, float], None]) -> None:
        self._seconds, self._there_are, self._look = seconds, there_are, look
        self._loop = asyncio.get_running_loop()
        self._left: list[T] = []
        self._pause_seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer, after which the first round begins in `seconds`, the duration of a round."""
        self._timer = self._loop.call_later(self._pause_seconds, self._check_slice)

    def stop(self) -> None:
        """Stop the rounds."""
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
