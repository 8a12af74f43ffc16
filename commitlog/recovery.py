"""Where the log ends after any stop, and what in it is damaged.

Every record from the first segment on is checked: magic, its own physical offset, its CRC (records of an
imported log as `commitlog.foreign` says). At the first bytes that are no record:

* below the published durable offset it is damage: reading resumes at the next magic whose record names its
  own offset and has a right CRC; the region between is reported, nothing behind it is lost;
* at or above it, it is the torn tail: the log ends there.

The tail is then cut so that no stale record can come back: the rest of its segment becomes zeros and later
segments are deleted, all durable before the first append. A scan may start at any record; with a snapshot it
starts there. Cost: one read of the log from the start of the scan.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from commitlog import foreign, layout, record
from commitlog.disk import Disk
from commitlog.errors import StoreError
from commitlog.record import Record
from commitlog.view import View

_MAGIC = re.compile(b"\xda\xa3\x20[\xa7\xab]")
_MAGIC_BYTES: Final = 4
_HEAD: Final = struct.Struct(">II")
_OFFSET_FIELD: Final = struct.Struct(">q")
_OFFSET_AT: Final = 28


@dataclass(slots=True, frozen=True)
class Damage:
    """Bytes of the log, from `first_offset` up to `end_offset`, that are not what was written."""

    first_offset: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class Found:
    """A sound record and its length in the log."""

    record: Record
    record_bytes: int


class LogScan:
    """One pass over the log on `disk`; iterate it to the end, then read `end_offset` and `damaged`."""

    def __init__(self, disk: Disk, segment_bytes: int, start_at: int = 0, stop_at: int | None = None) -> None:
        """`segment_bytes` holds for an empty store. All below `start_at` is known to be durable and is not
        read; a log whose sync failed is not trusted past `stop_at`.
        """
        self._disk = disk
        self._start_at = start_at
        self._stop_at = stop_at
        self._offsets = layout.segment_offsets(disk)
        self._own_from = foreign.read_imported(disk)
        self.durable_offset = max(layout.read_durable(disk), start_at)
        self.segment_bytes = self._known_segment_bytes(segment_bytes)
        self._check_contiguous(start_at)
        self.first_offset = self._offsets[0] if self._offsets else start_at
        self.end_offset = max(self.first_offset, start_at)
        self.damaged: list[Damage] = []

    def __iter__(self) -> Iterator[Found]:
        for first_offset in self._offsets:
            if first_offset + self.segment_bytes <= self.end_offset:
                continue
            if self.end_offset < first_offset:
                if first_offset > self.durable_offset:
                    break
                self._note_damage(first_offset)
            yield from self._segment(first_offset)
        if self.end_offset < self.durable_offset:
            self._note_damage(self.durable_offset)

    def cut(self) -> None:
        """Makes everything behind `end_offset` zeros or gone, and all before it durable, after the pass.

        What the pass has read may so far be only in the operating system's memory.
        """
        position = self.end_offset % self.segment_bytes
        tail_segment = self.end_offset - position
        for first_offset in reversed(self._offsets):
            path = layout.segment_path(first_offset)
            if self._start_at <= first_offset + self.segment_bytes <= tail_segment:
                self._disk.sync(path)
            if first_offset > tail_segment or (first_offset == tail_segment and position == 0):
                self._disk.delete(path)
            elif first_offset == tail_segment:
                self._disk.truncate(path, position)
                self._disk.allocate(path, self.segment_bytes)
        layout.reset_durable(self._disk, self.end_offset)

    def _segment(self, first_offset: int) -> Iterator[Found]:
        view = self._disk.view(layout.segment_path(first_offset))
        if self._stop_at is not None:
            view = view.upto(self._stop_at - first_offset)
        position = self.end_offset - first_offset
        while 0 <= position < len(view):
            found = _record_at(view, position, first_offset + position, self._own_from)
            if found is None:
                position = self._step_over(view, position, first_offset)
                continue
            position += found.record_bytes
            self.end_offset = first_offset + position
            yield found

    def _step_over(self, view: View, position: int, first_offset: int) -> int:
        """Where to read on after bytes that are no record; -1 at the end of this segment or of the log."""
        if _is_blank(view, position):
            self.end_offset = first_offset + len(view)
            return -1
        if first_offset + position >= self.durable_offset:
            return -1
        resumed = _next_record(view, position + 1, first_offset, self._own_from)
        if resumed >= 0:
            self._note_damage(first_offset + resumed)
        return resumed

    def _note_damage(self, end_offset: int) -> None:
        self.damaged.append(Damage(self.end_offset, end_offset))
        self.end_offset = end_offset

    def _known_segment_bytes(self, wanted: int) -> int:
        """The size that the store's segments have; `wanted` for a store that never held a durable record."""
        if not self._offsets or self.durable_offset == 0:
            return wanted
        used = [offset for offset in self._offsets if offset < self.durable_offset]
        sizes = [self._disk.size(layout.segment_path(offset)) for offset in used]
        distances = [following - offset for offset, following in pairwise(self._offsets)]
        ((segment_bytes, _),) = Counter(sizes + distances).most_common(1)
        for offset, size in zip(used, sizes, strict=True):
            if size != segment_bytes:
                raise _wrong_size(offset, size, f"the others {segment_bytes}")
        if len(used) == len(self._offsets) == 1 and used[0] + segment_bytes < self.durable_offset:
            raise _wrong_size(used[0], segment_bytes, f"the log goes on to {self.durable_offset}")
        return segment_bytes

    def _check_contiguous(self, start_at: int) -> None:
        for offset, following in pairwise(self._offsets):
            if following != offset + self.segment_bytes < self.durable_offset:
                raise _missing(offset + self.segment_bytes)
        ends = [self._offsets[0], self._offsets[-1] + self.segment_bytes] if self._offsets else [0, 0]
        if start_at and not ends[0] <= start_at <= ends[1]:
            raise _missing(start_at // self.segment_bytes * self.segment_bytes)


def _wrong_size(first_offset: int, size: int, but: str) -> StoreError:
    return StoreError(
        f"{layout.segment_path(first_offset)} has {size} bytes, {but}. "
        "Restore it from a backup; nothing was changed."
    )


def _missing(first_offset: int) -> StoreError:
    return StoreError(
        f"{layout.segment_path(first_offset)} is missing. Restore it from a backup; nothing was changed."
    )


def _record_at(view: View, position: int, offset: int, own_from: int) -> Found | None:
    if position + record.RECORD_BYTES_MIN > len(view):
        return None
    head = view[position : position + record.RECORD_BYTES_MIN]
    record_bytes, magic = _HEAD.unpack_from(head)
    if magic not in (record.MAGIC_V1, record.MAGIC_V2) or position + record_bytes > len(view):
        return None
    if _OFFSET_FIELD.unpack_from(head, _OFFSET_AT)[0] != offset:
        return None
    stored = view[position : position + record_bytes]
    if not record.is_sound(stored, may_lack_crc=offset < own_from):
        return None
    return Found(record.decode(stored), record_bytes)


def _is_blank(view: View, position: int) -> bool:
    if position + record.BLANK_BYTES > len(view):
        return False
    left_bytes, magic = _HEAD.unpack(view[position : position + _HEAD.size])
    return bool(magic == record.MAGIC_BLANK and left_bytes == len(view) - position)


def _next_record(view: View, position: int, first_offset: int, own_from: int) -> int:
    for found in view.find(_MAGIC, position, _MAGIC_BYTES):
        start = found - 4
        if start >= position and _record_at(view, start, first_offset + start, own_from) is not None:
            return start
    return -1
