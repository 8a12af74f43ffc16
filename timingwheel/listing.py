"""Lists, counts, and finds stored timers.

Slots are processed one after another in due order, so memory is bounded.

Rows of overlapping slots, such as a shared slot and the slots below it, are merged. During the merge, the
upper 24 bits of `record_at` hold the slot number, because a file position needs only 40 bits. Timers that
were delivered or deleted are omitted.

Cost: slots outside the time window are not read, and a slot entirely within the time window is counted
without being read. To return the first rows of a slot quickly, the first run is small, and later runs are
larger. Rows excluded by a selection are not included in the size of a run, so selecting few rows reads each
slot once.

Limitations: each run reads the files again, so a large slot is read once per `rows_max` rows listed. The
count of a whole slot relies on the stored row counts, unless the file is known to be damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.disk.disk import Disk
from timingwheel import partition
from timingwheel.boundaries import Numbers, Slot
from timingwheel.cascade import File
from timingwheel.due_run import LAST_OFFSET, SortKey, behind, first_in_due_order, within
from timingwheel.partition import IN_LOG, Gap, Rows, Window, alive, as_rows
from timingwheel.unwritten import NewRows, timers_in, tombstones_in

_FIRST_ROWS: Final = 1_024
"""Number of rows in the first run. Each following run has `_GROWTH` times as many."""
_GROWTH: Final = 16
_MARK_SHIFT: Final = np.uint64(40)
_PLACE_MASK: Final = np.uint64((1 << 40) - 1)
_IN_LOG_MARKED: Final = np.uint64(IN_LOG) & _PLACE_MASK

Select = Callable[[Rows], np.ndarray[Any, np.dtype[np.bool_]]]
"""A function that maps an array of `ROW` to a bool array, which is true for the selected rows."""


class Run(NamedTuple):
    """Selected timers in due order, and the sort key up to which all selected timers have been returned.

    `by_file` contains arrays of consecutive `ROW`s stored in the same file, each with the path of the file.
    The path is None for timers in memory.
    """

    by_file: list[tuple[Rows, str | None]]
    end: SortKey


@dataclass(slots=True, frozen=True)
class Listing:
    """A read-only view of the stored timers in files and in memory."""

    disk: Disk
    files: dict[Slot, File]
    layers: tuple[NewRows, ...]
    watermark: SortKey
    damage: list[Gap]
    rows_max: int
    gaps: tuple[Gap, ...] = ()
    """All known damaged ranges, even those whose timers all have known outcomes.

    Rows of a damaged file are counted one by one, because some may be missing.
    """
    starts_ms: tuple[int, ...] = ()
    """Start times of the levels above level 0. When one advances, its timers have moved to lower levels."""

    def scan(self, from_ms: int, until_ms: int, after: SortKey | None) -> Iterator[tuple[Rows, str | None]]:
        """Yield live timers that are due in the window and sort after `after`, with their file path.

        The timers are in due order. Raise OSError if a read fails.
        """
        for run in self.runs(from_ms, until_ms, after):
            yield from run.by_file

    def runs(
        self,
        from_ms: int,
        until_ms: int,
        after: SortKey | None,
        select: Select | None = None,
        first_rows: int | None = None,
    ) -> Iterator[Run]:
        """Yield runs of the selected live timers that are due in the time window and sort after `after`.

        Each run reads the files of one slot, or of several slots that overlap. A run may be empty. The first
        run of a slot has up to `first_rows` rows (default: `_FIRST_ROWS`). Raise OSError if a read fails.
        """
        after = max(after or (0, 0), self.watermark)
        first_ms = max(from_ms, after[0] + (after[1] == LAST_OFFSET))  # After the end of a slot.
        for slots in _overlapping(self._slots(first_ms, until_ms)):
            sort_key, is_last, rows_max = after, False, min(first_rows or _FIRST_ROWS, self.rows_max)
            while not is_last:
                found = self._found(slots, from_ms, until_ms, sort_key, select)
                rows, is_last = first_in_due_order(found, rows_max)
                rows_max = min(_GROWTH * rows_max, self.rows_max)
                if is_last:
                    sort_key = max(slot.end_ms for slot in slots) - 1, LAST_OFFSET
                else:
                    sort_key = int(rows["due_ms"][-1]), int(rows["timer_offset"][-1])
                yield Run(list(self._by_file(slots, rows)) if len(rows) else [], sort_key)

    def count(self, from_ms: int, until_ms: int) -> int:
        """Return the number of live timers due in the time window. Raise OSError if a read fails."""
        from_ms = max(from_ms, self.watermark[0])
        return sum(self._count(slot, from_ms, until_ms) for slot in self._slots(from_ms, until_ms))

    def find(self, slot: Slot, timer_offset: int) -> Rows | None:
        """Return an array with a timer's `ROW` in a slot's file, or None if it is absent.

        Raise OSError if a read fails.
        """
        if slot not in self.files:
            return None
        window = Window(self.disk, slot.path, self.files[slot].length)
        for batch in partition.batches(window, self.damage):
            if batch.kind != partition.TOMBSTONE:
                offsets = batch.rows["timer_offset"]  # Offsets are sorted only within a batch.
                place = int(np.searchsorted(offsets, np.uint64(timer_offset)))
                if place < len(offsets) and int(offsets[place]) == timer_offset:
                    return partition.as_rows(batch.rows[place : place + 1])
        return None

    def _slots(self, from_ms: int, until_ms: int) -> list[Slot]:
        known = {*self.files, *(slot for layer in self.layers for slot in layer.slots)}
        inside = [slot for slot in known if slot.end_ms > from_ms and slot.start_ms < until_ms]
        return sorted(inside, key=lambda slot: slot.start_ms)

    def _found(
        self, slots: list[Slot], from_ms: int, until_ms: int, after: SortKey, select: Select | None
    ) -> Iterator[Rows]:
        """Yield the selected rows of overlapping slots, with slot numbers, in file order."""
        assert len(slots) < 1 << 64 - int(_MARK_SHIFT), "more slots overlap than a mark can number"
        for number, slot in enumerate(slots):
            for stored in self._alive(slot):
                rows = as_rows(behind(within(stored, from_ms, until_ms), after))
                yield _marked(rows if select is None else rows[select(rows)], number)

    def _by_file(self, slots: list[Slot], rows: Rows) -> Iterator[tuple[Rows, str | None]]:
        """Remove the slot numbers, and yield arrays of consecutive rows from the same file."""
        numbers = rows["record_at"] >> _MARK_SHIFT
        rows["record_at"] &= _PLACE_MASK
        rows["record_at"][rows["record_at"] == _IN_LOG_MARKED] = IN_LOG
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(rows)]
        for first, end in pairwise(cuts):
            slot = slots[int(numbers[first])]
            yield rows[first:end], slot.path if slot in self.files else None

    def _alive(self, slot: Slot) -> Iterator[Rows]:
        tombstones = self._tombstones(slot)
        if slot in self.files:
            # Gaps that were found while reading tombstones are also excluded from the rows, because the
            # timers in these gaps may have been deleted.
            length, without = self.files[slot].length, (*self.gaps, *self.damage)
            for rows in partition.parts(self.disk, slot.path, length, self.damage, without):
                yield alive(rows, tombstones)
        yield timers_in(iter(self.layers), slot)

    def _tombstones(self, slot: Slot) -> Numbers:
        file = self.files.get(slot, File())
        tombstones = tombstones_in(iter(self.layers), slot)
        if file.tombstone_count:
            on_disk = partition.tombstone_offsets(self.disk, slot.path, file.length, self.damage, self.gaps)
            tombstones = np.sort(np.concatenate((tombstones, on_disk)))
        return tombstones

    def _count(self, slot: Slot, from_ms: int, until_ms: int) -> int:
        is_whole = slot.start_ms > self.watermark[0] and from_ms <= slot.start_ms and slot.end_ms <= until_ms
        if is_whole and all(gap.path != slot.path for gap in self.gaps):
            return self._count_whole(slot)
        wanted = (behind(within(rows, from_ms, until_ms), self.watermark) for rows in self._alive(slot))
        return sum(map(len, wanted))

    def _count_whole(self, slot: Slot) -> int:
        """Return the number of timers in a slot minus its tombstones.

        Each tombstone belongs to a timer in the slot.
        """
        file = self.files.get(slot, File())
        kept = [layer.slots[slot] for layer in self.layers if slot in layer.slots]
        in_memory = sum(len(unwritten.timers) - len(unwritten.tombstones) for unwritten in kept)
        return file.row_count - file.tombstone_count + in_memory


def _overlapping(slots: list[Slot]) -> Iterator[list[Slot]]:
    """Yield groups of overlapping slots, ordered by slot start time."""
    held: list[Slot] = []
    for slot in slots:
        if held and slot.start_ms >= max(one.end_ms for one in held):
            yield held
            held = []
        held.append(slot)
    if held:
        yield held


def _marked(rows: Rows, number: int) -> Rows:
    marked = rows.copy()
    marked["record_at"] &= _PLACE_MASK
    marked["record_at"] |= np.uint64(number) << _MARK_SHIFT
    return marked
