"""Where the log ends after any stop, and what in it is damaged.

Every record from the first segment on is checked: magic, its own physical offset, its CRC (records of an
imported log as `commitlog.imported` says). At the first bytes that are no record:

* below the published durable offset it is damage: reading resumes at the next magic whose record names its
  own offset and has a right CRC; the region between is reported, nothing behind it is lost;
* at or above it, it is the torn tail: the log ends there;
* where no offset was published that can be read (the file `durable` is damaged), a sound record anywhere
  behind proves that it is damage; only bytes that none follows are the torn tail.

The tail is then cut so that no stale record can come back, all durably before the first append:

    1. later segments are deleted, the last one first, also those that a dead process had just deleted
    2. what was read behind the published offset is written once more, and synced
    3. the segment of the end is truncated there, and allocated to its whole length: the rest is zeros
    4. the end is published

The process may die, or the disk fail, between any two of these steps and within each. A start finds the same
end then: nothing is deleted or cut but what lies behind it, a short segment is one whose rest is zeros, and
its length is allocated again. Step 2 is there because pages that a failed sync gave up read as if nothing had
happened and would never reach the disk (see `commitlog.disk`): their writer may be long dead.

Of a node's log (`services.cluster.replica`) the tail may be what only this disk has left. So it stays in
place (`keep_tail` instead of `cut`), and is compared with what is appended there (`services.cluster.tail`).

A scan may start at any record; with a snapshot it starts there. Who wants no records, only what is damaged,
lets it `check`: the same pass, that steps over sound records by their lengths and CRCs without reading them.

Cost: one read of the log from the start of the scan (26 us a record of 1 KB, 2 us where it only checks), one
write of what lies behind the published offset: after `kill -9` the flushes that were under way.

Weak spot: at or above the published offset damage cannot be told from a torn tail, and all behind it
is cut. What is acknowledged was published before, but the file is not synced: a power cut may take that.
A damaged `durable` and a loss of power together may leave a gap within the flushes that were under way, none
of which was acknowledged. If a timer was replaced twice in them and the gap has the first replacement, the
timer waits again, beside the second.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from commitlog import imported, layout, record
from commitlog.disk import Disk
from commitlog.errors import StoreError
from commitlog.record import Record
from commitlog.segments import Segments
from commitlog.view import WINDOW_BYTES, View

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
    """Bytes of the log, from `first_offset` up to `end_offset`, that are not what was written."""

    first_offset: int
    end_offset: int


class Found(NamedTuple):
    """A sound record and its length in the log."""

    record: Record
    record_bytes: int


class LogScan:
    """One pass over the log on `disk`; iterate it to the end, then read `end_offset` and `damaged`."""

    def __init__(
        self,
        disk: Disk,
        segment_bytes: int,
        start_at: int = 0,
        stop_at: int | None = None,
        *,
        may_lack_segments: bool = False,
    ) -> None:
        """Prepare a pass; raise `StoreError` if a segment is missing, or OSError.

        All below `start_at` is known to be durable and is not read. Nobody was told of what lies behind
        `stop_at`: it is not taken over; what lies before it and cannot be read is damage. With
        `may_lack_segments` so is a segment that is missing between two others.
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
        """What is wrong with the file of the published offset, if anything is."""
        if self._by_proof:
            what = found.problem or "it is missing"
            self.unsound = f"{layout.DURABLE}: {what}; where the log ends was concluded from its records"

    def __iter__(self) -> Iterator[Found]:
        return (found for found in self._segments() if found is not None)

    def check(self) -> None:
        """Pass over the log once, without giving out its records; raise OSError."""
        for _ in self.checking():
            pass

    def checking(self) -> Iterator[int]:
        """Do what `check` does, and yield where it has come to after each read: a log offset."""
        self._only_checks = True
        return (self.end_offset for _ in self._segments())

    def _segments(self) -> Iterator[Found | None]:
        """Yield the sound records; None in place of some at once where it only checks."""
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
        """Make everything behind `end_offset` zeros or gone, and all before it durable, after the pass.

        `epoch` is that of the log's end, as its records say. Raise OSError; a new start goes on from there.
        """
        assert self.end_offset >= self.durable_offset, "the log would be cut below what was published"
        firsts = self.segments.first_offsets
        # The last one first: died in between, the log has no hole, but an end with fewer segments behind it.
        for first_offset in reversed(firsts):
            if first_offset >= self.end_offset:
                self._disk.delete(layout.segment_path(first_offset))
        # A loss of power may undo earlier deletions, and remove names whose sync failed: segments are deleted
        # because of the snapshots, and the log is cut because of the keep files.
        for folder in (layout.COMMITLOG, layout.SNAPSHOTS, layout.KEEP, ""):
            self._disk.sync_folder(folder)
        kept = [first_offset for first_offset in firsts if first_offset < self.end_offset]
        for first_offset in kept:
            self._write_again(first_offset)
        self._finish(kept)
        layout.republish_durable(self._disk, self.end_offset, epoch)

    def keep_tail(self, epoch: int = 0) -> None:
        """Make the files before `end_offset` whole and publish that, and leave what lies behind it in place.

        Raise OSError; a new start goes on from there.
        """
        kept = [
            first_offset for first_offset in self.segments.first_offsets if first_offset < self.end_offset
        ]
        self._finish(kept, keeps_tail=True)
        layout.republish_durable(self._disk, self.end_offset, epoch)

    def _write_again(self, first_offset: int) -> None:
        """Take to disk what was read of a segment and may so far be in memory only."""
        path, end = layout.segment_path(first_offset), min(self.end_offset, self._end_of(first_offset))
        start = max(self._proven_offset, first_offset)
        for offset in range(start, end, _CHUNK_BYTES):
            stored = self._disk.read(path, offset - first_offset, min(_CHUNK_BYTES, end - offset))
            self._disk.write(path, offset - first_offset, stored)
        if start < end:
            self._disk.sync(path)

    def _finish(self, kept: list[int], *, keeps_tail: bool = False) -> None:
        """Give each segment its whole length; what lies behind the log's end becomes zeros, or stays."""
        # The last one ends where its size in `format` says, others where the next one's name says.
        ends = [*map(self._end_of, kept[:-1]), *(one + self.segment_bytes for one in kept[-1:])]
        for first_offset, end in zip(kept, ends, strict=True):
            path = layout.segment_path(first_offset)
            # Cut and allocated rather than overwritten with zeros: a gigabyte of these would delay the start.
            if first_offset == kept[-1] and self.end_offset < end and not keeps_tail:
                self._disk.truncate(path, self.end_offset - first_offset)
            if self._disk.size(path) < end - first_offset:
                self._disk.allocate(path, end - first_offset)
        for end, following in zip(ends, kept[1:], strict=False):
            self._fill(end, following)
        # The last one is longer than others where a record was too large for one.
        last_end = kept[-1] + self._disk.size(layout.segment_path(kept[-1])) if kept else self.first_offset
        self._fill(max([last_end, *ends[-1:]]), self.end_offset)

    def _fill(self, start: int, end: int) -> None:
        """Make the segments that are gone, or never came to be: what lay there is damage, at its place."""
        for first_offset in range(start, end, self.segment_bytes):
            self._disk.allocate(layout.segment_path(first_offset), self.segment_bytes)

    def _segment(self, first_offset: int) -> Iterator[Found | None]:
        view = self._disk.view(layout.segment_path(first_offset))
        until = self._end_of(first_offset) - first_offset
        if self._stop_at is not None:
            view = view.upto(self._stop_at - first_offset)
        position = self.end_offset - first_offset
        while 0 <= position < min(until, len(view)):
            # Not in what was imported: there it would look again for each record that has no CRC.
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
        """Return where a segment ends: where the next begins, or before, if some between never came to be.

        So a kill could leave it before `CommitLog.take_flush` waited for whoever makes a segment: a flush had
        made the next but one, and an earlier flush had not made the next.
        """
        file_bytes = self._disk.size(layout.segment_path(first_offset))
        own_end = first_offset + max(self.segment_bytes, file_bytes)
        following = self.segments.end_of(first_offset)
        if first_offset == self.segments.first_offsets[-1]:
            return own_end
        is_hole = own_end < following and not self._reaches(first_offset, following)
        return own_end if is_hole else following

    def _step_over(self, view: View, position: int, first_offset: int, until: int) -> int:
        """Return where to read on after bytes that are no record; -1 at the end of the segment or the log."""
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
        """Tell whether a sound record in this segment or a later one proves that the log goes on so far."""
        later = [one for one in self.segments.first_offsets if one >= first_offset] if self._by_proof else []
        views = ((one, self._disk.view(layout.segment_path(one))) for one in later)
        return any(_next_record(view, 0, one, self._imported_until) >= 0 for one, view in views)

    def _note_damage(self, end_offset: int) -> None:
        """Note that the bytes from the end found so far up to an offset are damage; the log goes on there."""
        assert self.end_offset < end_offset, "damage has no bytes"
        assert not self.damaged or self.damaged[-1].end_offset <= self.end_offset, "damage is told twice"
        self.damaged.append(Damage(self.end_offset, end_offset))
        self.end_offset = end_offset

    def _check_contiguous(self, start_at: int) -> None:
        """Raise `StoreError` if a segment is missing.

        It is where the next one begins later than a whole segment ends, unless the file before reaches so
        far, or ends with a blank that does, as where segments have many sizes (see `commitlog.segments`).
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
        """Tell whether a segment's file, or the blank at the file's end, reaches to an offset."""
        path = layout.segment_path(first_offset)
        size = self._disk.size(path)
        blank_at = max(0, size - record.BLANK_BYTES)
        end = self._disk.read(path, blank_at, record.BLANK_BYTES)
        return size >= following - first_offset or end == record.blank(following - first_offset - blank_at)


def holds_other(view: View, position: int, offset: int, imported_until: int) -> bool:
    """Return whether a sound record of log offset `offset`, or a blank, lies at a position."""
    if _record_at(view, position, offset, imported_until) is not None:
        return True
    if position + record.BLANK_BYTES > len(view):
        return False
    left_bytes, magic = _HEAD.unpack(view[position : position + _HEAD.size])
    return bool(magic == record.MAGIC_BLANK and left_bytes >= record.BLANK_BYTES)


def trusted_until(disk: Disk, acknowledged_offset: int) -> int:
    """Return up to where a core that takes the place of another in one process takes the log over.

    That is what the other one has acknowledged, or more: a flush that was under way when it was let go may
    have ended well since, and is published then, to readers, too. Raise OSError.
    """
    return max(acknowledged_offset, layout.read_durable(disk))


def _missing(first_offset: int) -> StoreError:
    return StoreError(
        f"{layout.segment_path(first_offset)} is missing. Restore it from a backup; nothing was changed."
    )


def _record_at(view: View, position: int, offset: int, imported_until: int) -> Found | None:
    """Return the sound record at a position that names `offset` as its own place; None if none is there."""
    if position + record.RECORD_BYTES_MIN > len(view):
        return None
    head = view[position : position + record.RECORD_BYTES_MIN]
    record_bytes, magic = _HEAD.unpack_from(head)
    if magic not in (record.MAGIC_V1, record.MAGIC_V2) or position + record_bytes > len(view):
        return None
    # A body may hold whole records (a log sent as a message), stale ones may lie behind a tail: these name
    # other places. Before the CRC, since it is the cheaper test.
    if _OFFSET_FIELD.unpack_from(head, _OFFSET_AT)[0] != offset:
        return None
    stored = view[position : position + record_bytes]
    if not record.is_sound(stored, may_lack_crc=offset < imported_until):
        return None
    return Found(record.decode(stored), record_bytes)


def _sound_from(view: View, position: int, first_offset: int) -> int:
    """Return where the sound records end that lie back to back from a position on, as far as one read shows.

    Each of them `_record_at` would find, but it would not have to be made. Where none is, look there.
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
    """Tell whether the blank that closes a segment of `until` bytes lies at a position."""
    if position + record.BLANK_BYTES > len(view):
        return False
    left_bytes, magic = _HEAD.unpack(view[position : position + _HEAD.size])
    return bool(magic == record.MAGIC_BLANK and left_bytes == until - position)


def _next_record(view: View, position: int, first_offset: int, imported_until: int) -> int:
    """Return where the next sound record begins at or behind a position; -1 if the view holds none."""
    for found in view.find(_MAGIC, position, _MAGIC_BYTES):
        start = found - 4
        if start >= position and _record_at(view, start, first_offset + start, imported_until) is not None:
            return start
    return -1
