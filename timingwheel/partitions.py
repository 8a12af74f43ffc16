"""The far levels of the wheel: timers by time in files, so that memory does not grow with what is pending.

    put, delete --> fresh (16 bytes each, by slot) --checkpoint--> files of the levels (`partition`)
                                                                       | split into the level below, half a
                                                                       v slot before their time (`cascade`)
    near: the caller's own wheel <-- fresh ones   <-advance- slots of level 0, 8 s before their time
          rows in due order      <-- read ahead   <--/      (`due_run`)

Each level begins at a boundary (`boundaries`), and boundaries move with the present. What becomes of a slot
when the boundary of its level comes to it:

    a slot that                          and then
    is in memory only                    its timers go to the slots below; no disk
    has a small file                     it is shared: its file is read beside those below it (`shared`)
    has a large file                     the boundary waits until a checkpoint has split it
    lies wholly in the past, and large   it passes: it is read as it is, in due order (`passing`)
    is of level 0                        its file is queued to be read, its timers in memory are near

Upper boundaries move first, and none passes the one above it.

Rules:

* `near_until_ms` is the lowest boundary, B0. A timer put before it is the caller's at once. When `advance`
  moves B0 over a slot, it hands over the slot's timers that are in memory, and queues its file to be read
  ahead, up to the length that it has then. So each timer is given to the caller once, either way.
* Near timers are remembered too, for a restart may need them; they are dropped once they are behind the
  `watermark`, the last timer delivered: all at or before it are done, and nothing may be put there.
* `undone_ms` is a time before which all timers are done, whatever the watermark says: what is still to be
  read, and what was found damaged and is not accounted for, lies behind it. How timers ended may be forgotten
  only before it, and where that was forgotten the watermark has passed (`forget_before`).
* Until a queued file has been read, `head_due_ms` is a time before which it has nothing; whoever delivers in
  due order delivers nothing of his own beyond it.
* A checkpoint deletes the files that the two newest snapshots do not name. It spares those of a time in which
  damage is not accounted for, and those that a start found beside its snapshot, until `release_older`.
* Files change only in a checkpoint: `to_write` takes `fresh` away as `writing`, which counts in all that is
  asked meanwhile, until `written` or `failed`.

Cost: per timer, 16 bytes until the next checkpoint and none after; at most `TIMER_ROWS_READ_AHEAD_MAX` rows
read ahead, and as many being read. A move looks at the slots in which anything lies; where nothing lies,
boundaries jump, so idle years are free.

Weak spot: a boundary waits for the disk. While no checkpoint succeeds, the timers of a large slot stay where
they are until the slot lies wholly in the past, so one of 17.5 minutes is late by so much (`is_waiting`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from commitlog.disk import Disk
from commitlog.layout import TIMERS
from commitlog.limits import TIMER_ROWS_READ_AHEAD_MAX, TIMERS_UNWRITTEN_MAX
from timingwheel.boundaries import LEVEL_COUNT, TOP, Boundaries, Numbers, Slot, containing, slot_named
from timingwheel.cascade import File, PartitionsToWrite, named_files
from timingwheel.due_run import LAST_OFFSET, NO_ROWS, Advanced, ReadAhead, Reading, SortKey, behind
from timingwheel.listing import Listing
from timingwheel.partition import Gap, Rows
from timingwheel.shared import Shared
from timingwheel.unwritten import Fresh, timers_in, tombstones_in

FOREVER_MS: Final = 1 << 62
_RETRY_MS: Final = 1_000
_NO_OFFSETS: Final = np.empty(0, np.uint64)


FoundGap = Callable[[Gap], None]
"""Takes damage that was met."""


def ignore_gap(gap: Gap) -> None:
    """Take no notice: for callers that look at `Partitions.damage`."""


class Gaps(list[Gap]):
    """The damage whose timers are not accounted for, each gap once; `mended` is damage whose timers are."""

    def __init__(self, found: FoundGap, mended: frozenset[Gap] = frozenset()) -> None:
        super().__init__()
        self._found, self.mended = found, mended

    def append(self, gap: Gap) -> None:
        """Add a gap, unless it is known or mended."""
        if gap not in self.mended and gap not in self:
            super().append(gap)
            self._found(gap)


class Partitions:
    """The far timers of a store; empty until files are adopted or timers are put."""

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
        self._fresh = Fresh()
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
        """The last timer delivered, set by the caller; all at or before it are done."""
        self.damage = Gaps(self._found_gap)
        """What of the files could not be read, and whose timers are not accounted for."""

    # Timers come and go.

    @property
    def near_until_ms(self) -> int:
        """Timers due before this are the caller's."""
        return self._boundaries.starts_ms[0]

    @property
    def free_ms(self) -> int:
        """The earliest due time at which a new timer lies behind the watermark."""
        due_ms, timer_offset = self.watermark
        return due_ms + 1 if timer_offset == LAST_OFFSET else due_ms

    def put(self, timers: Sequence[tuple[int, int]]) -> None:
        """Remember timers (due time in ms, offset), due behind the watermark, in the order of their offsets.

        Timers due before `near_until_ms` are the caller's to schedule, too.
        """
        # The order of the offsets is what tells in which of two slots a timer lives (`Shared.home`).
        assert not timers or timers[0][1] >= self._last_offset, "a timer is put after a later one"
        start_ms = end_ms = 0
        for due_ms, timer_offset in timers:
            if not start_ms <= due_ms < end_ms:
                slot = self._boundaries.slot_of(due_ms)
                assert slot.end_ms > self.watermark[0], "a timer is put where all are done, and would be lost"
                self._is_next_known &= slot in self._fresh.slots
                add = self._fresh.at(slot).timers.append
                if not self._boundaries.passing:  # a passing slot may lie within this one
                    start_ms, end_ms = slot.start_ms, slot.end_ms
            add(due_ms, timer_offset)
            self._last_offset = timer_offset
        self._fresh.count += len(timers)

    def delete(self, due_ms: int, timer_offset: int) -> None:
        """Forget a pending timer; a near timer the caller takes out of its wheel itself."""
        if (due_ms, timer_offset) <= self.watermark:
            return
        slot = self._home(due_ms, timer_offset)
        self._fresh.at(slot).tombstones.append(due_ms, timer_offset)
        self._fresh.count += 1
        # Its file may have been read by now, or be read to a length that has no such tombstone.
        for reading in self._queue:
            if reading.slot == slot:
                reading.forget(timer_offset)

    # Time goes on.

    def advance(self, now_ms: int) -> Advanced:
        """Move the boundaries as far as they go; return what is to be read ahead, and what is near now."""
        self._now_ms, self._asked_ms = max(self._now_ms, now_ms), now_ms
        self._must_advance = False
        near = self._move(self._now_ms)
        return Advanced(self._next_job(), near)

    def next_advance_ms(self, now_ms: int) -> int | None:
        """Return when `advance` or `take_due` next has something to do; None if never as things are."""
        if self._must_advance:
            return now_ms
        if not self._queue:
            return self._next_move_ms()
        times = [self._head_ms(), self._job_ms(now_ms), self._next_move_ms()]
        return min((time for time in times if time is not None), default=None)

    @property
    def is_waiting(self) -> bool:
        """Whether something that is due already waits for the disk."""
        head = self._head()
        is_cold = head is not None and not head.is_ready and head.head_due_ms <= self._now_ms
        return is_cold or self.near_until_ms <= self._now_ms

    @property
    def undone_ms(self) -> int:
        """A time before which no timer of a file waits: none is to be read, or lost in damaged bytes."""
        heads = [reading.head_due_ms for reading in self._queue]
        mended = {gap.path for gap in self.damage.mended}
        damaged = {gap.path for gap in self.damage} | {f"{TIMERS}/{name}" for name in self._damaged} - mended
        starts = [slot_named(path.removeprefix(f"{TIMERS}/")).start_ms for path in damaged]
        return min([self.near_until_ms, *heads, *starts])

    def forget_before(self, due_ms: int) -> None:
        """Move the watermark over a time before which it is forgotten how timers ended.

        That time was never later than `undone_ms`, which damage that is found now may set back: to the
        beginning of a file of years, whose timers that wait are due behind `due_ms` all the same.
        """
        self.watermark = max(self.watermark, (due_ms - 1, LAST_OFFSET))

    # What was read ahead is taken.

    def read_ahead(self, job: ReadAhead) -> list[tuple[int, int]]:
        """Take over what a job has read; return no timers, for `advance` has given the near ones."""
        self._job = None
        for reading in self._queue:
            if reading.slot == job.slot:
                reading.install(job)
                self.found_damaged(job.damage)
        self._drop_done()
        return []

    def read_ahead_failed(self, job: ReadAhead) -> None:
        """Take back a job that could not read; `advance` gives the same again in a second."""
        if self._job is job:
            self._job = None
            self._retry_ms = self._asked_ms + _RETRY_MS

    def head_due_ms(self) -> int | None:
        """Return when the first row is due, or, while it is to be read, a time before which no row is.

        None if no file is to be read.
        """
        head = self._head() if self._queue else None
        return None if head is None else head.head_due_ms

    @property
    def is_head_ready(self) -> bool:
        """Whether the rows that come next have been read."""
        head = self._head()
        return head is not None and head.is_ready

    def take_due(self, now_ms: int, count_max: int, limit_ms: int | None = None) -> tuple[Rows, str]:
        """Return the next `ROW`s in due order, due by now and by `limit_ms`, all of one file, and its path.

        No rows come while the next ones are still being read.
        """
        limit_ms = now_ms if limit_ms is None else min(now_ms, limit_ms)
        while (head := self._head()) is not None:
            rows = head.take(min(limit_ms, self._turn_until_ms(head)), count_max)
            if not head.is_done or len(rows):
                self._drop_done()
                return rows, head.slot.path
            self._drop_done()
        return NO_ROWS, ""

    # Lists and counts.

    def scan(
        self, from_ms: int, until_ms: int, after: SortKey | None = None
    ) -> Iterator[tuple[Rows, str | None]]:
        """Yield all live timers due in the window and behind `after`, as `ROW`s in due order, and their file.

        A row's `record_at` is `IN_LOG` where its record is not in the file. Nothing may change meanwhile.
        Raise OSError.
        """
        return self._listing().scan(from_ms, until_ms, after)

    def count(self, from_ms: int, until_ms: int) -> int:
        """Return the number of live timers that are due in the window; raise OSError."""
        return self._listing().count(from_ms, until_ms)

    def find(self, due_ms: int, timer_offset: int) -> tuple[str, Rows] | None:
        """Return a timer's file and its `ROW` (an array of one); None if no file has it; raise OSError."""
        slot = self._home(due_ms, timer_offset)
        row = self._listing().find(slot, timer_offset)
        return None if row is None else (slot.path, row)

    def in_memory(self, from_ms: int, until_ms: int) -> Numbers:
        """Return the offsets of the live timers in memory, of all slots that touch a window of ms."""
        slots = self._slots_in_memory(from_ms, until_ms)
        found = [timers_in(iter(self._layers()), slot)["timer_offset"] for slot in slots]
        return np.concatenate([_NO_OFFSETS, *found])

    def deleted_in_memory(self, from_ms: int, until_ms: int) -> Numbers:
        """Return the offsets of the timers whose tombstones are in memory, of the same slots."""
        slots = self._slots_in_memory(from_ms, until_ms)
        return np.concatenate([_NO_OFFSETS, *(tombstones_in(iter(self._layers()), one) for one in slots)])

    def _slots_in_memory(self, from_ms: int, until_ms: int) -> set[Slot]:
        slots = {slot for layer in self._layers() for slot in layer.slots}
        return {slot for slot in slots if slot.start_ms < until_ms and slot.end_ms > from_ms}

    @property
    def unwritten_count(self) -> int:
        """The number of timers and tombstones in memory only."""
        return self._fresh.count + (self._writing.writing.count if self._writing else 0)

    @property
    def disk_bytes(self) -> int:
        """The size of all files in bytes."""
        return sum(file.length for file in self._files.values())

    @property
    def files(self) -> dict[Slot, File]:
        """The files as they are between checkpoints, a copy."""
        return dict(self._files)

    # Checkpoints and starts.

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a slot is to be split by now, or so much is in memory that a checkpoint should write it."""
        return self._writing is None and (self._must_split or self._fresh.count >= TIMERS_UNWRITTEN_MAX)

    @property
    def is_settled(self) -> bool:
        """Whether no checkpoint is under way that changes the files."""
        return self._writing is None

    def to_write(self, now_ms: int) -> PartitionsToWrite:
        """Return all that a checkpoint needs, for another thread to write; end by `written` or `failed`."""
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
        self._fresh, self._must_split = Fresh(), False
        return self._writing

    def written(self, done: PartitionsToWrite) -> None:
        """Take over the files of a checkpoint, which are durable now."""
        assert done is self._writing, "another checkpoint was written"
        assert done.new_files is not None, "nothing was written"
        self._files, self._writing = done.new_files, None
        self._written_offset = done.last_offset
        self.found_damaged(done.damage)
        for slot in done.split:
            waits_ms = self._boundaries.starts_ms[slot.level]
            assert waits_ms == slot.start_ms, f"a boundary passed {slot.name} while it was split"
            self._boundaries.starts_ms[slot.level] = slot.end_ms
            # What came for the slot meanwhile lies in memory; its home is now on the levels below.
            self._fresh.spread(slot, self._boundaries)
        assert self._boundaries.is_ordered, "a level begins behind the one above it"
        self._must_advance, self._is_next_known = True, False

    def failed(self, done: PartitionsToWrite) -> None:
        """Take back what a checkpoint took that came to nothing."""
        assert done is self._writing, "another checkpoint has failed"
        # What was taken comes first again: pairs of a slot lie in the order in which they came.
        later, self._fresh, self._writing = self._fresh, done.writing, None
        for slot, unwritten in later.slots.items():
            self._fresh.at(slot).timers.extend(unwritten.timers.rows())
            self._fresh.at(slot).tombstones.extend(unwritten.tombstones.rows())
        self._fresh.count += later.count
        self._must_advance, self._is_next_known = True, False

    def adopt(self, frozen: Any, now_ms: int) -> None:
        """Take over what a snapshot names; None: nothing, and all files are deleted. Raise OSError.

        A file that is missing or too short is damage that is met when it is read. Files that the snapshot
        does not name stay until `release_older`: they may have records that a damaged file has lost.
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
        # Of a split file nothing else tells what it had, and a bad sector may be one that can be read now.
        self.found_damaged(Gap(*fields) for fields in frozen["gaps"])
        self._older = frozenset(self._disk.list(TIMERS)) - frozen["files"].keys()
        # A slot below its boundary was being read, shared or passing when the snapshot was taken.
        for slot in sorted(files, key=lambda slot: slot.start_ms):
            if slot.start_ms < self._boundaries.starts_ms[slot.level]:
                self._take_up(slot)
        self._must_advance = True

    def drop(self, disk: Disk) -> None:
        """Forget all timers and delete their files; raise OSError."""
        self._clear()
        disk.delete(TIMERS)

    # Damage.

    def found_damaged(self, gaps: Iterable[Gap]) -> None:
        """Add damage that was met; keep its files until it is known which timers the damaged bytes held."""
        for gap in gaps:
            self.damage.append(gap)
            if gap in self.damage:
                self._damaged |= {gap.path.removeprefix(f"{TIMERS}/")}

    def mended(self, gaps: Collection[Gap], *, is_all_there: bool) -> None:
        """Mark damage whose timers are accounted for: they are in memory again, or have ended.

        A split file of which nothing is missing need not be kept any longer.
        """
        known = Gaps(self._found_gap, self.damage.mended | frozenset(gaps))
        for gap in self.damage:
            known.append(gap)
        self.damage = known
        if is_all_there:
            self._damaged -= {gap.path.removeprefix(f"{TIMERS}/") for gap in gaps}

    def release_older(self) -> None:
        """Let checkpoints delete what a start found beside the files of its snapshot.

        Call this once all files of the snapshot were read: the times of what is damaged are in doubt then.
        """
        self._older = frozenset()

    def kept_damaged(self) -> dict[Slot, File]:
        """Return the split files that are kept because timers of damaged bytes are not accounted for."""
        slots = (slot_named(name) for name in sorted(self._damaged))
        sizes = ((slot, self._disk.size(slot.path)) for slot in slots if slot not in self._files)
        return {slot: File(length=size) for slot, size in sizes if size >= 0}

    # Where a timer lies.

    def _home(self, due_ms: int, timer_offset: int) -> Slot:
        """Return the slot in which a pending timer lives."""
        return self._shared.home(due_ms, timer_offset) or self._boundaries.slot_of(due_ms)

    def _layers(self) -> tuple[Fresh, ...]:
        return (self._fresh,) if self._writing is None else (self._writing.writing, self._fresh)

    def _is_on_disk(self, slot: Slot) -> bool:
        """Tell whether a slot has a file, or will have one when the checkpoint under way is done."""
        return slot in self._files or (self._writing is not None and slot in self._writing.writing.slots)

    def _listing(self) -> Listing:
        gaps, layers = (*self.damage, *self.damage.mended), self._layers()
        return Listing(self._disk, self._files, layers, self.watermark, self.damage, self._rows_max, gaps)

    # Boundaries move: the upper ones first, then what passes, then B0.

    def _move(self, now_ms: int) -> list[tuple[int, int]]:
        """Move the boundaries; return the timers in memory that B0 or a passing slot has reached."""
        near: list[tuple[int, int]] = []
        if any(self._boundaries.is_behind(level, now_ms) for level in range(LEVEL_COUNT)):
            before_ms = self.near_until_ms
            self._forget_passed()
            self._move_upper(now_ms)
            while (slot := self._pass_over(now_ms)) is not None:
                near += self._take_up(slot)
                self._move_upper(now_ms)
            near += self._move_lowest(now_ms)
            assert self.near_until_ms >= before_ms, "near timers would be far again, and come twice"
            assert self._boundaries.is_ordered, "a level begins behind the one above it"
            self._must_split = bool(self._to_split(now_ms))
            self._is_next_known = False
        return near

    def _move_upper(self, now_ms: int) -> None:
        """Move the upper boundaries, from the top, each as far as it goes without the disk."""
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
                # What is wholly past waits for `_pass_over`: as one slot, not as many that are all due.
                if slot.end_ms <= now_ms or self._is_on_disk(slot):
                    break
                self._boundaries.starts_ms[level] = slot.end_ms
                self._fresh.spread(slot, self._boundaries)

    def _can_share(self, slot: Slot) -> bool:
        """Tell whether a slot's file is small, and no checkpoint is under way that changes it."""
        if self._writing is not None and (slot in self._writing.split or slot in self._writing.writing.slots):
            return False
        return slot in self._files and self._files[slot].row_count <= self._rows_max

    def _share(self, slot: Slot) -> None:
        """Move the boundary over a slot whose file stays as it is."""
        assert slot not in self._shared.slots, f"{slot.name} is shared twice"
        self._shared.slots[slot] = self._written_offset
        self._boundaries.starts_ms[slot.level] = slot.end_ms
        # Timers that came since its file was written live below from now on; their tombstones went with them,
        # and what is left are tombstones of timers in the file.
        self._fresh.leave_tombstones(slot, self._boundaries)
        self._read(slot, self._files[slot])

    def _pass_over(self, now_ms: int) -> Slot | None:
        """Let the first upper slot pass that lies wholly in the past and has nothing before it; return it."""
        starts_ms = self._boundaries.starts_ms
        for level in range(1, LEVEL_COUNT):
            slot = self._first(level)
            if slot is None or slot.start_ms != starts_ms[level] or slot.end_ms > now_ms:
                continue
            if self._writing is not None and slot in self._writing.split:
                return None
            # All below it must have come so far: their timers are due first.
            if all(start_ms == slot.start_ms for start_ms in starts_ms[1:level]):
                starts_ms[1 : level + 1] = [slot.end_ms] * level
                self._boundaries.passing.append(slot)
                return slot
            return None
        return None

    def _move_lowest(self, now_ms: int) -> list[tuple[int, int]]:
        """Move B0, and take up the slots that it passes; return their timers that are in memory."""
        near: list[tuple[int, int]] = []
        limit_ms = self._boundaries.limit_ms(0, now_ms)
        while (slot := self._first(0)) is not None and slot.start_ms < limit_ms:
            near += self._take_up(slot)
            self._boundaries.starts_ms[0] = slot.end_ms
        self._boundaries.starts_ms[0] = max(self.near_until_ms, limit_ms)
        return near

    def _take_up(self, slot: Slot) -> list[tuple[int, int]]:
        """Queue a slot's file to be read; return the slot's timers that are in memory, as sort keys."""
        file = self._files.get(slot)
        if slot.level and slot not in self._boundaries.passing and slot not in self._shared.slots:
            self._boundaries.passing.append(slot)
        if file is not None and file.length:
            self._read(slot, file)
        pairs = behind(timers_in(iter(self._layers()), slot), self.watermark)
        return list(zip(pairs["due_ms"].tolist(), pairs["timer_offset"].tolist(), strict=True))

    def _first(self, level: int) -> Slot | None:
        """Return the first slot of a level, at or behind its boundary, in which anything lies."""
        start_ms = self._boundaries.starts_ms[level]
        known = chain(self._files, *(layer.slots for layer in self._layers()))
        return min(
            (slot for slot in known if slot.level == level and slot.start_ms >= start_ms), default=None
        )

    def _to_split(self, now_ms: int) -> tuple[Slot, ...]:
        """Return the slots at which a boundary waits, to be split now; not slots that will pass."""
        starts_ms = self._boundaries.starts_ms
        at_boundary = [Slot(level, starts_ms[level]) for level in range(TOP, 0, -1)]
        return tuple(
            slot for slot in at_boundary if slot in self._files and slot.taken_up_ms <= now_ms < slot.end_ms
        )

    def _next_move_ms(self) -> int | None:
        """Return when a boundary next comes to a slot that holds anything, or such a slot is wholly past."""
        now_ms = self._now_ms
        if not self._is_next_known or (self._next_ms is not None and self._next_ms <= now_ms):
            firsts = [slot for slot in map(self._first, range(LEVEL_COUNT)) if slot is not None]
            times = [time for slot in firsts for time in (slot.taken_up_ms, slot.end_ms) if time > now_ms]
            self._next_ms, self._is_next_known = min(times, default=None), True
        if not self._queue:
            return self._next_ms
        ahead = [one.head_due_ms for one in self._queue if one.head_due_ms >= self.near_until_ms]
        times = [max(containing(0, due_ms).taken_up_ms, now_ms) for due_ms in ahead]
        return min([*times, *([] if self._next_ms is None else [self._next_ms])], default=None)

    # Files of slots whose time has come are read.

    def _read(self, slot: Slot, file: File) -> None:
        """Queue a file to be read."""
        assert all(reading.slot != slot for reading in self._queue), f"{slot.name} would be delivered twice"
        tombstones = tombstones_in(iter(self._layers()), slot)
        self._queue.append(Reading(slot, file.length, file.tombstone_count > 0, tombstones))

    def _head(self) -> Reading | None:
        """Return the reading with the row that comes next; of two the upper level's: it was set before."""
        return min(self._queue, key=lambda one: (one.head_due_ms, -one.slot.level), default=None)

    def _turn_until_ms(self, head: Reading) -> int:
        """Return up to which due time rows of `head` come before the rows of all other readings."""
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
        """Return the first file with rows left to read soon, unless enough of it has been read ahead."""
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
        """Return when to read, after a read has failed; at once where the clock was set back since."""
        return self._retry_ms if now_ms < self._retry_ms <= now_ms + _RETRY_MS else now_ms

    def _drop_done(self) -> None:
        self._queue = [reading for reading in self._queue if not reading.is_done]

    # What the watermark has passed is forgotten.

    def _forget_passed(self) -> None:
        """Drop what came for slots that lie wholly before the watermark."""
        until_ms = self.watermark[0]
        for slot in [slot for slot in self._fresh.slots if slot.end_ms <= until_ms]:
            self._fresh.pop(slot)
        self._drop_passed_files()
        passing = self._boundaries.passing
        passing[:] = [slot for slot in passing if slot.end_ms > until_ms or self._is_on_disk(slot)]

    def _drop_passed_files(self) -> None:
        """Drop the files of which everything was delivered: they need no reading, and may be deleted soon."""
        self._queue = [reading for reading in self._queue if reading.slot.end_ms > self.watermark[0]]
        self._shared.drop_passed(self.watermark[0])
