"""Provides pauses in which long operations yield to other event loop tasks every few milliseconds.

Pauses are used by operations that read many objects in memory, such as lists, responses, and metrics. Pauses
are used neither by operations that must be atomic nor by operations whose work is bounded by a count.
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
    """Manages the pauses of a long operation. The first time slice begins when the object is created."""

    def __init__(self) -> None:
        self._ends = perf_counter() + SLICE_SECONDS

    @property
    def is_due(self) -> bool:
        """Whether the operation has used up its time slice."""
        return perf_counter() >= self._ends

    async def pause(self) -> None:
        """Yield to the event loop if the time slice has been used up."""
        if self.is_due:
            await asyncio.sleep(0)
            self._ends = perf_counter() + SLICE_SECONDS

    async def sort_names(self, names: Iterable[str]) -> Iterator[str]:
        """Return names in alphabetical order.

        The names are sorted in runs, with pauses between the runs.
        """
        unsorted = list(names)
        runs: list[list[str]] = []
        for first in range(0, len(unsorted), _SORTED_AT_ONCE):
            runs.append(sorted(unsorted[first : first + _SORTED_AT_ONCE]))
            await self.pause()
        return merge(*runs)
