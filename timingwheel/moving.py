"""How the levels' boundaries move with the present, and what that makes of the slots they come to.

    a boundary comes to a slot that      and then
    is in memory only                    its timers go to the slots below; no disk
    has a small file                     the slot is shared: it stays a file (`timingwheel.shared`)
    has a large file                     the boundary waits until a checkpoint has split it
    lies wholly in the past, and large   it passes: it is read as it is, in due order
    is of level 0                        its file is queued to be read, its timers in memory are near

Upper boundaries move first, and none passes the one above it. Cost: the slots in which anything lies.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from commitlog.disk import Disk
from commitlog.limits import TIMER_ROWS_READ_AHEAD_MAX
from timingwheel.boundaries import LEVEL_COUNT, TOP, Boundaries, Slot, containing
from timingwheel.cascade import File, PartitionsToWrite
from timingwheel.due_run import ReadAhead, Reading, SortKey, behind
from timingwheel.partition import Gap
from timingwheel.shared import Shared
from timingwheel.unwritten import Fresh, timers_in, tombstones_in

FOREVER_MS: Final = 1 << 62
_RETRY_MS: Final = 1_000


class Gaps(list[Gap]):
    """Damage that nobody has seen to, each once; `mended` is that which somebody has."""

    def __init__(self, mended: frozenset[Gap] = frozenset()) -> None:
        super().__init__()
        self.mended = mended

    def append(self, gap: Gap) -> None:
        """Adds one that is new."""
        if gap not in self.mended and gap not in self:
            super().append(gap)


class MovingLevels:
    """The far levels of a wheel, and where each begins."""

    def __init__(self, disk: Disk, now_ms: int, rows_max: int = TIMER_ROWS_READ_AHEAD_MAX) -> None:
        self._disk, self._now_ms, self._rows_max = disk, now_ms, rows_max
        self._clear()

    def _clear(self) -> None:
        self._boundaries = Boundaries.at(self._now_ms)
        self._files: dict[Slot, File] = {}
        self._fresh = Fresh()
        self._writing: PartitionsToWrite | None = None
        self._queue: list[Reading] = []
        self._job: ReadAhead | None = None
        self._retry_ms = 0
        self._damaged: frozenset[str] = frozenset()
        self._next_ms: int | None = None
        self._is_next_known = False
        self._must_advance, self._must_split = False, False
        self._shared = Shared()
        self._last_offset = self._written_offset = 0
        self.watermark: SortKey = (0, 0)
        """The last timer delivered, set by the caller; all at or before it are done."""
        self.damage = Gaps()
        """What of the files could not be read, and whose timers are not accounted for."""

    @property
    def near_until_ms(self) -> int:
        """Timers due before this are the caller's."""
        return self._boundaries.starts_ms[0]

    def _layers(self) -> tuple[Fresh, ...]:
        return (self._fresh,) if self._writing is None else (self._writing.writing, self._fresh)

    def _is_on_disk(self, slot: Slot) -> bool:
        """Whether a slot has a file, or will have one when the checkpoint under way is done."""
        return slot in self._files or (self._writing is not None and slot in self._writing.writing.slots)

    def _home(self, due_ms: int, timer_offset: int) -> Slot:
        """The slot in which a pending timer lives."""
        return self._shared.home(due_ms, timer_offset) or self._boundaries.slot_of(due_ms)

    def _first(self, level: int) -> Slot | None:
        """The first slot of a level, at or behind its boundary, in which anything lies."""
        start_ms = self._boundaries.starts_ms[level]
        known = chain(self._files, *(layer.slots for layer in self._layers()))
        return min(
            (slot for slot in known if slot.level == level and slot.start_ms >= start_ms), default=None
        )

    def _to_split(self, now_ms: int) -> tuple[Slot, ...]:
        """The slots at which a boundary waits, to be split now; not those that will pass."""
        starts_ms = self._boundaries.starts_ms
        at_boundary = [Slot(level, starts_ms[level]) for level in range(TOP, 0, -1)]
        return tuple(
            slot for slot in at_boundary if slot in self._files and slot.taken_up_ms <= now_ms < slot.end_ms
        )

    def _move(self, now_ms: int) -> list[tuple[int, int]]:
        near: list[tuple[int, int]] = []
        if any(self._boundaries.is_behind(level, now_ms) for level in range(LEVEL_COUNT)):
            self._forget_passed()
            self._move_upper(now_ms)
            while (slot := self._pass_over(now_ms)) is not None:
                near += self._take_up(slot)
                self._move_upper(now_ms)
            near += self._move_lowest(now_ms)
            self._must_split = bool(self._to_split(now_ms))
            self._is_next_known = False
        return near

    def _move_upper(self, now_ms: int) -> None:
        """Moves the upper boundaries, from the top, each as far as it goes without the disk."""
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
                if slot.end_ms <= now_ms or self._is_on_disk(slot):
                    break
                self._boundaries.starts_ms[level] = slot.end_ms
                self._fresh.spread(slot, self._boundaries)

    def _can_share(self, slot: Slot) -> bool:
        """Whether a slot's file is small, and no checkpoint is under way that changes it."""
        if self._writing is not None and (slot in self._writing.split or slot in self._writing.writing.slots):
            return False
        return slot in self._files and self._files[slot].row_count <= self._rows_max

    def _share(self, slot: Slot) -> None:
        """Moves the boundary over a slot whose file stays as it is."""
        self._shared.slots[slot] = self._written_offset
        self._boundaries.starts_ms[slot.level] = slot.end_ms
        self._fresh.leave_tombstones(slot, self._boundaries)
        self._read(slot, self._files[slot])

    def _read(self, slot: Slot, file: File) -> None:
        """Queues a file to be read."""
        tombstones = tombstones_in(iter(self._layers()), slot)
        self._queue.append(Reading(slot, file.length, file.tombstone_count > 0, tombstones))

    def _pass_over(self, now_ms: int) -> Slot | None:
        """Lets the first upper slot pass that lies wholly in the past and has nothing before it."""
        starts_ms = self._boundaries.starts_ms
        for level in range(1, LEVEL_COUNT):
            slot = self._first(level)
            if slot is None or slot.start_ms != starts_ms[level] or slot.end_ms > now_ms:
                continue
            if self._writing is not None and slot in self._writing.split:
                return None
            if all(start_ms == slot.start_ms for start_ms in starts_ms[1:level]):
                starts_ms[1 : level + 1] = [slot.end_ms] * level
                self._boundaries.passing.append(slot)
                return slot
            return None
        return None

    def _move_lowest(self, now_ms: int) -> list[tuple[int, int]]:
        """Moves B0, and takes up the slots that it passes."""
        near: list[tuple[int, int]] = []
        limit_ms = self._boundaries.limit_ms(0, now_ms)
        while (slot := self._first(0)) is not None and slot.start_ms < limit_ms:
            near += self._take_up(slot)
            self._boundaries.starts_ms[0] = slot.end_ms
        self._boundaries.starts_ms[0] = max(self.near_until_ms, limit_ms)
        return near

    def _take_up(self, slot: Slot) -> list[tuple[int, int]]:
        """Queues a slot's file to be read; gives its timers that are in memory."""
        file = self._files.get(slot)
        if slot.level and slot not in self._boundaries.passing and slot not in self._shared.slots:
            self._boundaries.passing.append(slot)
        if file is not None and file.length:
            self._read(slot, file)
        pairs = behind(timers_in(iter(self._layers()), slot), self.watermark)
        return list(zip(pairs["due_ms"].tolist(), pairs["timer_offset"].tolist(), strict=True))

    def _forget_passed(self) -> None:
        """Drops what came for slots that lie wholly before the watermark."""
        until_ms = self.watermark[0]
        for slot in [slot for slot in self._fresh.slots if slot.end_ms <= until_ms]:
            self._fresh.pop(slot)
        self._drop_passed_files()
        passing = self._boundaries.passing
        passing[:] = [slot for slot in passing if slot.end_ms > until_ms or self._is_on_disk(slot)]

    def _drop_passed_files(self) -> None:
        """Files of which everything was delivered need no reading, and may be deleted soon."""
        self._queue = [reading for reading in self._queue if reading.slot.end_ms > self.watermark[0]]
        self._shared.drop_passed(self.watermark[0])

    def _next_move_ms(self) -> int | None:
        """When a boundary next comes to a slot in which anything lies, or such a slot is wholly past."""
        now_ms = self._now_ms
        if not self._is_next_known or (self._next_ms is not None and self._next_ms <= now_ms):
            firsts = [slot for slot in map(self._first, range(LEVEL_COUNT)) if slot is not None]
            times = [time for slot in firsts for time in (slot.taken_up_ms, slot.end_ms) if time > now_ms]
            self._next_ms, self._is_next_known = min(times, default=None), True
        ahead = [one.head_due_ms for one in self._queue if one.head_due_ms >= self.near_until_ms]
        times = [max(containing(0, due_ms).taken_up_ms, now_ms) for due_ms in ahead]
        return min([*times, *([] if self._next_ms is None else [self._next_ms])], default=None)
