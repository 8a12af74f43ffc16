"""Verification of the timer partition files that a snapshot names, batch by batch and record by record.

    file      exists and is at least as long as in the snapshot. A file that only an older snapshot names may
              be missing, because a start deletes it
    batch     the CRC and the offset, and the order, the slot and the number of its rows
    record    the CRC, its timer and its queue, and whether it equals the record built from the log

Memory: one batch. Cost: each record is decoded, and compared with a record built from the log if it is still
there.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from commitlog.facts.facts import TimerEnded, facts_of
from commitlog.records import bulk, record
from commitlog.snapshots.snapshot import Snapshot
from services.broker.timers.timer_ends import ENDS
from services.broker.timers.timer_files import TIMER_FILES
from services.broker.timers.timer_source import NAME_COLUMNS, QueueTable, TimerSource, name_hashes
from services.store.findings import Finding
from services.store.read_only.opening import OpenStore
from services.store.read_only.timers import FactSource, runs_of
from timingwheel import partition
from timingwheel.boundaries import Slot, slot_named
from timingwheel.cascade import File
from timingwheel.partition import HEAD, TOMBSTONE, WITH_RECORDS, Batch, Gap, Rows, Window

PARTITION: Final = "partition"
_FETCHED_FIELDS: Final = ("timer_offset", "record_bytes", "queue", "tags_code", *NAME_COLUMNS)


def check_partitions(
    store: OpenStore, found: Sequence[Snapshot], in_log: Container[int]
) -> Iterator[Finding]:
    """Yield all findings. `in_log` contains the timers whose records in the log are sound."""
    named: dict[str, list[File]] = {}
    for one in found:
        for name, fields in (one.parts[TIMER_FILES]["partitions"] or {"files": {}})["files"].items():
            named.setdefault(name, []).append(File(*fields))
    newest = found[-1].parts[TIMER_FILES]
    needed = (newest["partitions"] or {"files": {}})["files"]
    mended = frozenset(Gap(*fields) for fields in (newest["partitions"] or {"mended": ()})["mended"])
    ended = _Ended(store, newest["ends"]["ends"])
    for name, files in sorted(named.items()):
        check = _FileCheck(
            store, slot_named(name), files, _queues(found[-1]), in_log, name in needed, mended, ended
        )
        yield from check.findings()


class _Ended:
    """The timers that have ended according to the newest snapshot. They are loaded on first use."""

    def __init__(self, store: OpenStore, frozen: Any) -> None:
        self._disk, self._runs = store.overlay(), runs_of(ENDS, frozen)
        self._offsets: frozenset[int] | None = None

    def __contains__(self, timer_offset: int) -> bool:
        if self._offsets is None:
            chunks = FactSource(self._runs).newest(self._disk)
            self._offsets = frozenset(offset for chunk in chunks for offset in chunk["key"].tolist())
        return timer_offset in self._offsets


def _queues(newest: Snapshot) -> list[list[Any]]:
    queues: list[list[Any]] = newest.parts[TIMER_FILES]["queues"]
    return queues


class _FileCheck:
    """Verification of one file that one or both snapshots name."""

    def __init__(
        self,
        store: OpenStore,
        slot: Slot,
        files: list[File],
        queues: list[list[Any]],
        in_log: Container[int],
        is_needed: bool,
        mended: Container[Gap],
        ended: _Ended,
    ) -> None:
        self._slot, self._files, self._in_log, self._is_needed = slot, files, in_log, is_needed
        self._mended, self._ended, self._is_whole = mended, ended, True
        self._disk = store.overlay()
        self._queues = queues
        table = QueueTable()
        table.thaw(queues)
        self._source = TimerSource(self._disk, store.segments, table)
        self._counts = {file.length: [0, 0] for file in files}

    def findings(self) -> Iterator[Finding]:
        """Yield all findings about the file."""
        length = max(file.length for file in self._files)
        size = self._disk.size(self._slot.path)
        if size < length:
            is_there = f"is {size} bytes long" if size >= 0 else "is missing"
            what = f"{is_there}, and a snapshot counts on {length}"
            is_damage = (self._is_needed or size >= 0) and not self._is_mended_from(max(size, 0), length)
            yield replace(self._finding(max(size, 0), length, what), is_damage=is_damage)
        end = 0
        for batch in partition.batches(Window(self._disk, self._slot.path, length), []):
            yield from self._gap(end, min(batch.position, max(size, 0)))
            yield from self._batch(batch)
            end = batch.end
        yield from self._gap(end, min(max(size, 0), length))
        yield from self._counted(end)

    def _is_mended_from(self, size: int, length: int) -> bool:
        """Return whether the timers in the missing part of the file are accounted for."""
        gaps: list[Gap] = []
        for _ in partition.batches(Window(self._disk, self._slot.path, length), gaps):
            pass
        return all(gap in self._mended for gap in gaps if gap.end > size)

    def _gap(self, position: int, end: int) -> Iterator[Finding]:
        if end <= position:
            return
        self._is_whole = False
        gaps: list[Gap] = []
        window = Window(self._disk, self._slot.path, max(file.length for file in self._files))
        for _ in partition.batches(window, gaps):
            pass
        inside = [gap for gap in gaps if gap.position < end and gap.end > position]
        is_mended = all(gap in self._mended for gap in inside)
        is_unread = any(gap.is_unread for gap in inside)
        why = "cannot be read by the disk (EIO)" if is_unread else "do not match their CRC"
        what = f"its bytes {position} to {end} {why}"
        if is_mended:
            yield replace(
                self._finding(position, end, f"{what}; its timers were rebuilt or ended"), is_damage=False
            )
        else:
            yield self._finding(
                position, end, f"{what}: a start or a repair finds which timers they hold, and rebuilds them"
            )

    def _batch(self, batch: Batch) -> Iterator[Finding]:
        for length, counts in self._counts.items():
            if batch.end <= length:
                counts[batch.kind == TOMBSTONE] += len(batch.rows)
        if batch.kind == TOMBSTONE:
            return
        offsets, due_ms = batch.rows["timer_offset"], batch.rows["due_ms"]
        if bool(np.any(offsets[1:] <= offsets[:-1])):
            yield self._finding(batch.position, batch.end, "the rows of a batch are not in order")
        if int(due_ms.min()) < self._slot.start_ms or int(due_ms.max()) >= self._slot.end_ms:
            yield self._finding(batch.position, batch.end, "a batch has timers of another time")
        if batch.kind == WITH_RECORDS:
            yield from self._records(batch)

    def _records(self, batch: Batch) -> Iterator[Finding]:
        rows = batch.rows[batch.rows["record_bytes"] > 0]
        if not self._lie_within(batch, rows):
            yield self._finding(batch.position, batch.end, "the rows of a batch point beside its records")
            return
        content = bytearray(self._disk.read(self._slot.path, batch.position, batch.end - batch.position))
        content.extend(bytes(batch.end - batch.position - len(content)))
        starts = rows["record_at"].astype(np.int64) - batch.position
        ends = starts + rows["record_bytes"].astype(np.int64)
        sound = bulk.are_sound(content, starts, ends)
        for row in rows[~sound]:
            is_over = int(row["timer_offset"]) in self._ended
            what = f"does not match its CRC{'; the timer has ended, or was rebuilt' if is_over else ''}"
            yield replace(self._of_row(row, what), is_damage=not is_over)
        stored = [bytes(content[start:end]) for start, end in zip(starts, ends, strict=True)]
        for row, one in zip(rows[sound], (stored[at] for at in np.flatnonzero(sound)), strict=True):
            if what := self._contradiction(row, record.decode(one)):
                yield self._of_row(row, what)
        yield from self._unlike_log(rows, stored, sound)

    def _lie_within(self, batch: Batch, rows: Rows) -> bool:
        """Return whether the records fill the batch after its rows, in order of due time."""
        ordered = rows[np.argsort(rows["due_ms"], kind="stable")]
        places, lengths = ordered["record_at"].tolist(), ordered["record_bytes"].tolist()
        ends = [place + length for place, length in zip(places, lengths, strict=True)]
        first = batch.position + HEAD.size + batch.rows.nbytes
        return [first, *ends] == [*places, batch.end]

    def _contradiction(self, row: Any, ready: record.Record) -> str:
        ended, names = next(iter(facts_of(ready)), None), name_hashes(ready)
        if not isinstance(ended, TimerEnded) or ended.timer_offset != row["timer_offset"]:
            return "is that of another timer"
        queue = self._queues[row["queue"]] if row["queue"] < len(self._queues) else ["", -1]
        if queue != [ready.topic, ready.queue_id]:
            return "is for another queue than its row says"
        if ended.due_ms > int(row["due_ms"]) or names != tuple(int(row[name]) for name in NAME_COLUMNS):
            return "has another time or other names than its row says"
        return ""

    def _unlike_log(self, rows: Rows, stored: list[bytes], sound: Any) -> Iterator[Finding]:
        kept = [at for at in np.flatnonzero(sound).tolist() if int(rows["timer_offset"][at]) in self._in_log]
        fetched, made = self._source.fetch(rows["timer_offset"][kept].copy())
        by_offset = dict(zip(fetched["timer_offset"].tolist(), zip(fetched, made, strict=True), strict=True))
        for at in kept:
            row, one = by_offset.get(int(rows["timer_offset"][at]), (None, b""))
            if row is not None and (one != stored[at] or any(row[f] != rows[at][f] for f in _FETCHED_FIELDS)):
                yield self._of_row(rows[at], "is not what the log's record says")

    def _counted(self, end: int) -> Iterator[Finding]:
        for file in self._files if self._is_whole else ():
            if end >= file.length and self._counts[file.length] != [file.row_count, file.tombstone_count]:
                what = (
                    f"holds {self._counts[file.length]} timers and ends, a snapshot counts {list(file[1:])}"
                )
                yield self._finding(0, file.length, what)

    def _of_row(self, row: Any, what: str) -> Finding:
        position = int(row["record_at"])
        timer_offset, end = int(row["timer_offset"]), position + int(row["record_bytes"])
        return self._finding(position, end, f"the record of timer {timer_offset} at byte {position} {what}")

    def _finding(self, position: int, end: int, what: str) -> Finding:
        return Finding(PARTITION, self._slot.path, position, end, what)
