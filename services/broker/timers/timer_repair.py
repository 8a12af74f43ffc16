"""Repair damaged timer files. Each lost timer is either rebuilt from another copy or ended as UNREADABLE.

    CheckJob      verifies files, a few megabytes at a time, after startup and then once a day -+
    ReadAhead     detects damage while it reads timers that are due soon                        +--> gaps
    a split       detects damage while it copies a file                                      ---+     |
                                                                                                      v
    RepairJob     identifies the lost timers of the gaps in a worker thread <-------------------------+
    repair_next_batch   rebuilds the timers that have a readable copy, and ends the other lost timers

The timers in a gap are identified by elimination. The repair starts with all named timers that are due in the
window of the damaged file. Timers that have ended, or that are in memory or in an undamaged batch, are
excluded. If fewer timers remain than rows were lost, the log is also read, because a timer without a message
id may have no name. A gap may also have contained tombstones. The rows of ended timers in the window are
therefore deleted again. The end of a timer is kept while a timer with the same due time may be pending in a
damaged file. All timers that are due before `Partitions.undone_ms` have ended.

To rebuild a timer, the broker appends a record that replaces the old timer, as in a move that keeps the due
time. A rebuilt timer is therefore durable and is delivered only once, and a crash during the repair loses no
timer. The record is read from the log or from an older timer file. Files that cover a time in doubt are
therefore kept until all affected timers have been rebuilt and a later checkpoint has begun. At startup, the
times in doubt are unknown. No timer file is therefore deleted until all files have been verified.

An undamaged row with a damaged record is repaired in the same way as a gap. A timer is also repaired if its
damage is detected only when the timer is due or when a checkpoint copies it (`Timers.in_doubt`), because a
late delivery is better than a lost message. If neither the log nor an older file contains a readable record,
the timer ends as UNREADABLE. Such timers are counted and listed, and never become pending again.

Cost: without damage, only the checks. A repair reads the names and ends once, and uses 16 bytes of memory for
each timer in the window.

If no file on the disk can be read, read errors are not evidence of damage. The repair then fails and is
retried later.

Limitation: if the names or the log are also damaged, some lost timers may remain unidentified. The number of
unidentified timers is computed from the row counts in the snapshot and added to `unknown_count`. If the
damaged file has been split, even the number of unidentified timers is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from commitlog import limits
from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged, StoreError
from commitlog.layout import COMMITLOG, TIMER_NAMES, TIMERS
from commitlog.log.recovery import Damage, LogScan
from commitlog.records import bulk
from commitlog.records.kinds import TIMER_TOPIC
from commitlog.records.record import CRC_BYTES, Record
from consumequeue.indexes.timerindex import FactIndex
from consumequeue.runs.sorted_runs import Run
from services.broker.spine.store import Store
from services.broker.spine.values import DamagedPart
from services.broker.timers.timer_ends import last_ms
from services.broker.timers.timer_files import UncertainTimes
from services.broker.timers.timer_records import due_ms_of
from services.broker.timers.timers import DamagedTimer, Timers
from timingwheel import partition, sectors
from timingwheel.boundaries import Numbers, Slot, slot_named
from timingwheel.cascade import File, Span, span_of
from timingwheel.due_run import within
from timingwheel.partition import PAIR, WITH_RECORDS, Gap, Rows, Window

_NOTHING: Final = np.empty(0, PAIR)
_NO_OFFSETS: Final = np.empty(0, np.uint64)
_FOREVER_MS: Final = 1 << 62
_TRIED_EACH: Final = 5
"""The number of files per directory whose first byte is read to test the disk."""


class RowWithoutRecord(NamedTuple):
    """An undamaged row with a damaged record."""

    due_ms: int
    timer_offset: int
    queue: int
    path: str
    is_unread: bool = False
    """Whether part of the record cannot be read from the disk."""

    def __str__(self) -> str:
        why = "cannot be read by the disk (EIO)" if self.is_unread else "does not match its CRC"
        return f"the record of timer {self.timer_offset} in {self.path} {why}."


class RecordCopy(NamedTuple):
    """A copy of a record in an older timer file."""

    path: str
    position: int
    record_bytes: int


@dataclass(slots=True, eq=False)
class CheckJob:
    """A job that verifies files in a worker thread and collects the damage found."""

    files: list[tuple[Slot, File, int]]
    """The timer files to verify, each with the byte position at which to start."""
    runs: list[Run]
    """The runs of names, ends, and keys to verify."""
    bytes_max: int
    rest: list[tuple[Slot, int]] = field(default_factory=list)
    """The timer files for the next job, each with the byte position at which to start."""
    log: LogPass | None = None
    log_damage: list[Damage] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    rows_without_record: list[RowWithoutRecord] = field(default_factory=list)
    damaged_runs: list[Run] = field(default_factory=list)

    def run(self, disk: Disk) -> None:
        """Verify the files and runs. Raise OSError if the disk fails."""
        left_bytes = self.bytes_max
        for slot, file, position in self.files:
            if left_bytes <= 0:
                self.rest.append((slot, position))
                continue
            window = Window(disk, slot.path, file.length, limits.TIMER_BATCH_BYTES_MAX)
            for batch in partition.batches(window, self.gaps, position):
                if batch.kind == WITH_RECORDS:
                    self.rows_without_record += _corrupt_rows(window, batch)
                left_bytes -= batch.end - batch.position
                if left_bytes <= 0 and batch.end < file.length:
                    self.rest.append((slot, batch.end))
                    break
        self.damaged_runs = [run for run in self.runs if not run.is_sound(disk)]
        if self.log is not None:
            self.log_damage = self.log.verify_next(disk, max(1, left_bytes // limits.LOG_CHECKED_SHARE))


class LogPass:
    """Verify the log up to the offset `until`, a few megabytes at a time."""

    def __init__(self, segment_bytes: int, until: int) -> None:
        self._segment_bytes, self._until = segment_bytes, until
        self._scan: LogScan | None = None
        self._checking: Iterator[int] | None = None
        self._told_count = 0
        self.is_done = False

    def verify_next(self, disk: Disk, bytes_max: int) -> list[Damage]:
        """Verify about `bytes_max` more bytes. Return the newly found damaged ranges below `until`.

        Raise OSError if the disk fails.
        """
        self.is_done = True
        with suppress(StoreError):  # Startup has already reported an unreadable log.
            if self._scan is None or self._checking is None:
                self._scan = LogScan(disk, self._segment_bytes, stop_at=self._until)
                self._checking = self._scan.checking()
            until = self._scan.end_offset + bytes_max
            for come_to in self._checking:
                if come_to >= until:
                    self.is_done = False
                    break
        if self._scan is None:
            return []
        assert self._told_count <= len(self._scan.damaged), "a scan forgot what it had found"
        new = self._scan.damaged[self._told_count :]
        self._told_count += len(new)
        ends = (Damage(one.first_offset, min(one.end_offset, self._until)) for one in new)
        return [one for one in ends if one.first_offset < one.end_offset]


def _corrupt_rows(window: Window, batch: partition.Batch) -> Iterator[RowWithoutRecord]:
    """Yield the rows of a batch whose records fail the CRC check."""
    rows = batch.rows[batch.rows["record_bytes"] > 0]
    content = bytearray(window.bytes_at(batch.position, batch.end - batch.position))
    content.extend(bytes(batch.end - batch.position - len(content)))  # Zeros do not match any CRC.
    starts = rows["record_at"].astype(np.int64) - batch.position
    ends = starts + rows["record_bytes"].astype(np.int64)
    for row in rows[~bulk.are_sound(content, starts, ends)] if len(rows) else ():
        first, end = int(row["record_at"]), int(row["record_at"]) + int(row["record_bytes"])
        is_unread = window.is_unread(first, end)
        yield RowWithoutRecord(
            int(row["due_ms"]), int(row["timer_offset"]), int(row["queue"]), window.path, is_unread
        )


@dataclass(slots=True, eq=False)
class RepairJob:
    """A job that identifies lost timers and revived timers in a worker thread."""

    gaps: tuple[Gap, ...]
    rows_without_record: list[RowWithoutRecord]
    mended: frozenset[Gap]
    """The gaps that were repaired earlier."""
    windows: list[tuple[int, int]]
    in_doubt: dict[int, DamagedTimer]
    files: dict[Slot, File]
    in_memory: Numbers
    deleted_in_memory: Numbers
    """The offsets of the timers whose tombstones are only in memory."""
    names: tuple[Run, ...]
    ends: tuple[Run, ...]
    ended_since: Numbers
    """The offsets of the timers whose ends are in memory.

    Such an end was added or rebuilt after the last checkpoint.
    """
    deviating: dict[int, int]
    watermark_ms: int
    forgotten_ms: int
    """The time in milliseconds before which all timers have ended, even if their ends were dropped."""
    segment_bytes: int
    end_offset: int
    missing: Rows = field(default_factory=_NOTHING.copy)
    revived: Rows = field(default_factory=_NOTHING.copy)
    copies: dict[int, RecordCopy] = field(default_factory=dict)
    unknown_count: int = 0
    """The number of lost rows whose timers could not be identified."""
    over: set[int] = field(default_factory=set)
    """The offsets of the timers that have a tombstone or that ended before the retained history."""
    blocked: str = ""
    """The reason why the search failed, or ""."""

    def run(self, disk: Disk) -> None:
        """Search the files. Raise OSError if the disk fails.

        No timer may be ended because of a disk failure.
        """
        self._require_reading(disk)
        try:
            for from_ms, until_ms in self.windows:
                self._search_window(disk, from_ms, until_ms)
            self._exclude_deleted(disk)
        except StoreError as error:
            self.blocked = error.detail
            return
        self._find_copies(disk)
        self._require_reading(disk)  # The disk may have failed during the search.

    def _require_reading(self, disk: Disk) -> None:
        folders = (COMMITLOG, TIMERS, TIMER_NAMES)
        paths = (f"{folder}/{name}" for folder in folders for name in disk.list(folder)[:_TRIED_EACH])
        sectors.require_reading(disk, paths)

    def _search_window(self, disk: Disk, from_ms: int, until_ms: int) -> None:
        """Find the missing timers and the revived timers in a window.

        A missing timer is due in the window, has not ended, and is neither in an undamaged batch nor in
        memory. A revived timer has ended but still has a live row in an undamaged batch at or after the
        watermark, because its tombstone was destroyed and no copy of it is in memory.
        """
        present, lost_count = self._live_rows(disk, from_ms, until_ms)
        held = np.union1d(present["timer_offset"], self.in_memory)
        wanted, is_sure = self._named_timers(disk, from_ms, until_ms)
        wanted = _exclude(wanted, held)
        ended = self._ended_offsets(disk, np.union1d(wanted["timer_offset"], present["timer_offset"]))
        # If there are fewer named timers than lost rows, some of the lost timers have no name. A scan of the
        # log is expensive, and is made only if the named timers may not account for all lost rows.
        if not is_sure or len(_exclude(wanted, ended)) < lost_count or self._is_split():
            wanted = _exclude(
                _unique_timers(np.concatenate([wanted, self._logged_timers(disk, from_ms, until_ms)])), held
            )
            ended = self._ended_offsets(disk, np.union1d(wanted["timer_offset"], present["timer_offset"]))
        self.unknown_count += max(0, lost_count - len(wanted))
        self.missing = np.concatenate([self.missing, _exclude(wanted, ended)])
        # Rows before the watermark require no tombstones, because their timers have ended.
        back = present[
            np.isin(present["timer_offset"], ended) & (present["due_ms"] >= np.uint64(self.watermark_ms))
        ]
        self.revived = np.concatenate([self.revived, _exclude(back, self.deleted_in_memory)])

    def _is_split(self) -> bool:
        """Return whether a damaged file has been split. The number of lost rows is then unknown."""
        return any(_slot_of(gap) not in self.files for gap in self.gaps)

    def _live_rows(self, disk: Disk, from_ms: int, until_ms: int) -> tuple[Rows, int]:
        """Return the live rows of undamaged batches in the window, and the number of lost rows.

        A batch in a gap is considered damaged even if the batch has become readable, because delivery has
        already skipped the timers in the gap.
        """
        found, lost_count = [_NOTHING], 0
        for slot, file in self.files.items():
            if slot.start_ms >= until_ms or slot.end_ms <= from_ms:
                continue
            gaps: list[Gap] = []
            without = {*self.gaps, *self.mended}
            tombstones = partition.tombstone_offsets(disk, slot.path, file.length, gaps, without)
            without |= set(gaps)
            row_count = 0
            for rows in partition.parts(disk, slot.path, file.length, gaps, without):
                row_count += len(rows)
                near = within(partition.alive(rows, tombstones), from_ms, until_ms)
                pairs = np.empty(len(near), PAIR)
                pairs["due_ms"], pairs["timer_offset"] = near["due_ms"], near["timer_offset"]
                found.append(pairs)
            lost_count += max(0, file.row_count - row_count) if gaps else 0
        return np.concatenate(found), lost_count

    def _named_timers(self, disk: Disk, from_ms: int, until_ms: int) -> tuple[Rows, bool]:
        """Return the named timers due in the window, and whether all names were readable."""
        found, is_sure = [self._find_deviating_timers(from_ms, until_ms)], True
        for run in self.names:
            damaged: list[int] = []
            for facts in run.readable(disk, damaged):
                near = facts[(facts["at"] >= np.uint64(from_ms)) & (facts["at"] < np.uint64(until_ms))]
                near = near[near["offset"] < np.uint64(self.end_offset)]
                is_over = last_ms(near) < np.uint64(self.forgotten_ms)
                pairs = np.empty(len(near), PAIR)
                pairs["due_ms"], pairs["timer_offset"] = near["at"], near["offset"]
                found.append(self._keep_sorted_in_window(pairs[~is_over], from_ms, until_ms))
            is_sure = is_sure and not damaged
        return _unique_timers(np.concatenate(found)), is_sure

    def _find_deviating_timers(self, from_ms: int, until_ms: int) -> Rows:
        """Return the deviating timers with a sort time in the window."""
        sort_ms = self.deviating.items()
        near = [(at_ms, offset) for offset, at_ms in sort_ms if from_ms <= at_ms < until_ms]
        return np.array(near, PAIR)

    def _keep_sorted_in_window(self, pairs: Rows, from_ms: int, until_ms: int) -> Rows:
        """Return `pairs` without the timers whose sort time is outside the window."""
        if not self.deviating or not len(pairs):
            return pairs
        sort_ms = self.deviating.items()
        elsewhere = [offset for offset, at_ms in sort_ms if not from_ms <= at_ms < until_ms]
        return _exclude(pairs, np.array(sorted(elsewhere), np.uint64))

    def _logged_timers(self, disk: Disk, from_ms: int, until_ms: int) -> Rows:
        """Return the timers in the window whose records are in the log and that may still be pending."""
        scan = LogScan(disk, self.segment_bytes, stop_at=self.end_offset)
        timers = (one.record for one in scan if one.record.topic == TIMER_TOPIC)
        found = [
            (due_ms, one.physical_offset)
            for one, due_ms in ((one, due_ms_of(one)) for one in timers)
            if from_ms <= due_ms < until_ms and max(due_ms, one.store_ms) >= self.forgotten_ms
        ]
        return self._keep_sorted_in_window(np.array(found, PAIR), from_ms, until_ms)

    def _exclude_deleted(self, disk: Disk) -> None:
        """Exclude the timers that have a tombstone or that ended before the retained history."""
        for slot in {slot_named(one.path.removeprefix(f"{TIMERS}/")) for one in self.rows_without_record}:
            if slot in self.files:
                deleted = partition.tombstone_offsets(disk, slot.path, self.files[slot].length)
                self.over.update(deleted.tolist())
        self.over.update(
            one.timer_offset for one in self.rows_without_record if one.due_ms < self.forgotten_ms
        )
        self.missing = _exclude(self.missing, np.array(sorted(self.over), np.uint64))

    def _ended_offsets(self, disk: Disk, offsets: Numbers) -> Numbers:
        """Return the offsets of ended timers among `offsets`, in ascending order."""
        found = [_NO_OFFSETS, np.intersect1d(self.ended_since, offsets)]
        for run in self.ends:
            for facts in run.chunks(disk):
                found.append(np.intersect1d(facts["key"], offsets))
        return np.unique(np.concatenate(found))

    def _find_copies(self, disk: Disk) -> None:
        """Search all timer files for copies of the required records."""
        wanted = {int(offset) for offset in self.missing["timer_offset"]}
        wanted |= {one.timer_offset for one in self.rows_without_record} | self.in_doubt.keys()
        for slot in _all_slots(disk) if wanted else ():
            length = disk.size(slot.path)
            for batch in partition.batches(Window(disk, slot.path, length), []):
                if batch.kind != WITH_RECORDS:
                    continue
                for place in np.flatnonzero(np.isin(batch.rows["timer_offset"], sorted(wanted))).tolist():
                    row = batch.rows[place]
                    copy = RecordCopy(slot.path, int(row["record_at"]), int(row["record_bytes"]))
                    if _is_sound(disk, copy):
                        self.copies[int(row["timer_offset"])] = copy


def _all_slots(disk: Disk) -> Iterator[Slot]:
    """Yield the slots of all timer files, including files that no snapshot lists."""
    for name in disk.list(TIMERS):
        with suppress(ValueError):
            yield slot_named(name)


def _is_sound(disk: Disk, copy: RecordCopy) -> bool:
    stored = bytearray(sectors.read(disk, *copy, []))
    if len(stored) < max(copy.record_bytes, CRC_BYTES):
        return False
    return bool(bulk.are_sound(stored, np.array([0]), np.array([len(stored)]))[0])


def _exclude(pairs: Rows, offsets: Numbers) -> Rows:
    kept: Rows = pairs[~np.isin(pairs["timer_offset"], offsets)]
    return kept


def _unique_timers(pairs: Rows) -> Rows:
    _, firsts = np.unique(pairs["timer_offset"], return_index=True)
    kept: Rows = pairs[firsts]
    return kept


def _slot_of(gap: Gap) -> Slot:
    return slot_named(gap.path.removeprefix(f"{TIMERS}/"))


def _merged_windows(slots: Iterator[Slot]) -> list[tuple[int, int]]:
    """Return the time windows of the slots, merged and sorted, as (from, until) in milliseconds."""
    merged: list[tuple[int, int]] = []
    for slot in sorted(set(slots), key=lambda slot: slot.start_ms):
        if merged and slot.start_ms < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], slot.end_ms)
        else:
            merged.append((slot.start_ms, slot.end_ms))
    return merged


def _keys_in_memory(facts: FactIndex) -> Iterator[Numbers]:
    """Yield the keys of all facts in memory."""
    for recent in facts.recents():
        for chunk in recent.chunks():
            yield chunk["key"].copy()


class TimerRepair:
    """Schedule checks and repairs of timer files.

        idle --next_job--> `_running` (in a worker) --repair search done--> `_applying` --last step--> idle
                                                    --check done, or job failed----------------------> idle

    Only one job runs at a time, because a repair requires a consistent view of files and memory. All missing
    timers found by a repair are rebuilt or ended before the next repair begins.
    """

    def __init__(self, store: Store, timers: Timers) -> None:
        self._store, self._timers = store, timers
        self._partitions = timers.partitions
        self._unchecked: deque[tuple[Slot, int] | Run] = deque()
        self._check_bytes = 0
        self._may_check = self._has_begun = False
        self._next_check_ms = 0
        self._running: CheckJob | RepairJob | None = None
        self._rows_without_record: list[RowWithoutRecord] = []
        self._applying: RepairJob | None = None
        self._left: deque[tuple[int, int, str, str]] = deque()
        self._rebuilt_count = self._lost_count = 0
        self._blocked = ""
        self._log_pass: LogPass | None = None

    def begin(self, now_ms: int) -> None:
        """Schedule a check of all files. Timer files are checked first, in order of due time."""
        files = sorted(self._readable(), key=lambda slot: slot.start_ms)
        places = ((slot, 0) for slot in files)
        self._unchecked = deque([*places, *self._timers.ends.names.runs, *self._timers.ends.ends.runs])
        self._unchecked.extend(self._store.keys.runs)
        log = self._store.log
        self._log_pass = LogPass(log.segment_bytes, log.durable_offset) if log.durable_offset else None
        self._may_check = self._has_begun = True
        self._check_bytes = limits.CHECKED_AT_START_BYTES
        self._next_check_ms = now_ms + limits.TIMERS_CHECK_INTERVAL_MS

    def run_maintenance(self, now_ms: int) -> None:
        """Allow the next check and the next repair, and report damage that checkpoints have found."""
        self._may_check = True
        self._blocked = ""
        if not self._has_unchecked_files and now_ms >= self._next_check_ms:
            self.begin(now_ms)
        self._check_bytes = limits.CHECKED_AT_ONCE_BYTES
        self.report_indexes()

    def check_on_follower(self, disk: Disk, now_ms: int) -> None:
        """Check the next timer files on a follower, after a checkpoint.

        The follower may delete older files only after all timer files have been checked. Damage is not
        repaired until the node becomes the leader.
        """
        if not self._has_begun:
            self.begin(now_ms)
        if self._running is not None or self._has_checked_all_files:
            return
        self._check_bytes = limits.CHECKED_AT_ONCE_BYTES
        job = self._running = self._check()
        try:
            job.run(disk)
        except OSError:  # The check is retried after the next checkpoint.
            self.requeue_job(job)
        else:
            self.complete_job(job)

    def allow_check(self) -> None:
        """Allow the next check to start."""
        self._may_check = True

    @property
    def has_work(self) -> bool:
        """Whether a job can start or a repair can continue."""
        if self._applying is not None:
            return not self._timers.is_waiting_for_disk()
        return self._running is None and (
            self._can_repair() or (self._may_check and self._has_unchecked_files)
        )

    def uncertain_times(self) -> UncertainTimes:
        """Return the times in doubt for a checkpoint that is about to start."""
        spans = self._uncertain_times()
        if self._has_checked_all_files:  # Otherwise, some times in doubt may still be unknown.
            self._partitions.release_older()
        is_repairing = isinstance(self._running, RepairJob) or self._applying is not None
        return UncertainTimes(spans, self._uncertain_times, is_repairing)

    @property
    def _has_checked_all_files(self) -> bool:
        """Whether all timer files have been checked since startup."""
        is_reading = isinstance(self._running, CheckJob) or any(
            isinstance(one, tuple) for one in self._unchecked
        )
        return self._has_begun and not is_reading

    def _uncertain_times(self) -> list[Span]:
        """Return the times of damaged bytes whose timers have been neither rebuilt nor ended."""
        jobs = [job for job in (self._running, self._applying) if isinstance(job, RepairJob)]
        gaps = chain(self._partitions.damage, *(job.gaps for job in jobs))
        rows_without_record = chain(self._rows_without_record, *(job.rows_without_record for job in jobs))
        in_doubt = [*tuple(self._timers.in_doubt.values())]  # This method may run in a worker thread.
        in_doubt += chain.from_iterable(job.in_doubt.values() for job in jobs)
        spans = ((min(one.due_ms, one.sort_ms), max(one.due_ms, one.sort_ms) + 1) for one in in_doubt)
        return [
            *map(span_of, {one.path for one in gaps} | {one.path for one in rows_without_record}),
            *set(spans),
        ]

    def next_job(self) -> CheckJob | RepairJob | None:
        """Return the next job for a worker, or None if no job is due or if a job is unfinished."""
        if self._running is not None or self._applying is not None:
            return None
        if self._can_repair():
            self._running = self._create_repair_job()
        elif self._may_check and self._has_unchecked_files:
            self._may_check = False
            self._running = self._check()
        return self._running

    def complete_job(self, job: CheckJob | RepairJob) -> None:
        """Process the result of a completed job."""
        assert job is self._running, "one job at a time"
        self._running = None
        if isinstance(job, RepairJob):
            self._adopt_search(job)
            return
        self._unchecked.extendleft(reversed(job.rest))
        # During the job, a checkpoint may have dropped files, and timers may have ended. The results for such
        # files and timers are ignored.
        there = self._readable()
        self._partitions.found_damaged(gap for gap in job.gaps if _slot_of(gap) in there)
        new = (one for one in job.rows_without_record if self._has_file(one) and self._is_waiting(one))
        self._rows_without_record = list(dict.fromkeys([*self._rows_without_record, *new]))
        for index in (self._timers.ends.names, self._timers.ends.ends, self._store.keys):
            index.found_damaged(job.damaged_runs)
        self.report_indexes()
        for found in job.log_damage:
            if found.end_offset > self._store.log.first_offset:
                self._store.damage.report_log_range(found)
        if self._log_pass is not None and self._log_pass.is_done:
            self._log_pass = None

    def requeue_job(self, job: CheckJob | RepairJob) -> None:
        """Requeue a failed job.

        A repair is retried after the next call to `run_maintenance`. A check is retried when the next check
        is allowed.
        """
        assert job is self._running, "one job at a time"
        self._running = None
        if isinstance(job, RepairJob):
            self._rows_without_record = job.rows_without_record + self._rows_without_record
            self._blocked = "the disk failed"
        else:
            places = ((slot, position) for slot, _, position in job.files)
            self._unchecked.extendleft(reversed([*places, *job.runs]))

    def repair_next_batch(self, now_ms: int) -> None:
        """Rebuild or end some of the missing timers that a repair has found."""
        assert not self._left or self._applying is not None, "what is left to mend is of a rescue"
        count = 0
        try:
            while (
                self._left
                and count < limits.DELIVERIES_PER_TICK_MAX
                and not self._timers.is_waiting_for_disk()
            ):
                self._repair_timer(*self._left.popleft(), now_ms)
                count += 1
        except StoreDamaged as error:  # The next startup rebuilds unreadable ends.
            assert self._applying is not None, "only a rescue leaves something to mend"
            job, self._applying = self._applying, None
            self._left.clear()
            self._timers.statistics.timers_rebuilt += self._rebuilt_count
            self._postpone(job, error.detail)
        if self._applying is not None and not self._left:
            self._finish(self._applying)

    @property
    def _has_unchecked_files(self) -> bool:
        return bool(self._unchecked) or self._log_pass is not None

    def _can_repair(self) -> bool:
        is_needed = bool(self._partitions.damage or self._rows_without_record or self._timers.in_doubt)
        return is_needed and not self._blocked and self._applying is None and self._partitions.is_settled

    def _readable(self) -> dict[Slot, File]:
        """Return the files with pending timers, and the damaged files that were kept after a split."""
        return self._partitions.kept_damaged() | self._partitions.files

    def _has_file(self, one: RowWithoutRecord) -> bool:
        return slot_named(one.path.removeprefix(f"{TIMERS}/")) in self._partitions.files

    def _is_waiting(self, one: RowWithoutRecord) -> bool:
        """Return whether a timer is above the watermark and has no readable end."""
        is_done = (one.due_ms, one.timer_offset) <= self._partitions.watermark
        return not is_done and not self._timers.has_recorded_end(one.timer_offset)

    def _check(self) -> CheckJob:
        job, left_bytes = CheckJob([], [], self._check_bytes), self._check_bytes
        files = self._readable()
        while self._unchecked and left_bytes > 0:
            one = self._unchecked.popleft()
            if isinstance(one, tuple):
                slot, position = one
                if slot in files:
                    job.files.append((slot, files[slot], position))
                    left_bytes -= files[slot].length - position
            else:
                job.runs.append(one)
                left_bytes -= one.tail_at
        if left_bytes > 0 and not self._unchecked:
            job.log = self._log_pass
        return job

    def _create_repair_job(self) -> RepairJob:
        gaps, rows_without_record = tuple(self._partitions.damage), self._rows_without_record
        self._rows_without_record = []
        windows = _merged_windows(map(_slot_of, gaps))
        ends, log = self._timers.ends, self._store.log
        memory = [self._partitions.in_memory(*window) for window in windows]
        deleted = [self._partitions.deleted_in_memory(*window) for window in windows]
        return RepairJob(
            gaps=gaps,
            rows_without_record=rows_without_record,
            in_doubt=dict(self._timers.in_doubt),
            mended=self._partitions.damage.mended,
            windows=windows,
            files=self._partitions.files,
            in_memory=np.concatenate([_NO_OFFSETS, *memory, self._timers.held.offsets()]),
            deleted_in_memory=np.concatenate([_NO_OFFSETS, *deleted]),
            names=ends.names.runs,
            ends=ends.ends.runs,
            ended_since=np.concatenate([_NO_OFFSETS, *_keys_in_memory(ends.ends)]),
            deviating=dict(self._timers.near.deviating),
            watermark_ms=self._partitions.watermark[0],
            forgotten_ms=ends.forgotten_ms,
            segment_bytes=log.segment_bytes,
            end_offset=log.durable_offset,
        )

    def _adopt_search(self, job: RepairJob) -> None:
        if job.blocked:
            self._postpone(job, job.blocked)
            return
        assert self._applying is None, "a rescue is applied to its end before the next one has run"
        assert not self._left, "what an earlier rescue found is still to be mended"
        self._applying, self._rebuilt_count, self._lost_count = job, 0, job.unknown_count
        for due_ms, timer_offset in job.revived.tolist():
            self._partitions.delete(due_ms, timer_offset)
        names = self._timers.queues.names
        what = ", ".join(sorted({gap.path for gap in job.gaps}))
        self._left.extend((due_ms, offset, "", what) for due_ms, offset in job.missing.tolist())
        waiting = (one for one in job.rows_without_record if one.timer_offset not in job.over)
        self._left.extend((one.due_ms, one.timer_offset, names[one.queue][0], one.path) for one in waiting)
        in_doubt = job.in_doubt.items()
        self._left.extend((one.due_ms, offset, one.topic, one.path or "the log") for offset, one in in_doubt)

    def _postpone(self, job: RepairJob, why: str) -> None:
        """Postpone a repair whose search failed, and report the reason."""
        self._blocked = why
        what = f"Which timers damaged bytes held cannot be found out now: {why}"
        self._store.damage.report_repair(
            DamagedPart("partition", job.gaps[0].path if job.gaps else TIMERS, what)
        )
        self._rows_without_record = job.rows_without_record + self._rows_without_record

    def _repair_timer(self, due_ms: int, timer_offset: int, topic: str, what: str, now_ms: int) -> None:
        if self._timers.ends.find_end(timer_offset) is not None:
            self._timers.in_doubt.pop(timer_offset, None)
            return  # The timer ended after the repair began, for example by a cancellation.
        timer = self._find_record(timer_offset)
        if timer is None:
            self._lost_count += 1
            self._timers.end_unreadable_timer(topic, timer_offset, due_ms, now_ms)
            return
        self._timers.rebuild_timer(timer, timer_offset, what, now_ms)
        self._rebuilt_count += 1

    def _find_record(self, timer_offset: int) -> Record | None:
        """Return a timer record from the log or from a timer file, or None if no copy is readable."""
        with suppress(StoreDamaged):
            return self._timers.read_logged_record(timer_offset)
        assert self._applying is not None, "copies are known to a rescue alone"
        copy = self._applying.copies.get(timer_offset)
        with suppress(StoreDamaged):
            return None if copy is None else self._timers.read_row(*copy)
        return None

    def _finish(self, job: RepairJob) -> None:
        """Count and report the results of a repair, and mark the gaps as repaired."""
        looked_for_count = (
            len(job.missing) + len(job.rows_without_record) + len(job.in_doubt) + job.unknown_count
        )
        assert self._rebuilt_count + self._lost_count <= looked_for_count, "a timer was mended twice"
        self._applying = None
        self._partitions.mended(job.gaps, is_all_there=self._lost_count == 0)
        statistics = self._timers.statistics
        statistics.timers_rebuilt += self._rebuilt_count
        statistics.timers_unknown += job.unknown_count
        in_files = [(offset, one.path) for offset, one in job.in_doubt.items() if one.path]
        paths = [gap.path for gap in job.gaps] + [one.path for one in job.rows_without_record]
        paths += [path for _, path in in_files]
        if not paths:
            return
        wheres = [str(one) for one in (*job.gaps, *job.rows_without_record)]
        wheres += [f"the record of timer {offset} in {path} cannot be read." for offset, path in in_files]
        what = (
            f"{' '.join(wheres[:_WHERES_MAX])} {self._rebuilt_count} timers were rebuilt, "
            f"{self._lost_count} nobody has any more"
            f"{': tidewheel timer ls --damaged' if self._lost_count else ''}."
        )
        first, *others = dict.fromkeys(paths)
        damage = self._store.damage
        damage.report_repair(DamagedPart("partition", first, what, self._rebuilt_count, self._lost_count))
        for path in others:
            damage.report_repair(
                DamagedPart("partition", path, f"{path} was damaged; its timers are counted with {first}.")
            )

    def report_indexes(self) -> None:
        """Report the known damage to the indexes of names, ends, and keys."""
        self._timers.ends.report_damage()
        if self._store.keys.damage:
            self._store.report_key_index(self._store.keys.damage)


_WHERES_MAX: Final = 3
