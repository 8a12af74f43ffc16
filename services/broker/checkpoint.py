"""Checkpoints: a state with all appended records durable, written as a new starting point.

Order of durability: the log first, then the derived files, then the snapshot that names them, and last the
mark by which a start trusts the files of queues: written before that snapshot, it would accompany an older
one, which may have the same log offset and name other files.

A file of a queue that cannot be written or synced does not prevent the snapshot: all queues can be rebuilt
from the log. The mark is removed before the snapshot is written, for good (`Dispatch.doubt`), so a later
successful sync of that file is not trusted. Any other failed sync ends the checkpoint, and the core.

    begun   the loop copies references; nothing is written yet
    take    the loop copies the rows of large tables in batches; a row that changes is copied first
    write   a worker writes and syncs

A tool, whose core does not run concurrently, writes at once.
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

    To sync: the log and files of queues. To write: new keys and timers, and last the snapshot that names all
    of them.
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
    """Whether the mark of the files of queues is written."""
    may_be_marked: bool = False
    """Whether writing the mark was attempted, with any result."""
    failed: dict[str, OSError] = field(default_factory=dict)
    """Errors of files of queues that cannot be written or synced, by path."""

    def take(self, count: int) -> bool:
        """Copy up to `count` rows of the state at the checkpoint; return whether all are copied."""
        for table in self.snapshot.deferred():
            count -= table.take(count)
            if count <= 0:
                break
        return not self.snapshot.deferred()

    def _mark(self, disk: Disk) -> None:
        """Mark the files of queues as valid for starts; raise `SyncFailed`. Without a mark they are rebuilt.

        The loop may find damage meanwhile, and remove the mark before it is written.
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
        except OSError:  # the snapshot is valid; the next checkpoint tries to write the mark again
            self.is_marked = False

    def _sync_queues(self, disk: Disk) -> None:
        """Sync files of queues; remove the mark if one fails. Raise OSError for any other file."""
        others = list[OSError]()
        for path, error in disk.sync_many(self.queue_paths).items():
            if dispatch.is_of_sync(path, error):
                self.failed[path] = error
            else:
                others.append(error)
        if self.failed:
            self._unmark(disk)
        if others:  # a failed sync comes first: it ends the core, other errors only this checkpoint
            raise next((error for error in others if isinstance(error, SyncFailed)), others[0])

    def _unmark(self, disk: Disk) -> None:
        """Remove the mark of the files of queues; if that fails, raise the error of one of them."""
        try:
            disk.delete(QUEUES_WHOLE)
        except SyncFailed:
            raise
        except OSError as error:
            failed = [*self.failed.values()]
            raise next((one for one in failed if isinstance(one, SyncFailed)), failed[0]) from error

    def write(self, disk: Disk) -> None:
        """Write and sync, in a worker once all rows are copied. Raise OSError; a failure costs only time."""
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
        # A snapshot with the same log offset replaces the newer one, and the older one stays, which may name
        # files that the other two do not: the next checkpoint deletes the files named by no snapshot.
        if not is_another:
            return
        # The snapshot is valid from here on: a failed deletion must not fail the checkpoint, as the next
        # checkpoint would then delete files that this one names.
        # Nor must a file that cannot be deleted keep the others from being deleted.
        for tidy in (self.keys.tidy, self.timers.tidy):
            with suppress(OSError):
                tidy(disk)
        for path in self.unneeded_paths:
            with suppress(OSError):
                disk.delete(path)
