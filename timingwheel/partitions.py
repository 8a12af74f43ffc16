"""The upper levels of the timing wheel.

Timers due far in the future are stored in files, so that memory is bounded.

    put, delete --> fresh (16 bytes each, by slot) --checkpoint--> files of the levels (`partition`)
                                                                       | split into the level below, half a
                                                                       v slot before their time (`cascade`)
    near: the wheel of the caller <- fresh timers <-advance- slots of level 0, 8 s before their time
          rows in due order      <-- read ahead   <--/      (`due_run`)

Each level begins at a boundary (`boundaries`) that advances with the current time. When a boundary reaches a
slot, the action depends on the kind of slot:

    slot                                 processing
    in memory only                       The timers move to the levels below without disk access.
    with a small file                    The slot is shared: its file is read together with the files of the
                                         levels below (`shared`).
    with a large file                    The boundary stops until a checkpoint has split the slot.
    large and entirely in the past       The slot is passing: its file is read in due order without being
                                         split (`passing`).
    on level 0                           The file is queued for reading, and the timers in memory become near
                                         timers.

Boundaries advance from the highest level to the lowest, and never beyond the boundary above.

Rules:

* `near_until_ms` is the lowest boundary, B0. The caller must schedule every new timer due before B0. When
  `advance` moves B0 past a slot, it returns the slot's in-memory timers and queues the slot's file, up to its
  current length, for reading. Each timer thus reaches the caller exactly once.
* Near timers are also stored in files, because they may be needed after a restart. A near timer is dropped
  when `watermark`, the sort key of the last delivered timer, reaches it. All timers up to the watermark have
  ended, and new timers must be due after it.
* All timers due before `undone_ms` have ended, regardless of the watermark. Unread timers, and timers of
  unknown outcome in damaged files, are never due before `undone_ms`. Only outcomes of timers due before
  `undone_ms` may be dropped. `forget_before` then moves the watermark past them.
* No unread timer in a queued file is due before `head_due_ms`. A caller that delivers in due order must not
  deliver timers from its own wheel that are due after `head_due_ms`.
* A checkpoint deletes the files that neither of the two newest snapshots lists. While a damaged range
  contains timers of unknown outcome, all files for its time range are kept. Files not listed in the recovery
  snapshot are kept until `release_older` is called.
* Only checkpoints change files. `to_write` moves the new timers to the state that the checkpoint writes.
  Queries include this state until `written` or `failed` is called.

Cost: 16 bytes of memory per timer until the next checkpoint. Up to `TIMER_ROWS_READ_AHEAD_MAX` rows are read
ahead, and a read in progress may require the same amount of memory again. A boundary visits only slots with
timers, so long periods without timers cost nothing.

Limitation: the disk may delay a boundary. If checkpoints fail, the timers of a large slot remain in it until
the slot is entirely in the past. Timers in a slot of 17.5 minutes may thus be delivered up to 17.5 minutes
late (`is_waiting`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.layout import TIMERS
from commitlog.limits import TIMER_ROWS_READ_AHEAD_MAX, TIMERS_UNWRITTEN_MAX
from timingwheel.boundaries import LEVEL_COUNT, TOP, Boundaries, Numbers, Slot, containing, slot_named
from timingwheel.cascade import File, PartitionsToWrite, named_files
from timingwheel.due_run import LAST_OFFSET, NO_ROWS, Advanced, ReadAhead, Reading, SortKey, behind
from timingwheel.listing import Listing
from timingwheel.partition import Gap, Rows
from timingwheel.shared import Shared
from timingwheel.unwritten import NewRows, timers_in, tombstones_in

FOREVER_MS: Final = 1 << 62
_RETRY_MS: Final = 1_000
_NO_OFFSETS: Final = np.empty(0, np.uint64)


FoundGap = Callable[[Gap], None]
"""Called for each new gap."""


def ignore_gap(gap: Gap) -> None:
    """Do nothing. This function is used by callers that examine `Partitions.damage` themselves."""


class Gaps(list[Gap]):
    """Distinct gaps with timers of unknown outcome.

    `mended` holds the gaps whose timers all have known outcomes.
    """

    def __init__(self, found: FoundGap, mended: frozenset[Gap] = frozenset()) -> None:
        super().__init__()
        self._found, self.mended = found, mended

    def append(self, gap: Gap) -> None:
        """Add a gap that is neither known nor mended."""
        if gap not in self.mended and gap not in self:
            super().append(gap)
            self._found(gap)


class Partitions:
    """The future timers of a store, kept in files and in memory.

    The object is empty until a snapshot is restored or timers are added.
    """

    def __init__(
        self,
        disk: Disk,
        now_ms: int,
        rows_max: int = TIMER_ROWS_READ_AHEAD_MAX,
        found_gap: FoundGap = ignore_gap,
    ) -> None:
        self._disk, self._now_ms, self._rows_max, self._found_gap = disk, now_ms, rows_max, found_gap
        self._clear()

    def _clear(self) -> None:
        self._boundaries = Boundaries.at(self._now_ms)
        self._files: dict[Slot, File] = {}
        self._fresh = NewRows()
        self._writing: PartitionsToWrite | None = None
        self._queue: list[Reading] = []
        self._job: ReadAhead | None = None
        self._retry_ms, self._asked_ms = 0, self._now_ms
        self._damaged: frozenset[str] = frozenset()
        self._older: frozenset[str] = frozenset()
        self._next_ms: int | None = None
        self._is_next_known = False
        self._must_advance, self._must_split = False, False
        self._shared = Shared()
        self._last_offset = self._written_offset = 0
        self.watermark: SortKey = (0, 0)
        """Sort key up to which all timers have ended. The caller sets it after deliveries."""
        self.damage = Gaps(self._found_gap)
        """Damaged ranges with timers of unknown outcome."""

    # Methods that add and delete timers.

    @property
    def near_until_ms(self) -> int:
        """Boundary B0. The caller must schedule new timers due before this time."""
        return self._boundaries.starts_ms[0]

    @property
    def free_ms(self) -> int:
        """Earliest due time of a new timer after the watermark."""
        due_ms, timer_offset = self.watermark
        return due_ms + 1 if timer_offset == LAST_OFFSET else due_ms

    def put(self, timers: Sequence[tuple[int, int]]) -> None:
        """Add timers as (due time in milliseconds, offset) pairs, in ascending order of offset.

        They must be due after the watermark. The caller must also schedule those due before `near_until_ms`.
        """
        # The offset of a timer determines which of two overlapping slots contains the timer (`Shared.home`).
        assert not timers or timers[0][1] >= self._last_offset, "a timer is put after a later one"
        start_ms = end_ms = 0
        for due_ms, timer_offset in timers:
            if not start_ms <= due_ms < end_ms:
                slot = self._boundaries.slot_of(due_ms)
                assert slot.end_ms > self.watermark[0], "a timer is put where all are done, and would be lost"
                self._is_next_known &= slot in self._fresh.slots
                add = self._fresh.at(slot).timers.append
                if not self._boundaries.passing:  # A passing slot may be within this slot.
                    start_ms, end_ms = slot.start_ms, slot.end_ms
            add(due_ms, timer_offset)
            self._last_offset = timer_offset
        self._fresh.count += len(timers)

    def delete(self, due_ms: int, timer_offset: int) -> None:
        """Delete a pending timer. The caller must also remove a near timer from its own wheel."""
        if (due_ms, timer_offset) <= self.watermark:
            return
        slot = self._home(due_ms, timer_offset)
        self._fresh.at(slot).tombstones.append(due_ms, timer_offset)
        self._fresh.count += 1
        # The file of the slot may already have been read, or a read in progress may miss the new tombstone.
        for reading in self._queue:
            if reading.slot == slot:
                reading.forget(timer_offset)

    # Methods that advance the time.

    def advance(self, now_ms: int) -> Advanced:
        """Advance the boundaries as far as possible.

        Return the read-ahead job to run and the new near timers.
        """
        self._now_ms, self._asked_ms = max(self._now_ms, now_ms), now_ms
        self._must_advance = False
        near = self._move(self._now_ms)
        return Advanced(self._next_job(), near)

    def next_advance_ms(self, now_ms: int) -> int | None:
        """Return when `advance` or `take_due` must be called next, or None if no call is needed."""
        if self._must_advance:
            return now_ms
        if not self._queue:
            return self._next_move_ms()
        times = [self._head_ms(), self._job_ms(now_ms), self._next_move_ms()]
        return min((time for time in times if time is not None), default=None)

    @property
    def is_waiting(self) -> bool:
        """Whether any due timers are waiting for the disk."""
        head = self._head()
        is_cold = head is not None and not head.is_ready and head.head_due_ms <= self._now_ms
        return is_cold or self.near_until_ms <= self._now_ms

    @property
    def undone_ms(self) -> int:
        """Time before which no unread timer, and no timer in a damaged range, is due."""
        heads = [reading.head_due_ms for reading in self._queue]
        mended = {gap.path for gap in self.damage.mended}
        damaged = {gap.path for gap in self.damage} | {f"{TIMERS}/{name}" for name in self._damaged} - mended
        starts = [slot_named(path.removeprefix(f"{TIMERS}/")).start_ms for path in damaged]
        return min([self.near_until_ms, *heads, *starts])

    def forget_before(self, due_ms: int) -> None:
        """Move the watermark to just before `due_ms` once all earlier outcomes have been dropped.

        `due_ms` must not have exceeded `undone_ms` at that point. Newly found damage may move `undone_ms`
        back to the start of a file that covers years. The pending timers in such a file are still due at or
        after `due_ms`.
        """
        self.watermark = max(self.watermark, (due_ms - 1, LAST_OFFSET))

    # Methods that manage the rows that were read ahead.

    def complete_read_ahead(self, job: ReadAhead) -> list[tuple[int, int]]:
        """Add the rows read by a job.

        Return an empty list, because `advance` has already returned the near timers.
        """
        self._job = None
        for reading in self._queue:
            if reading.slot == job.slot:
                reading.install(job)
                self.found_damaged(job.damage)
        self._drop_done()
        return []

    def abandon_read_ahead(self, job: ReadAhead) -> None:
        """Discard a failed job. After one second, `advance` returns a new job for the same rows."""
        if self._job is job:
            self._job = None
            self._retry_ms = self._asked_ms + _RETRY_MS

    def head_due_ms(self) -> int | None:
        """Return the due time of the next row, or a lower bound if it has not been read yet.

        Return None if no file is queued for reading.
        """
        head = self._head() if self._queue else None
        return None if head is None else head.head_due_ms

    @property
    def is_head_ready(self) -> bool:
        """Whether the next rows have been read ahead."""
        head = self._head()
        return head is not None and head.is_ready

    def take_due(self, now_ms: int, count_max: int, limit_ms: int | None = None) -> tuple[Rows, str]:
        """Return a file's next `ROW`s due by both `now_ms` and `limit_ms`, and the file's path.

        The rows are in due order. No rows are returned if the next rows have not been read yet.
        """
        limit_ms = now_ms if limit_ms is None else min(now_ms, limit_ms)
        while (head := self._head()) is not None:
            rows = head.take(min(limit_ms, self._turn_until_ms(head)), count_max)
            if not head.is_done or len(rows):
                self._drop_done()
                return rows, head.slot.path
            self._drop_done()
        return NO_ROWS, ""

    # Methods that list and count timers.

    def scan(
        self, from_ms: int, until_ms: int, after: SortKey | None = None
    ) -> Iterator[tuple[Rows, str | None]]:
        """Yield live timers that are due in the window and sort after `after`, with their file path.

        The timers are `ROW`s in due order. `record_at` is `IN_LOG` if the record is only in the log. Do not
        add or delete timers during the scan. Raise OSError if a read fails.
        """
        return self.listing().scan(from_ms, until_ms, after)

    def listing(self) -> Listing:
        """Return a view of the stored timers. `is_valid` states how long the view is valid."""
        gaps, layers = (*self.damage, *self.damage.mended), self._layers()
        state = (self._disk, self._files, layers, self.watermark, self.damage, self._rows_max)
        return Listing(*state, gaps, self._upper_starts_ms())

    def is_valid(self, listing: Listing) -> bool:
        """Return whether no timer has been moved to another slot or layer since a view was returned.

        A checkpoint moves timers when it begins and ends, and an upper boundary when it advances.
        """
        is_at_boundaries = listing.starts_ms == self._upper_starts_ms()
        return is_at_boundaries and listing.files is self._files and listing.layers == self._layers()

    def _upper_starts_ms(self) -> tuple[int, ...]:
        """Return the boundaries above B0, which moves no timer to another slot."""
        return tuple(self._boundaries.starts_ms[1:])

    def count(self, from_ms: int, until_ms: int) -> int:
        """Return the number of live timers due in the time window. Raise OSError if a read fails."""
        return self.listing().count(from_ms, until_ms)

    def find(self, due_ms: int, timer_offset: int) -> tuple[str, Rows] | None:
        """Return the file path of a timer and an array with its `ROW`, or None if no file contains it.

        Raise OSError if a read fails.
        """
        slot = self._home(due_ms, timer_offset)
        row = self.listing().find(slot, timer_offset)
        return None if row is None else (slot.path, row)

    def in_memory(self, from_ms: int, until_ms: int) -> Numbers:
        """Return the offsets of live timers in memory whose slots overlap a time window."""
        slots = self._slots_in_memory(from_ms, until_ms)
        found = [timers_in(iter(self._layers()), slot)["timer_offset"] for slot in slots]
        return np.concatenate([_NO_OFFSETS, *found])

    def deleted_in_memory(self, from_ms: int, until_ms: int) -> Numbers:
        """Return the offsets of tombstones in memory whose slots overlap a time window."""
        slots = self._slots_in_memory(from_ms, until_ms)
        return np.concatenate([_NO_OFFSETS, *(tombstones_in(iter(self._layers()), one) for one in slots)])

    def _slots_in_memory(self, from_ms: int, until_ms: int) -> set[Slot]:
        slots = {slot for layer in self._layers() for slot in layer.slots}
        return {slot for slot in slots if slot.start_ms < until_ms and slot.end_ms > from_ms}

    @property
    def unwritten_count(self) -> int:
        """Number of timers and tombstones that are only in memory."""
        return self._fresh.count + (self._writing.writing.count if self._writing else 0)

    @property
    def disk_bytes(self) -> int:
        """Total size of all files, in bytes."""
        return sum(file.length for file in self._files.values())

    @property
    def files(self) -> dict[Slot, File]:
        """Copy of the file table from the last checkpoint."""
        return dict(self._files)

    # Methods that write checkpoints and restore snapshots.

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a slot must be split or too many timers are in memory."""
        return self._writing is None and (self._must_split or self._fresh.count >= TIMERS_UNWRITTEN_MAX)

    @property
    def is_settled(self) -> bool:
        """Whether no checkpoint is changing the files."""
        return self._writing is None

    def to_write(self, now_ms: int) -> PartitionsToWrite:
        """Return the state that a worker thread is to write. Call `written` or `failed` afterwards."""
        assert self._writing is None, "one checkpoint at a time"
        self._now_ms = max(self._now_ms, now_ms)
        self._forget_passed()
        split = self._to_split(self._now_ms)
        boundaries = self._boundaries.copy()
        for slot in split:
            boundaries.starts_ms[slot.level] = slot.end_ms
        self._writing = PartitionsToWrite(
            boundaries,
            split,
            self._fresh,
            dict(self._files),
            self.watermark,
            self._damaged,
            Shared(dict(self._shared.slots)),
            self._last_offset,
            self.damage.mended,
            tuple(self.damage),
            self._older,
        )
        self._fresh.check()
        self._fresh, self._must_split = NewRows(), False
        return self._writing

    def written(self, done: PartitionsToWrite) -> None:
        """Switch to the files that a checkpoint has written durably."""
        assert done is self._writing, "another checkpoint was written"
        assert done.new_files is not None, "nothing was written"
        self._files, self._writing = done.new_files, None
        self._written_offset = done.last_offset
        self.found_damaged(done.damage)
        for slot in done.split:
            waits_ms = self._boundaries.starts_ms[slot.level]
            assert waits_ms == slot.start_ms, f"a boundary passed {slot.name} while it was split"
            self._boundaries.starts_ms[slot.level] = slot.end_ms
            # Timers that were added to the slot during the checkpoint are still in memory, and must be moved
            # to the levels below.
            self._fresh.move_down(slot, self._boundaries)
        assert self._boundaries.is_ordered, "a level begins behind the one above it"
        self._must_advance, self._is_next_known = True, False

    def failed(self, done: PartitionsToWrite) -> None:
        """Return the timers of a failed checkpoint to memory."""
        assert done is self._writing, "another checkpoint has failed"
        # The timers of the failed checkpoint are placed before newer timers, because the pairs of a slot are
        # kept in insertion order.
        later, self._fresh, self._writing = self._fresh, done.writing, None
        for slot, unwritten in later.slots.items():
            self._fresh.at(slot).timers.extend(unwritten.timers.rows())
            self._fresh.at(slot).tombstones.extend(unwritten.tombstones.rows())
        self._fresh.count += later.count
        self._must_advance, self._is_next_known = True, False

    def adopt(self, frozen: Any, now_ms: int) -> None:
        """Restore the state from a snapshot, or delete all files if `frozen` is None.

        Raise OSError on failure. A missing or truncated file is treated as damaged when read. Files not
        listed in the snapshot are kept until `release_older`, because they may contain intact copies of
        damaged records.
        """
        files = {} if frozen is None else named_files(frozen["files"])
        self._now_ms = now_ms
        self._clear()
        if frozen is None:
            self._disk.delete(TIMERS)
            return
        self._boundaries = Boundaries(list(frozen["boundaries"]))
        self._shared = Shared.thawed(frozen["shared"])
        self._last_offset = self._written_offset = frozen["last_offset"]
        self.watermark = (frozen["frontier"][0], frozen["frontier"][1])
        self._files, self._damaged = files, frozenset(frozen["damaged"])
        self.damage = Gaps(self._found_gap, frozenset(Gap(*fields) for fields in frozen["mended"]))
        # The gaps in the snapshot may be the only evidence of damage, because the file may have been split,
        # or a bad sector may have become readable again.
        self.found_damaged(Gap(*fields) for fields in frozen["gaps"])
        self._older = frozenset(self._disk.list(TIMERS)) - frozen["files"].keys()
        # A slot that begins before the boundary of its level was shared, passing, or being read when the
        # snapshot was taken.
        for slot in sorted(files, key=lambda slot: slot.start_ms):
            if slot.start_ms < self._boundaries.starts_ms[slot.level]:
                self._queue_for_reading(slot)
        self._must_advance = True

    def drop(self, disk: Disk) -> None:
        """Remove all timers and delete their files. Raise OSError on failure."""
        self._clear()
        disk.delete(TIMERS)

    # Methods that track damage.

    def found_damaged(self, gaps: Iterable[Gap]) -> None:
        """Register gaps.

        Damaged files are kept until all timers in the gaps have known outcomes.
        """
        for gap in gaps:
            self.damage.append(gap)
            if gap in self.damage:
                self._damaged |= {gap.path.removeprefix(f"{TIMERS}/")}

    def mended(self, gaps: Collection[Gap], *, is_all_there: bool) -> None:
        """Mark gaps as mended. Each timer in the gaps must be in memory again or have ended.

        If `is_all_there` is True, the damaged files need no longer be kept.
        """
        known = Gaps(self._found_gap, self.damage.mended | frozenset(gaps))
        for gap in self.damage:
            known.append(gap)
        self.damage = known
        if is_all_there:
            self._damaged -= {gap.path.removeprefix(f"{TIMERS}/") for gap in gaps}

    def release_older(self) -> None:
        """Let checkpoints delete the files that the recovery snapshot did not list.

        The caller must have read all files of the snapshot, so that the time ranges of all gaps are known.
        """
        self._older = frozenset()

    def kept_damaged(self) -> dict[Slot, File]:
        """Return the files of split slots that are kept because they contain timers of unknown outcome."""
        slots = (slot_named(name) for name in sorted(self._damaged))
        sizes = ((slot, self._disk.size(slot.path)) for slot in slots if slot not in self._files)
        return {slot: File(length=size) for slot, size in sizes if size >= 0}

    # Methods that determine the slot of a timer.

    def _home(self, due_ms: int, timer_offset: int) -> Slot:
        """Return the slot that contains a pending timer."""
        return self._shared.home(due_ms, timer_offset) or self._boundaries.slot_of(due_ms)

    def _layers(self) -> tuple[NewRows, ...]:
        return (self._fresh,) if self._writing is None else (self._writing.writing, self._fresh)

    def _is_on_disk(self, slot: Slot) -> bool:
        """Return whether a slot has a file, or will have one after the current checkpoint."""
        return slot in self._files or (self._writing is not None and slot in self._writing.writing.slots)

    # Boundaries are advanced in this order: upper boundaries, passing slots, B0.

    def _move(self, now_ms: int) -> list[tuple[int, int]]:
        """Advance the boundaries. Return the in-memory timers from the slots that were passed."""
        near: list[tuple[int, int]] = []
        if any(self._boundaries.is_behind(level, now_ms) for level in range(LEVEL_COUNT)):
            before_ms = self.near_until_ms
            self._forget_passed()
            self._move_upper(now_ms)
            while (slot := self._mark_passing(now_ms)) is not None:
                near += self._queue_for_reading(slot)
                self._move_upper(now_ms)
            near += self._move_lowest(now_ms)
            assert self.near_until_ms >= before_ms, "near timers would be far again, and come twice"
            assert self._boundaries.is_ordered, "a level begins behind the one above it"
            self._must_split = bool(self._to_split(now_ms))
            self._is_next_known = False
        return near

    def _move_upper(self, now_ms: int) -> None:
        """Advance the upper boundaries from the top down, as far as possible without disk access."""
        for level in range(TOP, 0, -1):
            limit_ms = self._boundaries.limit_ms(level, now_ms)
            while self._boundaries.starts_ms[level] < limit_ms:
                slot = self._first(level)
                if slot is None or slot.start_ms >= limit_ms:
                    self._boundaries.starts_ms[level] = limit_ms
                    break
                self._boundaries.starts_ms[level] = slot.start_ms
                if self._can_share(slot):
                    self._share(slot)
                    continue
                # If the slot is entirely in the past, `_mark_passing` processes it as a single slot instead
                # of
                # splitting it into many due slots.
                if slot.end_ms <= now_ms or self._is_on_disk(slot):
                    break
                self._boundaries.starts_ms[level] = slot.end_ms
                self._fresh.move_down(slot, self._boundaries)

    def _can_share(self, slot: Slot) -> bool:
        """Return whether a slot has a small file that no checkpoint is changing."""
        if self._writing is not None and (slot in self._writing.split or slot in self._writing.writing.slots):
            return False
        return slot in self._files and self._files[slot].row_count <= self._rows_max

    def _share(self, slot: Slot) -> None:
        """Move the boundary past a slot, which becomes a shared slot."""
        assert slot not in self._shared.slots, f"{slot.name} is shared twice"
        self._shared.slots[slot] = self._written_offset
        self._boundaries.starts_ms[slot.level] = slot.end_ms
        # Timers that were added after the file was written are moved to the levels below, together with their
        # tombstones. Only the tombstones of timers in the file remain in the slot.
        self._fresh.move_tombstones_down(slot, self._boundaries)
        self._read(slot, self._files[slot])

    def _mark_passing(self, now_ms: int) -> Slot | None:
        """Make the first upper-level slot that is entirely in the past a passing slot.

        Return the slot, or None if lower levels still hold timers before it.
        """
        starts_ms = self._boundaries.starts_ms
        for level in range(1, LEVEL_COUNT):
            slot = self._first(level)
            if slot is None or slot.start_ms != starts_ms[level] or slot.end_ms > now_ms:
                continue
            if self._writing is not None and slot in self._writing.split:
                return None
            # All lower boundaries must have reached the slot, because earlier timers must be delivered first.
            if all(start_ms == slot.start_ms for start_ms in starts_ms[1:level]):
                starts_ms[1 : level + 1] = [slot.end_ms] * level
                self._boundaries.passing.append(slot)
                return slot
            return None
        return None

    def _move_lowest(self, now_ms: int) -> list[tuple[int, int]]:
        """Move B0 past level-0 slots and queue their files. Return their in-memory timers."""
        near: list[tuple[int, int]] = []
        limit_ms = self._boundaries.limit_ms(0, now_ms)
        while (slot := self._first(0)) is not None and slot.start_ms < limit_ms:
            near += self._queue_for_reading(slot)
            self._boundaries.starts_ms[0] = slot.end_ms
        self._boundaries.starts_ms[0] = max(self.near_until_ms, limit_ms)
        return near

    def _queue_for_reading(self, slot: Slot) -> list[tuple[int, int]]:
        """Queue the file of a slot for reading. Return the sort keys of the slot's in-memory timers."""
        file = self._files.get(slot)
        if slot.level and slot not in self._boundaries.passing and slot not in self._shared.slots:
            self._boundaries.passing.append(slot)
        if file is not None and file.length:
            self._read(slot, file)
        pairs = behind(timers_in(iter(self._layers()), slot), self.watermark)
        return list(zip(pairs["due_ms"].tolist(), pairs["timer_offset"].tolist(), strict=True))

    def _first(self, level: int) -> Slot | None:
        """Return the first slot on a level that contains timers at or after its boundary."""
        start_ms = self._boundaries.starts_ms[level]
        known = chain(self._files, *(layer.slots for layer in self._layers()))
        return min(
            (slot for slot in known if slot.level == level and slot.start_ms >= start_ms), default=None
        )

    def _to_split(self, now_ms: int) -> tuple[Slot, ...]:
        """Return slots that must be split because they block a boundary.

        Slots entirely in the past are omitted, because they become passing slots.
        """
        starts_ms = self._boundaries.starts_ms
        at_boundary = [Slot(level, starts_ms[level]) for level in range(TOP, 0, -1)]
        return tuple(
            slot for slot in at_boundary if slot in self._files and slot.read_ahead_ms <= now_ms < slot.end_ms
        )

    def _next_move_ms(self) -> int | None:
        """Return when the next boundary must move.

        A boundary must move when a slot with timers is to be read ahead or split, and when such a slot is
        entirely in the past.
        """
        now_ms = self._now_ms
        if not self._is_next_known or (self._next_ms is not None and self._next_ms <= now_ms):
            firsts = [slot for slot in map(self._first, range(LEVEL_COUNT)) if slot is not None]
            times = [time for slot in firsts for time in (slot.read_ahead_ms, slot.end_ms) if time > now_ms]
            self._next_ms, self._is_next_known = min(times, default=None), True
        if not self._queue:
            return self._next_ms
        ahead = [one.head_due_ms for one in self._queue if one.head_due_ms >= self.near_until_ms]
        times = [max(containing(0, due_ms).read_ahead_ms, now_ms) for due_ms in ahead]
        return min([*times, *([] if self._next_ms is None else [self._next_ms])], default=None)

    # Methods that read the files of queued slots.

    def _read(self, slot: Slot, file: File) -> None:
        """Queue the file of a slot for reading."""
        assert all(reading.slot != slot for reading in self._queue), f"{slot.name} would be delivered twice"
        tombstones = tombstones_in(iter(self._layers()), slot)
        self._queue.append(Reading(slot, file.length, file.tombstone_count > 0, tombstones))

    def _head(self) -> Reading | None:
        """Return the `Reading` that contains the next row.

        For equal due times, the slot of the highest level comes first.
        """
        return min(self._queue, key=lambda one: (one.head_due_ms, -one.slot.level), default=None)

    def _turn_until_ms(self, head: Reading) -> int:
        """Return the due time up to which the rows in `head` precede those in all other slots."""
        turns = [
            other.head_due_ms - (other.slot.level > head.slot.level)
            for other in self._queue
            if other is not head
        ]
        return min(turns, default=FOREVER_MS)

    def _next_job(self) -> ReadAhead | None:
        if self._job is not None or self._may_retry_ms(self._asked_ms) > self._asked_ms:
            return None
        self._drop_passed_files()
        reading = self._to_read()
        without = (*self.damage, *self.damage.mended)
        self._job = None if reading is None else reading.job(self.watermark, self._rows_max, without)
        return self._job

    def _to_read(self) -> Reading | None:
        """Return the slot to read next, or None if all near slots have enough rows read ahead."""
        wanted = [
            reading
            for reading in self._queue
            if not reading.is_read
            and reading.loaded_count < self._rows_max
            and reading.head_due_ms < self.near_until_ms
        ]
        return min(wanted, key=lambda reading: (reading.is_ready, reading.head_due_ms), default=None)

    def _head_ms(self) -> int | None:
        head = self._head()
        return head.head_due_ms if head is not None and head.is_ready else None

    def _job_ms(self, now_ms: int) -> int | None:
        is_possible = self._job is None and self._to_read() is not None
        return self._may_retry_ms(now_ms) if is_possible else None

    def _may_retry_ms(self, now_ms: int) -> int:
        """Return when the next read may start. A failed read delays it."""
        return self._retry_ms if now_ms < self._retry_ms <= now_ms + _RETRY_MS else now_ms

    def _drop_done(self) -> None:
        self._queue = [reading for reading in self._queue if not reading.is_done]

    # Methods that remove delivered timers.

    def _forget_passed(self) -> None:
        """Drop the in-memory timers of slots that end before the watermark."""
        until_ms = self.watermark[0]
        for slot in [slot for slot in self._fresh.slots if slot.end_ms <= until_ms]:
            self._fresh.pop(slot)
        self._drop_passed_files()
        passing = self._boundaries.passing
        passing[:] = [slot for slot in passing if slot.end_ms > until_ms or self._is_on_disk(slot)]

    def _drop_passed_files(self) -> None:
        """Remove the queued files and shared slots whose timers have all been delivered."""
        self._queue = [reading for reading in self._queue if reading.slot.end_ms > self.watermark[0]]
        self._shared.drop_passed(self.watermark[0])
