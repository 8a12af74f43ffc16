"""Adds entries for log records to the queue indexes.

The same rules apply during operation and during a rebuild. An entry is added for each record with the
transaction type "none" or "commit", as in the `DefaultMessageStore` of RocketMQ. No entry is added for
Tidewheel system records (type 12). In an imported log, an entry is added for each message of an inner batch.
If a topic in an imported log was deleted and created again, its queue offsets restart at 0, and the new
entries replace the earlier entries.

The newest entries of a queue form its tail, which is kept in memory (`consumequeue.tails`). When a tail is
full, a worker writes the entries to disk (`take`). Entries that cannot be written remain in memory. Entries
are never lost permanently, because queues can always be rebuilt from the log. If a queue file cannot be
written, the file is reported as damaged, and other queues are still written. The write is retried later, and
the tail of the queue is dropped if it becomes too long. A queue file that cannot be created because the disk
has no free inodes is treated in the same way. However, the marker file is kept if a file could not be
created, because the files of other queues are still valid. At most one write of queue entries is in progress
at any time.

    dispatch --> tail of a queue ----> full: take --> a worker writes --> written: dropped from memory
                       ^                                   |
                       +--- the disk is full, or refuses --+
                       |
                       +--> too long: dropped, reads of its file raise `StoreDamaged`

A checkpoint copies the queues, including their tails, in batches (`commitlog.deferred_rows`). A queue that is
about to change is copied before the change. The checkpoint worker syncs only the files that were written
after the last checkpoint.

Recovery trusts the files listed in a snapshot if the marker file (`QUEUES_WHOLE`) exists. A checkpoint writes
the marker file after it has synced the queue files. The marker file identifies the snapshot with which the
queue files were created, because a crash may leave rebuilt queues next to an older snapshot. Rebuilt queue
files may differ from the original files if records are missing from the log. The marker file is deleted when
a queue file is damaged or cannot be written or synced. After the marker file has been deleted, no checkpoint
writes it until recovery has rebuilt the queues. If the marker file cannot be deleted, the failure is reported
once, and the deletion is retried at increasing intervals (`unmark_again`). Files that recovery cannot delete
are renamed and are no longer read (`delete_files`).

If the first records of a queue are lost because the log is damaged, the rebuilt queue begins with a gap
(`begin_with_gap`), unless retention may have deleted the records (`firsts_there`). Retention cannot have
deleted the records if the queue is replayed for the first time, or if the log still includes the offset of
the first record. If retention may have deleted the records, a rebuilt queue may begin at a higher offset than
its recorded first offset. The first offset is higher if retention could not read a damaged queue file and the
log no longer contains the first records of the queue. Snapshots list such queues until their first offsets
have been recorded in the log (`unrecorded`; `services.broker.housekeeping`).

Cost: Each record adds 20 bytes to a queue. Adjacent records of a queue are added in one step
(`dispatch_runs`). With 80,000 queues, copying the references for a snapshot takes 3 to 6 ms, and each batch
of 1,000 rows takes 1 to 2 ms. Each retention run checks all queues (`minimums`). Checking a queue takes 0.5
to 1 us if no entries are removed, 50 us if entries are removed from the tail, and up to 340 us if entries are
removed from a file. Weak spot: The first read of a file that was written by an earlier process verifies the
CRC of the whole file, which takes 10 ms for 6 MB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, islice, repeat
from types import MappingProxyType
from typing import Any, Final

from commitlog import limits, properties
from commitlog.deferred_rows import NOTHING, DeferredRows
from commitlog.disk import Disk, SyncFailed
from commitlog.errors import NO_ROOM, StoreDamaged
from commitlog.inner_batch import message_count, pick
from commitlog.layout import CONSUMEQUEUE, OFFSET_DIGITS, QUEUES_ASIDE, QUEUES_WHOLE
from commitlog.record import INNER_BATCH, TYPE_COMMIT, TYPE_MASK, TYPE_NORMAL, Record
from consumequeue.aside import delete_aside, put_aside
from consumequeue.entry import ENTRY_BYTES, Entry, encode, lite_code, tags_code
from consumequeue.queue import (
    UNKNOWN,
    ConsumeQueue,
    FoundDamaged,
    QueueWrite,
    StoredQueue,
    files_of,
    ignore_damage,
    is_of_folder,
    is_of_others,
    kept,
    stored_queues,
)
from consumequeue.tails import Tails
from tidewheel import property_names

_LITE_TOPIC: Final = property_names.LITE_TOPIC.encode()
_TAG: Final = property_names.TAG.encode()
MARK_BYTES_MAX: Final = 32
_ROOM_BYTES: Final = 1024 * 1024
"""The free space in bytes below which a disk is considered full."""
_DOUBTED_AT_ONCE: Final = 1_000
"""The maximum number of failed files that are processed in one event loop iteration. Processing these files
takes about 5 ms."""
_TRIED_AGAIN: Final = 2 * limits.TAIL_ENTRIES_MAX
"""The maximum number of entries per queue that are written when a failed write is retried."""
_ENTRIES_AT_ONCE: Final = 100_000
"""The maximum number of entries in one write. The event loop copies up to 2 MB for these entries, and
compares the copy with the tails after the write."""
_UNMARK_CALLS_MAX: Final = 64
"""The maximum number of calls between two attempts to delete the marker file. At the usual call interval, 64
calls take about 10 minutes."""
NO_FIRSTS: Final[Mapping[tuple[str, int], int]] = MappingProxyType({})
_ADVICE: Final = "See to the disk, and restart the broker: the start makes the queues anew from the log."


def is_indexed(record: Record) -> bool:
    """Return whether a queue entry is added for a record."""
    return record.sys_flag & TYPE_MASK in (TYPE_NORMAL, TYPE_COMMIT)


@dataclass(slots=True, eq=False)
class EntriesToWrite:
    """The entries that a worker must write, grouped by queue.

    The records to which these entries refer are durable.
    """

    writes: list[tuple[ConsumeQueue, QueueWrite]]
    written: list[tuple[ConsumeQueue, QueueWrite]] = field(default_factory=list)
    failed: dict[ConsumeQueue, OSError] = field(default_factory=dict)
    """The queues whose files cannot be written."""
    unmade: dict[ConsumeQueue, OSError] = field(default_factory=dict)
    """The queues whose files cannot be created, although the disk is not full."""

    def write(self, disk: Disk) -> None:
        """Write the entries in order without syncing them, and stop if the disk is full.

        Files that cannot be written are skipped. Raise `SyncFailed` if syncing a folder that also contains
        other files fails.
        """
        for queue, one in self.writes:
            if queue in self.failed or queue in self.unmade:
                continue
            try:
                disk.write(*one)
            except OSError as error:
                if is_of_file(one.path, error):
                    self.failed[queue] = error
                elif isinstance(error, SyncFailed):
                    raise
                elif is_of_making(disk, one.path, error):
                    self.unmade[queue] = error
                else:
                    return
            else:
                self.written.append((queue, one))


class Dispatch:
    """The queue indexes of a store.

    There are no queues until they are restored from a snapshot or created for a record.
    """

    def __init__(
        self,
        disk: Disk,
        imported_until: int = 0,
        found_damaged: FoundDamaged = ignore_damage,
        tail_entries_max: int = limits.TAIL_ENTRIES_MAX,
    ) -> None:
        """Initialize the object without any queues.

        The log below `imported_until` was imported (`commitlog.imported`).
        """
        self._disk, self._tell_damaged = disk, found_damaged
        self._imported_until = imported_until
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._tails = Tails(tail_entries_max, limits.TAILS_BYTES_MAX)
        self._unsynced: dict[str, None] = {}
        """The paths of the files that have been written since the last checkpoint."""
        self._frozen: DeferredRows[tuple[str, int], ConsumeQueue] = NOTHING
        self._taken: EntriesToWrite | None = None
        self._recorded: dict[tuple[str, int], int] = {}
        """The recorded first offsets of queues that begin at a higher offset than recorded."""
        self._risen: dict[tuple[str, int], None] = {}
        """The queues that may have files to be deleted (`ConsumeQueue.may_be_unneeded`)."""
        self._is_damaged = False
        """True if any queue file is known to be damaged. In this case, no checkpoint may write the marker
        file."""
        self._is_unmarked = False
        """True if the marker file was deleted because of damage."""
        self._unmark_calls: int | None = None
        """The number of calls to `unmark_again` since the deletion of the marker file failed, or None if no
        deletion has failed."""
        self._doubted = set[str]()
        """The paths of the files that could not be synced."""
        self._to_doubt: list[Iterator[tuple[str, OSError]]] = []
        """The paths of the failed files that have not been processed yet."""
        self.made_at: int | None = None
        """The log offset of the snapshot with which the queue files were created, or None if there is no such
        snapshot."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the index of a queue, creating the index on first use."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queue(topic, queue_id)
            # The key object is shared with the index to save memory, because a broker may have 80,000 queues.
            self._queues[queue.key] = queue
        return queue

    def look(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the index of a queue for reading.

        If the queue does not exist, return an empty index that is not added to the store.
        """
        return self._queues.get((topic, queue_id)) or ConsumeQueue(self._disk, topic, queue_id)

    def dispatch(self, record: Record, record_bytes: int) -> bool:
        """Add an entry for a durable record to its queue index.

        Return False if no entry is added for such a record.
        """
        if not is_indexed(record):
            return False
        self.give_way(record)
        key = (record.topic, record.queue_id)
        self.dispatch_runs([(key, record.queue_offset, entries_of(record, record_bytes))])
        return True

    def give_way(self, record: Record) -> None:
        """Truncate the queue of an imported record if its queue offset has already been used.

        In a log written by Tidewheel, queue offsets are never reused. A duplicate queue offset would be
        reported by `put_many`.
        """
        if record.physical_offset >= self._imported_until or not is_indexed(record):
            return
        queue = self.queue(record.topic, record.queue_id)
        if record.queue_offset < queue.end_offset:
            if self._frozen.is_open:
                self._frozen.before_change(queue.key)
            self._unsynced |= dict.fromkeys(queue.cut(record.queue_offset))
            self._tails.look(queue)

    def begin_with_gap(self, record: Record, queue_offset: int) -> None:
        """Begin the empty queue of a durable record at a lower offset than that of the record.

        The records between the two offsets are lost, and are replaced by a gap. If the queue is not empty,
        nothing is changed. An imported queue begins at its first record, because an imported log does not
        show whether earlier records existed.
        """
        if not is_indexed(record) or record.physical_offset < self._imported_until:
            return
        queue = self.queue(record.topic, record.queue_id)
        if queue.end_offset == 0:
            self._frozen.before_change(queue.key)
            queue.begin_with_gap(queue_offset, record.queue_offset, record.physical_offset)
            self._tails.look(queue)

    def dispatch_runs(self, runs: Iterable[tuple[tuple[str, int], int, bytes]]) -> None:
        """Add durable records to their queue indexes.

        Each run is a tuple that contains the queue key (topic, queue ID), the first queue offset, and the
        encoded entries.
        """
        queues, frozen, tails = self._queues, self._frozen, self._tails
        for key, queue_offset, entries in runs:
            queue = queues.get(key) or self.queue(*key)
            if frozen.is_open:
                frozen.before_change(key)
            tail_bytes = queue.put_many(queue_offset, entries)
            if tail_bytes >= tails.least_bytes and tail_bytes >= 2 * queue.noted_bytes:
                tails.look(queue)

    def queues(self) -> Iterator[tuple[str, int, ConsumeQueue]]:
        """Yield a (topic, queue ID, index) tuple for each queue that has entries."""
        for (topic, queue_id), queue in self._queues.items():
            if queue.end_offset:
                yield topic, queue_id, queue

    def queues_of(self, topic: str, queue_count: int) -> Iterator[tuple[int, ConsumeQueue]]:
        """Yield a (queue ID, index) tuple for each queue of a topic that has entries."""
        for queue_id in range(queue_count):
            queue = self._queues.get((topic, queue_id))
            if queue is not None and queue.end_offset:
                yield queue_id, queue

    def write(self) -> None:
        """Write all due tails in the calling thread. If the disk is full, the tails remain in memory."""
        while (entries := self.take()) is not None:
            entries.write(self._disk)
            if not self.written():
                return

    def take(self) -> EntriesToWrite | None:
        """Return the tails to be written, or None if no tail is due or a write is already in progress.

        The caller must call `written` after the write.
        """
        if self._taken is not None:
            return None
        self._let_go()
        if not (queues := self._tails.to_write()):
            return None
        self._taken = EntriesToWrite(self._parts_of(queues))
        return self._taken

    def _parts_of(self, queues: Iterable[ConsumeQueue]) -> list[tuple[ConsumeQueue, QueueWrite]]:
        """Split tails into file writes, up to the maximum number of entries per write.

        For queues whose last write failed, at most `_TRIED_AGAIN` entries are included.
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
        """Drop the written entries from memory, and return whether all taken entries were written."""
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
                self._tell_unwritten(queue, error)
        for queue, error in taken.unmade.items():
            if self._tails.refuse(queue):
                self._tell_unmade(queue, error)
        return len(taken.written) == len(taken.writes)

    def keys(self) -> list[tuple[str, int]]:
        """Return the key (topic, queue ID) of each existing queue."""
        return [*self._queues]

    def take_some(
        self, keys: deque[tuple[str, int]], count: int, cost_of: Callable[[str], int]
    ) -> list[tuple[str, int]]:
        """Remove keys from the left of `keys`, and return the removed keys.

        The number of keys is limited so that checking the queues does not take too long. The result contains
        at most `count` keys. Fewer keys are returned if the queues have large unread files, or if `cost_of`
        returns an additional cost for the topics.
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
        """Return (topic, queue ID, first remaining offset) for each queue with entries below a log offset.

        The second list contains the log offset stored in the entry at each of these queue offsets, or
        `UNKNOWN`.
        """
        if log_offset <= 0:
            return [], []
        looked_at = ((key, self._queues[key]) for key in keys)
        firsts = ((key, queue, self._first_from(queue, log_offset)) for key, queue in looked_at)
        risen = [(key, queue, first) for key, queue, first in firsts if first > queue.min_offset]
        return [(*key, first) for key, _, first in risen], [queue.place(first) for _, queue, first in risen]

    def _first_from(self, queue: ConsumeQueue, log_offset: int) -> int:
        if not queue.knows_begin:
            self._frozen.before_change(queue.key)
        return queue.first_from(log_offset)

    def rise(self, minimums: Iterable[tuple[str, int, int]], begins_at: Iterable[int] = ()) -> None:
        """Increase the first offset of each queue in `minimums`, a list of (topic, queue ID, offset) tuples.

        `begins_at` contains the log offsets stored in the entries at the new first offsets, as returned by
        the method `minimums`.
        """
        places = chain(begins_at, repeat(UNKNOWN))
        for (topic, queue_id, min_offset), place in zip(minimums, places, strict=False):
            self._frozen.before_change((topic, queue_id))
            queue = self.queue(topic, queue_id)
            queue.rise(min_offset, place)
            self._note_risen(queue)
            if queue.key in self._recorded:
                self._note_recorded(queue, max(min_offset, self._recorded[queue.key]))

    def rise_unrecorded(self, minimums: list[tuple[str, int, int]], begins_at: list[int]) -> None:
        """Increase the first offsets of queues before the new offsets are recorded in the log."""
        queues = [self.queue(topic, queue_id) for topic, queue_id, _ in minimums]
        recorded = [(queue, self.recorded_min(*queue.key)) for queue in queues]
        self.rise(minimums, begins_at)
        for queue, recorded_offset in recorded:
            self._note_recorded(queue, recorded_offset)

    def recorded_min(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue according to the records in the log."""
        return self._recorded.get((topic, queue_id), self.look(topic, queue_id).min_offset)

    @property
    def has_unrecorded(self) -> bool:
        """True if any queue begins at a higher offset than its recorded first offset."""
        return bool(self._recorded)

    def is_unrecorded(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue begins at a higher offset than its recorded first offset."""
        return (topic, queue_id) in self._recorded

    def unrecorded(
        self, count: int, cost_of: Callable[[str], int]
    ) -> tuple[list[tuple[str, int, int]], list[int]]:
        """Return (topic, queue ID, first offset) for some queues whose first offset is not recorded.

        The number of queues is limited by `take_some`. The second list contains the log offset stored in the
        first entry of each queue, as in `minimums`.
        """
        keys = self.take_some(deque(islice(self._recorded, count)), count, cost_of)
        queues = [self._queues[key] for key in keys]
        rows = [(*queue.key, queue.min_offset) for queue in queues]
        return rows, [queue.place(queue.min_offset) for queue in queues]

    def freeze_recorded(self) -> list[tuple[str, int, int]]:
        """Return the recorded first offsets of the queues that begin at higher offsets, for a snapshot."""
        return [(*key, offset) for key, offset in self._recorded.items()]

    def _note_recorded(self, queue: ConsumeQueue, recorded_offset: int) -> None:
        """Store the recorded first offset of a queue if the queue begins at a higher offset."""
        if recorded_offset < queue.min_offset:
            self._recorded[queue.key] = recorded_offset
        else:
            self._recorded.pop(queue.key, None)

    @property
    def has_unneeded(self) -> bool:
        """True if any file contains only entries that are no longer needed."""
        return any(self._queues[key].has_unneeded for key in self._risen)

    def take_unneeded(self) -> list[str]:
        """Return the paths of the files that contain only unneeded entries, so that a worker can delete them.

        The caller must pass the deleted files to `deleted`. Files that have not been deleted are returned
        again by the next call. If a tail begins in a returned file, the tail is written first. Raise
        `SyncFailed` if syncing a folder that also contains other files fails.
        """
        paths = list[str]()
        under_way = {one.path for _, one in self._taken.writes} if self._taken is not None else set[str]()
        for key in [*self._risen]:
            queue = self._queues[key]
            if queue.has_unneeded:
                self._frozen.before_change(key)
                self._unsynced |= dict.fromkeys(queue.write_what_goes())
                self._tails.look(queue)
                # A file that is being written is skipped, because the write would create it again.
                paths += [one for one in queue.unneeded() if one not in under_way]
            if not queue.may_be_unneeded:
                del self._risen[key]
        return paths

    def deleted(self, paths: Iterable[str]) -> None:
        """Update the state of queues after files returned by `take_unneeded` have been deleted."""
        for folder, inside in groupby(paths, lambda path: path[: -OFFSET_DIGITS - 1]):
            _, topic, queue_id = folder.split("/")
            queue = self._queues[topic, int(queue_id)]
            self._frozen.before_change(queue.key)
            queue.deleted(inside)
            if not queue.may_be_unneeded:
                self._risen.pop(queue.key, None)

    def _note_risen(self, queue: ConsumeQueue) -> None:
        if queue.may_be_unneeded:
            self._risen[queue.key] = None

    def take_unsynced(self) -> list[str]:
        """Return the paths of the files written since the last call, which a checkpoint must sync."""
        paths, self._unsynced = [*self._unsynced], {}
        return paths

    def abandon_sync(self, paths: Iterable[str]) -> None:
        """Take back the paths of a failed checkpoint, so that the next checkpoint syncs the files."""
        self._unsynced |= dict.fromkeys(paths)

    def doubt(self, failed: Mapping[str, OSError]) -> None:
        """Register the files that a checkpoint could not write or sync.

        After a failed sync, written data may be lost even if the next sync succeeds. The marker file is
        deleted immediately. The first batch of failed files is processed immediately, and all other files are
        processed by `doubt_on`.
        """
        if failed:
            self._is_damaged = True
            self._unmark()
            self._to_doubt.append(iter(failed.items()))
            self.doubt_on()

    @property
    def has_doubts(self) -> bool:
        """True if there are failed files that `doubt_on` has not processed yet."""
        return bool(self._to_doubt)

    def doubt_on(self) -> None:
        """Process a batch of failed files.

        Each failure is reported. If a sync failed, the file is marked as untrusted for later processes.
        """
        some = [*islice(chain.from_iterable(self._to_doubt), _DOUBTED_AT_ONCE)]
        if len(some) < _DOUBTED_AT_ONCE:
            self._to_doubt.clear()
        for path, error in some:
            _, topic, queue_id, _ = path.split("/")
            queue = self._queues.get((topic, int(queue_id)))
            if isinstance(error, SyncFailed) and queue is not None and path not in self._doubted:
                self._doubted.add(path)
                self._frozen.before_change(queue.key)
                queue.doubt(path)
            why = error.strerror or error
            self._found_damaged(
                path, f"{path} cannot be written to disk ({why}): a crash may take of it. {_ADVICE}"
            )

    def freeze(self) -> DeferredRows[tuple[str, int], ConsumeQueue]:
        """Capture the snapshot rows (`queue.kept`) of all queues that have entries."""
        while self.has_doubts:  # A snapshot must reflect all failures.
            self.doubt_on()
        self._frozen.take_all()
        self._frozen = DeferredRows(self._queues, ConsumeQueue.taken, lambda key, now: (*key, *kept(now)))
        return self._frozen

    def wants_mark(self) -> bool:
        """Return whether a checkpoint must write the marker file.

        A checkpoint must write the marker file if all queue files are undamaged and the marker file has never
        been written. If the marker file was deleted because of damage, possibly after the checkpoint began,
        the result is False.
        """
        return self.made_at is None and not self._is_damaged

    def complete_mark_attempt(self) -> None:
        """Record that a checkpoint has tried to write the marker file.

        If damage has been found in the meantime, the marker file is deleted again.
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
        """Restore queues from a snapshot of an earlier process, or return False if the files are not valid.

        If the power fails during a rebuild, some files may contain holes or may be damaged. In this case, the
        marker file is missing or identifies a different snapshot. `frozen` is None for the first snapshot of
        an import, which is written before the first queue exists. In this case, any existing queues were
        created by a recovery that did not write a snapshot of its own. Only queue files of the topics in
        `read_topics` are verified, because recovery reads these files. `recorded` contains the recorded first
        offset of each queue that begins at a higher offset.
        """
        assert not self._queues, "a store that has queues adopts no others"
        delete_aside(self._disk)
        stored = [*stored_queues(frozen)]
        if frozen is None or not is_marked(self._disk, made_at) or not self._are_folders_there(stored):
            self.drop()
            return False
        self.made_at = made_at
        for one in stored:
            queue = self._queue(one.topic, one.queue_id, one.written_count)
            queue.adopt(one.crcs, one.tail, one.min_offset, one.begins_at)
            self._queues[queue.key] = queue
            self._tails.look(queue)
            self._note_risen(queue)
        read = (queue for key, queue in self._queues.items() if key[0] in read_topics)
        if not all(
            queue.is_sound(may_be_cut=True) for queue in read
        ):  # The retention record is replayed later.
            self.drop()
            return False
        for topic, queue_id, offset in recorded:
            self._note_recorded(self.queue(topic, queue_id), offset)
        return True

    def _are_folders_there(self, stored: Iterable[StoredQueue]) -> bool:
        """Return whether the folder of every topic exists.

        The files themselves are not checked at startup. Return False if the folder of the queues cannot be
        listed, because all queues can be rebuilt.
        """
        try:
            topics = {*self._disk.list(CONSUMEQUEUE)}
        except OSError as error:
            if is_of_others(error):
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
        """Extend rebuilt queues to their former ends.

        Gaps replace the last records of the queues if these records are missing from the log. A queue without
        records in the log consists of a gap that begins at the offset of the queue in `firsts`. If `firsts`
        does not contain the queue, the queue is empty and begins at its former end. `recorded` has the same
        meaning as in `adopt`.
        """
        recorded_offsets = {(topic, queue_id): offset for topic, queue_id, offset in recorded}
        for one in stored_queues(frozen):
            queue = self.queue(one.topic, one.queue_id)
            first = firsts.get(queue.key, one.end_offset)
            if queue.end_offset == 0 and first < one.end_offset:
                queue.begin_with_gap(first, one.end_offset, log_offset)
            has_none = queue.end_offset == 0
            queue.pad_to(max(one.end_offset, queue.end_offset), log_offset)
            queue.rise(queue.end_offset if has_none else one.min_offset)
            self._note_risen(queue)
            self._note_recorded(queue, recorded_offsets.get(queue.key, one.min_offset))
            assert queue.end_offset >= one.end_offset, f"{queue.key} gives offsets out again"
            self._tails.look(queue)

    def _queue(self, topic: str, queue_id: int, written_count: int = 0) -> ConsumeQueue:
        return ConsumeQueue(self._disk, topic, queue_id, written_count, self._found_damaged)

    def _tell_unwritten(self, queue: ConsumeQueue, error: OSError) -> None:
        if not (writes := queue.unwritten(1)):  # The entries have already been written by `take_unneeded`.
            return
        path = writes[0].path
        why = error.strerror or error
        self._found_damaged(
            path,
            f"{path} cannot be written ({why}): entries stay in memory until it can, or, where they grow too "
            f"many, reads of it fail. {_ADVICE}",
        )

    def _tell_unmade(self, queue: ConsumeQueue, error: OSError) -> None:
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

    def _let_go(self) -> None:
        """Drop tails that cannot be written and have become too long.

        This method must not be called while a write is in progress.
        """
        for queue in self._tails.to_let_go():
            self._frozen.before_change(queue.key)
            for path in queue.let_go():
                self._found_damaged(path, f"{path} has no entries that could not be written. {_ADVICE}")
            self._tails.look(queue)

    def _found_damaged(self, path: str, what: str) -> None:
        self._is_damaged = True
        self._unmark()
        self._tell_damaged(path, what)

    def unmark_again(self) -> None:
        """Retry the deletion of the marker file after a failure.

        The caller must call `unmark_again` every few seconds. Each attempt may block the event loop until the
        device times out. Therefore, an attempt is made only at the 1st, 2nd, 4th, 8th, 16th, 32nd and 64th
        call, and then at every 64th call.
        """
        if self._unmark_calls is not None:
            self._unmark_calls += 1
            if self._unmark_calls.bit_count() == 1 or self._unmark_calls % _UNMARK_CALLS_MAX == 0:
                self._delete_mark()

    def _unmark(self) -> None:
        """Delete the marker file once.

        Later calls do nothing, because each deletion syncs the store folder even if there is no marker file.
        After a failure, only `unmark_again` retries the deletion, even if damage is found in other files.
        """
        if not self._is_unmarked and self._unmark_calls is None:
            self._delete_mark()

    def _delete_mark(self) -> None:
        """Delete the marker file, and report the first failure."""
        try:
            self._disk.delete(QUEUES_WHOLE)
        except OSError as error:  # From now on, checkpoints do not write the marker file.
            if self._unmark_calls is None:
                self._unmark_calls = 0
                self._tell_damaged(QUEUES_WHOLE, _not_unmarked(error))
        else:
            self._is_unmarked, self._unmark_calls = True, None

    def drop(self) -> None:
        """Delete all queues, which can be rebuilt from the log.

        OSError is raised under the same conditions as in `delete_files`.
        """
        assert self._taken is None, "a worker is writing entries of these queues"
        self._queues.clear()
        self._tails.clear()
        self._unsynced.clear()
        self._recorded.clear()
        self._risen.clear()
        self._doubted.clear()
        self._to_doubt.clear()
        self._frozen, self._is_damaged, self.made_at = NOTHING, False, None
        self._is_unmarked, self._unmark_calls = False, None
        delete_files(self._disk)


def delete_files(disk: Disk) -> None:
    """Delete the marker file and the files of all queues, which can be rebuilt from the log.

    If a file cannot be deleted (for example, because it is immutable, is owned by another user, or is
    affected by a bad sector), the folder is renamed and is no longer read. Raise OSError if the folder cannot
    be renamed or the marker file cannot be deleted.
    """
    disk.delete(QUEUES_WHOLE)
    delete_aside(disk)
    try:
        disk.delete(CONSUMEQUEUE)
    except OSError as error:
        if is_of_others(error):
            raise
        _put_aside(disk, error)


def _put_aside(disk: Disk, why: OSError) -> None:
    """Rename the folder of all queues after the deletion of a file has failed, or raise OSError."""
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
    """Return the marker file content for queue files that were created with the snapshot at a log offset."""
    return b"%d\n" % made_at


def is_marked(disk: Disk, made_at: int) -> bool:
    """Return whether the queue files on disk are valid and were created with the snapshot at a log offset.

    An unreadable marker file is treated as missing, because all queue files can be rebuilt.
    """
    try:
        is_there = disk.size(QUEUES_WHOLE) >= 0
        return is_there and disk.read(QUEUES_WHOLE, 0, MARK_BYTES_MAX) == mark_of(made_at)
    except OSError as error:
        if is_of_others(error):
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


def is_of_file(path: str, error: OSError) -> bool:
    """Return whether a failure affects only the file being written, which can be rebuilt.

    The result is False if the disk is full, or if the failure is related to the process or to another file.
    """
    return is_of_folder(path, error) or (error.errno not in NO_ROOM and not is_of_others(error))


def is_of_making(disk: Disk, path: str, error: OSError) -> bool:
    """Return whether a file could not be created although the disk is not full.

    For example, the disk may have no free inodes.
    """
    if error.errno not in NO_ROOM:
        return False
    with suppress(OSError):
        return disk.size(path) < 0 and disk.usage()[0] >= _ROOM_BYTES
    return False


def is_of_sync(path: str, error: OSError) -> bool:
    """Return whether a failed sync of a queue file affects only data that can be rebuilt.

    A failed sync of the queue folder is also considered to affect the file, because the directory entry of
    the file may be lost.
    """
    return is_of_file(path, error) or (isinstance(error, SyncFailed) and error.filename == path)


def firsts_there(frozen: Any, log_first_offset: int) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield the key (topic, queue ID) and the first offset of each queue whose first record is in the log.

    The queues are listed in a snapshot. Queues whose first records may have been deleted by retention are
    omitted.
    """
    for one in stored_queues(frozen):
        if log_first_offset == 0 or one.begins_at >= log_first_offset:
            yield (one.topic, one.queue_id), one.min_offset


def files_named(frozen: Any) -> Iterator[tuple[str, int, int]]:
    """Yield a (path, length in bytes, CRC-32) tuple for each queue file in the rows of a snapshot.

    The oldest files may have been deleted since the snapshot was taken.
    """
    for one in stored_queues(frozen):
        yield from files_of(one)


def entries_of(record: Record, record_bytes: int) -> bytes:
    """Return the encoded queue entries of a record. An inner batch has one entry for each message."""
    first = record.queue_offset
    if not record.sys_flag & INNER_BATCH:
        return encode(entry_of(record, record_bytes, first))
    offsets = range(first, first + message_count(record))
    return b"".join(encode(entry_of(record, record_bytes, offset)) for offset in offsets)


def entry_of(record: Record, record_bytes: int, queue_offset: int) -> Entry:
    """Return the queue entry at `queue_offset` for a record, or a gap entry if the message is unreadable."""
    try:
        stored = pick(record, queue_offset).properties
    except StoreDamaged:
        return Entry(record.physical_offset, 0, 0)
    code = 0
    if _LITE_TOPIC in stored and (lite_topic := properties.value_of(stored, property_names.LITE_TOPIC)):
        code = lite_code(lite_topic)
    elif _TAG in stored:
        code = tags_code(properties.value_of(stored, property_names.TAG))
    return Entry(record.physical_offset, record_bytes, code)
