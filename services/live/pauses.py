"""Pauses that let long operations yield to other event loop tasks every few milliseconds.

Operations that read many in-memory objects use pauses. Examples are lists, responses, and metrics. Atomic
operations, and operations on a bounded number of objects, do not pause.
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
    """Pauses within a long operation. The first time slice begins at construction."""

    def __init__(self) -> None:
        self._ends = perf_counter() + SLICE_SECONDS

    @property
    def is_due(self) -> bool:
        """Whether the time slice is used up."""
        return perf_counter() >= self._ends

    async def pause(self) -> None:
        """Yield to the event loop if the time slice is used up."""
        if self.is_due:
            await asyncio.sleep(0)
            self._ends = perf_counter() + SLICE_SECONDS

    async def sort_names(self, names: Iterable[str]) -> Iterator[str]:
        """Return names in alphabetical order. Pauses between sorted runs."""
        unsorted = list(names)
        runs: list[list[str]] = []
        for first in range(0, len(unsorted), _SORTED_AT_ONCE):
            runs.append(sorted(unsorted[first : first + _SORTED_AT_ONCE]))
            await self.pause()
        return merge(*runs)
