"""Provides pauses, which allow long operations to yield to other event loop tasks every few milliseconds.

Pauses are used by lists, responses, and metrics that read many objects in memory. Pauses are not used by
operations that must be atomic, or by work that is bounded by a count.
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
        """Whether the operation has used up its time slice."""
        return perf_counter() >= self._ends

    async def pause(self) -> None:
        """Yield to the event loop if the time slice has been used up."""
        if self.is_due:
            await asyncio.sleep(0)
            self._ends = perf_counter() + SLICE_SECONDS

    async def sort_names(self, names: Iterable[str]) -> Iterator[str]:
        """Return names in sorted order.

        The names are sorted in runs, with pauses between the runs.
        """
        unsorted = list(names)
        runs: list[list[str]] = []
        for first in range(0, len(unsorted), _SORTED_AT_ONCE):
            runs.append(sorted(unsorted[first : first + _SORTED_AT_ONCE]))
            await self.pause()
        return merge(*runs)
