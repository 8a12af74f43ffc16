"""The interface of log sinks, which store the bytes of flushes.

For example, the segment files on the local disk form a sink.

    append(first_offset, parts, epoch)    contiguous parts of the log, starting at `first_offset`

    part     bytes                  one whole record, or several without gaps
             bytes, then `Zeros`    the blank that closes a segment, and the unused zeros after it

1. Parts are contiguous and include the unused bytes at the end of a segment. A sink that has stored all parts
   holds a byte-for-byte copy of the log, even if its segment size differs. The sink can thus compute a
   chained checksum of the log.
2. For the unused bytes at the end of a segment (undefined in RocketMQ, zeros in Tidewheel), a sink receives
   only their length. The unused end of a 1 GiB segment thus takes up only eight bytes.
3. A sink accepts up to `appends_max` concurrent appends, which are started in the order of their offsets.
   When an append returns, the parts are as durable as the sink guarantees. If it raises OSError, the state of
   the parts is unknown, and the core must not continue.
4. `epoch` is the epoch of the leader that started the append (`services.broker.spine.epoch`). A sink with
   several writers rejects an epoch that is older than the newest one it knows. The local disk has only one
   writer, because the store is locked.

A shared log is another sink. It stores parts after the local sink has.

Cost on a local disk: one write and one sync for each segment in each flush. Limitation: a flush that begins a
segment must also allocate it, which delays this and later flushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from errno import ENOSPC
from itertools import accumulate, groupby
from typing import Protocol

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.limits import FLUSHES_IN_FLIGHT_MAX
from commitlog.log.segments import Segments


class Zeros:
    """A sequence of zeros in the log, known only by its length."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


Part = bytes | bytearray | Zeros
"""Part of the log for an append."""


class LogSink(Protocol):
    """Stores the bytes of a log."""

    @property
    def appends_max(self) -> int:
        """Maximum number of concurrent appends."""

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        """Store contiguous parts beginning at a log offset, in a worker thread. Raise OSError on failure."""


class SegmentFiles:
    """Stores parts in segment files on a disk.

    If `sync` is true, each append syncs the segment files before it returns.
    """

    def __init__(self, disk: Disk, segments: Segments, *, sync: bool) -> None:
        self._disk, self._segments, self._sync = disk, segments, sync
        self.appends_max = FLUSHES_IN_FLIGHT_MAX
        self.used_reserve = False
        """Whether the reserve was deleted for a segment, until the caller has recorded this."""

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        """Write the bytes for each segment in log order.

        Allocate new segments before their first write.
        """
        write = self._disk.write_synced if self._sync else self._disk.write
        for offset, share in self.shares(first_offset, parts):
            path, position = self._segments.place(offset)
            assert position >= 0, f"log offset {offset} lies before all segments"
            if position == 0:
                self._allocate(path)
            write(path, position, share)

    def shares(self, first_offset: int, parts: Sequence[Part]) -> list[tuple[int, bytes]]:
        """Return (log offset, bytes) for each segment to be written.

        Zeros are omitted, because allocated space is zeroed.
        """
        if first_offset + sum(map(len, parts)) < self._segments.end_of(first_offset):
            return [(first_offset, b"".join(parts))]  # type: ignore[arg-type]  # Zeros reach the end.
        shares = []
        placed = zip(accumulate(map(len, parts), initial=first_offset), parts, strict=False)
        for _, share in groupby(placed, lambda one: self._segments.first_of(one[0])):
            offsets, kept = zip(*share, strict=True)
            shares.append((offsets[0], b"".join(part for part in kept if not isinstance(part, Zeros))))
        return shares

    def _allocate(self, path: str) -> None:
        """Allocate a segment at its full length.

        If the disk is full, delete the reserve to make room.
        """
        segment_bytes = self._segments.segment_bytes
        try:
            self._disk.allocate(path, segment_bytes)
        except OSError as error:
            if error.errno != ENOSPC or self._disk.size(layout.RESERVE) < 0:
                raise
            # The reserve is deleted rather than renamed, so that all segments are created in the same way.
            self._disk.delete(layout.RESERVE)
            self._disk.allocate(path, segment_bytes)
            self.used_reserve = True
