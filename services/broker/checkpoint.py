"""A moment at which everything appended is durable, made into a new place to start from.

Order of durability: the log first (it is quiet), then the queue files, then the snapshot that names them.
"""

from __future__ import annotations

from dataclasses import dataclass

from commitlog.disk import Disk
from commitlog.snapshot import Snapshot


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """Queue files to sync, and the snapshot to write when that is done."""

    queue_paths: list[str]
    snapshot: Snapshot

    def write(self, disk: Disk) -> None:
        """Writes and syncs; the shell may do it in a worker thread. Raises OSError, which costs only time."""
        for path in self.queue_paths:
            disk.sync(path)
        self.snapshot.write(disk)
