"""The interface of a sink, such as the segments on the local disk, for the bytes of flushes.

    append(first_offset, parts, epoch)    contiguous parts of the log from `first_offset` on

    part     bytes                  one whole record, or several without gaps
             bytes, then `Zeros`    the blank that closes a segment, and the unused zeros after it

1. Parts are contiguous, including the end of a segment. A sink with all parts has the log byte by byte,
   regardless of its own segments, and can compute a chained checksum over the log.
2. For the unused end of a segment (undefined in RocketMQ, zeros in Tidewheel), a sink gets only the length.
   Therefore the unused end of a segment of 1 GiB takes eight bytes in a sink.
3. A sink has up to `appends_max` concurrent appends, begun in the order of their offsets. When an append
   returns, its parts are stored with the guarantee of the sink. If an append raises OSError, the state of its
   parts is unknown, and the core must not continue.
4. `epoch` is the epoch of the leader that decided the append (`services.broker.spine.epoch`). A sink with
   several writers refuses an epoch that is older than the newest known epoch. A disk has only one writer,
   because of the lock of the store.

A shared log is another sink, which stores the parts after the local sink.

Cost on a local disk: one write and one sync for each segment of a flush. Weak spot: a flush that begins a
segment also allocates the segment, so this flush and all later flushes wait for the file system.
"""

from __future__ import annotations

from collections.abc import Sequence
from errno import ENOSPC
from itertools import accumulate, groupby
from typing import Protocol

from commitlog import layout
from commitlog.disk import Disk
from commitlog.limits import FLUSHES_IN_FLIGHT_MAX
from commitlog.segments import Segments


class Zeros:
    """A number of zero bytes of the log, which are neither stored in memory nor sent."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


Part = bytes | bytearray | Zeros
"""A part of the log in an append."""


class LogSink(Protocol):
    """A destination for the bytes of a log."""

    @property
    def appends_max(self) -> int:
        """The maximum number of concurrent appends."""

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        """Store contiguous parts from a log offset on, in a worker thread, or raise OSError."""


class SegmentFiles:
    """The segments on a disk. If `sync` is true, an append syncs the segments before it returns."""

    def __init__(self, disk: Disk, segments: Segments, *, sync: bool) -> None:
        self._disk, self._segments, self._sync = disk, segments, sync
        self.appends_max = FLUSHES_IN_FLIGHT_MAX
        self.used_reserve = False
        """Whether the reserve was deleted to make room for a new segment, until the deletion is handled."""

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        """Write the share of each segment, in log order, after allocating each new segment."""
        write = self._disk.write_synced if self._sync else self._disk.write
        for offset, share in self.shares(first_offset, parts):
            path, position = self._segments.place(offset)
            assert position >= 0, f"log offset {offset} lies before all segments"
            if position == 0:
                self._allocate(path)
            write(path, position, share)

    def shares(self, first_offset: int, parts: Sequence[Part]) -> list[tuple[int, bytes]]:
        """Return (log offset, bytes) to write to each segment, without zeros, which are allocated."""
        if first_offset + sum(map(len, parts)) < self._segments.end_of(first_offset):
            return [(first_offset, b"".join(parts))]  # type: ignore[arg-type]  # zeros would reach the end
        shares = []
        placed = zip(accumulate(map(len, parts), initial=first_offset), parts, strict=False)
        for _, share in groupby(placed, lambda one: self._segments.first_of(one[0])):
            offsets, kept = zip(*share, strict=True)
            shares.append((offsets[0], b"".join(part for part in kept if not isinstance(part, Zeros))))
        return shares

    def _allocate(self, path: str) -> None:
        """Allocate a segment at its whole length, with the space of the reserve if the disk is full."""
        segment_bytes = self._segments.segment_bytes
        try:
            self._disk.allocate(path, segment_bytes)
        except OSError as error:
            if error.errno != ENOSPC or self._disk.size(layout.RESERVE) < 0:
                raise
            # The reserve is deleted and not renamed, so that all segments are created in the same way.
            self._disk.delete(layout.RESERVE)
            self._disk.allocate(path, segment_bytes)
            self.used_reserve = True
