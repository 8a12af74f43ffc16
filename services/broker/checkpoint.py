"""A moment at which everything appended is durable, made into a new place to start from.

Order of durability: the log first, then the derived files, then the snapshot that names them, and last the
mark by which a start believes the files of queues: before that snapshot it would stand beside an older one,
which may have the same log offset and name other files.

A file of a queue that the disk refuses, or whose sync fails, keeps no snapshot from being written: all queues
can be made anew from the log. The mark goes before the snapshot comes, for good (`Dispatch.doubt`), so no
sync of it that succeeds later is believed. Any other sync that fails ends the checkpoint, and the core.

    begun   the loop copies references; nothing of it is written yet
    take    the loop takes the rows of large tables, some at a time; what changes first is taken first
    write   a worker writes and syncs

A tool, whose core does not go on meanwhile, writes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from commitlog import snapshot
from commitlog.disk import Disk, SyncFailed
from commitlog.flush import Sync
from commitlog.layout import QUEUES_WHOLE
from commitlog.snapshot import Snapshot
from consumequeue import dispatch
from consumequeue.run_store import RunsToWrite
from services.broker import derived
from services.broker.timers.timer_files import TIMER_FILES, TimersToWrite


@dataclass(slots=True, eq=False)
class Checkpoint:
    """What a checkpoint writes, and the keep files that it deletes afterwards.

    To sync: the log and files of queues. To write: new keys and timers, and last the snapshot that names them
    all.
    """

    log_sync: Sync | None
    queue_paths: list[str]
    queues_made_at: int
    wants_mark: Callable[[], bool]
    keys: RunsToWrite
    timers: TimersToWrite
    snapshot: Snapshot
    unneeded_paths: list[str]
    is_marked: bool = False
    """Whether the files of queues have their mark."""
    may_be_marked: bool = False
    """Whether the mark was to be written, however that ended."""
    failed: dict[str, OSError] = field(default_factory=dict)
    """By path, files of queues that cannot be written or synced."""

    def take(self, count: int) -> bool:
        """Take up to `count` rows of the state at the checkpoint's moment; return whether all are taken."""
        for table in self.snapshot.deferred():
            count -= table.take(count)
            if count <= 0:
                break
        return not self.snapshot.deferred()

    def _mark(self, disk: Disk) -> None:
        """Have starts believe the files of queues; raise `SyncFailed`. Without a mark they are made anew.

        The loop may meet damage meanwhile, and take the mark away before it is written.
        """
        if self.failed or not self.wants_mark():
            return
        self.may_be_marked = True
        try:
            dispatch.mark(disk, self.queues_made_at)
            self.is_marked = self.wants_mark()
            if not self.is_marked:
                disk.delete(QUEUES_WHOLE)
        except SyncFailed:
            raise
        except OSError:  # the snapshot counts; the next checkpoint tries to mark them again
            self.is_marked = False

    def _sync_queues(self, disk: Disk) -> None:
        """Sync files of queues; take the mark away if one fails. Raise OSError of anything else."""
        others = list[OSError]()
        for path, error in disk.sync_many(self.queue_paths).items():
            if dispatch.is_of_sync(path, error):
                self.failed[path] = error
            else:
                others.append(error)
        if self.failed:
            self._unmark(disk)
        if others:  # a sync that failed comes first: it ends the core, others end this checkpoint
            raise next((error for error in others if isinstance(error, SyncFailed)), others[0])

    def _unmark(self, disk: Disk) -> None:
        """Let no start believe the files of queues; raise why one failed where the mark stays."""
        try:
            disk.delete(QUEUES_WHOLE)
        except SyncFailed:
            raise
        except OSError as error:
            failed = [*self.failed.values()]
            raise next((one for one in failed if isinstance(one, SyncFailed)), failed[0]) from error

    def write(self, disk: Disk) -> None:
        """Write and sync; in a worker once all rows are taken. Raise OSError, which costs only time."""
        if self.log_sync is not None:
            self.log_sync.run(disk)
        self._sync_queues(disk)
        self.keys.write(disk)
        self.timers.write(disk)
        files = {
            derived.QUEUES_MADE_AT: self.queues_made_at,
            derived.KEYS: self.keys.freeze(),
            TIMER_FILES: self.timers.freeze(),
        }
        is_another = self.snapshot.offset not in snapshot.offsets(disk)
        replace(self.snapshot, parts=self.snapshot.parts | files).write(disk)
        self._mark(disk)
        # A snapshot of the same log offset takes the newer one's place, and the older one stays, which may
        # name files that the other two do not: the next checkpoint deletes what no snapshot names then.
        if not is_another:
            return
        # The snapshot counts from here on: what cannot be deleted must not make it a failed one, for the next
        # checkpoint would then delete what this one names.
        # Nor must a file that stays keep the others there, for as long as it does.
        for tidy in (self.keys.tidy, self.timers.tidy):
            with suppress(OSError):
                tidy(disk)
        for path in self.unneeded_paths:
            with suppress(OSError):
                disk.delete(path)
