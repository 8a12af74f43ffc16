"""Checkpoints, which save the state of the core as a new starting point for recovery.

A checkpoint writes the log, the derived files, the snapshot, and the mark, in this order. The snapshot lists
the derived files, and the mark shows that the queue files are valid. If the mark were written before the
snapshot, a crash could leave the new mark with an older snapshot, which may list different files even if its
log offset is the same.

The snapshot is written even if a queue file cannot be written or synced, because queues can be rebuilt from
the log. In this case, the mark is deleted before the snapshot is written, and is not rewritten
(`Dispatch.mark_untrusted`), because a later successful sync does not prove that the queue file is intact. If
the sync of any other file fails, the checkpoint is aborted and the core stops.

    begin   the event loop copies references, and no file is written
    take    the event loop copies rows of large tables in batches, and any row that is about to change
    write   a worker writes and syncs the files

In a command-line tool, the core is idle, and a checkpoint is written in a single step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from commitlog.disk.disk import Disk, SyncFailed
from commitlog.layout import QUEUES_WHOLE
from commitlog.log.flush import Sync
from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Snapshot
from consumequeue import dispatch
from consumequeue.runs.run_store import RunsToWrite
from services.broker import derived
from services.broker.timers.timer_files import TIMER_FILES, CheckpointTimers


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The data that a checkpoint writes, and the keep files to delete afterwards.

    A checkpoint syncs the log and the queue files, writes new key index and timer files, and then writes a
    snapshot that lists these files.
    """

    log_sync: Sync | None
    queue_paths: list[str]
    queues_made_at: int
    needs_mark: Callable[[], bool]
    keys: RunsToWrite
    timers: CheckpointTimers
    snapshot: Snapshot
    unneeded_paths: list[str]
    is_marked: bool = False
    """Whether the mark for the queue files has been written."""
    is_mark_attempted: bool = False
    """Whether a write of the mark has been attempted, regardless of its success."""
    failed: dict[str, OSError] = field(default_factory=dict)
    """The errors of queue files that could not be written or synced, keyed by path."""

    def take(self, count: int) -> bool:
        """Copy up to `count` rows. Return whether all rows have been copied."""
        for table in self.snapshot.deferred():
            count -= table.take(count)
            if count <= 0:
                break
        return not self.snapshot.deferred()

    def _mark(self, disk: Disk) -> None:
        """Write the mark that makes recovery use the queue files instead of rebuilding the queues.

        If the event loop detects damage to a queue during the write, delete the mark again. Raise
        `SyncFailed` if a sync fails.
        """
        if self.failed or not self.needs_mark():
            return
        self.is_mark_attempted = True
        try:
            dispatch.mark(disk, self.queues_made_at)
            self.is_marked = self.needs_mark()
            if not self.is_marked:
                disk.delete(QUEUES_WHOLE)
        except SyncFailed:
            raise
        # The snapshot is valid without the mark, and the next checkpoint writes the mark.
        except OSError:
            self.is_marked = False

    def _sync_queues(self, disk: Disk) -> None:
        """Sync the queue files. Delete the mark if any queue file cannot be synced.

        Raise OSError if any other file cannot be synced.
        """
        others = list[OSError]()
        for path, error in disk.sync_many(self.queue_paths).items():
            if dispatch.is_sync_error(path, error):
                self.failed[path] = error
            else:
                others.append(error)
        if self.failed:
            self._unmark(disk)
        # A failed sync takes precedence over other errors, because it stops the core, whereas other errors
        # only abort the checkpoint.
        if others:
            raise next((error for error in others if isinstance(error, SyncFailed)), others[0])

    def _unmark(self, disk: Disk) -> None:
        """Delete the mark. If the deletion fails, raise the error of a queue file."""
        try:
            disk.delete(QUEUES_WHOLE)
        except SyncFailed:
            raise
        except OSError as error:
            failed = [*self.failed.values()]
            raise next((one for one in failed if isinstance(one, SyncFailed)), failed[0]) from error

    def write(self, disk: Disk) -> None:
        """Write and sync the files of the checkpoint in a worker thread.

        All rows must have been copied by `take`. Raise OSError if the disk fails. A failed checkpoint loses
        no data.
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
        # If the newest snapshot on disk has the same log offset, the write has replaced that snapshot. The
        # older of the two retained snapshots remains and may list different files. Files that are not listed
        # in any snapshot are deleted by the next checkpoint.
        if not is_another:
            return
        # The snapshot is valid from this point on. A failed deletion must not fail the checkpoint, because
        # the next checkpoint would then delete files that this snapshot lists. If one file cannot be deleted,
        # the other files must still be deleted.
        for delete_unused in (self.keys.delete_unused, self.timers.delete_unused):
            with suppress(OSError):
                delete_unused(disk)
        for path in self.unneeded_paths:
            with suppress(OSError):
                disk.delete(path)
