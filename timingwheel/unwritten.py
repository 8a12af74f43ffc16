"""The timers that no file holds yet: 16 bytes each, by slot, in the order in which they came.

And the timers of the same slots that are gone, 16 bytes each, whichever file or memory they are in.
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
    """Pairs of due time and offset, appended."""

    __slots__ = ("_flat",)

    def __init__(self) -> None:
        self._flat = array("Q")

    def __len__(self) -> int:
        return len(self._flat) // 2

    def append(self, due_ms: int, timer_offset: int) -> None:
        """Adds one pair."""
        self._flat.extend((due_ms, timer_offset))

    def extend(self, pairs: Rows) -> None:
        """Adds many."""
        self._flat.frombytes(pairs.tobytes())

    def rows(self) -> Rows:
        """A copy of all, as `PAIR`."""
        return np.frombuffer(self._flat.tobytes(), PAIR)


class Unwritten:
    """What came for one slot since the last checkpoint."""

    __slots__ = ("gone", "timers")

    def __init__(self) -> None:
        self.timers, self.gone = Pairs(), Pairs()


class Fresh:
    """What came since the last checkpoint, by slot."""

    def __init__(self) -> None:
        self.slots: dict[Slot, Unwritten] = {}
        self.count = 0

    def at(self, slot: Slot) -> Unwritten:
        """What came for a slot, to be added to."""
        found = self.slots.get(slot)
        if found is None:
            found = self.slots[slot] = Unwritten()
        return found

    def pop(self, slot: Slot) -> Unwritten:
        """Takes away what came for a slot."""
        found = self.slots.pop(slot, None) or Unwritten()
        self.count -= len(found.timers) + len(found.gone)
        return found

    def place(self, pairs: Rows, boundaries: Boundaries, *, are_gone: bool = False) -> None:
        """Adds many timers, or gone ones, each to its slot."""
        for slot, places in boundaries.split(pairs["due_ms"].copy()):
            unwritten = self.at(slot)
            (unwritten.gone if are_gone else unwritten.timers).extend(pairs[places])
        self.count += len(pairs)

    def spread(self, slot: Slot, boundaries: Boundaries) -> None:
        """Gives what came for a slot to the slots below it."""
        unwritten = self.pop(slot)
        self.place(unwritten.timers.rows(), boundaries)
        self.place(unwritten.gone.rows(), boundaries, are_gone=True)

    def leave_gone(self, slot: Slot, boundaries: Boundaries) -> None:
        """Gives the slots below what came for a slot, but not those gone from the slot's own file."""
        unwritten = self.pop(slot)
        timers, gone = unwritten.timers.rows(), unwritten.gone.rows()
        self.place(alive(timers, np.sort(gone["timer_offset"])), boundaries)
        left = alive(gone, np.sort(timers["timer_offset"]))
        if len(left):
            self.at(slot).gone.extend(left)
            self.count += len(left)


def timers_in(layers: Iterator[Fresh], slot: Slot) -> Rows:
    """The timers of a slot in memory that are not gone, in the order in which they came."""
    kept = [layer.slots[slot] for layer in layers if slot in layer.slots]
    timers = np.concatenate([NOTHING, *(unwritten.timers.rows() for unwritten in kept)])
    return alive(timers, _sorted_offsets(kept))


def gone_in(layers: Iterator[Fresh], slot: Slot) -> Numbers:
    """The offsets of the timers of a slot of which memory knows that they are gone, ascending."""
    return _sorted_offsets([layer.slots[slot] for layer in layers if slot in layer.slots])


def _sorted_offsets(kept: list[Unwritten]) -> Numbers:
    gone = [unwritten.gone.rows()["timer_offset"] for unwritten in kept]
    return np.sort(np.concatenate([np.empty(0, np.uint64), *gone]))
