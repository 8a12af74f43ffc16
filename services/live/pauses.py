"""Pauses in which long operations yield to other event loop tasks every few milliseconds.

Operations that read many in-memory objects use pauses, for example to build lists, responses, and metrics.
Atomic operations and operations on a bounded number of objects do not pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from heapq import merge
from time import perf_counter
from typing import Final

SLICE_SECONDS: Final = 0.004
_SORTED_AT_ONCE: Final = 5_000


class Pauses:
    """The pauses of a long operation. The first time slice begins when the object is created."""

    def __init__(self) -> None:
        self._ends = perf_counter() + SLICE_SECONDS

    @property
    def is_due(self) -> bool:
        """Return whether the time slice has ended."""
        return perf_counter() >= self._ends

    async def pause(self) -> None:
        """Yield to the event loop if the time slice has ended, and begin a new time slice."""
        if self.is_due:
            await asyncio.sleep(0)
            self._ends = perf_counter() + SLICE_SECONDS

    async def sort_names(self, names: Iterable[str]) -> Iterator[str]:
        """Return names in alphabetical order. The method may pause after each sorted run."""
        unsorted = list(names)
        runs: list[list[str]] = []
        for first in range(0, len(unsorted), _SORTED_AT_ONCE):
            runs.append(sorted(unsorted[first : first + _SORTED_AT_ONCE]))
            await self.pause()
        return merge(*runs)
