"""Finds the end of the log after a shutdown or crash, and detects damage.

Recovery checks the magic number, physical offset, and CRC of every record from the first segment on. For
imported records, the rules in `commitlog.log.imported` apply. Invalid bytes are handled according to their
log offset:

* Invalid bytes below the published durable offset are damaged data. The scan resumes at the next magic number
  that begins a record with the expected offset and a correct CRC. The damaged range is reported, and all
  records after it are kept.
* Invalid bytes at or above the published durable offset are a torn tail, and the log ends before them.
* If the `durable` file is damaged and has no readable offset, invalid bytes are damaged data if a later
  record is intact. Otherwise they are a torn tail.

Recovery removes the torn tail durably before the first append, so that no stale record can reappear:

    1. later segments are deleted in reverse order, and earlier unsynced deletions are made durable
    2. the bytes after the published offset are rewritten and synced
    3. the last segment is truncated at the end of the log and is extended to its full length with zeros
    4. the end offset of the log is published

If the process ends or the disk fails at any of these steps, the next recovery finds the same end of the log,
because only bytes after the end are deleted. Bytes missing from a short segment file are read as zeros and
allocated again. Step 2 is needed because pages dropped after a failed sync can still be read but never reach
the disk (see `commitlog.disk.disk`). Recovery rewrites them even if an earlier process wrote them.

The tail of a cluster node's log (`services.cluster.replica`) may hold the only copies of some records. A node
therefore calls `keep_tail` instead of `cut`. The tail is later compared with the records appended at the same
log offsets (`services.cluster.tail`).

A scan can begin at any record, such as the one at a snapshot's offset. `check` only searches for damage: it
verifies the length and CRC of intact records without decoding them.

Cost: the log is read once from the start of the scan. A 1 KB record takes 26 us, or 2 us with `check`. The
bytes after the published offset are rewritten once. After `kill -9`, these bytes belong to flushes that were
in progress.

Limitation: at or above the published offset, recovery cannot distinguish damage from a torn tail and removes
all later bytes. The offset is published before records are acknowledged, but `durable` is not synced, so the
offset may be lost in a power failure. If a power failure also damages `durable`, records in unacknowledged
flushes may be missing. If these flushes contain two successive replacements of a timer and the first one is
lost, the original timer and the second replacement both stay pending.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.disk.view import WINDOW_BYTES, View
from commitlog.errors import StoreError
from commitlog.log import imported
from commitlog.log.segments import Segments
from commitlog.records import record
from commitlog.records.record import Record

_MAGIC = re.compile(b"\xda\xa3\x20[\xa7\xab]")
_MAGIC_BYTES: Final = 4
_HEAD: Final = struct.Struct(">II")
_HEAD_AND_PLACE: Final = struct.Struct(">II20xq")
_OFFSET_FIELD: Final = struct.Struct(">q")
_OFFSET_AT: Final = 28
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_SOUND_BYTES_MIN: Final = record.RECORD_BYTES_MIN + record.CRC_BYTES


@dataclass(slots=True, frozen=True)
class Damage:
    """A damaged range of the log, from `first_offset` to `end_offset` (exclusive)."""

    first_offset: int
    end_offset: int


class FoundRecord(NamedTuple):
    """An intact record, and its length in the log."""

    record: Record
    record_bytes: int


class LogScan:
    """A single scan of the log. After the scan, `end_offset` and `damaged` are set."""

    def __init__(
        self,
        disk: Disk,
        segment_bytes: int,
        start_at: int = 0,
        stop_at: int | None = None,
        *,
        may_lack_segments: bool = False,
    ) -> None:
        """Prepare a scan. Raise `StoreError` if a segment is missing, or OSError if the disk fails.

        The log below `start_at` is durable and is not read. Records at or above `stop_at` were not
        acknowledged and are dropped. Invalid bytes below `stop_at` are damage. If `may_lack_segments` is
        true, a missing segment between two others is treated as damage rather than an error.
        """
        self._disk = disk
        self._start_at = start_at
        self._stop_at = stop_at
        self._only_checks = False
        self.segments = Segments.of(disk, segment_bytes)
        self._imported_until = imported.read(disk)
        found = layout.published(disk)
        self._proven_offset = max(found.offset, start_at)
        self._by_proof = not found.is_sound and bool(self.segments.first_offsets)
        self.durable_offset = max(self._proven_offset, stop_at or 0)
        self.segment_bytes = segment_bytes
        if not may_lack_segments:
            self._check_contiguous(start_at)
        self.first_offset = self.segments.first_offsets[0] if self.segments.first_offsets else start_at
        self.end_offset = max(self.first_offset, start_at)
        self.damaged: list[Damage] = []
        self.unsound = ""
        """Damage to the file `durable`, or "" if it is intact."""
        if self._by_proof:
            what = found.problem or "it is missing"
            self.unsound = f"{layout.DURABLE}: {what}; where the log ends was concluded from its records"

    def __iter__(self) -> Iterator[FoundRecord]:
        return (found for found in self._segments() if found is not None)

    def check(self) -> None:
        """Scan the log once without returning records. Raise OSError if the disk fails."""
        for _ in self.checking():
            pass

    def checking(self) -> Iterator[int]:
        """Scan the log as `check` does. Yield the current log offset after each read."""
        self._only_checks = True
        return (self.end_offset for _ in self._segments())

    def _segments(self) -> Iterator[FoundRecord | None]:
        """Yield each intact record. During a check, yield None for each group of records."""
        for first_offset in self.segments.first_offsets:
            if self._end_of(first_offset) <= self.end_offset:
                continue
            if self.end_offset < first_offset:
                if first_offset > self.durable_offset and not self._is_proven_from(first_offset):
                    break
                self._note_damage(first_offset)
            yield from self._segment(first_offset)
        if self.end_offset < self.durable_offset:
            self._note_damage(self.durable_offset)

    def cut(self, epoch: int = 0) -> None:
        """Remove or zero all bytes after `end_offset`, and make all bytes before it durable.

        Call this after the scan. `epoch` is the epoch of the last record. If OSError is raised, the next
        recovery completes the work.
        """
        assert self.end_offset >= self.durable_offset, "the log would be cut below what was published"
        firsts = self.segments.first_offsets
        # The last segment is deleted first, so that a crash between deletions never leaves a hole.
        for first_offset in reversed(firsts):
            if first_offset >= self.end_offset:
                self._disk.delete(layout.segment_path(first_offset))
        # A power failure may undo earlier deletions, and may remove files whose directory entries could not
        # be synced. The snapshots must be durable before a segment is deleted, and the keep files must be
        # durable before the start of the log is moved.
        for folder in (layout.COMMITLOG, layout.SNAPSHOTS, layout.KEEP, ""):
            self._disk.sync_folder(folder)
        kept = [first_offset for first_offset in firsts if first_offset < self.end_offset]
        for first_offset in kept:
            self._write_again(first_offset)
        self._finish(kept)
        layout.republish_durable(self._disk, self.end_offset, epoch)

    def keep_tail(self, epoch: int = 0) -> None:
        """Extend the files before `end_offset` to their full length, and publish `end_offset`.

        The bytes after `end_offset` are kept. If OSError is raised, the next recovery completes the work.
        """
        kept = [
            first_offset for first_offset in self.segments.first_offsets if first_offset < self.end_offset
        ]
        self._finish(kept, keeps_tail=True)
        layout.republish_durable(self._disk, self.end_offset, epoch)

    def _write_again(self, first_offset: int) -> None:
        """Rewrite and sync segment bytes that may exist only in the page cache."""
        path, end = layout.segment_path(first_offset), min(self.end_offset, self._end_of(first_offset))
        start = max(self._proven_offset, first_offset)
        for offset in range(start, end, _CHUNK_BYTES):
            stored = self._disk.read(path, offset - first_offset, min(_CHUNK_BYTES, end - offset))
            self._disk.write(path, offset - first_offset, stored)
        if start < end:
            self._disk.sync(path)

    def _finish(self, kept: list[int], *, keeps_tail: bool = False) -> None:
        """Extend each segment to its full length.

        Unless the tail is kept, zero all bytes after the end of the log.
        """
        # The size of the last segment is specified in the file `format`. Every other segment ends where the
        # next segment begins.
        ends = [*map(self._end_of, kept[:-1]), *(one + self.segment_bytes for one in kept[-1:])]
        for first_offset, end in zip(kept, ends, strict=True):
            path = layout.segment_path(first_offset)
            # The file is truncated and then allocated again, because writing 1 GiB of zeros would delay
            # startup.
            if first_offset == kept[-1] and self.end_offset < end and not keeps_tail:
                self._disk.truncate(path, self.end_offset - first_offset)
            if self._disk.size(path) < end - first_offset:
                self._disk.allocate(path, end - first_offset)
        for end, following in zip(ends, kept[1:], strict=False):
            self._fill(end, following)
        # The last segment is longer than the other segments if it contains a record that is larger than a
        # segment.
        last_end = kept[-1] + self._disk.size(layout.segment_path(kept[-1])) if kept else self.first_offset
        self._fill(max([last_end, *ends[-1:]]), self.end_offset)

    def _fill(self, start: int, end: int) -> None:
        """Allocate missing segments. The scan has reported them as damage."""
        for first_offset in range(start, end, self.segment_bytes):
            self._disk.allocate(layout.segment_path(first_offset), self.segment_bytes)

    def _segment(self, first_offset: int) -> Iterator[FoundRecord | None]:
        view = self._disk.view(layout.segment_path(first_offset))
        until = self._end_of(first_offset) - first_offset
        if self._stop_at is not None:
            view = view.upto(self._stop_at - first_offset)
        position = self.end_offset - first_offset
        while 0 <= position < min(until, len(view)):
            # Imported records are not checked in groups, because records without a CRC would be read twice.
            if self._only_checks and first_offset + position >= self._imported_until:
                passed = _sound_from(view, position, first_offset)
                if passed > position:
                    position, self.end_offset = passed, first_offset + passed
                    yield None
                    continue
            found = _record_at(view, position, first_offset + position, self._imported_until)
            if found is None:
                position = self._step_over(view, position, first_offset, until)
                continue
            position += found.record_bytes
            self.end_offset = first_offset + position
            yield found

    def _end_of(self, first_offset: int) -> int:
        """Return the end offset of a segment.

        A segment ends at the start of the next one, unless segments are missing between them. Older releases
        could leave such a gap, because `CommitLog.take_flush` did not wait for the flush that creates a
        segment. If the process was killed between two such flushes, a segment could exist without its
        predecessor.
        """
        file_bytes = self._disk.size(layout.segment_path(first_offset))
        own_end = first_offset + max(self.segment_bytes, file_bytes)
        following = self.segments.end_of(first_offset)
        if first_offset == self.segments.first_offsets[-1]:
            return own_end
        is_hole = own_end < following and not self._reaches(first_offset, following)
        return own_end if is_hole else following

    def _step_over(self, view: View, position: int, first_offset: int, until: int) -> int:
        """Return the position where the scan resumes after invalid bytes, or -1."""
        if _is_blank(view, position, until):
            self.end_offset = first_offset + until
            return -1
        if first_offset + position >= self.durable_offset and not self._by_proof:
            return -1
        resumed = _next_record(view, position + 1, first_offset, self._imported_until)
        if resumed >= 0:
            self._note_damage(first_offset + resumed)
        return resumed

    def _is_proven_from(self, first_offset: int) -> bool:
        """Return whether this segment or a later one contains an intact record."""
        later = [one for one in self.segments.first_offsets if one >= first_offset] if self._by_proof else []
        views = ((one, self._disk.view(layout.segment_path(one))) for one in later)
        return any(_next_record(view, 0, one, self._imported_until) >= 0 for one, view in views)

    def _note_damage(self, end_offset: int) -> None:
        """Record the bytes between the current end and `end_offset` as damaged."""
        assert self.end_offset < end_offset, "damage has no bytes"
        assert not self.damaged or self.damaged[-1].end_offset <= self.end_offset, "damage is told twice"
        self.damaged.append(Damage(self.end_offset, end_offset))
        self.end_offset = end_offset

    def _check_contiguous(self, start_at: int) -> None:
        """Raise `StoreError` if a segment is missing.

        A segment is missing if the next file begins after the end of a full segment and neither the preceding
        file nor its final blank reaches that far. The segments in a log may have different sizes (see
        `commitlog.log.segments`).
        """
        firsts = self.segments.first_offsets
        for offset, following in pairwise(firsts):
            is_gap = offset + self.segment_bytes < min(following, self.durable_offset)
            if is_gap and not self._reaches(offset, following):
                raise _missing(offset + self.segment_bytes)
        ends = [firsts[0], self.segments.end_offset] if firsts else [0, 0]
        if firsts:
            ends[1] = max(ends[1], firsts[-1] + self._disk.size(layout.segment_path(firsts[-1])))
        if start_at and not ends[0] <= start_at <= ends[1]:
            raise _missing(start_at if start_at < ends[0] else ends[1])

    def _reaches(self, first_offset: int, following: int) -> bool:
        """Return whether a segment file or its final blank reaches `following`."""
        path = layout.segment_path(first_offset)
        size = self._disk.size(path)
        blank_at = max(0, size - record.BLANK_BYTES)
        end = self._disk.read(path, blank_at, record.BLANK_BYTES)
        return size >= following - first_offset or end == record.blank(following - first_offset - blank_at)


def holds_other(view: View, position: int, offset: int, imported_until: int) -> bool:
    """Return whether a position holds a blank or an intact record for log offset `offset`."""
    if _record_at(view, position, offset, imported_until) is not None:
        return True
    if position + record.BLANK_BYTES > len(view):
        return False
    left_bytes, magic = _HEAD.unpack(view[position : position + _HEAD.size])
    return bool(magic == record.MAGIC_BLANK and left_bytes >= record.BLANK_BYTES)


def trusted_until(disk: Disk, acknowledged_offset: int) -> int:
    """Return the offset up to which a new core can trust the log of the core it replaces.

    This is at least the old core's acknowledged offset. A flush that was in progress when the old core was
    discarded may have published a higher offset. Raise OSError if the disk fails.
    """
    return max(acknowledged_offset, layout.read_durable(disk))


def _missing(first_offset: int) -> StoreError:
    return StoreError(
        f"{layout.segment_path(first_offset)} is missing. Restore it from a backup; nothing was changed."
    )


def _record_at(view: View, position: int, offset: int, imported_until: int) -> FoundRecord | None:
    """Return the intact record for `offset` at a position, or None."""
    if position + record.RECORD_BYTES_MIN > len(view):
        return None
    head = view[position : position + record.RECORD_BYTES_MIN]
    record_bytes, magic = _HEAD.unpack_from(head)
    if magic not in (record.MAGIC_V1, record.MAGIC_V2) or position + record_bytes > len(view):
        return None
    # A message body may contain complete records (for example, if part of a log is sent as a message), and a
    # tail may contain stale records. Such records are recognized by their physical offsets. The offset is
    # checked before the CRC, because checking the offset takes less time.
    if _OFFSET_FIELD.unpack_from(head, _OFFSET_AT)[0] != offset:
        return None
    stored = view[position : position + record_bytes]
    if not record.is_sound(stored, may_lack_crc=offset < imported_until):
        return None
    return FoundRecord(record.decode(stored), record_bytes)


def _sound_from(view: View, position: int, first_offset: int) -> int:
    """Return the end of the contiguous intact records starting at a position, within one read.

    If there are none, return the position. Unlike `_record_at`, this function does not decode records.
    """
    window = view[position : position + WINDOW_BYTES]
    offset, until, at = first_offset + position, len(window), 0
    unpack, crc32, mask = _HEAD_AND_PLACE.unpack_from, zlib.crc32, record.CRC_MASK
    while at + _SOUND_BYTES_MIN <= until:
        record_bytes, magic, physical_offset = unpack(window, at)
        end = at + record_bytes
        if physical_offset != offset + at or record_bytes < _SOUND_BYTES_MIN or end > until:
            break
        if magic != record.MAGIC_V1 and magic != record.MAGIC_V2:
            break
        split = end - record.CRC_BYTES
        if window[split:end] != record.crc_text(crc32(window[at:split]) & mask):
            break
        at = end
    return position + at


def _is_blank(view: View, position: int, until: int) -> bool:
    """Return whether the blank that closes a segment of `until` bytes begins at a position."""
    if position + record.BLANK_BYTES > len(view):
        return False
    left_bytes, magic = _HEAD.unpack(view[position : position + _HEAD.size])
    return bool(magic == record.MAGIC_BLANK and left_bytes == until - position)


def _next_record(view: View, position: int, first_offset: int, imported_until: int) -> int:
    """Return the start of the first intact record at or after a position, or -1 if there is none."""
    for found in view.find(_MAGIC, position, _MAGIC_BYTES):
        start = found - 4
        if start >= position and _record_at(view, start, first_offset + start, imported_until) is not None:
            return start
    return -1
