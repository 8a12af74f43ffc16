"""Checkpoints, which store the state of the core as a new starting point for recovery.

The files become durable in this order: the log, the derived files, the snapshot that names the derived files,
and the mark by which recovery trusts the queue files. If the mark were written before the snapshot, a crash
between the two writes would combine the mark with an older snapshot. The older snapshot may have the same log
offset but name other files.

A queue file that cannot be written or synced does not prevent the snapshot, because all queues can be rebuilt
from the log. After a failure of a queue file, the mark is removed permanently before the snapshot is written
(`Dispatch.doubt`), so that a later successful sync of the file is not trusted. A failed sync of any other
file aborts the checkpoint and stops the core.

    begun   the event loop copies references, and no file is written
    take    the event loop copies the rows of large tables in batches; a row is copied before a change
    write   a worker writes and syncs the files

A tool writes each checkpoint in a single step, because its core does not run in the meantime.
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
    """The data that a checkpoint writes, and the keep files that it deletes afterwards.

    A checkpoint syncs the log and queue files, writes new keys and timers, and finally writes the snapshot
    that names all of these files.
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
    """Whether the mark of the queue files has been written."""
    may_be_marked: bool = False
    """Whether a write of the mark was attempted, successfully or not."""
    failed: dict[str, OSError] = field(default_factory=dict)
    """The errors for queue files that could not be written or synced, keyed by path."""

    def take(self, count: int) -> bool:
        """Copy up to `count` rows of the state at the checkpoint, and return whether all rows are copied."""
        for table in self.snapshot.deferred():
            count -= table.take(count)
            if count <= 0:
                break
        return not self.snapshot.deferred()

    def _mark(self, disk: Disk) -> None:
        """Mark the queue files as valid, so that recovery does not rebuild the queues.

        If the event loop finds damage during the write, the mark is deleted again. Raise `SyncFailed` if a
        sync fails.
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
        # The snapshot is valid without the mark, and the next checkpoint writes the mark again.
        except OSError:
            self.is_marked = False

    def _sync_queues(self, disk: Disk) -> None:
        """Sync the queue files, and delete the mark if the sync of a queue file fails.

        Raise OSError if the sync of any other file fails.
        """
        others = list[OSError]()
        for path, error in disk.sync_many(self.queue_paths).items():
            if dispatch.is_of_sync(path, error):
                self.failed[path] = error
            else:
                others.append(error)
        if self.failed:
            self._unmark(disk)
        # A failed sync has priority, because it ends the core, and other errors end only the checkpoint.
        if others:
            raise next((error for error in others if isinstance(error, SyncFailed)), others[0])

    def _unmark(self, disk: Disk) -> None:
        """Delete the mark of the queue files or, if the deletion fails, raise the error of a queue file."""
        try:
            disk.delete(QUEUES_WHOLE)
        except SyncFailed:
            raise
        except OSError as error:
            failed = [*self.failed.values()]
            raise next((one for one in failed if isinstance(one, SyncFailed)), failed[0]) from error

    def write(self, disk: Disk) -> None:
        """Write and sync the checkpoint, in a worker and after all rows have been copied.

        Raise OSError if the disk fails. A failed checkpoint loses no data.
        """
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
        # A snapshot with the same log offset replaces the newer snapshot. The older snapshot remains and may
        # name other files. The next checkpoint deletes the files that no snapshot names.
        if not is_another:
            return
        # The snapshot is valid from this point on. A failed deletion must not fail the checkpoint, because
        # the next checkpoint would then delete files that this snapshot names. A file that cannot be deleted
        # must not prevent the deletion of other files.
        for tidy in (self.keys.tidy, self.timers.tidy):
            with suppress(OSError):
                tidy(disk)
        for path in self.unneeded_paths:
            with suppress(OSError):
                disk.delete(path)
