"""Reads ahead in a timer file in due order, a limited number of rows at a time.

    file --(worker: `ReadAhead.run`)--> rows in due order --(`Reading.install`)--> taken when due

A file holds its rows in insertion order, so each read scans the whole file. A read returns the rows that
follow those of the previous read, ordered by due time and then by timer_offset. Each returned row uses 64
bytes of memory, regardless of the file size. The next read begins while the rows of the previous one are
being delivered. The file is read up to the length it had when the slot was queued. Later changes to the slot
are kept in memory.

    run 1    the first `count_max` rows of the file after (start - 1, LAST_OFFSET)
    run n    the first `count_max` rows of the file after the last row of run n-1

Limitation: a file with n rows is read n / `count_max` times, so reading a passing slot is quadratic in its
number of timers. A level-0 slot covers 16 seconds and needs few reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from commitlog.disk.disk import Disk
from timingwheel.boundaries import Numbers, Slot
from timingwheel.partition import ROW, Gap, Rows, alive, as_rows, parts, tombstone_offsets

SortKey = tuple[int, int]
"""Sort key (due_ms, timer_offset) for the delivery order."""

NO_ROWS: Final = np.empty(0, ROW)
LAST_OFFSET: Final = (1 << 64) - 1


def behind(rows: Rows, after: SortKey) -> Rows:
    """Return the rows (`ROW` or `PAIR`, in any order) that sort after the key `after`."""
    after_ms, after_offset = np.uint64(after[0]), np.uint64(after[1])
    due_ms = rows["due_ms"].copy()
    if not len(rows) or due_ms.min() > after_ms:
        return rows
    not_before: Rows = rows[due_ms >= after_ms]
    is_done = (not_before["due_ms"] == after_ms) & (not_before["timer_offset"] <= after_offset)
    kept: Rows = not_before[~is_done] if bool(is_done.any()) else not_before
    return kept


def within(rows: Rows, from_ms: int, until_ms: int) -> Rows:
    """Return the rows due at or after `from_ms` and before `until_ms`."""
    due_ms = rows["due_ms"]
    kept: Rows = rows[(due_ms >= np.uint64(from_ms)) & (due_ms < np.uint64(until_ms))]
    return kept


def _first_of(held: list[Rows], count_max: int) -> Rows:
    """Return the first rows as sorted `ROW`s, and clear `held`."""
    rows = _joined(held)
    # The list is cleared before the rows are copied, so that memory contains only one copy of the rows at a
    # time.
    held.clear()
    offsets, due_ms = rows["timer_offset"].copy(), rows["due_ms"].copy()
    is_in_order = bool(np.all(offsets[1:] > offsets[:-1]))
    order = _in_order(due_ms) if is_in_order else np.lexsort((offsets, due_ms))
    return as_rows(rows[order[:count_max]])


def _joined(held: list[Rows]) -> Rows:
    """Return all rows in a single array. The dtype of the array is `PAIR` if all rows are pairs."""
    if not held:
        return NO_ROWS
    if all(rows.dtype == held[0].dtype for rows in held):
        return np.concatenate(held)
    return np.concatenate([as_rows(rows) for rows in held])


def _in_order(due_ms: Numbers) -> Numbers:
    """Return the indexes that sort the times. Equal times keep their original order.

    A due time and its index nearly always fit into one 64-bit integer. Sorting such integers is several times
    faster than sorting indexes by due time.
    """
    if not len(due_ms):
        return due_ms
    first_ms, bits = due_ms.min(), np.uint64(len(due_ms).bit_length())
    if int(due_ms.max() - first_ms).bit_length() + int(bits) >= 64:
        return np.argsort(due_ms, kind="stable").astype(np.uint64)
    packed = (due_ms - first_ms) << bits | np.arange(len(due_ms), dtype=np.uint64)
    packed.sort()
    places: Numbers = packed & ((np.uint64(1) << bits) - np.uint64(1))
    return places


def _cut(held: list[Rows], count_max: int) -> np.uint64:
    """Drop all rows after the first `count_max`, and return the highest remaining due time."""
    due_ms = np.concatenate([rows["due_ms"] for rows in held])
    last_ms = np.uint64(np.partition(due_ms, count_max - 1)[count_max - 1])
    # If rows are selected only by due time, no sort is needed. If very many rows are due at `last_ms`, the
    # rows are also selected by offset, so that only some of the rows that are due in this millisecond are
    # kept.
    is_crowded = int(np.count_nonzero(due_ms <= last_ms)) > count_max + count_max // 8
    held[:] = [_first_of(held, count_max)] if is_crowded else [_until(held, last_ms)]
    return last_ms


def _until(held: list[Rows], last_ms: np.uint64) -> Rows:
    kept = [rows[rows["due_ms"] <= last_ms] for rows in held]
    held.clear()
    return _joined(kept)


def first_in_due_order(found: Iterable[Rows], count_max: int) -> tuple[Rows, bool]:
    """Return the first `count_max` rows in due order as `ROW`s, and whether there are no more rows.

    At most 1.25 x `count_max` rows, plus those of one input array, are held in memory.
    """
    held: list[Rows] = []
    held_count, is_all, last_ms = 0, True, np.uint64(LAST_OFFSET)
    for rows in found:
        # Rows that are due at `last_ms` are kept, because their offsets may be lower than that of the last
        # kept row.
        early = rows[rows["due_ms"] <= last_ms]
        is_all = is_all and len(early) == len(rows)
        held.append(early)
        held_count += len(early)
        if held_count >= count_max + count_max // 4 + 1:
            last_ms = _cut(held, count_max)
            held_count, is_all = len(held[0]), False
    return _first_of(held, count_max), is_all and held_count <= count_max


@dataclass(slots=True, eq=False)
class ReadAhead:
    """Job for a worker thread that reads the next rows from a slot's file."""

    slot: Slot
    length: int
    has_tombstones: bool
    after: SortKey
    count_max: int
    without: tuple[Gap, ...] = ()
    """Known damaged ranges of all files. They are skipped even if they are readable now."""
    rows: Rows = field(default_factory=NO_ROWS.copy)
    is_last: bool = False
    damage: list[Gap] = field(default_factory=list)

    def run(self, disk: Disk) -> None:
        """Read the next rows of the file. Raise OSError on failure."""
        path = self.slot.path
        disk.will_need(path)
        tombstones = np.empty(0, np.uint64)
        if self.has_tombstones:
            tombstones = tombstone_offsets(disk, path, self.length, self.damage, self.without)
        self.rows, self.is_last = first_in_due_order(self._wanted(disk, tombstones), self.count_max)

    def _wanted(self, disk: Disk, tombstones: Numbers) -> Iterator[Rows]:
        # Gaps that were found while reading tombstones are also excluded from the rows, because the timers in
        # these gaps may have been deleted.
        without = (*self.without, *self.damage)
        for rows in parts(disk, self.slot.path, self.length, self.damage, without):
            yield alive(behind(rows, self.after), tombstones)


class Advanced(NamedTuple):
    """Result of `Partitions.advance`: a read-ahead job, and near timers to schedule."""

    job: ReadAhead | None
    near: list[tuple[int, int]]


class Reading:
    """A slot whose file is being read, and the rows read but not yet taken."""

    def __init__(self, slot: Slot, length: int, has_tombstones: bool, known_tombstones: Numbers) -> None:
        self.slot = slot
        self._length, self._has_tombstones = length, has_tombstones
        self._known_tombstones = known_tombstones
        self._tombstones: set[int] = set()
        self._after: SortKey = (max(0, slot.start_ms - 1), LAST_OFFSET)
        self._runs: deque[Rows] = deque()
        self._taken = 0
        self.is_read = False

    @property
    def loaded_count(self) -> int:
        """Number of rows read but not yet taken."""
        return sum(map(len, self._runs)) - self._taken

    @property
    def is_done(self) -> bool:
        """Whether all rows have been read and taken."""
        return self.is_read and not self._runs

    @property
    def is_ready(self) -> bool:
        """Whether any rows have been read but not taken."""
        return bool(self._runs)

    @property
    def head_due_ms(self) -> int:
        """Due time of the next row in milliseconds since the Unix epoch.

        If that row has not been read yet, this is a lower bound for its due time.
        """
        if self._runs:
            return int(self._runs[0]["due_ms"][self._taken])
        return max(self.slot.start_ms, self._after[0])

    def forget(self, timer_offset: int) -> None:
        """Exclude a timer that was deleted after the slot was queued for reading."""
        self._tombstones.add(timer_offset)

    def job(self, watermark: SortKey, count_max: int, without: tuple[Gap, ...] = ()) -> ReadAhead:
        """Return a job that reads the next rows after both the last row read and the watermark."""
        after = max(self._after, watermark)
        return ReadAhead(self.slot, self._length, self._has_tombstones, after, count_max, without)

    def install(self, job: ReadAhead) -> None:
        """Add the rows of a completed job."""
        if len(job.rows):
            first, last = job.rows[0], job.rows[-1]
            assert self._after < (int(first["due_ms"]), int(first["timer_offset"])), "rows come a second time"
            self._after = (int(last["due_ms"]), int(last["timer_offset"]))
        rows = alive(job.rows, self._known_tombstones)
        if len(rows):
            self._runs.append(rows)
        self.is_read = job.is_last

    def take(self, limit_ms: int, count_max: int) -> Rows:
        """Remove and return up to `count_max` rows due by `limit_ms`.

        Timers deleted in the meantime are omitted.
        """
        while self._runs:
            run = self._runs[0]
            near = run[self._taken : self._taken + count_max]
            count = int(np.searchsorted(near["due_ms"], np.uint64(limit_ms), side="right"))
            if count == 0:
                break
            assert int(near["due_ms"][count - 1]) <= limit_ms, "a run is not in due order"
            self._step(count)
            rows = self._still_there(near[:count])
            if len(rows):
                return rows
        return NO_ROWS

    def _step(self, count: int) -> None:
        self._taken += count
        assert self._taken <= len(self._runs[0]), "more was taken than was read"
        if self._taken == len(self._runs[0]):
            self._runs.popleft()
            self._taken = 0

    def _still_there(self, rows: Rows) -> Rows:
        if not self._tombstones:
            return rows
        return rows[[offset not in self._tombstones for offset in rows["timer_offset"].tolist()]]
