"""A moment at which everything appended is durable, made into a new place to start from.

Order of durability: the log first, then the derived files, then the snapshot that names them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from commitlog import layout, snapshot
from commitlog.disk import Disk
from commitlog.flush import Sync
from commitlog.snapshot import Snapshot
from consumequeue.queue import QueueWrite
from consumequeue.run_store import RunsToWrite
from services.broker import derived
from services.broker.timer_files import TIMER_FILES, TimersToWrite


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """What a checkpoint writes, and the keep files that it deletes afterwards.

    To sync: the log and files of queues. To write: queue entries, new keys and timers, and last the snapshot
    that names them all.
    """

    log_sync: Sync | None
    queue_writes: list[QueueWrite]
    queue_paths: list[str]
    keys: RunsToWrite
    timers: TimersToWrite
    snapshot: Snapshot
    unneeded_paths: list[str]

    def write(self, disk: Disk) -> None:
        """Write and sync; the shell may do it in a worker thread. Raise OSError, which costs only time."""
        if self.log_sync is not None:
            self.log_sync.run(disk)
        for one in self.queue_writes:
            disk.write(*one)
        for path in dict.fromkeys([*self.queue_paths, *(one.path for one in self.queue_writes)]):
            disk.sync(path)
        if disk.size(layout.QUEUES_WHOLE) < 0:
            disk.write(layout.QUEUES_WHOLE, 0, b"yes\n")
            disk.sync(layout.QUEUES_WHOLE)
            disk.sync_folder("")
        self.keys.write(disk)
        self.timers.write(disk)
        files = {derived.KEYS: self.keys.freeze(), TIMER_FILES: self.timers.freeze()}
        is_another = self.snapshot.offset not in snapshot.offsets(disk)
        replace(self.snapshot, parts=self.snapshot.parts | files).write(disk)
        # A snapshot of the same log offset takes the newer one's place, and the older one stays, which may
        # name files that the other two do not: the next checkpoint deletes what no snapshot names then.
        if not is_another:
            return
        # The snapshot counts from here on: what cannot be deleted must not make it a failed one, for the next
        # checkpoint would then delete what this one names.
        with suppress(OSError):
            self.keys.tidy(disk)
            self.timers.tidy(disk)
            for path in self.unneeded_paths:
                disk.delete(path)
