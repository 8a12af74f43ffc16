"""Writes timer changes to files during a checkpoint: splits slots and appends new timers.

    file of level k, slot s --> its live timers, 8 MiB at a time --> files of level k-1, a batch each
    new timers of a slot    --> `fetch` their records            --> batches at the end of the slot's file

A worker thread writes the state returned by `Partitions.to_write`. It only creates new files or appends to
existing ones, so data covered by a snapshot never changes. A failed write thus leaves only bytes not covered
by a snapshot, which the next write truncates. A timer deleted before the checkpoint is not written.

Cost: each timer is written once when it is added, and once more for each level that it moves down (at most
five). A write requires memory for 8 MiB of records and the tombstones of one slot. Limitation: a slot is
always split as a whole. If a level-4 or level-5 slot holds most timers of a store, the checkpoint that splits
it takes a long time and requires disk space for two copies of the timers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.layout import TIMERS
from commitlog.limits import TIMER_BATCH_BYTES_MAX, TIMERS_FETCHED_AT_ONCE_MAX
from commitlog.records import bulk
from timingwheel import partition
from timingwheel.boundaries import Boundaries, Numbers, Slot, slot_named
from timingwheel.due_run import SortKey, behind
from timingwheel.partition import (
    PAIR,
    TOMBSTONE,
    WITH_RECORDS,
    WITHOUT_RECORDS,
    Batch,
    Gap,
    Rows,
    Window,
    alive,
)
from timingwheel.shared import Shared
from timingwheel.unwritten import NewRows, NewSlotRows

Fetch = Callable[[Numbers], tuple[Rows, list[bytes]]]
"""Returns the rows and records of the timers at these offsets. Timers with unreadable records are missing."""

Span = tuple[int, int]
"""Time range in milliseconds. The end is exclusive."""

_FIRST_FETCH: Final = 64


class File(NamedTuple):
    """The valid part of a slot file: its length in bytes, and the number of timers and tombstones."""

    length: int = 0
    row_count: int = 0
    tombstone_count: int = 0


class UnreadableTimer(NamedTuple):
    """A timer whose record is damaged. `path` is its file, or "" if the record is in the log."""

    due_ms: int
    timer_offset: int
    path: str = ""
    queue: int = -1
    """Queue in the timer's row, or -1 if unknown."""


class _Growing:
    """A file that grows batch by batch."""

    def __init__(self, disk: Disk, path: str, file: File) -> None:
        self._disk, self._path, self.file = disk, path, file
        # The file may end with bytes from a failed write or from a write whose snapshot is missing. These
        # bytes must not be read as timers.
        if disk.size(path) > file.length:
            disk.truncate(path, file.length)

    def add(self, batches: Iterator[bytes], row_count: int, tombstone_count: int = 0) -> None:
        """Append batches with the given numbers of timers and tombstones. Raise OSError on failure."""
        length = self.file.length
        for batch in batches:
            self._disk.write(self._path, length, batch)
            length += len(batch)
        self.file = File(length, self.file.row_count + row_count, self.file.tombstone_count + tombstone_count)


@dataclass(slots=True, eq=False)
class PartitionsToWrite:
    """State that a checkpoint writes: the files of the last snapshot and the new timers."""

    boundaries: Boundaries
    split: tuple[Slot, ...]
    writing: NewRows
    files: dict[Slot, File]
    watermark: SortKey
    damaged: frozenset[str]
    """Names of damaged files, which must not be deleted."""
    shared: Shared
    last_offset: int
    """Log offset of the last timer set."""
    mended: frozenset[Gap] = frozenset()
    """Damaged ranges whose timers all have known outcomes."""
    unmended: tuple[Gap, ...] = ()
    """Damaged ranges with timers of unknown outcome."""
    older: frozenset[str] = frozenset()
    """Names of files that the snapshot at startup did not list, and that must be kept."""
    unreadable: list[UnreadableTimer] = field(default_factory=list)
    """Timers with damaged records. They are stored without records until they end."""
    damage: list[Gap] = field(default_factory=list)
    new_files: dict[Slot, File] | None = None
    _growing: dict[Slot, _Growing] = field(default_factory=dict)
    _fetch_count: int = _FIRST_FETCH

    def write(self, disk: Disk, fetch: Fetch) -> None:
        """Write all changes durably. Raise OSError on failure."""
        assert self.new_files is None, "written twice"
        for slot in self.split:
            self._split(disk, slot)
        for slot, unwritten in sorted(self.writing.slots.items()):
            self._add(disk, slot, unwritten, fetch)
        self._sync(disk)
        kept = {slot: file for slot, file in self.files.items() if self._is_kept(slot)}
        self.new_files = kept | {slot: growing.file for slot, growing in self._growing.items()}
        assert self.new_files.keys().isdisjoint(self.split), "timers of a slot that was split come twice"
        self.shared = Shared({slot: last for slot, last in self.shared.slots.items() if slot in kept})

    def freeze(self) -> Any:
        """Return the state for a snapshot, or None before `write` has completed."""
        if self.new_files is None:
            return None
        return {
            "boundaries": self.boundaries.starts_ms,
            "files": {slot.name: list(file) for slot, file in sorted(self.new_files.items())},
            "frontier": list(self.watermark),
            "damaged": sorted(self.damaged),
            "shared": self.shared.freeze(),
            "last_offset": self.last_offset,
            "mended": [gap.freeze() for gap in sorted(self.mended) if self._is_there(gap)],
            "gaps": [gap.freeze() for gap in self._gaps_to_keep()],
            "unreadable": [list(one) for one in self.unreadable],
        }

    def _gaps_to_keep(self) -> list[Gap]:
        """Return all damaged ranges that contain timers of unknown outcome.

        After a split, the snapshot contains the only evidence of a file's damage. In other files, a bad
        sector may become readable after a restart. The broker would then assume that its timers have ended,
        because the watermark has passed them.
        """
        return sorted({*self.unmended, *self.damage})

    def _is_there(self, gap: Gap) -> bool:
        assert self.new_files is not None
        name = gap.path.removeprefix(f"{TIMERS}/")
        return name in self.damaged or slot_named(name) in self.new_files

    def delete_unused(self, disk: Disk, in_doubt: Iterable[Span] = ()) -> None:
        """Delete the files that neither the new nor the previous snapshot lists. Raise OSError on failure.

        A file whose slot overlaps a time range in `in_doubt` is kept, because it may contain the only intact
        copy of a damaged record.
        """
        assert self.new_files is not None, "tidied before it was written"
        spans = [*in_doubt, *(span_of(gap.path) for gap in self.damage)]
        spans += [(one.due_ms, one.due_ms + 1) for one in self.unreadable]
        named = {slot.name for slot in (*self.files, *self.new_files)} | self.damaged | self.older
        for name in disk.list(TIMERS):
            if name not in named and not _touches(name, spans):
                disk.delete(f"{TIMERS}/{name}")

    def _is_kept(self, slot: Slot) -> bool:
        """Return whether a slot's file is kept because the slot is neither split nor fully delivered."""
        return slot not in self.split and slot.end_ms > self.watermark[0]

    def _split(self, disk: Disk, slot: Slot) -> None:
        """Copy the live timers in a slot to files on lower levels."""
        assert self.boundaries.starts_ms[slot.level] >= slot.end_ms, f"{slot.name} would be split into itself"
        damage: list[Gap] = []
        tombstones = self._tombstones_of(disk, slot, damage)
        without = {*self.unmended, *self.mended, *damage}
        slices = _slices(disk, slot, self.files[slot], tombstones, damage, without)
        for rows, records in chain.from_iterable(self._sound_first(slot, *one) for one in slices):
            for child, places in self.boundaries.split(rows["due_ms"].copy()):
                growing = self._to(disk, child)
                if rows.dtype == PAIR:
                    growing.add(
                        partition.encode_pairs(growing.file.length, WITHOUT_RECORDS, rows[places]),
                        len(places),
                    )
                else:
                    picked = [records[place] for place in places.tolist()]
                    growing.add(partition.encode_rows(growing.file.length, rows[places], picked), len(places))
        # The old file is kept, because it may contain timer records that no longer exist in the log.
        if damage:
            self.damage += damage
            self.damaged |= {slot.name}

    def _sound_first(
        self, slot: Slot, rows: Rows, records: list[bytes]
    ) -> Iterator[tuple[Rows, list[bytes]]]:
        """Yield the timers with intact records, followed by those with damaged records as pairs.

        Damaged records are not copied. Otherwise the damaged copy would be the only one once retention has
        deleted the log segment and a checkpoint has deleted the older files.
        """
        if rows.dtype == PAIR:
            yield rows, records
            return
        are_sound = _are_sound(rows, records)
        if are_sound.all():
            yield rows, records
            return
        if are_sound.any():
            yield rows[are_sound], [records[place] for place in np.flatnonzero(are_sound).tolist()]
        damaged = rows[~are_sound]
        found = zip(damaged["due_ms"], damaged["timer_offset"], damaged["queue"], strict=True)
        self.unreadable += [
            UnreadableTimer(int(due), int(at), slot.path, int(queue)) for due, at, queue in found
        ]
        pairs = np.empty(len(damaged), PAIR)
        pairs["due_ms"], pairs["timer_offset"] = damaged["due_ms"], damaged["timer_offset"]
        yield pairs, []

    def _tombstones_of(self, disk: Disk, slot: Slot, damage: list[Gap]) -> Numbers:
        """Return the offsets of a slot's deleted timers, in ascending order.

        They are collected from the tombstones in the file and in memory.
        """
        file, fresh = self.files[slot], self.writing.slots.get(slot)
        without = {*self.unmended, *self.mended}
        tombstones = [np.empty(0, np.uint64)]
        if file.tombstone_count:
            tombstones.append(partition.tombstone_offsets(disk, slot.path, file.length, damage, without))
        if fresh is not None:
            tombstones.append(fresh.tombstones.rows()["timer_offset"])
        return np.sort(np.concatenate(tombstones))

    def _add(self, disk: Disk, slot: Slot, unwritten: NewSlotRows, fetch: Fetch) -> None:
        """Append a slot's new timers and tombstones to its file.

        If the slot is split, append the timers to files on lower levels.
        """
        # If a timer was both added and deleted after the last checkpoint, neither the timer nor its tombstone
        # is written.
        timers, tombstones = unwritten.timers.rows(), unwritten.tombstones.rows()
        left = alive(timers, np.sort(tombstones["timer_offset"]))
        tombstones = alive(tombstones, np.sort(timers["timer_offset"]))
        left, tombstones = behind(left, self.watermark), behind(tombstones, self.watermark)
        if slot not in self.split:
            self._add_to(disk, slot, left, fetch)
            self._add_tombstones(disk, slot, tombstones)
            return
        # The tombstones of a split slot are not written, because the split has already omitted the deleted
        # timers.
        for child, places in self.boundaries.split(left["due_ms"].copy()):
            self._add_to(disk, child, left[places], fetch)

    def _add_to(self, disk: Disk, slot: Slot, timers: Rows, fetch: Fetch) -> None:
        """Append timers (`PAIR`) and their records to the file of a slot."""
        ordered = _by_offset(timers)
        first = 0
        while first < len(ordered):
            chunk = ordered[first : first + self._fetch_count]
            first += len(chunk)
            rows, records = fetch(chunk["timer_offset"].copy())
            self._add_fetched(self._to(disk, slot), chunk, rows, records)

    def _add_fetched(self, growing: _Growing, chunk: Rows, rows: Rows, records: list[bytes]) -> None:
        if len(rows) < len(chunk):  # A timer with a damaged record is stored as a pair.
            missing = chunk[~np.isin(chunk["timer_offset"], rows["timer_offset"])]
            self.unreadable += [UnreadableTimer(*pair) for pair in missing.tolist()]
            growing.add(partition.encode_pairs(growing.file.length, WITHOUT_RECORDS, missing), len(missing))
            chunk = alive(chunk, missing["timer_offset"])
        assert np.array_equal(rows["timer_offset"], chunk["timer_offset"]), "records of other timers"
        assert len(rows) == len(records), "rows without their records"
        records_bytes = sum(map(len, records))
        self._adjust_fetch_count(len(chunk), records_bytes)
        if records_bytes == 0:
            growing.add(partition.encode_pairs(growing.file.length, WITHOUT_RECORDS, chunk), len(chunk))
            return
        rows["due_ms"] = chunk["due_ms"]
        growing.add(partition.encode_rows(growing.file.length, rows, records), len(rows))

    def _adjust_fetch_count(self, count: int, records_bytes: int) -> None:
        """Adjust the number of records per fetch so that records of this size fit in one batch."""
        fitting = TIMER_BATCH_BYTES_MAX * count // max(1, records_bytes)
        self._fetch_count = max(1, min(fitting, 4 * self._fetch_count, TIMERS_FETCHED_AT_ONCE_MAX))

    def _add_tombstones(self, disk: Disk, slot: Slot, tombstones: Rows) -> None:
        if len(tombstones):
            growing = self._to(disk, slot)
            batches = partition.encode_pairs(growing.file.length, TOMBSTONE, tombstones)
            growing.add(batches, 0, len(tombstones))

    def _to(self, disk: Disk, slot: Slot) -> _Growing:
        growing = self._growing.get(slot)
        if growing is None:
            file = self.files.get(slot, File()) if self._is_kept(slot) else File()
            growing = self._growing[slot] = _Growing(disk, slot.path, file)
        return growing

    def _sync(self, disk: Disk) -> None:
        """Sync all changed files and then their directories, so that a snapshot may list them."""
        for slot in self._growing:
            disk.sync(slot.path)
        if self._growing:
            disk.sync_folder(TIMERS)
            disk.sync_folder("")


def span_of(path: str) -> Span:
    """Return the time range of the slot stored in the file at `path`."""
    slot = slot_named(path.removeprefix(f"{TIMERS}/"))
    return slot.start_ms, slot.end_ms


def _touches(name: str, spans: list[Span]) -> bool:
    """Return whether a slot file overlaps one of these time ranges."""
    try:
        start_ms, end_ms = span_of(name)
    except ValueError:
        return False
    return any(start_ms < until_ms and from_ms < end_ms for from_ms, until_ms in spans)


def _by_offset(timers: Rows) -> Rows:
    offsets = timers["timer_offset"]
    if bool(np.all(offsets[1:] > offsets[:-1])):
        return timers
    ordered: Rows = timers[np.argsort(offsets, kind="stable")]
    return ordered


def _slices(
    disk: Disk, slot: Slot, file: File, tombstones: Numbers, damage: list[Gap], without: Collection[Gap]
) -> Iterator[tuple[Rows, list[bytes]]]:
    """Yield the live timers of a file with their records, in batches of about 8 MiB.

    The list of records is empty for pairs.
    """
    window = Window(disk, slot.path, file.length, TIMER_BATCH_BYTES_MAX)
    held: list[Rows] = []
    records: list[bytes] = []
    held_bytes = 0
    for batch in partition.batches(window, damage, 0, without):
        if batch.kind == TOMBSTONE:
            continue
        rows = alive(batch.rows, tombstones)
        found = _records(window, batch, rows) if batch.kind == WITH_RECORDS else []
        is_other = bool(held) and held[0].dtype != rows.dtype
        if held and (is_other or held_bytes + batch.end - batch.position > TIMER_BATCH_BYTES_MAX):
            yield np.concatenate(held), records
            held, records, held_bytes = [], [], 0
        held.append(rows)
        held_bytes += batch.end - batch.position
        records += found
    if held:
        yield np.concatenate(held), records


def _records(window: Window, batch: Batch, rows: Rows) -> list[bytes]:
    """Return each row's encoded record, using a single read of the batch."""
    stored = window.bytes_at(batch.position, batch.end - batch.position)
    lengths = rows["record_bytes"].astype(np.uint64)
    firsts = np.where(lengths > 0, rows["record_at"] - np.uint64(batch.position), 0)
    ends = firsts + lengths
    return [stored[first:end] for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)]


def _are_sound(rows: Rows, records: list[bytes]) -> Any:
    """Return, for each row, whether its record is intact or only in the log."""
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    ends = np.cumsum(lengths)
    are_sound = lengths == rows["record_bytes"]
    there = are_sound & (lengths > 0)
    if there.any():
        content = bytearray(b"".join(records))
        are_sound[there] = bulk.are_sound(content, (ends - lengths)[there], ends[there])
    return are_sound


def named_files(named: dict[str, list[int]]) -> dict[Slot, File]:
    """Return the files listed in a snapshot.

    The files themselves are not checked. A missing or truncated file produces a gap when it is read.
    """
    return {slot_named(name): File(*fields) for name, fields in named.items()}
