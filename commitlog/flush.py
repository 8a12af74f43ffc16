"""Group commit: everything appended since the last flush becomes one write and one sync per segment.

The writer never waits: records gather while flushes are under way, and the next flush takes them all. So
the number of records that share a sync grows with the load, and an idle log syncs each record at once.
Several flushes may be under way; the log is durable up to the end of the last one before which none is open.
Only `Flush.write` touches the disk; the shell runs it in a worker thread.
"""

from __future__ import annotations

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
        disk.write(path, self.position, b"".join(self.chunks))
        if sync:
            disk.sync(path)
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


@dataclass(slots=True, eq=False)
class Flush:
    """What one flush writes, and the log's end once it and those before it are durable."""

    writes: list[SegmentWrite]
    end_offset: int
    sync: bool = True
    is_written: bool = False
    used_reserve: bool = False

    @property
    def makes_segment(self) -> bool:
        """Whether a segment begins with a part of it that is not written yet."""
        return not self.is_written and any(write.allocate_bytes for write in self.writes)

    def write(self, disk: Disk) -> None:
        """Writes and syncs everything, in log order; raises OSError, after which nothing is certain."""
        for write in self.writes:
            self.used_reserve |= write.write(disk, self.sync)


@dataclass(slots=True, frozen=True)
class Sync:
    """Files to sync, and the log's end that is on disk then."""

    paths: list[str]
    end_offset: int

    def run(self, disk: Disk) -> None:
        """Syncs; the shell runs it in a worker thread. Raises OSError."""
        for path in self.paths:
            disk.sync(path)
