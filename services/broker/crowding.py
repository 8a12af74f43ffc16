"""How many timers share a second: counted in a table of fixed size, so never too low and seldom too high.

Two rows of counters, each indexed by another hash of the second; the smaller of the two counts (a count-min
sketch, Cormode and Muthukrishnan 2005). Only crowded seconds are told of, and only their counters are kept
in a snapshot: after a restart what was not crowded counts from zero. Memory: 2 MiB.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from commitlog.bulk import Integers
from commitlog.limits import CROWDED_SECOND_MIN

_BITS: Final = 18
_MASK: Final = (1 << _BITS) - 1
_MIX: Final = 0x9E3779B97F4A7C15
_SECOND_MS: Final = 1000


class Crowding:
    """Counts of timers by the second in which they are due."""

    def __init__(self) -> None:
        self._rows = np.zeros((2, 1 << _BITS), np.int32)
        self._first, self._second = self._rows[0].data, self._rows[1].data

    def add(self, due_ms: int) -> None:
        """Counts a new timer."""
        first, second = _places(due_ms // _SECOND_MS)
        self._first[first] += 1
        self._second[second] += 1

    def sharing(self, due_ms: int) -> int:
        """How many others share the second of a timer that is counted; 0 unless it is crowded."""
        first, second = _places(due_ms // _SECOND_MS)
        sharing_count = int(min(self._first[first], self._second[second])) - 1
        return sharing_count if sharing_count >= CROWDED_SECOND_MIN else 0

    def remove(self, due_ms: int) -> None:
        """A timer has ended."""
        first, second = _places(due_ms // _SECOND_MS)
        self._first[first] = max(0, self._first[first] - 1)
        self._second[second] = max(0, self._second[second] - 1)

    def remove_many(self, due_ms: Integers) -> None:
        """Many timers have ended."""
        for second, count in zip(*np.unique(due_ms // _SECOND_MS, return_counts=True), strict=True):
            for row, place in enumerate(_places(int(second))):
                self._rows[row, place] = max(0, self._rows[row, place] - count)

    def freeze(self) -> Any:
        """What a snapshot keeps: [row, place, count] of every crowded counter."""
        rows, places = np.nonzero(self._rows >= CROWDED_SECOND_MIN)
        return np.stack([rows, places, self._rows[rows, places]], axis=1).tolist()

    def thaw(self, frozen: Any) -> None:
        """Takes a snapshot's part over."""
        for row, place, count in frozen:
            self._rows[row, place] = count


@lru_cache(maxsize=256)
def _places(second: int) -> tuple[int, int]:
    return second & _MASK, (second * _MIX & 0xFFFFFFFFFFFFFFFF) >> (64 - _BITS)
