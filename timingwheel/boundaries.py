"""Slots of the stored timing wheel levels, and the boundaries between the levels.

The slot of a timer is computed from its due time.

    level      0        1          2        3        4         5
    slot       16.4 s   17.5 min   18.6 h   49.7 d   8.7 years 557 years
    covers     [B0,B1)  [B1,B2)    [B2,B3)  [B3,B4)  [B4,B5)   [B5,...)

Each boundary is a multiple of the slot length of its level. It advances half a slot length before the current
time reaches it. Each slot is thus read ahead or split half a slot length before its start time. No level
begins after the level above it. Timers due before B0 are near timers. If a slot requires disk access, its
boundary and all lower ones stop there.

An upper-level slot that is entirely in the past is a passing slot. It is not split, lies before B0, and keeps
its timers until all of them have ended.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.layout import OFFSET_DIGITS, TIMERS

SHIFTS: Final = (14, 20, 26, 32, 38, 44)
LEVEL_COUNT: Final = len(SHIFTS)
TOP: Final = LEVEL_COUNT - 1
_SHIFTS: Final = np.array(SHIFTS, np.uint64)

Numbers = np.ndarray[Any, np.dtype[np.uint64]]
"""Array of 64-bit integers."""

Places = np.ndarray[Any, np.dtype[np.intp]]
"""Array of indexes into another array."""


class Slot(NamedTuple):
    """A slot of a level. One file holds all its stored timers."""

    level: int
    start_ms: int

    @property
    def end_ms(self) -> int:
        """End of the slot (exclusive), in milliseconds since the Unix epoch."""
        return self.start_ms + (1 << SHIFTS[self.level])

    @property
    def name(self) -> str:
        """Name of the slot's file in the timer folder."""
        return f"{self.level}-{self.start_ms:0{OFFSET_DIGITS}d}"

    @property
    def path(self) -> str:
        """Path of the slot's file, relative to the store."""
        return f"{TIMERS}/{self.name}"

    @property
    def read_ahead_ms(self) -> int:
        """Time at which the slot is read ahead or split, in milliseconds since the Unix epoch."""
        return self.start_ms - (1 << SHIFTS[self.level] >> 1)


def slot_named(name: str) -> Slot:
    """Return the slot whose file has this name. Raise ValueError if the name is invalid."""
    level, start_ms = name.split("-")
    slot = Slot(int(level), int(start_ms))
    if slot.level not in range(LEVEL_COUNT) or slot.name != name:
        raise ValueError(name)
    return slot


def containing(level: int, due_ms: int) -> Slot:
    """Return the slot of `level` that contains `due_ms`."""
    return Slot(level, due_ms >> SHIFTS[level] << SHIFTS[level])


def boundary_ms(level: int, now_ms: int) -> int:
    """Return the boundary of `level` at `now_ms`, assuming that the disk delays no boundary."""
    size_ms = 1 << SHIFTS[level]
    return (now_ms + size_ms // 2 >> SHIFTS[level]) * size_ms + size_ms


class Boundaries:
    """The start of each level, and the passing slots."""

    def __init__(self, starts_ms: list[int], passing: list[Slot] | None = None) -> None:
        self.starts_ms = starts_ms
        self.passing: list[Slot] = passing or []

    @classmethod
    def at(cls, now_ms: int) -> Boundaries:
        """Return the boundaries of an empty wheel at `now_ms`."""
        return cls([boundary_ms(level, now_ms) for level in range(LEVEL_COUNT)])

    def copy(self) -> Boundaries:
        """Return an independent copy."""
        return Boundaries(list(self.starts_ms), list(self.passing))

    @property
    def is_ordered(self) -> bool:
        """Whether no level begins after the level above it, as `slot_of` requires."""
        return self.starts_ms == sorted(self.starts_ms)

    def limit_ms(self, level: int, now_ms: int) -> int:
        """Return the maximum boundary of `level` at `now_ms`.

        It is never later than the boundary of the level above.
        """
        own_ms = boundary_ms(level, now_ms)
        return own_ms if level == TOP else min(own_ms, self.starts_ms[level + 1])

    def is_behind(self, level: int, now_ms: int) -> bool:
        """Return whether the boundary of `level` could advance at `now_ms` if the level were empty."""
        return self.starts_ms[level] < self.limit_ms(level, now_ms)

    def slot_of(self, due_ms: int) -> Slot:
        """Return the slot of a timer due at `due_ms`."""
        # B0 is excluded from the search (`lo=1`), because timers that are due before B0 are also in level-0
        # slots.
        for slot in self.passing:
            if slot.start_ms <= due_ms < slot.end_ms:
                return slot
        return containing(bisect_right(self.starts_ms, due_ms, 1) - 1, due_ms)

    def split(self, due_ms: Numbers) -> list[tuple[Slot, Places]]:
        """Return the slots that contain the given due times.

        Each slot is returned with the indexes of its due times, in ascending order. If a slot is returned
        more than once, the indexes increase from one entry to the next.
        """
        levels = np.searchsorted(np.array(self.starts_ms[1:], np.uint64), due_ms, side="right")
        shifts = _SHIFTS[levels]
        numbers = due_ms >> shifts
        starts_ms = numbers << shifts
        # NumPy sorts 16-bit integers in linear time. Slots whose numbers differ by a multiple of 256 have the
        # same sort key. Such slots are then separated by comparing their full start times.
        small = (numbers & np.uint64(0xFF)).astype(np.uint16) | (levels.astype(np.uint16) << np.uint16(8))
        for slot in self.passing:
            inside = (due_ms >= np.uint64(slot.start_ms)) & (due_ms < np.uint64(slot.end_ms))
            levels[inside], starts_ms[inside], small[inside] = slot.level, slot.start_ms, 0
        order = np.argsort(small, kind="stable")
        ordered_ms = starts_ms[order]
        cuts = [0, *(np.flatnonzero(np.diff(ordered_ms)) + 1).tolist(), len(order)]
        return [
            (Slot(int(levels[order[first]]), int(ordered_ms[first])), order[first:end])
            for first, end in pairwise(cuts)
            if end > first
        ]
