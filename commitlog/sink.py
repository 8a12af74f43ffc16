"""Where a flush goes: a sink takes the bytes of the log in order; the segments on the local disk are one.

    append(first_offset, parts, epoch)    parts lie back to back in the log, from `first_offset` on

    part     bytes                  one whole record, or several back to back
             bytes, then `Zeros`    the blank that closes a segment, and the zeros that it leaves unused

1. Parts have no gap, also where a segment ends: whoever has all of them has the log byte by byte, wherever
   its own segments lie, and can chain a checksum over it.
2. Of a segment's unused end (RocketMQ leaves it undefined; here it is zeros, as allocation makes it) only the
   length is said. So what closes a segment of 1 GiB costs a sink eight bytes, not what is left of it.
3. A sink has up to `appends_max` appends under way, in order of their offsets. When one returns, its parts
   are kept as the sink promises; when it raises OSError, nothing is certain, and the core is void.
4. `epoch` says under which right to append this was decided (`services.broker.spine.epoch`). A sink that
   several brokers could write to refuses an older one than it knows; a disk has one writer, by its lock.

A shared log is another sink, before which the local one keeps what it takes.

Cost on a local disk: one write and one sync for each segment that a flush touches. Weak spot: allocating a
segment is part of the flush that begins it, so that flush, and all behind it, wait for the file system.
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
    """So many zero bytes of the log, which nobody need hold or send."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


Part = bytes | bytearray | Zeros
"""What a sink is given of the log at once."""


class LogSink(Protocol):
    """Something that keeps the bytes of a log."""

    @property
    def appends_max(self) -> int:
        """How many appends may be under way."""

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        """Keep parts that lie back to back from a log offset on; runs in a worker thread. Raises OSError."""


class SegmentFiles:
    """The segments on a disk; synced when an append returns, if `sync`."""

    def __init__(self, disk: Disk, segments: Segments, *, sync: bool) -> None:
        self._disk, self._segments, self._sync = disk, segments, sync
        self.appends_max = FLUSHES_IN_FLIGHT_MAX
        self.used_reserve = False
        """Whether there was no room for a new segment and the reserve has made some, until seen to."""

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        """Write each segment's share, in log order; a segment that begins is allocated first."""
        write = self._disk.write_synced if self._sync else self._disk.write
        for offset, share in self.shares(first_offset, parts):
            path, position = self._segments.place(offset)
            assert position >= 0, f"log offset {offset} lies before all segments"
            if position == 0:
                self._allocate(path)
            write(path, position, share)

    def shares(self, first_offset: int, parts: Sequence[Part]) -> list[tuple[int, bytes]]:
        """Return (log offset, bytes) to be written to each segment; zeros are there already."""
        if first_offset + sum(map(len, parts)) < self._segments.end_of(first_offset):
            return [(first_offset, b"".join(parts))]  # type: ignore[arg-type]  # zeros would reach the end
        shares = []
        placed = zip(accumulate(map(len, parts), initial=first_offset), parts, strict=False)
        for _, share in groupby(placed, lambda one: self._segments.first_of(one[0])):
            offsets, kept = zip(*share, strict=True)
            shares.append((offsets[0], b"".join(part for part in kept if not isinstance(part, Zeros))))
        return shares

    def _allocate(self, path: str) -> None:
        """Make a segment at its whole length, if need be with the room of the reserve; raise OSError."""
        segment_bytes = self._segments.segment_bytes
        try:
            self._disk.allocate(path, segment_bytes)
        except OSError as error:
            if error.errno != ENOSPC or self._disk.size(layout.RESERVE) < 0:
                raise
            # The reserve makes room by going, not by becoming the segment: so segments are made in one way.
            self._disk.delete(layout.RESERVE)
            self._disk.allocate(path, segment_bytes)
            self.used_reserve = True
