"""Group commit: everything appended since the last flush becomes one write and one sync per segment.

The writer never waits: records gather while flushes are under way, and the next flush takes them all. So
the number of records that share a sync grows with the load, and an idle log syncs each record at once.
Several flushes may be under way; the log is durable up to the end of the last one before which none is open.
Only `Flush.write` touches the disk; the shell runs it in a worker thread. It tells live readers, too, how far
the log is on disk.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from errno import ENOSPC

from commitlog import layout
from commitlog.disk import Disk


@dataclass(slots=True)
class SegmentWrite:
    """Contiguous bytes for one segment; `allocate_bytes` is its length if the segment is new, else 0."""

    first_offset: int
    position: int
    allocate_bytes: int
    chunks: list[bytes | bytearray] = field(default_factory=list)

    def write(self, disk: Disk, sync: bool) -> bool:
        """Writes the bytes; True if there was no room for a new segment and the reserve made it."""
        path = layout.segment_path(self.first_offset)
        used_reserve = bool(self.allocate_bytes) and not self._allocate(disk, path)
        (disk.write_synced if sync else disk.write)(path, self.position, b"".join(self.chunks))
        return used_reserve

    def _allocate(self, disk: Disk, path: str) -> bool:
        try:
            disk.allocate(path, self.allocate_bytes)
        except OSError as error:
            if error.errno != ENOSPC or disk.size(layout.RESERVE) < 0:
                raise
            # The reserve makes room by going, not by becoming the segment: so segments are made in one way.
            disk.delete(layout.RESERVE)
            disk.allocate(path, self.allocate_bytes)
            return False
        return True


class Publisher:
    """Tells live readers how far the log is on disk, of flushes that may end in any order; only forwards."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._count = 0
        self.flying: deque[Flush] = deque()
        """The flushes that are not published, in log order."""

    def ended(self) -> None:
        """A flush is on disk: it is published once those before it are, for one thread at a time."""
        end_offset = 0
        while self.flying and self.flying[0].is_synced:
            end_offset = self.flying.popleft().end_offset
        if end_offset:
            self.publish(end_offset)

    def publish(self, offset: int) -> None:
        """Tells live readers; where the disk refuses that, they learn of it with the next flush.

        Two lines take turns only when one was written: a torn one must not be the newer.
        """
        with suppress(OSError):
            layout.publish_durable(self._disk, offset, self._count + 1)
            self._count += 1


@dataclass(slots=True, eq=False)
class Flush:
    """What one flush writes, and the log's end once it and those before it are durable."""

    writes: list[SegmentWrite]
    end_offset: int
    publisher: Publisher | None = None
    """Who is told that it is on disk; None: it is not synced."""
    is_synced: bool = False
    is_written: bool = False
    used_reserve: bool = False

    @property
    def sync(self) -> bool:
        """Whether what it writes is synced."""
        return self.publisher is not None

    @property
    def makes_segment(self) -> bool:
        """Whether a segment begins with a part of it that is not written yet."""
        return not self.is_written and any(write.allocate_bytes for write in self.writes)

    def write(self, disk: Disk, alone: AbstractContextManager[object] | None = None) -> None:
        """Writes and syncs everything, in log order; raises OSError, after which nothing is certain.

        Where flushes are written by several threads, `alone` lets in one of them at a time.
        """
        for write in self.writes:
            self.used_reserve |= write.write(disk, self.sync)
        if self.publisher is not None:
            with alone or nullcontext():
                self.is_synced = True
                self.publisher.ended()


@dataclass(slots=True, frozen=True)
class Sync:
    """Files to sync, and the log's end that is on disk then."""

    paths: list[str]
    end_offset: int

    def run(self, disk: Disk) -> None:
        """Syncs; the shell runs it in a worker thread. Raises OSError."""
        for path in self.paths:
            disk.sync(path)
