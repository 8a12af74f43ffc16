"""In-memory timers that have not yet been written to a file.

They are grouped by slot in insertion order, and each uses 16 bytes.

A tombstone marks a timer in memory or in a file as deleted, and also uses 16 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

import numpy as np

from timingwheel.boundaries import Boundaries, Numbers, Slot
from timingwheel.partition import PAIR, Rows, alive

NOTHING: Final = np.empty(0, PAIR)


class Pairs:
    """A growing list of (due time in milliseconds, offset) pairs."""

    __slots__ = ("_flat",)

    def __init__(self) -> None:
        self._flat = array("Q")

    def __len__(self) -> int:
        return len(self._flat) // 2

    def append(self, due_ms: int, timer_offset: int) -> None:
        """Add a pair."""
        self._flat.extend((due_ms, timer_offset))

    def extend(self, pairs: Rows) -> None:
        """Append an array of `PAIR`."""
        self._flat.frombytes(pairs.tobytes())

    def rows(self) -> Rows:
        """Return a copy of all pairs as an array of `PAIR`."""
        return np.frombuffer(self._flat.tobytes(), PAIR)


class NewSlotRows:
    """Timers and tombstones added to a slot since the last checkpoint."""

    __slots__ = ("timers", "tombstones")

    def __init__(self) -> None:
        self.timers, self.tombstones = Pairs(), Pairs()


class NewRows:
    """Timers and tombstones added since the last checkpoint, by slot."""

    def __init__(self) -> None:
        self.slots: dict[Slot, NewSlotRows] = {}
        self.count = 0

    def at(self, slot: Slot) -> NewSlotRows:
        """Return a slot's entries for modification. The caller must update `count`."""
        found = self.slots.get(slot)
        if found is None:
            found = self.slots[slot] = NewSlotRows()
        return found

    def pop(self, slot: Slot) -> NewSlotRows:
        """Remove and return a slot's entries."""
        found = self.slots.pop(slot, None) or NewSlotRows()
        self.count -= len(found.timers) + len(found.tombstones)
        assert self.count >= 0, "more was taken away than came"
        return found

    def check(self) -> None:
        """Assert that `count` equals the number of entries. There are at most a few hundred slots."""
        held = sum(len(one.timers) + len(one.tombstones) for one in self.slots.values())
        assert self.count == held, f"{self.count} timers and tombstones are counted, {held} are there"

    def place(self, pairs: Rows, boundaries: Boundaries, *, are_tombstones: bool = False) -> None:
        """Add timers or tombstones (`PAIR`) to the slots that contain their due times."""
        for slot, places in boundaries.split(pairs["due_ms"].copy()):
            unwritten = self.at(slot)
            (unwritten.tombstones if are_tombstones else unwritten.timers).extend(pairs[places])
        self.count += len(pairs)

    def move_down(self, slot: Slot, boundaries: Boundaries) -> None:
        """Move a slot's entries to the levels below."""
        unwritten = self.pop(slot)
        self.place(unwritten.timers.rows(), boundaries)
        self.place(unwritten.tombstones.rows(), boundaries, are_tombstones=True)

    def move_tombstones_down(self, slot: Slot, boundaries: Boundaries) -> None:
        """Move a slot's entries to the levels below.

        Tombstones for timers in the slot's file are not moved.
        """
        unwritten = self.pop(slot)
        timers, tombstones = unwritten.timers.rows(), unwritten.tombstones.rows()
        self.place(alive(timers, np.sort(tombstones["timer_offset"])), boundaries)
        left = alive(tombstones, np.sort(timers["timer_offset"]))
        if len(left):
            self.at(slot).tombstones.extend(left)
            self.count += len(left)


def timers_in(layers: Iterator[NewRows], slot: Slot) -> Rows:
    """Return a slot's live in-memory timers as `PAIR`s in insertion order."""
    kept = [layer.slots[slot] for layer in layers if slot in layer.slots]
    timers = np.concatenate([NOTHING, *(unwritten.timers.rows() for unwritten in kept)])
    return alive(timers, _sorted_offsets(kept))


def tombstones_in(layers: Iterator[NewRows], slot: Slot) -> Numbers:
    """Return the offsets of a slot's timers that have tombstones in memory, in ascending order."""
    return _sorted_offsets([layer.slots[slot] for layer in layers if slot in layer.slots])


def _sorted_offsets(kept: list[NewSlotRows]) -> Numbers:
    tombstones = [unwritten.tombstones.rows()["timer_offset"] for unwritten in kept]
    return np.sort(np.concatenate([np.empty(0, np.uint64), *tombstones]))
