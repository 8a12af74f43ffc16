"""Which slot of the far levels a timer lies in; pure arithmetic, and where the levels begin at the moment.

    level      0        1          2        3        4         5
    slot       16.4 s   17.5 min   18.6 h   49.7 d   8.7 years 557 years
    covers     [B0,B1)  [B1,B2)    [B2,B3)  [B3,B4)  [B4,B5)   [B5,...)

Each boundary is a multiple of its level's slot and moves on when the present is half a slot before it; so a
slot is taken up at the latest half its length before its time. No level begins behind the one above it. What
is due before B0 is near. A boundary waits where a slot cannot be taken up without the disk, and the
boundaries below wait at it.

A slot of an upper level that lies wholly in the past is not split any more: it becomes a slot below B0 of
its own length (`passing`), and stays where its timers are until all of them are done.
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
"""An array of 64-bit numbers."""

Places = np.ndarray[Any, np.dtype[np.intp]]
"""Positions in an array."""


class Slot(NamedTuple):
    """One slot of one level; its timers lie in one file."""

    level: int
    start_ms: int

    @property
    def end_ms(self) -> int:
        """The first time after the slot, in ms."""
        return self.start_ms + (1 << SHIFTS[self.level])

    @property
    def name(self) -> str:
        """The file's name in the folder of the timers."""
        return f"{self.level}-{self.start_ms:0{OFFSET_DIGITS}d}"

    @property
    def path(self) -> str:
        """The file's path in the store."""
        return f"{TIMERS}/{self.name}"

    @property
    def taken_up_ms(self) -> int:
        """The time in ms from which on it is read ahead, or split into slots of the level below."""
        return self.start_ms - (1 << SHIFTS[self.level] >> 1)


def slot_named(name: str) -> Slot:
    """Return the slot whose file has that name; raise ValueError if no slot's file has."""
    level, start_ms = name.split("-")
    slot = Slot(int(level), int(start_ms))
    if slot.level not in range(LEVEL_COUNT) or slot.name != name:
        raise ValueError(name)
    return slot


def containing(level: int, due_ms: int) -> Slot:
    """Return the slot of `level` in which `due_ms` lies."""
    return Slot(level, due_ms >> SHIFTS[level] << SHIFTS[level])


def boundary_ms(level: int, now_ms: int) -> int:
    """Return where `level` begins at `now_ms` if nothing waits for the disk."""
    size_ms = 1 << SHIFTS[level]
    return (now_ms + size_ms // 2 >> SHIFTS[level]) * size_ms + size_ms


class Boundaries:
    """Where each level begins, and the slots that are passing."""

    def __init__(self, starts_ms: list[int], passing: list[Slot] | None = None) -> None:
        self.starts_ms = starts_ms
        self.passing: list[Slot] = passing or []

    @classmethod
    def at(cls, now_ms: int) -> Boundaries:
        """Return the boundaries of an empty wheel at `now_ms`."""
        return cls([boundary_ms(level, now_ms) for level in range(LEVEL_COUNT)])

    def copy(self) -> Boundaries:
        """Return boundaries that change apart from these."""
        return Boundaries(list(self.starts_ms), list(self.passing))

    @property
    def is_ordered(self) -> bool:
        """Whether each level begins at or before the one above it, as `slot_of` takes for granted."""
        return self.starts_ms == sorted(self.starts_ms)

    def limit_ms(self, level: int, now_ms: int) -> int:
        """Return how far the boundary of `level` may go at `now_ms`: never beyond the one above it."""
        own_ms = boundary_ms(level, now_ms)
        return own_ms if level == TOP else min(own_ms, self.starts_ms[level + 1])

    def is_behind(self, level: int, now_ms: int) -> bool:
        """Tell whether the boundary of `level` could go on at `now_ms` if nothing lay there."""
        return self.starts_ms[level] < self.limit_ms(level, now_ms)

    def slot_of(self, due_ms: int) -> Slot:
        """Return the slot for a timer due at `due_ms`."""
        # B0 is no lower bound (`lo=1`): what is due before it lies in a slot of level 0 all the same.
        for slot in self.passing:
            if slot.start_ms <= due_ms < slot.end_ms:
                return slot
        return containing(bisect_right(self.starts_ms, due_ms, 1) - 1, due_ms)

    def split(self, due_ms: Numbers) -> list[tuple[Slot, Places]]:
        """Return the slots for many timers, each with the positions of its timers, ascending.

        A slot may come more than once, later positions later.
        """
        levels = np.searchsorted(np.array(self.starts_ms[1:], np.uint64), due_ms, side="right")
        shifts = _SHIFTS[levels]
        numbers = due_ms >> shifts
        starts_ms = numbers << shifts
        # 16 bits, for numpy sorts such numbers in linear time. Slots that differ by a multiple of 256 share a
        # number; they come apart at the cuts, which look at whole start times.
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
