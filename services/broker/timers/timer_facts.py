"""Rebuild timer names and ends at startup if one of their files is damaged.

1. The readable facts of the damaged runs are kept.
2. The log is read up to the snapshot offset. All later records are replayed afterwards.
3. The names of pending timers whose records are no longer in the log are read from the partitions.
4. If a timer has a name, is not pending, and has no known end, an end of kind UNREADABLE is added. Otherwise,
   the timer would be considered pending. If a timer file is damaged, no such ends are added.

If the record of the first fact in the damaged run is still in the log, the rebuilt data is complete.
Otherwise, facts about timers that ended before the start of the log may be missing. An operation on such a
timer returns TOO_LATE or NEVER_SET. The next checkpoint rewrites the runs.

Cost: a rebuild reads the log and the partitions once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.facts.facts import TimerEnded, TimerSet, facts_of, timer_set
from commitlog.log.recovery import LogScan
from commitlog.records.kinds import End
from commitlog.records.record import Record
from consumequeue.indexes.timerindex import FactIndex
from consumequeue.runs.sorted_runs import Run
from services.broker.spine.values import DamagedPart
from services.broker.timers.timer_ends import TimerEnd
from services.broker.timers.timers import Timers
from timingwheel import partition
from timingwheel.boundaries import Numbers
from timingwheel.partition import Gap

_FOREVER_MS: Final = 1 << 62
_CHUNK_FACTS: Final = 65_536


def rebuild(timers: Timers, disk: Disk, segment_bytes: int, log_from: int, until: int) -> list[DamagedPart]:
    """Rebuild names and ends if one of their files is damaged. Return the damaged files.

    `log_from` is the first log offset, and `until` is the log offset of the snapshot. Raise OSError if the
    disk fails.
    """
    ends = timers.ends
    has_names, has_ends = bool(ends.names.damaged_runs), bool(ends.ends.damaged_runs)
    if not (has_names or has_ends):
        return []
    told = [
        *(_remove_run(ends.names, run, "names", log_from) for run in ends.names.damaged_runs),
        *(_remove_run(ends.ends, run, "ends", log_from) for run in ends.ends.damaged_runs),
    ]
    # The fact with the highest log offset takes precedence, regardless of the order of insertion. The older
    # facts from the partitions can therefore be added after the facts from the log.
    undone_ms = min(timers.partitions.watermark[0], timers.held.first_due_ms())
    for found in LogScan(disk, segment_bytes, stop_at=until):
        for fact in facts_of(found.record):
            if isinstance(fact, TimerEnded) and has_ends:
                ended = TimerEnd(fact.end, found.record.store_ms, found.record.physical_offset)
                ends.add_end(fact.timer_offset, fact.due_ms, ended)
            elif isinstance(fact, TimerSet) and has_names:
                timers.ends.add_names(fact, found.record.physical_offset, found.record.store_ms)
        ends.spill(min(found.record.store_ms, undone_ms))
    for timer in _waiting_records(timers, log_from) if has_names else ():
        timers.ends.add_names(timer_set(timer.properties), timer.physical_offset, timer.store_ms)
    if has_ends:
        _add_missing_ends(timers, disk)
    return told


def _remove_run(index: FactIndex, run: Run, part: str, log_from: int) -> DamagedPart:
    read_count = index.remove_run(run)
    left = "what it said is made again from the log"
    if run.first_offset < log_from and read_count < run.entry_count:
        left = (
            f"{run.entry_count - read_count} of its {run.entry_count} facts cannot be read; they are made "
            "again as far as the log and the timers that wait tell, and how others ended may be unknown"
        )
    return DamagedPart(part, run.path, f"{run.wrong.removesuffix('.')}; {left}.")


def _waiting_records(timers: Timers, before_offset: int) -> Iterator[Record]:
    """Yield the records of the pending timers below `before_offset`, the first offset of the log."""
    for timer_offset in timers.held.between(0, before_offset):
        with suppress(StoreDamaged):
            yield timers.read_logged_record(timer_offset)
    for rows, path in timers.partitions.scan(0, _FOREVER_MS) if before_offset else ():
        for row in rows[rows["timer_offset"] < np.uint64(before_offset)]:
            if path is not None and int(row["record_at"]) != partition.IN_LOG:
                try:
                    yield timers.read_row(path, int(row["record_at"]), int(row["record_bytes"]))
                except StoreDamaged:
                    continue


def _add_missing_ends(timers: Timers, disk: Disk) -> None:
    """Add an end of kind UNREADABLE for each timer that has a name, is not pending, and has no known end."""
    waiting, gaps = _live_offsets(timers, disk)
    for run in timers.ends.names.runs:
        for facts in run.readable(disk, []):
            _add_missing_ends_of_offsets(timers, facts["offset"], facts["at"], waiting, gaps)
    for recent in timers.ends.names.recents():
        for facts in recent.chunks():
            _add_missing_ends_of_offsets(timers, facts["offset"], facts["at"], waiting, gaps)


def _live_offsets(timers: Timers, disk: Disk) -> tuple[Numbers, list[Gap]]:
    """Return the sorted offsets of pending timers, and the damaged ranges of the partition files."""
    # After the split of a damaged file, the damage is listed only in the snapshot.
    found, gaps = [np.empty(0, np.uint64)], [*timers.partitions.damage]
    for slot, file in timers.partitions.files.items():
        tombstones = partition.tombstone_offsets(disk, slot.path, file.length, gaps)
        for rows in partition.parts(disk, slot.path, file.length, gaps):
            found.append(partition.alive(rows, tombstones)["timer_offset"].copy())
    # The watermark may have passed the timers in doubt, which may therefore be missing from all files.
    found.append(np.fromiter(timers.in_doubt, np.uint64))
    found.append(timers.held.offsets())
    return np.sort(np.concatenate(found)), gaps


def _add_missing_ends_of_offsets(
    timers: Timers, offsets: Numbers, due_ms: Numbers, waiting: Numbers, gaps: list[Gap]
) -> None:
    if gaps:
        return  # A timer in a damaged batch may be pending, and an end would prevent its delivery.
    is_over = ~np.isin(offsets, waiting)
    offsets, due_ms = offsets[is_over].copy(), due_ms[is_over]
    ended = timers.ends.ended_mask(offsets)
    for offset, ms in zip(offsets[~ended].tolist(), due_ms[~ended].tolist(), strict=True):
        timers.ends.add_end(offset, ms, TimerEnd(End.UNREADABLE, ms, offset))
