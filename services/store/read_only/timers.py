"""The timers of a store at one point in time: pending timers, and facts about ended timers.

    part      where it is                                            cost
    waiting   partition files, and what came since the snapshot      a slot at a time, bounded
    held      the snapshot (`services.broker.timers.holding`)        all rows
    names     runs, and what came since the snapshot                 a block of each run
    ends      likewise                                               likewise

The object is created from a broker that has replayed the log (`of_checkpoint`), or from the files that a
snapshot names (`of_snapshot`). Timers are not collected in memory, because there may be a hundred million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import TIMERS
from commitlog.limits import TIMER_ROWS_READ_AHEAD_MAX
from commitlog.records import record as records
from commitlog.records.record import Record
from commitlog.snapshots.snapshot import Snapshot
from consumequeue.indexes.timerindex import FACTS
from consumequeue.indexes.timerindex_fact import Facts, newest_of
from consumequeue.runs import sorted_runs
from consumequeue.runs.run_store import RunsToWrite, Unsaved
from consumequeue.runs.sorted_runs import Run
from services.broker.timers.timer_ends import ENDS, NAMES
from services.broker.timers.timer_files import TIMER_FILES, CheckpointTimers
from services.broker.timers.timer_records import due_ms_of, to_timer_record
from services.store.read_only.opening import OpenStore
from timingwheel.boundaries import Numbers, slot_named
from timingwheel.cascade import File
from timingwheel.listing import Listing
from timingwheel.partition import IN_LOG, ROW, Rows
from timingwheel.unwritten import NewRows

_FOREVER_MS: Final = 1 << 62

Read = Callable[[int], Record]
"""Reads the record at a log offset; raises `StoreDamaged`."""


class Waiting(NamedTuple):
    """A pending timer. If its record cannot be read, `record` is None and the due time is that of its row."""

    timer_offset: int
    due_ms: int
    record: Record | None


@dataclass(slots=True, frozen=True)
class FactSource:
    """Facts in runs and in memory."""

    runs: tuple[Run, ...]
    recents: tuple[Unsaved, ...] = ()

    @classmethod
    def of(cls, taken: RunsToWrite) -> FactSource:
        """Return the facts of a broker."""
        return cls(taken.runs, taken.recents)

    @property
    def fact_count(self) -> int:
        """The number of facts, including superseded facts."""
        return sum(run.entry_count for run in self.runs) + sum(map(len, self.recents))

    def newest(self, disk: Disk) -> Iterator[Facts]:
        """Return the newest fact for each key, in order. Damaged blocks are skipped."""
        sources = [run.readable(disk, []) for run in self.runs]
        sources += [recent.chunks() for recent in self.recents]
        return map(newest_of, sorted_runs.passes(sources, "key", "check"))


@dataclass(slots=True, frozen=True)
class StoredTimers:
    """All timers of a store."""

    disk: Disk
    listing: Listing
    names: FactSource
    ends: FactSource
    counted: Mapping[str, int]
    """Number of pending timers per topic, as counted by the broker."""
    forgotten_ms: int
    """The time before which merges may have dropped ends (see `services.broker.timers.timer_ends`)."""
    read: Read
    in_doubt: Numbers
    """The timers that wait for recovery. Their records are damaged, and their files may be missing."""
    held: Rows
    """Due timers that are held until the release of their topics, by due time."""

    @classmethod
    def of_checkpoint(
        cls, disk: Disk, taken: CheckpointTimers, parts: Mapping[str, Any], read: Read
    ) -> StoredTimers:
        """Return the timers of a broker's checkpoint."""
        partitions = taken.partitions
        listing = _listing(disk, partitions.files, (partitions.writing,), partitions.watermark)
        names, ends = FactSource.of(taken.ends.names), FactSource.of(taken.ends.ends)
        counted, forgotten_ms = parts["timers"]["pending"], taken.ends.forgotten_ms
        others = _in_doubt(parts), _held(parts)
        return cls(disk, listing, names, ends, counted, forgotten_ms, read, *others)

    @classmethod
    def of_snapshot(cls, disk: Disk, parts: Mapping[str, Any], read: Read) -> StoredTimers:
        """Return the timers of a snapshot."""
        named = parts[TIMER_FILES]
        partitions = named["partitions"] or {"files": {}, "frontier": (0, 0)}
        files = {slot_named(name): File(*fields) for name, fields in partitions["files"].items()}
        listing = _listing(disk, files, (), partitions["frontier"])
        names = FactSource(runs_of(NAMES, named["ends"]["names"]))
        ends = FactSource(runs_of(ENDS, named["ends"]["ends"]))
        counted, forgotten_ms = parts["timers"]["pending"], named["ends"]["forgotten_ms"]
        others = _in_doubt(parts), _held(parts)
        return cls(disk, listing, names, ends, counted, forgotten_ms, read, *others)

    @property
    def counted_count(self) -> int:
        """The number of pending timers, as counted by the broker."""
        return sum(self.counted.values())

    def places(self) -> Iterator[tuple[Rows, str | None]]:
        """Yield the rows of held timers, then the rows of all pending timers in storage order, each with its
        file.
        """
        yield self.held, None
        yield from self.listing.scan(0, _FOREVER_MS, None)

    def offsets(self) -> Numbers:
        """Return the sorted offsets of all pending timers. The result takes 8 bytes per timer."""
        found = [rows["timer_offset"].copy() for rows, _ in self.places()]
        in_places = np.concatenate([np.empty(0, np.uint64), *found])
        return np.sort(np.concatenate([in_places, np.setdiff1d(self.in_doubt, in_places)]))

    def next_due_ms(self) -> int | None:
        """Return the earliest due time of the timers that are not held, or None if there are none."""
        return next((int(rows[0]["due_ms"]) for rows, _ in self.listing.scan(0, _FOREVER_MS, None)), None)

    def waiting(self) -> Iterator[Waiting]:
        """Yield all pending timers with their records, in storage order."""
        for rows, path in self.places():
            for row in rows:
                yield self._waiting(row, path)

    def _waiting(self, row: Any, path: str | None) -> Waiting:
        timer_offset = int(row["timer_offset"])
        try:
            if path is None or int(row["record_at"]) == IN_LOG:
                timer = self.read(timer_offset)
            else:
                timer = self._read_row(path, int(row["record_at"]), int(row["record_bytes"]))
        except StoreDamaged:
            return Waiting(timer_offset, int(row["due_ms"]), None)
        return Waiting(timer_offset, due_ms_of(timer), timer)

    def _read_row(self, path: str, position: int, record_bytes: int) -> Record:
        stored = self.disk.read(path, position, record_bytes)
        if not records.is_sound(stored, may_lack_crc=False):
            raise StoreDamaged(f"The timer at byte {position} of {path} does not match its CRC.")
        return to_timer_record(records.decode(stored))


def timer_files(found: Snapshot) -> dict[str, int | None]:
    """Return the timer files that a snapshot names, with the length of each in the snapshot (None: all)."""
    part = found.parts[TIMER_FILES]
    partitions = (part["partitions"] or {"files": {}})["files"]
    runs = (*runs_of(NAMES, part["ends"]["names"]), *runs_of(ENDS, part["ends"]["ends"]))
    lengths: dict[str, int | None] = {f"{TIMERS}/{name}": length for name, (length, *_) in partitions.items()}
    return lengths | dict.fromkeys(run.path for run in runs)


def timer_files_are_there(store: OpenStore, found: Snapshot) -> bool:
    """Return whether the timer files of a snapshot exist with sufficient length."""
    return all(store.files.size(path) >= (length or 0) for path, length in timer_files(found).items())


def runs_of(folder: str, frozen: Any) -> tuple[Run, ...]:
    """Return the runs that a snapshot names, without loading them."""
    return tuple(Run(FACTS, folder, *fields) for fields in frozen or [])


def _in_doubt(parts: Mapping[str, Any]) -> Numbers:
    """Return the timers that wait for recovery, from the timers' part of a snapshot."""
    return np.array([one[0] for one in parts["timers"]["in_doubt"]], np.uint64)


def _held(parts: Mapping[str, Any]) -> Rows:
    """Return the rows of the held timers, from the timers' part of a snapshot."""
    pairs = [
        pair
        for _, due_times, offsets in parts["timers"].get("held", ())
        for pair in zip(due_times, offsets, strict=True)
    ]
    rows = np.zeros(len(pairs), ROW)
    rows["record_at"] = IN_LOG
    if pairs:
        rows["due_ms"], rows["timer_offset"] = np.array(sorted(pairs), np.uint64).T
    return rows


def _listing(disk: Disk, files: Any, layers: tuple[NewRows, ...], watermark: Any) -> Listing:
    sort_key = (int(watermark[0]), int(watermark[1]))
    return Listing(disk, files, layers, sort_key, [], TIMER_ROWS_READ_AHEAD_MAX)
