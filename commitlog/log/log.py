"""The CommitLog: a sequence of records stored in segments.

A record never spans two segments. If a segment has no room for both the record and an 8-byte blank, a blank
closes the segment, and the record is placed at the start of the next one. The bytes after the blank remain
zero. A record larger than a segment is given a segment of its own length. An append only adds the record to
the next flush (see `commitlog.log.flush`). Readers can see a record once its flush has succeeded. A log has
only one writer.

    first_offset      below this offset, segments may have been deleted, and only kept records can be read
                      (`commitlog.log.keep`)
    synced_offset     below this offset, all records are on disk; with `sync`, equal to durable_offset
    durable_offset    below this offset, every flush has succeeded, and records can be read; synced <= durable
                      <= end
    end_offset        the offset of the next record; records that are not durable are in memory or in a flush

After a failed sync, do not trust a later sync of the same bytes, even if it succeeds. The log is therefore
reopened up to the end of the acknowledged records (`acknowledged_offset`), and recovery rewrites the records
after the published offset.

Cost: one list entry per appended record. Binary search finds the segment of a record. Limitation: flushes may
complete in any order, but the log is durable only up to the first incomplete one. A slow flush therefore
delays all later ones.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import Final

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.limits import RECORD_BYTES_MAX
from commitlog.log import imported
from commitlog.log.flush import Flush, Publisher, Sync
from commitlog.log.keep import KeepFiles
from commitlog.log.segments import Segments
from commitlog.log.sink import LogSink, Part, SegmentFiles, Zeros
from commitlog.records import record
from commitlog.records.record import Record

_READ_AHEAD_BYTES: Final = 4096
_LENGTH: Final = struct.Struct(">I")
_LENGTH_BYTES: Final = _LENGTH.size


class CommitLog:
    """The log of a store. The next record begins at `end_offset`.

    If `sync` is false, a flush is considered durable once the operating system has accepted its bytes. A
    power failure may then destroy all bytes after `synced_offset`. Syncs returned by `take_sync` advance
    `synced_offset`.
    """

    def __init__(
        self, disk: Disk, segment_bytes: int, first_offset: int, end_offset: int, *, sync: bool = True
    ) -> None:
        self.segment_bytes: Final = segment_bytes
        self.first_offset = first_offset
        self.end_offset = end_offset
        self.durable_offset = end_offset
        self.synced_offset = end_offset
        self.epoch = self._durable_epoch = 0
        """Epoch of new records, and of the last durable record."""
        self._sync: Final = sync
        self._unsynced_paths: set[str] = set()
        self.keep: Final = KeepFiles(disk)
        self._disk = disk
        self.imported_until: Final = imported.read(disk)
        """End of the imported part of the log (see `commitlog.log.imported`)."""
        self._gathered: list[Part] = []
        self._makes_segment = False
        self._flying: deque[Flush] = deque()
        self._publisher = Publisher(disk)
        self.segments: Final = Segments.of(disk, segment_bytes)
        self.files: Final = SegmentFiles(disk, self.segments, sync=sync)
        self.sink: LogSink = self.files
        """Sink of all flushes."""
        self._tail_offset, self._tail_end = self._tail()

    def resume(self, end_offset: int) -> None:
        """Continue a durable log that recovery truncated at `end_offset`.

        All segment files must have their full length.
        """
        assert end_offset >= self.durable_offset, "what is durable is never cut"
        under_way = self._gathered or self._flying
        assert not under_way, "records under way would lie behind another end"
        self.end_offset = self.durable_offset = self.synced_offset = end_offset
        self.segments.look_again(self._disk, end_offset)
        self.segments.cut(self.first_offset)
        self._tail_offset, self._tail_end = self._tail()

    def _tail(self) -> tuple[int, int]:
        """Return the bounds of the segment for the next record.

        This is a new segment if the current one has no room for a blank.
        """
        segments = self.segments
        if not segments.first_offsets or segments.end_offset - self.end_offset < record.BLANK_BYTES:
            return self.end_offset, self.end_offset + self.segment_bytes
        return segments.first_offsets[-1], segments.end_offset

    def append(self, new: Record) -> int:
        """Add a record to the next flush. Set and return its physical offset."""
        new.physical_offset = self.end_offset
        # If the record does not fit in the segment, it is encoded again, because the CRC includes the
        # physical offset.
        while not self.gather(record.encode(new)):
            new.physical_offset = self.end_offset
        return new.physical_offset

    def gather(self, encoded: bytes) -> bool:
        """Add one record, encoded for `end_offset`, to the next flush.

        If the record does not fit in the segment, start the next segment and return False. In that case,
        `end_offset` has changed, and the record must be encoded again.
        """
        end_offset = self.end_offset + len(encoded)
        if self.end_offset == self._tail_offset:
            self._gather(encoded)
        elif end_offset + record.BLANK_BYTES <= self._tail_end:
            self._gathered.append(encoded)
            self.end_offset = end_offset
        else:
            self._close_segment()
            return False
        return True

    def room_for(self, record_bytes: Sequence[int]) -> int:
        """Return how many of these records fit in the current segment.

        If even the first record does not fit, start a new segment and use that one instead.
        """
        if record_bytes[0] + record.BLANK_BYTES > self._left_bytes():
            self._close_segment()
        ends = list(accumulate(record_bytes))
        return max(1, bisect_right(ends, self._left_bytes() - record.BLANK_BYTES))

    def follow_to(self, offset: int) -> None:
        """Close the segment if the leader's log continues in the next one, at `offset`."""
        if offset > self.end_offset:
            self._close_segment()
        assert self.end_offset == offset, "the log that is followed has other segments"

    def append_encoded(self, encoded: bytearray) -> None:
        """Add contiguous encoded records to the next flush.

        They must begin at `end_offset` and fit in the segment.
        """
        fits = len(encoded) + record.BLANK_BYTES <= self._left_bytes()
        assert fits or self.end_offset == self._tail_offset, "a record is never split"
        self._gather(encoded)

    @property
    def is_quiet(self) -> bool:
        """Whether all appended records are durable."""
        return self.durable_offset == self.end_offset

    def take_flush(self) -> Flush | None:
        """Return a flush containing all collected parts, or None.

        Return None if there are no parts or too many flushes are in progress. A flush that creates a segment
        must be written before the next flush is taken. This ensures that no segment exists without its
        predecessor, regardless of thread scheduling and crashes.
        """
        if not self._gathered or len(self._flying) >= self.sink.appends_max:
            return None
        if self._flying and self._flying[-1].makes_segment and not self._flying[-1].is_written:
            return None
        first_offset = self._flying[-1].end_offset if self._flying else self.durable_offset
        assert first_offset < self.end_offset, "records were gathered, and the log has not grown"
        publisher = self._publisher if self._sync else None
        flush = Flush(
            self.sink,
            first_offset,
            self._gathered,
            self.end_offset,
            self.epoch,
            self._makes_segment,
            publisher,
        )
        self._flying.append(flush)
        if self._sync:
            self._publisher.flying.append(flush)
        self._gathered, self._makes_segment = [], False
        return flush

    def complete_flush(self, flush: Flush) -> None:
        """Process a flush that has been written.

        Its records become readable when all flushes before it have been written too.
        """
        assert flush in self._flying, "a flush has ended twice, or is of another log"
        flush.is_written = True
        while self._flying and self._flying[0].is_written:
            ended = self._flying.popleft()
            assert ended.first_offset == self.durable_offset, "the flushes of the log have a gap"
            self.durable_offset, self._durable_epoch = ended.end_offset, ended.epoch
        assert self.durable_offset <= self.end_offset, "more is durable than was appended"
        if self._sync:
            self.synced_offset = self.durable_offset
        else:
            touched = self.segments.touched(flush.first_offset, flush.end_offset)
            self._unsynced_paths |= set(map(layout.segment_path, touched))

    def take_sync(self) -> Sync | None:
        """Return the next sync for asynchronous flushes, or None if all files are synced."""
        if not self._unsynced_paths:
            return None
        sync = Sync(sorted(self._unsynced_paths), self.durable_offset, self._durable_epoch)
        self._unsynced_paths.clear()
        return sync

    def unsynced_segments(self) -> tuple[str, ...]:
        """Return the segments with appended records that may not be on disk."""
        if self._sync:
            return ()
        firsts = {self.segments.first_of(at) for at in (self.synced_offset, max(self.end_offset - 1, 0))}
        between = [one for one in self.segments.first_offsets if min(firsts) <= one <= max(firsts)]
        return tuple(map(layout.segment_path, between))

    def complete_sync(self, sync: Sync) -> None:
        """Process a successful sync. Publish the synced offset to processes that read the live log."""
        assert sync.end_offset <= self.durable_offset, "more was synced than was flushed"
        self.synced_offset = max(self.synced_offset, sync.end_offset)
        self._publisher.publish(self.synced_offset, sync.epoch)

    def publish_replicated(self) -> None:
        """Publish the end of the log to processes that read the live log.

        All records up to the end must be in the leader's log.
        """
        assert self.is_quiet, "a log that follows has nothing under way"
        self._publisher.publish_accepted(self.durable_offset, self.epoch)

    def read(self, physical_offset: int, length: int = _READ_AHEAD_BYTES) -> Record:
        """Return the durable record at `physical_offset`.

        `length` is the size of the record in bytes, if known. Raise `StoreDamaged` if there is no intact
        record at this offset, or OSError if the disk fails.
        """
        stored = self._read_bytes(physical_offset, length)
        if not record.is_sound(stored, may_lack_crc=physical_offset < self.imported_until):
            raise StoreDamaged(
                f"The record at log offset {physical_offset} does not match its CRC. It is skipped; "
                "restore the segment from a backup to get it back."
            )
        return record.decode(stored)

    def appended(self, physical_offset: int) -> Record:
        """Return the record at `physical_offset`, even if it is not durable.

        Raise the same exceptions as `read`.
        """
        if physical_offset < self.durable_offset:
            return self.read(physical_offset)
        part_offset = self.durable_offset
        for part in chain(*(flush.parts for flush in self._flying), self._gathered):
            if physical_offset < part_offset + len(part):
                assert not isinstance(part, Zeros), "no record lies in a segment's unused end"
                at = physical_offset - part_offset
                (record_bytes,) = _LENGTH.unpack_from(part, at)
                return record.decode(bytes(part[at : at + record_bytes]))
            part_offset += len(part)
        raise AssertionError(f"nothing was appended at log offset {physical_offset}")

    def read_near(self, places: Sequence[tuple[int, int, int]]) -> Iterator[Record | None]:
        """Yield the durable records at sorted (log offset, size, value) locations, using a single read.

        Yield None for a record that is damaged or incomplete. Call `read` to find out why.
        """
        first, (last, last_bytes, _) = places[0][0], places[-1]
        stored = b""
        if self.first_offset <= first < self.durable_offset:
            path, position = self.segments.place(first)
            with suppress(OSError):
                end = min(last + last_bytes, self.durable_offset)
                stored = self._disk.read(path, position, end - first)
        for physical_offset, record_bytes, _ in places:
            one = stored[physical_offset - first : physical_offset - first + record_bytes]
            is_sound = record.is_sound(one, may_lack_crc=physical_offset < self.imported_until)
            yield record.decode(one) if is_sound else None

    def _read_bytes(self, physical_offset: int, length: int) -> bytes:
        assert 0 <= physical_offset < self.durable_offset, f"log offset {physical_offset} is not durable"
        if physical_offset < self.first_offset or physical_offset in self.keep:
            return self.keep.read(physical_offset)
        path, position = self.segments.place(physical_offset)
        stored = self._disk.read(path, position, max(length, _LENGTH_BYTES))
        if len(stored) < _LENGTH_BYTES:
            raise StoreDamaged(f"Nothing lies at log offset {physical_offset}, so near the segment's end.")
        (record_bytes,) = _LENGTH.unpack_from(stored)
        if record_bytes > len(stored):
            # The read is limited to the length of the longest record, because a damaged length field must not
            # cause a read of several gigabytes.
            stored = self._disk.read(path, position, min(record_bytes, self.record_bytes_max))
        return stored[:record_bytes]

    def abandon_sync(self, sync: Sync) -> None:
        """Requeue a sync that was not performed because of another failure."""
        self._unsynced_paths |= set(sync.paths)

    def segment_of(self, offset: int) -> int:
        """Return the first offset of the segment that contains, or will contain, `offset`."""
        return self._tail_offset if offset >= self._tail_offset else self.segments.first_of(offset)

    def segment_offsets(self) -> list[int]:
        """Return the first offsets of all segments in ascending order.

        The segment for the next record is included.
        """
        firsts = self.segments.first_offsets
        return [*firsts, *((self._tail_offset,) if not firsts or firsts[-1] < self._tail_offset else ())]

    def cut(self, first_offset: int) -> None:
        """Prevent reads below `first_offset`, even if the segments still exist."""
        self.first_offset = max(self.first_offset, first_offset)
        self.segments.cut(self.first_offset)

    @property
    def record_bytes_max(self) -> int:
        """Maximum length of a record in bytes."""
        return max(self.segment_bytes, RECORD_BYTES_MAX)

    def _left_bytes(self) -> int:
        return self._tail_end - self.end_offset

    def _close_segment(self) -> None:
        if self.end_offset > self._tail_offset:
            left_bytes = self._left_bytes()
            assert left_bytes >= record.BLANK_BYTES, "the blank that closes a segment has no room"
            tail_end = self._tail_end
            self._gather(record.blank(left_bytes))
            if left_bytes > record.BLANK_BYTES:
                self._gathered.append(Zeros(left_bytes - record.BLANK_BYTES))
            self._begin_segment(tail_end)

    def _begin_segment(self, first_offset: int) -> None:
        self.end_offset = self._tail_offset = first_offset
        self._tail_end = first_offset + self.segment_bytes

    def _gather(self, encoded: bytes | bytearray) -> None:
        if self.end_offset == self._tail_offset:
            self.segments.add(self._tail_offset)
            self._makes_segment = True
        self._gathered.append(encoded)
        self.end_offset += len(encoded)
        # After a record that is larger than a segment, the next segment begins immediately after the record.
        if self._left_bytes() < record.BLANK_BYTES:
            self._begin_segment(self.end_offset)
