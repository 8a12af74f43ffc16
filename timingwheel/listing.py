"""All far timers in due order, for lists and counts, slot by slot in bounded memory; and one of them by name.

What is delivered or gone is left out. Cost: what is asked for, slots outside the window are not touched;
a whole slot is counted without reading it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from commitlog.disk import Disk
from timingwheel import partition
from timingwheel.boundaries import Numbers, Slot
from timingwheel.cascade import File
from timingwheel.due_run import Place, behind, first_in_due_order, within
from timingwheel.partition import Rows, Window, alive
from timingwheel.unwritten import Fresh, gone_in, timers_in


@dataclass(slots=True, frozen=True)
class Listing:
    """The far timers as they are now: in files, and in memory."""

    disk: Disk
    files: dict[Slot, File]
    layers: tuple[Fresh, ...]
    frontier: Place
    damage: list[str]
    rows_max: int

    def scan(self, from_ms: int, until_ms: int, after: Place | None) -> Iterator[tuple[Rows, str | None]]:
        """Live timers due in the window and behind `after`, in due order, with the file of their records."""
        after = max(after or (0, 0), self.frontier)
        for slot in self._slots(max(from_ms, after[0]), until_ms):
            path = slot.path if slot in self.files else None
            place, is_last = after, False
            while not is_last:
                rows, is_last = self._next(slot, from_ms, until_ms, place)
                if len(rows):
                    yield rows, path
                    place = int(rows["due_ms"][-1]), int(rows["timer_offset"][-1])

    def count(self, from_ms: int, until_ms: int) -> int:
        """How many live timers are due in the window."""
        from_ms = max(from_ms, self.frontier[0])
        return sum(self._count(slot, from_ms, until_ms) for slot in self._slots(from_ms, until_ms))

    def find(self, slot: Slot, timer_offset: int) -> Rows | None:
        """The row of a timer in its slot's file, as an array of one; None if it is not there."""
        if slot not in self.files:
            return None
        window = Window(self.disk, slot.path, self.files[slot].length)
        for batch in partition.batches(window, self.damage):
            if batch.kind != partition.GONE:
                offsets = batch.rows["timer_offset"]
                place = int(np.searchsorted(offsets, np.uint64(timer_offset)))
                if place < len(offsets) and int(offsets[place]) == timer_offset:
                    return partition.as_rows(batch.rows[place : place + 1])
        return None

    def _slots(self, from_ms: int, until_ms: int) -> list[Slot]:
        known = {*self.files, *(slot for layer in self.layers for slot in layer.slots)}
        inside = [slot for slot in known if slot.end_ms > from_ms and slot.start_ms < until_ms]
        return sorted(inside, key=lambda slot: slot.start_ms)

    def _next(self, slot: Slot, from_ms: int, until_ms: int, after: Place) -> tuple[Rows, bool]:
        found = (behind(within(rows, from_ms, until_ms), after) for rows in self._alive(slot))
        return first_in_due_order(found, self.rows_max)

    def _alive(self, slot: Slot) -> Iterator[Rows]:
        gone = self._gone(slot)
        if slot in self.files:
            for rows in partition.parts(self.disk, slot.path, self.files[slot].length, self.damage):
                yield alive(rows, gone)
        yield timers_in(iter(self.layers), slot)

    def _gone(self, slot: Slot) -> Numbers:
        file = self.files.get(slot, File())
        gone = gone_in(iter(self.layers), slot)
        if file.gone_count:
            gone = np.sort(np.concatenate((gone, partition.gone_offsets(self.disk, slot.path, file.length))))
        return gone

    def _count(self, slot: Slot, from_ms: int, until_ms: int) -> int:
        if slot.start_ms > self.frontier[0] and from_ms <= slot.start_ms and slot.end_ms <= until_ms:
            return self._count_whole(slot)
        wanted = (behind(within(rows, from_ms, until_ms), self.frontier) for rows in self._alive(slot))
        return sum(map(len, wanted))

    def _count_whole(self, slot: Slot) -> int:
        file = self.files.get(slot, File())
        kept = [layer.slots[slot] for layer in self.layers if slot in layer.slots]
        in_memory = sum(len(unwritten.timers) - len(unwritten.gone) for unwritten in kept)
        return file.row_count - file.gone_count + in_memory
