"""Adds entries for log records to the queue indexes.

The same rules apply during operation and rebuilding. A record with the transaction type "none" or "commit"
gets an entry, as in RocketMQ's `DefaultMessageStore`. Tidewheel system records (type 12) get no entry. In an
imported log, each message of an inner batch gets an entry. If a topic in an imported log was deleted and
recreated, its queue offsets restart at 0, and new entries replace the old ones.

The newest entries of a queue form its in-memory tail (`consumequeue.tails`). When a tail is full, a worker
writes it to disk (`take`). Entries that cannot be written stay in memory. No entry is ever lost, because
queues can be rebuilt from the log. If a queue file cannot be written, it is reported as damaged, and other
queues are still written. The write is retried, and the tail is dropped if it becomes too long. The same
applies if a lack of inodes prevents a file from being created, but the marker file is then kept, because the
files of other queues are valid. At most one write of queue entries runs at a time.

    dispatch --> tail of a queue ----> full: take --> a worker writes --> written: dropped from memory
                       ^                                   |
                       +--- the disk is full, or refuses --+
                       |
                       +--> too long: dropped, reads of its file raise `StoreDamaged`

A checkpoint copies the queues and their tails in batches (`commitlog.snapshots.deferred_rows`). A queue that
is about to change is copied first. The checkpoint worker syncs only files written since the previous
checkpoint.

Recovery trusts the files in a snapshot if the marker file (`QUEUES_WHOLE`) exists. A checkpoint writes the
marker after it has synced the queue files. The marker names the snapshot to which the queue files belong,
because a crash may leave rebuilt queues next to an older snapshot. Rebuilt files may differ from the original
ones if records are missing from the log. The marker is deleted when a queue file is damaged or cannot be
written or synced. No later checkpoint writes the marker until recovery has rebuilt the queues. If the marker
cannot be deleted, the failure is reported once, and the deletion is retried at increasing intervals
(`unmark_again`). Files that recovery cannot delete are renamed and never read again (`delete_files`).

If damage to the log has destroyed a queue's first records, the rebuilt queue begins with a gap
(`begin_with_gap`), unless retention may have deleted those records (`existing_first_offsets`). Retention
cannot have deleted these records if the queue is being replayed for the first time, or if the log still
includes the offset of the first record. Otherwise, a rebuilt queue may begin after its recorded first offset
if retention could not read a damaged queue file and the log no longer contains the first records. Snapshots
list such queues until their first offsets are recorded in the log (`unrecorded`;
`services.broker.housekeeping`).

Cost: 20 bytes per record. Adjacent records in a queue are added in one step (`dispatch_runs`). With 80,000
queues, copying the references for a snapshot takes 3 to 6 ms, and each batch of 1,000 rows takes 1 to 2 ms.
Each retention run checks all queues (`minimums`), which takes 0.5 to 1 us per unchanged queue, 50 us if
entries leave the tail, and up to 340 us if entries leave a file. Limitation: the first read of a file written
by an earlier process verifies the CRC of the whole file, which takes 10 ms for 6 MB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, islice, repeat
from types import MappingProxyType
from typing import Any, Final

from commitlog import limits
from commitlog.disk.disk import Disk, SyncFailed
from commitlog.errors import NO_ROOM, StoreDamaged
from commitlog.layout import CONSUMEQUEUE, OFFSET_DIGITS, QUEUES_ASIDE, QUEUES_WHOLE
from commitlog.records import properties
from commitlog.records.inner_batch import message_count, pick
from commitlog.records.record import INNER_BATCH, TYPE_COMMIT, TYPE_MASK, TYPE_NORMAL, Record
from commitlog.snapshots.deferred_rows import NOTHING, DeferredRows
from consumequeue.aside import delete_aside, put_aside
from consumequeue.entry import ENTRY_BYTES, Entry, encode, hash_lite_topic, tags_code
from consumequeue.queue import (
    UNKNOWN,
    ConsumeQueue,
    FoundDamaged,
    QueueWrite,
    StoredQueue,
    files_of,
    ignore_damage,
    is_folder_error,
    is_unrelated_error,
    kept,
    stored_queues,
)
from consumequeue.tails import Tails
from tidewheel import property_names

_LITE_TOPIC: Final = property_names.LITE_TOPIC.encode()
_TAG: Final = property_names.TAG.encode()
MARK_BYTES_MAX: Final = 32
_ROOM_BYTES: Final = 1024 * 1024
"""Free space in bytes below which a disk counts as full."""
_UNTRUSTED_AT_ONCE: Final = 1_000
"""Maximum number of failed files per event loop iteration. This takes about 5 ms."""
_TRIED_AGAIN: Final = 2 * limits.TAIL_ENTRIES_MAX
"""Maximum number of entries per queue when a failed write is retried."""
_ENTRIES_AT_ONCE: Final = 100_000
"""Maximum number of entries per write. The event loop copies up to 2 MB and later compares the copy."""
_UNMARK_CALLS_MAX: Final = 64
"""Maximum number of calls between attempts to delete the marker file: about 10 minutes."""
NO_FIRSTS: Final[Mapping[tuple[str, int], int]] = MappingProxyType({})
_ADVICE: Final = "See to the disk, and restart the broker: the start makes the queues anew from the log."


def is_indexed(record: Record) -> bool:
    """Return whether a record gets a queue entry."""
    return record.sys_flag & TYPE_MASK in (TYPE_NORMAL, TYPE_COMMIT)


@dataclass(slots=True, eq=False)
class EntriesToWrite:
    """Entries for a worker to write, by queue.

    Their records are durable.
    """

    writes: list[tuple[ConsumeQueue, QueueWrite]]
    written: list[tuple[ConsumeQueue, QueueWrite]] = field(default_factory=list)
    failed: dict[ConsumeQueue, OSError] = field(default_factory=dict)
    """Queues whose files cannot be written."""
    not_created: dict[ConsumeQueue, OSError] = field(default_factory=dict)
    """Queues whose files cannot be created although the disk is not full."""

    def write(self, disk: Disk) -> None:
        """Write the entries in order, without a sync. Stop if the disk is full.

        Skip files that cannot be written. Raise `SyncFailed` if the sync of a folder that contains other
        files fails.
        """
        for queue, one in self.writes:
            if queue in self.failed or queue in self.not_created:
                continue
            try:
                disk.write(*one)
            except OSError as error:
                if is_file_error(one.path, error):
                    self.failed[queue] = error
                elif isinstance(error, SyncFailed):
                    raise
                elif is_creation_error(disk, one.path, error):
                    self.not_created[queue] = error
                else:
                    return
            else:
                self.written.append((queue, one))


class Dispatch:
    """The queue indexes of a store.

    No queues exist until they are restored from a snapshot or created by a record.
    """

    def __init__(
        self,
        disk: Disk,
        imported_until: int = 0,
        found_damaged: FoundDamaged = ignore_damage,
        tail_entries_max: int = limits.TAIL_ENTRIES_MAX,
    ) -> None:
        """Begin without any queues.

        The log below `imported_until` was imported (`commitlog.log.imported`).
        """
        self._disk, self._tell_damaged = disk, found_damaged
        self._imported_until = imported_until
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._tails = Tails(tail_entries_max, limits.TAILS_BYTES_MAX)
        self._unsynced: dict[str, None] = {}
        """Paths of files written since the last checkpoint."""
        self._frozen: DeferredRows[tuple[str, int], ConsumeQueue] = NOTHING
        self._taken: EntriesToWrite | None = None
        self._recorded: dict[tuple[str, int], int] = {}
        """Recorded first offsets of queues that begin later than recorded."""
        self._risen: dict[tuple[str, int], None] = {}
        """Queues that may have files to delete (`ConsumeQueue.has_unneeded_files`)."""
        self._is_damaged = False
        """Whether a queue file is known to be damaged. No checkpoint may then write the marker file."""
        self._is_unmarked = False
        """Whether the marker file was deleted because of damage."""
        self._unmark_calls: int | None = None
        """Calls to `unmark_again` since the marker file could not be deleted, or None."""
        self._untrusted = set[str]()
        """Paths of files that could not be synced."""
        self._to_doubt: list[Iterator[tuple[str, OSError]]] = []
        """Failed files that are not processed yet."""
        self.made_at: int | None = None
        """Log offset of the snapshot of the queue files, or None if there is none."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the index of a queue. Create it on first use."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queue(topic, queue_id)
            # The key object is shared with the index to save memory, because a broker may have 80,000 queues.
            self._queues[queue.key] = queue
        return queue

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the index of a queue for reading.

        If there is none, return an empty index that is not part of the store.
        """
        return self._queues.get((topic, queue_id)) or ConsumeQueue(self._disk, topic, queue_id)

    def dispatch(self, record: Record, record_bytes: int) -> bool:
        """Add an entry for a durable record.

        Return False if records of this kind have no entries.
        """
        if not is_indexed(record):
            return False
        self.truncate_imported_queue(record)
        key = (record.topic, record.queue_id)
        self.dispatch_runs([(key, record.queue_offset, entries_of(record, record_bytes))])
        return True

    def truncate_imported_queue(self, record: Record) -> None:
        """Truncate an imported record's queue if the record's queue offset is already used.

        In a Tidewheel log, queue offsets are never reused, and `put_many` reports a duplicate.
        """
        if record.physical_offset >= self._imported_until or not is_indexed(record):
            return
        queue = self.queue(record.topic, record.queue_id)
        if record.queue_offset < queue.end_offset:
            if self._frozen.is_open:
                self._frozen.before_change(queue.key)
            self._unsynced |= dict.fromkeys(queue.cut(record.queue_offset))
            self._tails.update_size(queue)

    def begin_with_gap(self, record: Record, queue_offset: int) -> None:
        """Start the empty queue of a durable record at an offset below that of the record.

        The gap replaces the lost records. A nonempty queue is left unchanged. An imported queue begins at its
        first record, because an imported log does not show whether there were any earlier ones.
        """
        if not is_indexed(record) or record.physical_offset < self._imported_until:
            return
        queue = self.queue(record.topic, record.queue_id)
        if queue.end_offset == 0:
            self._frozen.before_change(queue.key)
            queue.begin_with_gap(queue_offset, record.queue_offset, record.physical_offset)
            self._tails.update_size(queue)

    def dispatch_runs(self, runs: Iterable[tuple[tuple[str, int], int, bytes]]) -> None:
        """Add durable records to their queue indexes.

        A run consists of a queue key (topic, queue ID), the first queue offset, and the encoded entries.
        """
        queues, frozen, tails = self._queues, self._frozen, self._tails
        for key, queue_offset, entries in runs:
            queue = queues.get(key) or self.queue(*key)
            if frozen.is_open:
                frozen.before_change(key)
            tail_bytes = queue.put_many(queue_offset, entries)
            if tail_bytes >= tails.least_bytes and tail_bytes >= 2 * queue.noted_bytes:
                tails.update_size(queue)

    def queues(self) -> Iterator[tuple[str, int, ConsumeQueue]]:
        """Yield (topic, queue ID, index) for each queue that has entries."""
        for (topic, queue_id), queue in self._queues.items():
            if queue.end_offset:
                yield topic, queue_id, queue

    def queues_of(self, topic: str, queue_count: int) -> Iterator[tuple[int, ConsumeQueue]]:
        """Yield (queue ID, index) for each of a topic's queues with entries."""
        for queue_id in range(queue_count):
            queue = self._queues.get((topic, queue_id))
            if queue is not None and queue.end_offset:
                yield queue_id, queue

    def write(self) -> None:
        """Write all due tails in this thread. If the disk is full, the tails stay in memory."""
        while (entries := self.take()) is not None:
            entries.write(self._disk)
            if not self.written():
                return

    def take(self) -> EntriesToWrite | None:
        """Return the tails to write, or None if no tail is due or a write is in progress.

        The caller must call `written` after the write.
        """
        if self._taken is not None:
            return None
        self._drop_unwritable_tails()
        if not (queues := self._tails.to_write()):
            return None
        self._taken = EntriesToWrite(self._parts_of(queues))
        return self._taken

    def _parts_of(self, queues: Iterable[ConsumeQueue]) -> list[tuple[ConsumeQueue, QueueWrite]]:
        """Split tails into file writes, up to the maximum number of entries.

        A queue whose last write failed is limited to `_TRIED_AGAIN` entries.
        """
        parts, left = list[tuple[ConsumeQueue, QueueWrite]](), _ENTRIES_AT_ONCE
        for queue in queues:
            if left <= 0:
                break
            count = _TRIED_AGAIN if self._tails.is_refused(queue) else left
            parts += [(queue, one) for one in queue.unwritten(count)]
            left -= queue.tail_bytes // ENTRY_BYTES
        return parts

    def written(self) -> bool:
        """Drop the written entries from memory. Return whether all taken entries were written."""
        assert self._taken is not None, "nothing was taken to be written"
        taken, self._taken = self._taken, None
        assert len(taken.written) <= len(taken.writes), "more was written than was taken"
        for queue, one in taken.written:
            self._frozen.before_change(queue.key)
            queue.written(one)
            # The path is added after the write, because a checkpoint that began during the write may have
            # synced the file before the entries were written.
            self._unsynced[one.path] = None
            self._tails.accept(queue)
        for queue, error in taken.failed.items():
            if self._tails.refuse(queue):
                self._report_unwritten(queue, error)
        for queue, error in taken.not_created.items():
            if self._tails.refuse(queue):
                self._report_not_created(queue, error)
        return len(taken.written) == len(taken.writes)

    def keys(self) -> list[tuple[str, int]]:
        """Return the key (topic, queue ID) of each queue."""
        return [*self._queues]

    def take_some(
        self, keys: deque[tuple[str, int]], count: int, cost_of: Callable[[str], int]
    ) -> list[tuple[str, int]]:
        """Remove and return up to `count` keys from the left end of `keys`.

        Fewer keys are returned if the queues have large unread files or if `cost_of` returns extra costs for
        their topics, because checking the queues must not take too long.
        """
        taken: list[tuple[str, int]] = []
        while keys and count > 0:
            taken.append(keys.popleft())
            unread = self._queues[taken[-1]].unread_bytes // limits.CUT_QUEUE_BYTES
            count -= 1 + unread + cost_of(taken[-1][0])
        return taken

    def minimums(
        self, log_offset: int, keys: Iterable[tuple[str, int]]
    ) -> tuple[list[tuple[str, int, int]], list[int]]:
        """Return (topic, queue ID, first remaining offset) for queues with entries below a log offset.

        The second list holds the log offset in the entry at each of these queue offsets, or `UNKNOWN`.
        """
        if log_offset <= 0:
            return [], []
        looked_at = ((key, self._queues[key]) for key in keys)
        firsts = ((key, queue, self._first_from(queue, log_offset)) for key, queue in looked_at)
        risen = [(key, queue, first) for key, queue, first in firsts if first > queue.min_offset]
        return [(*key, first) for key, _, first in risen], [queue.place(first) for _, queue, first in risen]

    def _first_from(self, queue: ConsumeQueue, log_offset: int) -> int:
        if not queue.has_known_begin:
            self._frozen.before_change(queue.key)
        return queue.first_from(log_offset)

    def advance_first_offsets(
        self, minimums: Iterable[tuple[str, int, int]], begins_at: Iterable[int] = ()
    ) -> None:
        """Raise the first offset of each queue in `minimums`, a list of (topic, queue ID, offset).

        `begins_at` contains the log offsets in the entries at these offsets, as returned by the method
        `minimums`.
        """
        places = chain(begins_at, repeat(UNKNOWN))
        for (topic, queue_id, min_offset), place in zip(minimums, places, strict=False):
            self._frozen.before_change((topic, queue_id))
            queue = self.queue(topic, queue_id)
            queue.advance_first_offset(min_offset, place)
            self._track_deletable(queue)
            if queue.key in self._recorded:
                self._record_first_offset(queue, max(min_offset, self._recorded[queue.key]))

    def advance_unrecorded(self, minimums: list[tuple[str, int, int]], begins_at: list[int]) -> None:
        """Raise the first offsets of queues before the log records the change."""
        queues = [self.queue(topic, queue_id) for topic, queue_id, _ in minimums]
        recorded = [(queue, self.recorded_min(*queue.key)) for queue in queues]
        self.advance_first_offsets(minimums, begins_at)
        for queue, recorded_offset in recorded:
            self._record_first_offset(queue, recorded_offset)

    def recorded_min(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue as recorded in the log."""
        return self._recorded.get((topic, queue_id), self.find_queue(topic, queue_id).min_offset)

    @property
    def has_unrecorded(self) -> bool:
        """Whether a queue begins after its recorded first offset."""
        return bool(self._recorded)

    def is_unrecorded(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue begins after its recorded first offset."""
        return (topic, queue_id) in self._recorded

    def unrecorded(
        self, count: int, cost_of: Callable[[str], int]
    ) -> tuple[list[tuple[str, int, int]], list[int]]:
        """Return (topic, queue ID, first offset) for some queues whose first offset is not recorded.

        `take_some` limits their number. The second list contains the log offset in each queue's first entry,
        as in `minimums`.
        """
        keys = self.take_some(deque(islice(self._recorded, count)), count, cost_of)
        queues = [self._queues[key] for key in keys]
        rows = [(*queue.key, queue.min_offset) for queue in queues]
        return rows, [queue.place(queue.min_offset) for queue in queues]

    def freeze_recorded(self) -> list[tuple[str, int, int]]:
        """Return the recorded first offsets of queues that begin after them, for a snapshot."""
        return [(*key, offset) for key, offset in self._recorded.items()]

    def _record_first_offset(self, queue: ConsumeQueue, recorded_offset: int) -> None:
        """Remember the recorded first offset of a queue if the queue begins after it."""
        if recorded_offset < queue.min_offset:
            self._recorded[queue.key] = recorded_offset
        else:
            self._recorded.pop(queue.key, None)

    @property
    def has_deletable_files(self) -> bool:
        """Whether any file holds only entries no longer needed."""
        return any(self._queues[key].has_deletable_files for key in self._risen)

    def take_deletable_files(self) -> list[str]:
        """Return the paths of files that contain no needed entries, for a worker to delete.

        The caller must pass the deleted files to `deleted`. The next call returns all other files again. If a
        tail begins in such a file, it is written first. Raise `SyncFailed` if the sync of a folder that
        contains other files fails.
        """
        paths = list[str]()
        under_way = {one.path for _, one in self._taken.writes} if self._taken is not None else set[str]()
        for key in [*self._risen]:
            queue = self._queues[key]
            if queue.has_deletable_files:
                self._frozen.before_change(key)
                self._unsynced |= dict.fromkeys(queue.write_tail_before_deletion())
                self._tails.update_size(queue)
                # A file that is being written is skipped, because the write would create it again.
                paths += [one for one in queue.deletable_files() if one not in under_way]
            if not queue.has_unneeded_files:
                del self._risen[key]
        return paths

    def deleted(self, paths: Iterable[str]) -> None:
        """Update the queues after files from `take_deletable_files` have been deleted."""
        for folder, inside in groupby(paths, lambda path: path[: -OFFSET_DIGITS - 1]):
            _, topic, queue_id = folder.split("/")
            queue = self._queues[topic, int(queue_id)]
            self._frozen.before_change(queue.key)
            queue.deleted(inside)
            if not queue.has_unneeded_files:
                self._risen.pop(queue.key, None)

    def _track_deletable(self, queue: ConsumeQueue) -> None:
        if queue.has_unneeded_files:
            self._risen[queue.key] = None

    def take_unsynced(self) -> list[str]:
        """Return the files written since the last call, for a checkpoint to sync."""
        paths, self._unsynced = [*self._unsynced], {}
        return paths

    def abandon_sync(self, paths: Iterable[str]) -> None:
        """Requeue the paths of a failed checkpoint so that the next one syncs them."""
        self._unsynced |= dict.fromkeys(paths)

    def mark_untrusted(self, failed: Mapping[str, OSError]) -> None:
        """Register files that a checkpoint failed to write or sync.

        After a failed sync, written data may be lost even if the next sync succeeds. The marker file is
        deleted immediately. The first batch of files is processed immediately, and `process_untrusted` does
        the rest.
        """
        if failed:
            self._is_damaged = True
            self._unmark()
            self._to_doubt.append(iter(failed.items()))
            self.process_untrusted()

    @property
    def has_untrusted(self) -> bool:
        """Whether `process_untrusted` has untrusted files to process."""
        return bool(self._to_doubt)

    def process_untrusted(self) -> None:
        """Process a batch of untrusted files.

        Report each failure. After a failed sync, mark the file as untrusted for later processes.
        """
        some = [*islice(chain.from_iterable(self._to_doubt), _UNTRUSTED_AT_ONCE)]
        if len(some) < _UNTRUSTED_AT_ONCE:
            self._to_doubt.clear()
        for path, error in some:
            _, topic, queue_id, _ = path.split("/")
            queue = self._queues.get((topic, int(queue_id)))
            if isinstance(error, SyncFailed) and queue is not None and path not in self._untrusted:
                self._untrusted.add(path)
                self._frozen.before_change(queue.key)
                queue.mark_untrusted(path)
            why = error.strerror or error
            self._found_damaged(
                path, f"{path} cannot be written to disk ({why}): a crash may take of it. {_ADVICE}"
            )

    def freeze(self) -> DeferredRows[tuple[str, int], ConsumeQueue]:
        """Capture the snapshot rows (`queue.kept`) for all queues with entries."""
        while self.has_untrusted:  # A snapshot must reflect all failures.
            self.process_untrusted()
        self._frozen.take_all()
        self._frozen = DeferredRows(self._queues, ConsumeQueue.taken, lambda key, now: (*key, *kept(now)))
        return self._frozen

    def needs_mark(self) -> bool:
        """Return whether a checkpoint must write the marker file.

        It must do so if all queue files are undamaged and the marker has never been written. Return False
        after any damage, including damage found since the checkpoint began.
        """
        return self.made_at is None and not self._is_damaged

    def complete_mark_attempt(self) -> None:
        """Record that a checkpoint has tried to write the marker file.

        If damage has been found since, delete the marker again.
        """
        self._is_unmarked = False
        if self._is_damaged:
            self._delete_mark()

    def adopt(
        self,
        frozen: Any,
        made_at: int,
        read_topics: Set[str] = frozenset(),
        recorded: Iterable[tuple[str, int, int]] = (),
    ) -> bool:
        """Restore queues from a snapshot. Return False if the queue files are not valid.

        After a power failure during a rebuild, files may have holes or damage. The marker file is then
        missing or names another snapshot. `frozen` is None for the first snapshot of an import, which is
        taken before any queue exists. Existing queue files then come from a recovery that had no snapshot of
        its own. Only the queue files of `read_topics` are verified, because recovery reads these files.
        `recorded` contains the recorded first offset of each queue that begins after it.
        """
        assert not self._queues, "a store that has queues adopts no others"
        delete_aside(self._disk)
        stored = [*stored_queues(frozen)]
        if frozen is None or not is_marked(self._disk, made_at) or not self._has_all_folders(stored):
            self.drop()
            return False
        self.made_at = made_at
        for one in stored:
            queue = self._queue(one.topic, one.queue_id, one.written_count)
            queue.adopt(one.crcs, one.tail, one.min_offset, one.begins_at)
            self._queues[queue.key] = queue
            self._tails.update_size(queue)
            self._track_deletable(queue)
        read = (queue for key, queue in self._queues.items() if key[0] in read_topics)
        if not all(
            queue.is_sound(may_be_cut=True) for queue in read
        ):  # The retention record is replayed later.
            self.drop()
            return False
        for topic, queue_id, offset in recorded:
            self._record_first_offset(self.queue(topic, queue_id), offset)
        return True

    def _has_all_folders(self, stored: Iterable[StoredQueue]) -> bool:
        """Return whether the folder of every topic exists.

        Startup does not check the files themselves. Return False if the folder of the queues cannot be
        listed, because all queues can be rebuilt.
        """
        try:
            topics = {*self._disk.list(CONSUMEQUEUE)}
        except OSError as error:
            if is_unrelated_error(error):
                raise
            return False
        return all(one.topic in topics for one in stored if one.has_files)

    def complete(
        self,
        frozen: Any,
        log_offset: int,
        recorded: Iterable[tuple[str, int, int]] = (),
        firsts: Mapping[tuple[str, int], int] = NO_FIRSTS,
    ) -> None:
        """Extend rebuilt queues to their former end offsets.

        Gaps replace missing records at the end. A queue with no record in the log becomes a gap that starts
        at its offset in `firsts`, or, if it is not in `firsts`, an empty queue at its former end. See `adopt`
        for `recorded`.
        """
        recorded_offsets = {(topic, queue_id): offset for topic, queue_id, offset in recorded}
        for one in stored_queues(frozen):
            queue = self.queue(one.topic, one.queue_id)
            first = firsts.get(queue.key, one.end_offset)
            if queue.end_offset == 0 and first < one.end_offset:
                queue.begin_with_gap(first, one.end_offset, log_offset)
            has_none = queue.end_offset == 0
            queue.pad_to(max(one.end_offset, queue.end_offset), log_offset)
            queue.advance_first_offset(queue.end_offset if has_none else one.min_offset)
            self._track_deletable(queue)
            self._record_first_offset(queue, recorded_offsets.get(queue.key, one.min_offset))
            assert queue.end_offset >= one.end_offset, f"{queue.key} gives offsets out again"
            self._tails.update_size(queue)

    def _queue(self, topic: str, queue_id: int, written_count: int = 0) -> ConsumeQueue:
        return ConsumeQueue(self._disk, topic, queue_id, written_count, self._found_damaged)

    def _report_unwritten(self, queue: ConsumeQueue, error: OSError) -> None:
        if not (
            writes := queue.unwritten(1)
        ):  # The entries have already been written by `take_deletable_files`.
            return
        path = writes[0].path
        why = error.strerror or error
        self._found_damaged(
            path,
            f"{path} cannot be written ({why}): entries stay in memory until it can, or, where they grow too "
            f"many, reads of it fail. {_ADVICE}",
        )

    def _report_not_created(self, queue: ConsumeQueue, error: OSError) -> None:
        """Report that a file could not be created.

        The marker file is kept, because other files are not affected.
        """
        for one in queue.unwritten(1):
            what = (
                f"{one.path} cannot be made ({error.strerror or error}), though the disk has room for bytes: "
                "free inodes (df -i), or raise the quota of files. Its entries stay in memory until it can, "
                "or, where they grow too many, reads of it fail."
            )
            self._tell_damaged(one.path, what)

    def _drop_unwritable_tails(self) -> None:
        """Drop tails that cannot be written and are too long.

        Do not call this during a write.
        """
        for queue in self._tails.droppable_tails():
            self._frozen.before_change(queue.key)
            for path in queue.drop_tail():
                self._found_damaged(path, f"{path} has no entries that could not be written. {_ADVICE}")
            self._tails.update_size(queue)

    def _found_damaged(self, path: str, what: str) -> None:
        self._is_damaged = True
        self._unmark()
        self._tell_damaged(path, what)

    def unmark_again(self) -> None:
        """Retry a failed deletion of the marker file.

        Call this every few seconds. An attempt may block the event loop until the device times out. An
        attempt is made only on the 1st, 2nd, 4th, 8th, 16th, 32nd, and 64th calls, and then on every 64th
        call.
        """
        if self._unmark_calls is not None:
            self._unmark_calls += 1
            if self._unmark_calls.bit_count() == 1 or self._unmark_calls % _UNMARK_CALLS_MAX == 0:
                self._delete_mark()

    def _unmark(self) -> None:
        """Delete the marker file once.

        Later calls do nothing, because each deletion syncs the store folder even without a marker file. After
        a failure, only `unmark_again` tries again, even if more files are found to be damaged.
        """
        if not self._is_unmarked and self._unmark_calls is None:
            self._delete_mark()

    def _delete_mark(self) -> None:
        """Delete the marker file. Report the first failure."""
        try:
            self._disk.delete(QUEUES_WHOLE)
        except OSError as error:  # From now on, checkpoints do not write the marker file.
            if self._unmark_calls is None:
                self._unmark_calls = 0
                self._tell_damaged(QUEUES_WHOLE, _not_unmarked(error))
        else:
            self._is_unmarked, self._unmark_calls = True, None

    def drop(self) -> None:
        """Delete all queues. They can be rebuilt from the log.

        Raise OSError as `delete_files` does.
        """
        assert self._taken is None, "a worker is writing entries of these queues"
        self._queues.clear()
        self._tails.clear()
        self._unsynced.clear()
        self._recorded.clear()
        self._risen.clear()
        self._untrusted.clear()
        self._to_doubt.clear()
        self._frozen, self._is_damaged, self.made_at = NOTHING, False, None
        self._is_unmarked, self._unmark_calls = False, None
        delete_files(self._disk)


def delete_files(disk: Disk) -> None:
    """Delete the marker file and all queue files. They can be rebuilt from the log.

    If a file cannot be deleted (because it is immutable, belongs to another user, or has a bad sector, for
    example), rename the folder, which is then never read. Raise OSError if this fails or the marker file
    cannot be deleted.
    """
    disk.delete(QUEUES_WHOLE)
    delete_aside(disk)
    try:
        disk.delete(CONSUMEQUEUE)
    except OSError as error:
        if is_unrelated_error(error):
            raise
        _put_aside(disk, error)


def _put_aside(disk: Disk, why: OSError) -> None:
    """Rename the folder of all queues after a failed deletion. Raise OSError on failure."""
    try:
        put_aside(disk, CONSUMEQUEUE, QUEUES_ASIDE)
    except SyncFailed:
        raise
    except OSError as error:
        what = (
            f"{why.filename or CONSUMEQUEUE} cannot be deleted ({why.strerror or why}), so the queues cannot "
            f"be made anew: {error.strerror}"
        )
        raise OSError(error.errno, what, CONSUMEQUEUE) from error


def mark_of(made_at: int) -> bytes:
    """Return the marker file content for queue files that belong to the snapshot at a log offset."""
    return b"%d\n" % made_at


def is_marked(disk: Disk, made_at: int) -> bool:
    """Return whether the queue files are valid and belong to the snapshot at a log offset.

    An unreadable marker file is treated as missing, because all queue files can be rebuilt.
    """
    try:
        is_there = disk.size(QUEUES_WHOLE) >= 0
        return is_there and disk.read(QUEUES_WHOLE, 0, MARK_BYTES_MAX) == mark_of(made_at)
    except OSError as error:
        if is_unrelated_error(error):
            raise
        return False


def mark(disk: Disk, made_at: int) -> None:
    """Write the marker file, so that recovery trusts the synced queue files. Raise OSError on failure."""
    disk.delete(QUEUES_WHOLE)
    disk.write(QUEUES_WHOLE, 0, mark_of(made_at))
    disk.sync(QUEUES_WHOLE)
    disk.sync_folder("")


def _not_unmarked(error: OSError) -> str:
    """Return the error message for a marker file that could not be deleted."""
    return (
        f"{QUEUES_WHOLE} cannot be deleted durably ({error.strerror or error}): it marks queue files as "
        "whole of which some are damaged, and a start that finds it does not make them anew. The deletion is "
        f"tried again. See to the disk; if {QUEUES_WHOLE} is there before a restart of the broker, delete it."
    )


def is_file_error(path: str, error: OSError) -> bool:
    """Return whether a failure affects only the file being written, which can be rebuilt.

    This is false if the disk is full, or if the failure concerns the process or another file.
    """
    return is_folder_error(path, error) or (error.errno not in NO_ROOM and not is_unrelated_error(error))


def is_creation_error(disk: Disk, path: str, error: OSError) -> bool:
    """Return whether a file could not be created although the disk is not full.

    For example, the disk may have no free inodes.
    """
    if error.errno not in NO_ROOM:
        return False
    with suppress(OSError):
        return disk.size(path) < 0 and disk.usage()[0] >= _ROOM_BYTES
    return False


def is_sync_error(path: str, error: OSError) -> bool:
    """Return whether a failed sync of a queue file affects only data that can be rebuilt.

    This includes a failed sync of the queue folder, because the file's directory entry may be lost.
    """
    return is_file_error(path, error) or (isinstance(error, SyncFailed) and error.filename == path)


def existing_first_offsets(frozen: Any, log_first_offset: int) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield ((topic, queue ID), first offset) for queues in a snapshot whose first record is in the log.

    Queues whose first records retention may have deleted are omitted.
    """
    for one in stored_queues(frozen):
        if log_first_offset == 0 or one.begins_at >= log_first_offset:
            yield (one.topic, one.queue_id), one.min_offset


def files_named(frozen: Any) -> Iterator[tuple[str, int, int]]:
    """Yield (path, length in bytes, CRC-32) for each queue file in the rows of a snapshot.

    The oldest files may no longer exist.
    """
    for one in stored_queues(frozen):
        yield from files_of(one)


def entries_of(record: Record, record_bytes: int) -> bytes:
    """Return the encoded queue entries for a record. An inner batch has one entry per message."""
    first = record.queue_offset
    if not record.sys_flag & INNER_BATCH:
        return encode(entry_of(record, record_bytes, first))
    offsets = range(first, first + message_count(record))
    return b"".join(encode(entry_of(record, record_bytes, offset)) for offset in offsets)


def entry_of(record: Record, record_bytes: int, queue_offset: int) -> Entry:
    """Return the queue entry for a record at `queue_offset`, or a gap entry if it is unreadable."""
    try:
        stored = pick(record, queue_offset).properties
    except StoreDamaged:
        return Entry(record.physical_offset, 0, 0)
    code = 0
    if _LITE_TOPIC in stored and (lite_topic := properties.value_of(stored, property_names.LITE_TOPIC)):
        code = hash_lite_topic(lite_topic)
    elif _TAG in stored:
        code = tags_code(properties.value_of(stored, property_names.TAG))
    return Entry(record.physical_offset, record_bytes, code)
