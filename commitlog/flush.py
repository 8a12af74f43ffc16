"""Group commit: everything appended since the last flush becomes one write and one sync per segment.

The writer never waits: records gather while flushes are under way, and the next flush takes them all. So
the number of records that share a sync grows with the load, and an idle log syncs each record at once.
Several flushes may be under way; the log is durable up to the end of the last one before which none is open.
Only `Flush.write` touches the disk; the shell runs it in a worker thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from commitlog import layout
from commitlog.disk import Disk


@dataclass(slots=True)
class SegmentWrite:
    """Contiguous bytes for one segment; `allocate_bytes` is its length if the segment is new, else 0."""

    first_offset: int
    position: int
    allocate_bytes: int
    chunks: list[bytes] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Flush:
    """What one flush writes, and the log's end once it and those before it are durable."""

    writes: list[SegmentWrite]
    end_offset: int
    is_written: bool = False

    def write(self, disk: Disk) -> None:
        """Writes and syncs everything, in log order; raises OSError, after which nothing is certain."""
        for write in self.writes:
            path = layout.segment_path(write.first_offset)
            if write.allocate_bytes:
                disk.allocate(path, write.allocate_bytes)
            disk.write(path, write.position, b"".join(write.chunks))
            disk.sync(path)
