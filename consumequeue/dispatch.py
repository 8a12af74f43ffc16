"""Every record of the log to its queue: the one rule by which the queues are made and made again.

Records of transaction type none or commit get an entry (RocketMQ `DefaultMessageStore`); our own system
records (type 12) get none. What only an imported log holds: an inner batch gets an entry for each of its
messages, and queue offsets that begin anew (the topic was deleted and made again) replace the earlier ones.

A queue's entries are in memory until they are many (`consumequeue.tails`); a worker writes them (`take`).
What it could not write stays, since all of it can be made again. A file that the disk refuses is damage: it
is told, and keeps no other queue from its own; the tail is tried again, and let go of where it grows too
long. So is a file that cannot be made, for want of an inode, on a disk that has room; but it says nothing of
the others, whose mark stays. One such write is under way at a time.

    dispatch --> in a queue's tail --> many: take --> a worker writes --> written: let go of in memory
                       ^                                   |
                       +--- the disk is full, or refuses --+
                       |
                       +--> too long: let go of, reads of its file raise `StoreDamaged`

A checkpoint takes the queues, each with its tail, in slices (`commitlog.deferred_rows`): a queue is taken
before it changes. Its worker syncs the files that were written since the last one, and no other file.

A start believes the files of a snapshot by a mark (`QUEUES_WHOLE`), which a checkpoint writes once they are
synced. It names the snapshot with which these files began: queues that were made anew have other bytes where
the log lacks records, and a crash may leave them beside an older snapshot. A damaged file takes the mark
away, also one that cannot be written or synced, and no checkpoint sets it again before a start has made the
queues anew. A mark that cannot be deleted is told once, and tried again with growing pauses
(`unmark_again`). Files that a start cannot delete are renamed aside, and nothing reads them (`delete_files`).

A queue whose first records damage of the log has taken begins with a gap (`begin_with_gap`), where it is
known that no cut has taken them (`firsts_there`): it is replayed for the first time, or the log still has
the place of its first record. Else queues that were made anew may begin later than records say: a cut could
not look into their damaged files, and the log has their first records no more. A snapshot keeps which these
are, until a record says where they begin (`unrecorded`; `services.broker.housekeeping`).

Cost: 20 bytes appended a record, for records of one queue at once (`dispatch_runs`). With 80,000 queues a
freeze copies references for 3 to 6 ms, and each slice of 1,000 rows takes 1 to 2 ms. A cut of the log looks
at each queue (`minimums`): 0.5 to 1 us where it takes nothing, 50 us where it takes entries of a tail, up to
340 us where it takes those of a file. Weak spot: the first look into a file of an earlier run compares all of
it with its CRC, 10 ms for 6 MB.
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
"""Free bytes with which a disk is not full."""
_DOUBTED_AT_ONCE: Final = 1_000
"""Files that have failed, of which one turn of the loop learns: 5 ms."""
_TRIED_AGAIN: Final = 2 * limits.TAIL_ENTRIES_MAX
"""Entries with which a file that was refused is tried again; a follower does so for each flush."""
_ENTRIES_AT_ONCE: Final = 100_000
"""Entries of one write job: 2 MB, which the event loop copies before the job and compares after it."""
_UNMARK_CALLS_MAX: Final = 64
"""Calls between two tries to take away the mark, at most: 10 minutes of `housekeeping_ms`."""
NO_FIRSTS: Final[Mapping[tuple[str, int], int]] = MappingProxyType({})
_ADVICE: Final = "See to the disk, and restart the broker: the start makes the queues anew from the log."


def is_indexed(record: Record) -> bool:
    """Return whether a record's kind has a place in a queue."""
    return record.sys_flag & TYPE_MASK in (TYPE_NORMAL, TYPE_COMMIT)


@dataclass(slots=True, eq=False)
class EntriesToWrite:
    """Entries of durable records, by queue, for a worker to write."""

    writes: list[tuple[ConsumeQueue, QueueWrite]]
    written: list[tuple[ConsumeQueue, QueueWrite]] = field(default_factory=list)
    failed: dict[ConsumeQueue, OSError] = field(default_factory=dict)
    """The queues whose files the disk refuses."""
    unmade: dict[ConsumeQueue, OSError] = field(default_factory=dict)
    """The queues whose files cannot be made for want of room, while there is room in others."""

    def write(self, disk: Disk) -> None:
        """Write the entries in order, unsynced, as far as there is room, and pass over files that fail.

        Raise `SyncFailed` of a folder that holds more than queues.
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
    """All queues of a store; empty until a snapshot's are adopted or records are dispatched."""

    def __init__(
        self,
        disk: Disk,
        imported_until: int = 0,
        found_damaged: FoundDamaged = ignore_damage,
        tail_entries_max: int = limits.TAIL_ENTRIES_MAX,
    ) -> None:
        """`imported_until`: the log below this offset was imported (see `commitlog.imported`)."""
        self._disk, self._tell_damaged = disk, found_damaged
        self._imported_until = imported_until
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._tails = Tails(tail_entries_max, limits.TAILS_BYTES_MAX)
        self._unsynced: dict[str, None] = {}
        """Paths of files that were written since the last checkpoint."""
        self._frozen: DeferredRows[tuple[str, int], ConsumeQueue] = NOTHING
        self._taken: EntriesToWrite | None = None
        self._recorded: dict[tuple[str, int], int] = {}
        """Queues that begin later than records say, and the offsets where they begin as these say."""
        self._risen: dict[tuple[str, int], None] = {}
        """Queues of which files may go (`ConsumeQueue.may_be_unneeded`)."""
        self._is_damaged = False
        """Whether a file was found damaged: no checkpoint says that the files are whole."""
        self._is_unmarked = False
        """Whether the mark was taken away for it, which no checkpoint writes anew."""
        self._unmark_calls: int | None = None
        """Calls of `unmark_again` since the mark could not be taken away; None: that has not failed."""
        self._doubted = set[str]()
        """Paths of files whose sync has failed."""
        self._to_doubt: list[Iterator[tuple[str, OSError]]] = []
        """Paths of files that have failed, and are still to be looked at."""
        self.made_at: int | None = None
        """The log offset of the snapshot with which these files began; None before that is written."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the index of one queue, made empty on first use."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queue(topic, queue_id)
            self._queues[queue.key] = queue  # one tuple for both, of 80,000
        return queue

    def look(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the index of one queue to read from; without entries an empty one, which is not kept."""
        return self._queues.get((topic, queue_id)) or ConsumeQueue(self._disk, topic, queue_id)

    def dispatch(self, record: Record, record_bytes: int) -> bool:
        """Index one durable record; return False if its kind is not indexed."""
        if not is_indexed(record):
            return False
        self.give_way(record)
        key = (record.topic, record.queue_id)
        self.dispatch_runs([(key, record.queue_offset, entries_of(record, record_bytes))])
        return True

    def give_way(self, record: Record) -> None:
        """Cut a queue of an imported log where a record has an offset that another had before it.

        Our own log gives no queue offset twice; there `put_many` reports the bug.
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
        """Let the queue of a durable record, if it is empty, begin at an offset below the record's.

        The records between are lost, and readers of the queue meet a gap. An imported queue begins where its
        first record does: nothing tells of records before it.
        """
        if not is_indexed(record) or record.physical_offset < self._imported_until:
            return
        queue = self.queue(record.topic, record.queue_id)
        if queue.end_offset == 0:
            self._frozen.before_change(queue.key)
            queue.begin_with_gap(queue_offset, record.queue_offset, record.physical_offset)
            self._tails.look(queue)

    def dispatch_runs(self, runs: Iterable[tuple[tuple[str, int], int, bytes]]) -> None:
        """Index many durable records by queue: its (topic, queue id), the first queue offset, the entries."""
        queues, frozen, tails = self._queues, self._frozen, self._tails
        for key, queue_offset, entries in runs:
            queue = queues.get(key) or self.queue(*key)
            if frozen.is_open:
                frozen.before_change(key)
            tail_bytes = queue.put_many(queue_offset, entries)
            if tail_bytes >= tails.least_bytes and tail_bytes >= 2 * queue.noted_bytes:
                tails.look(queue)

    def queues(self) -> Iterator[tuple[str, int, ConsumeQueue]]:
        """Yield every queue that has entries, not those only looked at: (topic, queue id, index)."""
        for (topic, queue_id), queue in self._queues.items():
            if queue.end_offset:
                yield topic, queue_id, queue

    def queues_of(self, topic: str, queue_count: int) -> Iterator[tuple[int, ConsumeQueue]]:
        """Yield every queue of a topic that has entries: (queue id, index)."""
        for queue_id in range(queue_count):
            queue = self._queues.get((topic, queue_id))
            if queue is not None and queue.end_offset:
                yield queue_id, queue

    def write(self) -> None:
        """Write what goes to files here and now; on a full disk it waits in memory."""
        while (entries := self.take()) is not None:
            entries.write(self._disk)
            if not self.written():
                return

    def take(self) -> EntriesToWrite | None:
        """Return the tails that go to files, to be written before `written`; None for none or in a write."""
        if self._taken is not None:
            return None
        self._let_go()
        if not (queues := self._tails.to_write()):
            return None
        self._taken = EntriesToWrite(self._parts_of(queues))
        return self._taken

    def _parts_of(self, queues: Iterable[ConsumeQueue]) -> list[tuple[ConsumeQueue, QueueWrite]]:
        """Return the tails of queues, as many entries as are written in one go; of those refused a few."""
        parts, left = list[tuple[ConsumeQueue, QueueWrite]](), _ENTRIES_AT_ONCE
        for queue in queues:
            if left <= 0:
                break
            count = _TRIED_AGAIN if self._tails.is_refused(queue) else left
            parts += [(queue, one) for one in queue.unwritten(count)]
            left -= queue.tail_bytes // ENTRY_BYTES
        return parts

    def written(self) -> bool:
        """Let go of what was taken and written; what could not be written stays. Return whether none is."""
        assert self._taken is not None, "nothing was taken to be written"
        taken, self._taken = self._taken, None
        assert len(taken.written) <= len(taken.writes), "more was written than was taken"
        for queue, one in taken.written:
            self._frozen.before_change(queue.key)
            queue.written(one)
            # From here on, not before: a checkpoint that began meanwhile may have synced the file too early.
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
        """Return (topic, queue id) of all queues of this moment."""
        return [*self._queues]

    def take_some(
        self, keys: deque[tuple[str, int]], count: int, cost_of: Callable[[str], int]
    ) -> list[tuple[str, int]]:
        """Take so many queues (topic, queue id) from the left of `keys` that looking into them is bounded.

        `count` of them, or fewer where large files were not read yet, or where a queue costs more because of
        its topic, as `cost_of` says (0: nothing more).
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
        """Return (topic, queue id, first offset at or above) of queues with entries below a log offset.

        And where in the log the entries at these offsets point, `UNKNOWN` where that is not known.
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
        """Let queues begin at the offsets of (topic, queue id, offset) from now on.

        `begins_at` says where the entries there point, if that is known: log offsets, as `minimums` returns.
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
        """Let queues begin at offsets, as `rise` does, which a record is still to say."""
        queues = [self.queue(topic, queue_id) for topic, queue_id, _ in minimums]
        recorded = [(queue, self.recorded_min(*queue.key)) for queue in queues]
        self.rise(minimums, begins_at)
        for queue, recorded_offset in recorded:
            self._note_recorded(queue, recorded_offset)

    def recorded_min(self, topic: str, queue_id: int) -> int:
        """Return the offset at which a queue begins as records say."""
        return self._recorded.get((topic, queue_id), self.look(topic, queue_id).min_offset)

    @property
    def has_unrecorded(self) -> bool:
        """Whether queues begin later than records say."""
        return bool(self._recorded)

    def is_unrecorded(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue begins later than records say."""
        return (topic, queue_id) in self._recorded

    def unrecorded(
        self, count: int, cost_of: Callable[[str], int]
    ) -> tuple[list[tuple[str, int, int]], list[int]]:
        """Return (topic, queue id, offset) of some queues that begin later than records say: see `take_some`.

        And where in the log the entries at these offsets point, as `minimums` does.
        """
        keys = self.take_some(deque(islice(self._recorded, count)), count, cost_of)
        queues = [self._queues[key] for key in keys]
        rows = [(*queue.key, queue.min_offset) for queue in queues]
        return rows, [queue.place(queue.min_offset) for queue in queues]

    def freeze_recorded(self) -> list[tuple[str, int, int]]:
        """Return what a snapshot keeps of queues that begin later than records say: the offsets of these."""
        return [(*key, offset) for key, offset in self._recorded.items()]

    def _note_recorded(self, queue: ConsumeQueue, recorded_offset: int) -> None:
        """Note at which offset a queue begins as records say."""
        if recorded_offset < queue.min_offset:
            self._recorded[queue.key] = recorded_offset
        else:
            self._recorded.pop(queue.key, None)

    @property
    def has_unneeded(self) -> bool:
        """Whether there are files in which no queue has entries any more."""
        return any(self._queues[key].has_unneeded for key in self._risen)

    def take_unneeded(self) -> list[str]:
        """Return the paths of the files in which no queue has entries any more, for a worker to delete.

        Report those that are gone by `deleted`; the others are returned again. Raise `SyncFailed` of a folder
        that holds more than queues: tails that begin in such a file are written before.
        """
        paths = list[str]()
        under_way = {one.path for _, one in self._taken.writes} if self._taken is not None else set[str]()
        for key in [*self._risen]:
            queue = self._queues[key]
            if queue.has_unneeded:
                self._frozen.before_change(key)
                self._unsynced |= dict.fromkeys(queue.write_what_goes())
                self._tails.look(queue)
                # A write under way would make the file anew.
                paths += [one for one in queue.unneeded() if one not in under_way]
            if not queue.may_be_unneeded:
                del self._risen[key]
        return paths

    def deleted(self, paths: Iterable[str]) -> None:
        """Learn which files of `take_unneeded` are gone."""
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
        """Return the paths of the files that were written since the last call, for a checkpoint to sync."""
        paths, self._unsynced = [*self._unsynced], {}
        return paths

    def not_synced(self, paths: Iterable[str]) -> None:
        """Take back paths that a checkpoint was to sync, which has failed: the next one syncs them."""
        self._unsynced |= dict.fromkeys(paths)

    def doubt(self, failed: Mapping[str, OSError]) -> None:
        """Learn which files a checkpoint could not write or sync, of which it has written no mark.

        What was written to one whose sync failed may be lost, however the next sync of it ends. The mark goes
        at once; of the files some are looked at, and the others by `doubt_on`.
        """
        if failed:
            self._is_damaged = True
            self._unmark()
            self._to_doubt.append(iter(failed.items()))
            self.doubt_on()

    @property
    def has_doubts(self) -> bool:
        """Whether files have failed that were not looked at: call `doubt_on`."""
        return bool(self._to_doubt)

    def doubt_on(self) -> None:
        """Look at some more files that have failed: no later process may believe them, and each is told."""
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
        """Return the rows that a snapshot keeps, of queues that have entries; see `queue.kept`."""
        while self.has_doubts:  # what a snapshot keeps is of all
            self.doubt_on()
        self._frozen.take_all()
        self._frozen = DeferredRows(self._queues, ConsumeQueue.taken, lambda key, now: (*key, *kept(now)))
        return self._frozen

    def wants_mark(self) -> bool:
        """Return whether a checkpoint is to write the mark: of files that have none, and none is damaged.

        A mark that was there and is not there now was taken away, perhaps since the checkpoint began.
        """
        return self.made_at is None and not self._is_damaged

    def may_be_marked(self) -> None:
        """Learn that a checkpoint has tried to write the mark: it may be there though damage was met."""
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
        """Take over the queues of an earlier run; return False, with no queues at all, if they are not whole.

        Files that were being made anew when the power went may have holes, and in others damage was met; then
        their mark is missing, or names other files than those of the snapshot. `frozen` is None in the first
        snapshot of an import, which is written before there are queues: those that are there were made by a
        start that did not come to its own snapshot. Only files of `read_topics`, which the start reads, are
        looked at. `recorded` is what the snapshot keeps of queues that begin later than records say.
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
        if not all(queue.is_sound(may_be_cut=True) for queue in read):  # by a record that is replayed later
            self.drop()
            return False
        for topic, queue_id, offset in recorded:
            self._note_recorded(self.queue(topic, queue_id), offset)
        return True

    def _are_folders_there(self, stored: Iterable[StoredQueue]) -> bool:
        """Return whether no topic's folder was deleted: more of files no start looks at.

        Of a folder that the disk cannot list none is there: all in it can be made anew.
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
        """Let queues that were made anew end where they did: last records that the log lacks stay gaps.

        One of which the log has no record is a gap from the offset on that `firsts` has for (topic, queue
        id), or begins at its end. `recorded` is as `adopt` takes it.
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
        if not (writes := queue.unwritten(1)):  # `take_unneeded` has written them meanwhile
            return
        path = writes[0].path
        why = error.strerror or error
        self._found_damaged(
            path,
            f"{path} cannot be written ({why}): entries stay in memory until it can, or, where they grow too "
            f"many, reads of it fail. {_ADVICE}",
        )

    def _tell_unmade(self, queue: ConsumeQueue, error: OSError) -> None:
        """Tell of a file that is not there: it says nothing of others, so the mark stays."""
        for one in queue.unwritten(1):
            what = (
                f"{one.path} cannot be made ({error.strerror or error}), though the disk has room for bytes: "
                "free inodes (df -i), or raise the quota of files. Its entries stay in memory until it can, "
                "or, where they grow too many, reads of it fail."
            )
            self._tell_damaged(one.path, what)

    def _let_go(self) -> None:
        """Let go of tails that are too long, whose files the disk refuses; no write is under way."""
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
        """Try again, now and then, to take away a mark that could not be: call it every some seconds.

        A try may hold the loop for as long as the device's timeout. So it is made at the 1st, 2nd, 4th, 8th
        call and so on up to the 64th, and then at every 64th.
        """
        if self._unmark_calls is not None:
            self._unmark_calls += 1
            if self._unmark_calls.bit_count() == 1 or self._unmark_calls % _UNMARK_CALLS_MAX == 0:
                self._delete_mark()

    def _unmark(self) -> None:
        """Take the mark away, once: to delete it syncs the store's folder, also where it is gone.

        After a failure only `unmark_again` tries again, however many more files are damaged.
        """
        if not self._is_unmarked and self._unmark_calls is None:
            self._delete_mark()

    def _delete_mark(self) -> None:
        """Take the mark away; tell, once, that it could not be."""
        try:
            self._disk.delete(QUEUES_WHOLE)
        except OSError as error:  # no checkpoint writes it again
            if self._unmark_calls is None:
                self._unmark_calls = 0
                self._tell_damaged(QUEUES_WHOLE, _not_unmarked(error))
        else:
            self._is_unmarked, self._unmark_calls = True, None

    def drop(self) -> None:
        """Delete all queues, to be made anew from the log; raise OSError (`delete_files`)."""
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
    """Delete the files of all queues, which can be made anew, and first of all their mark.

    What the disk does not let go (another's, immutable, in a bad sector) is renamed with the folder it lies
    in, and nothing reads it any more. Raise OSError where that fails, too, or the mark stays.
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
    """Rename the folder of all queues, in which something cannot be deleted; raise OSError."""
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
    """Return the content of the mark of files that began with the snapshot at a log offset."""
    return b"%d\n" % made_at


def is_marked(disk: Disk, made_at: int) -> bool:
    """Return whether the files on disk are whole, and those that began with the snapshot at a log offset.

    A mark that the disk cannot read is none: all that it vouches for can be made anew.
    """
    try:
        is_there = disk.size(QUEUES_WHOLE) >= 0
        return is_there and disk.read(QUEUES_WHOLE, 0, MARK_BYTES_MAX) == mark_of(made_at)
    except OSError as error:
        if is_of_others(error):
            raise
        return False


def mark(disk: Disk, made_at: int) -> None:
    """Have starts believe the files, which are synced; raise OSError. A torn mark is none."""
    disk.delete(QUEUES_WHOLE)
    disk.write(QUEUES_WHOLE, 0, mark_of(made_at))
    disk.sync(QUEUES_WHOLE)
    disk.sync_folder("")


def _not_unmarked(error: OSError) -> str:
    """Return the report of a mark that could not be deleted."""
    return (
        f"{QUEUES_WHOLE} cannot be deleted durably ({error.strerror or error}): it marks queue files as "
        "whole of which some are damaged, and a start that finds it does not make them anew. The deletion is "
        f"tried again. See to the disk; if {QUEUES_WHOLE} is there before a restart of the broker, delete it."
    )


def is_of_file(path: str, error: OSError) -> bool:
    """Return whether what failed says something of the file that was written, which can be made anew.

    Not of the room on the disk, nor of the process, nor of another file.
    """
    return is_of_folder(path, error) or (error.errno not in NO_ROOM and not is_of_others(error))


def is_of_making(disk: Disk, path: str, error: OSError) -> bool:
    """Return whether a file could not be made, for want of an inode, say, while there is room for bytes."""
    if error.errno not in NO_ROOM:
        return False
    with suppress(OSError):
        return disk.size(path) < 0 and disk.usage()[0] >= _ROOM_BYTES
    return False


def is_of_sync(path: str, error: OSError) -> bool:
    """Return whether the sync of a queue's file failed for something that can be made anew.

    The failed sync of a folder is reported for the file in it, whose directory entry may be lost.
    """
    return is_of_file(path, error) or (isinstance(error, SyncFailed) and error.filename == path)


def firsts_there(frozen: Any, log_first_offset: int) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield (topic, queue id) and the first offset of the queues of a snapshot's part that are not cut off.

    Of the others the log may have the first records no more.
    """
    for one in stored_queues(frozen):
        if log_first_offset == 0 or one.begins_at >= log_first_offset:
            yield (one.topic, one.queue_id), one.min_offset


def files_named(frozen: Any) -> Iterator[tuple[str, int, int]]:
    """Yield (path, length in bytes, CRC-32) of the files that a snapshot's part (`Dispatch.freeze`) names.

    The oldest may have been deleted since.
    """
    for one in stored_queues(frozen):
        yield from files_of(one)


def entries_of(record: Record, record_bytes: int) -> bytes:
    """Return the queue entries of a record back to back: one, or those of the messages of an inner batch."""
    first = record.queue_offset
    if not record.sys_flag & INNER_BATCH:
        return encode(entry_of(record, record_bytes, first))
    offsets = range(first, first + message_count(record))
    return b"".join(encode(entry_of(record, record_bytes, offset)) for offset in offsets)


def entry_of(record: Record, record_bytes: int, queue_offset: int) -> Entry:
    """Return the entry at `queue_offset`, one of those that a record takes; a gap if it is unreadable."""
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
