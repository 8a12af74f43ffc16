"""The CommitLog: one endless sequence of records in segments of equal size.

A record never spans two segments: when it and an 8-byte blank do not both fit, the blank closes the
segment and the record opens the next. Appending only gathers bytes (see `commitlog.flush`); an append is
visible to readers once its flush has succeeded. One writer.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from commitlog import foreign, layout, record
from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.flush import Flush, SegmentWrite, Sync
from commitlog.keep import Keep
from commitlog.limits import FLUSHES_IN_FLIGHT_MAX
from commitlog.record import Record

_READ_AHEAD_BYTES: Final = 4096
_LENGTH_BYTES: Final = 4


class CommitLog:
    """The log on `disk`, whose next record goes to `end_offset`; all before it is durable.

    With `sync` off a flush only hands its bytes to the operating system and counts as durable then; what a
    power cut may take is everything behind `synced_offset`, which `take_sync` moves.
    """

    def __init__(
        self, disk: Disk, segment_bytes: int, first_offset: int, end_offset: int, *, sync: bool = True
    ) -> None:
        self.segment_bytes: Final = segment_bytes
        self.first_offset = first_offset
        self.end_offset = end_offset
        self.durable_offset = end_offset
        self.synced_offset = end_offset
        self._sync: Final = sync
        self._unsynced_paths: set[str] = set()
        self.keep: Final = Keep(disk)
        self._disk = disk
        self.own_from: Final = foreign.read_imported(disk)
        """Below this the log was imported (see `commitlog.foreign`)."""
        self._gathered: list[SegmentWrite] = []
        self._flying: deque[Flush] = deque()
        self._publish_count = 0

    def append(self, new: Record) -> int:
        """Gathers one record for the next flush; sets and returns its physical offset."""
        new.physical_offset = self.end_offset
        encoded = record.encode(new)
        if len(encoded) + record.BLANK_BYTES > self._left_bytes():
            self._close_segment()
            new.physical_offset = self.end_offset
            encoded = record.encode(new)
        self._gather(encoded)
        return new.physical_offset

    def room_for(self, record_bytes: Sequence[int]) -> int:
        """How many of these records, in order, the present segment takes; opens the next for the first."""
        if record_bytes[0] + record.BLANK_BYTES > self._left_bytes():
            self._close_segment()
        ends = list(accumulate(record_bytes))
        return bisect_right(ends, self._left_bytes() - record.BLANK_BYTES)

    def append_encoded(self, encoded: bytearray) -> None:
        """Gathers whole records that lie back to back, are stamped for `end_offset` on, and have room."""
        assert len(encoded) + record.BLANK_BYTES <= self._left_bytes()
        self._gather(encoded)

    @property
    def is_quiet(self) -> bool:
        """Whether everything appended is durable."""
        return self.durable_offset == self.end_offset

    def take_flush(self) -> Flush | None:
        """Everything gathered, to be written; None if there is nothing, or enough flushes are under way."""
        if not self._gathered or len(self._flying) >= FLUSHES_IN_FLIGHT_MAX:
            return None
        flush = Flush(self._gathered, self.end_offset, self._sync)
        self._flying.append(flush)
        self._gathered = []
        return flush

    def flushed(self, flush: Flush) -> None:
        """The flush is on disk: once those before it are, its records may be read, and readers are told."""
        assert flush in self._flying
        flush.is_written = True
        while self._flying and self._flying[0].is_written:
            self.durable_offset = self._flying.popleft().end_offset
        if self._sync:
            self._publish(self.durable_offset)
        else:
            self._unsynced_paths |= {layout.segment_path(write.first_offset) for write in flush.writes}

    def take_sync(self) -> Sync | None:
        """With asynchronous flushes: what to sync now and then; None if there is nothing."""
        if not self._unsynced_paths:
            return None
        sync = Sync(sorted(self._unsynced_paths), self.durable_offset)
        self._unsynced_paths.clear()
        return sync

    def synced(self, sync: Sync) -> None:
        """The sync has succeeded: live readers are told."""
        self._publish(sync.end_offset)

    def read(self, physical_offset: int, length: int = _READ_AHEAD_BYTES) -> Record:
        """The durable record at `physical_offset`; `length` is its size where known.

        Raises `StoreDamaged` where no whole record with a right CRC lies there.
        """
        stored = self._read_bytes(physical_offset, length)
        if not record.is_sound(stored, may_lack_crc=physical_offset < self.own_from):
            raise StoreDamaged(
                f"The record at log offset {physical_offset} does not match its CRC. It is skipped; "
                "restore the segment from a backup to get it back."
            )
        return record.decode(stored)

    def _read_bytes(self, physical_offset: int, length: int) -> bytes:
        assert 0 <= physical_offset < self.durable_offset
        if physical_offset < self.first_offset or physical_offset in self.keep:
            return self.keep.read(physical_offset)
        position = physical_offset % self.segment_bytes
        path = layout.segment_path(physical_offset - position)
        stored = self._disk.read(path, position, max(length, _LENGTH_BYTES))
        if len(stored) < _LENGTH_BYTES:
            raise StoreDamaged(f"Nothing lies at log offset {physical_offset}, so near the segment's end.")
        (record_bytes,) = struct.unpack_from(">I", stored)
        if record_bytes > len(stored):
            stored = self._disk.read(path, position, min(record_bytes, self.segment_bytes))
        return stored[:record_bytes]

    def distrust(self, sync: Sync) -> None:
        """The sync has failed, or was never run: its files are to be synced again."""
        self._unsynced_paths |= set(sync.paths)

    def _publish(self, offset: int) -> None:
        self.synced_offset = max(self.synced_offset, offset)
        self._publish_count += 1
        layout.publish_durable(self._disk, self.synced_offset, self._publish_count)

    def _left_bytes(self) -> int:
        return self.segment_bytes - self.end_offset % self.segment_bytes

    def _close_segment(self) -> None:
        left_bytes = self._left_bytes()
        if left_bytes < self.segment_bytes:
            self._gather(record.blank(left_bytes))
            self.end_offset += left_bytes - record.BLANK_BYTES

    def _gather(self, encoded: bytes | bytearray) -> None:
        position = self.end_offset % self.segment_bytes
        if not self._gathered or position == 0:
            self._gathered.append(
                SegmentWrite(self.end_offset - position, position, 0 if position else self.segment_bytes)
            )
        self._gathered[-1].chunks.append(encoded)
        self.end_offset += len(encoded)
