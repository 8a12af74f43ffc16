"""Every record of the log to its queue: the one rule by which the queues are made and made again.

Records of transaction type none or commit get an entry (RocketMQ `DefaultMessageStore`); our own system
records (type 12) get none. What only an imported log holds: an inner batch gets an entry for each of its
messages, and queue offsets that begin anew (the topic was deleted and made again) replace the earlier ones.

New entries wait in memory until a worker takes what has gathered (`take`); what it could not write stays,
since all of it can be made again. One such write is under way at a time.

    dispatch --> gathered in a queue --> take --> a worker writes --> written: let go of in memory
                       ^                              |
                       +---- the disk is full --------+

A checkpoint takes the queues afterwards, in slices (`commitlog.deferred_rows`): a queue is taken before it
changes, and what it had gathered is written with the checkpoint, whose worker syncs the files that were
written since the last one.

Cost: 20 bytes appended a record, for records of one queue at once (`dispatch_many`). Weak spot: `trim`,
`minimums` and `delete_unneeded` go through all queues, though few have changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from commitlog import properties
from commitlog.deferred_rows import NOTHING, DeferredRows
from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.inner_batch import message_count, pick
from commitlog.layout import CONSUMEQUEUE, QUEUES_WHOLE
from commitlog.record import TYPE_COMMIT, TYPE_MASK, TYPE_NORMAL, Record
from consumequeue.entry import Entry, lite_code, tags_code
from consumequeue.queue import (
    ConsumeQueue,
    FoundDamaged,
    QueueWrite,
    TakenQueue,
    files_of,
    ignore_damage,
    kept,
    writes_of,
)

_LITE_TOPIC: Final = properties.LITE_TOPIC.encode()
_TAG: Final = properties.TAG.encode()


def is_indexed(record: Record) -> bool:
    """Return whether a record's kind has a place in a queue."""
    return record.sys_flag & TYPE_MASK in (TYPE_NORMAL, TYPE_COMMIT)


@dataclass(slots=True, eq=False)
class EntriesToWrite:
    """Entries of durable records, by queue, for a worker to write."""

    writes: list[tuple[ConsumeQueue, QueueWrite]]
    written_count: int = 0

    def write(self, disk: Disk) -> None:
        """Write the entries in order, unsynced, as far as there is room."""
        with suppress(OSError):
            for _, one in self.writes:
                disk.write(*one)
                self.written_count += 1


class Dispatch:
    """All queues of a store; empty until a snapshot's are adopted or records are dispatched."""

    def __init__(
        self, disk: Disk, imported_until: int = 0, found_damaged: FoundDamaged = ignore_damage
    ) -> None:
        """`imported_until`: the log below this offset was imported (see `commitlog.imported`)."""
        self._disk, self._found_damaged = disk, found_damaged
        self._imported_until = imported_until
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._changed: dict[ConsumeQueue, None] = {}  # in order, so that a seed replays
        self._unsynced: dict[str, None] = {}
        """Paths of files that were written since the last checkpoint."""
        self._frozen: DeferredRows[tuple[str, int], ConsumeQueue] = NOTHING
        self._taken: EntriesToWrite | None = None

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the index of one queue, made empty on first use."""
        key = (topic, queue_id)
        if key not in self._queues:
            self._queues[key] = self._queue(topic, queue_id)
        return self._queues[key]

    def look(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the index of one queue to read from; without entries an empty one, which is not kept."""
        return self._queues.get((topic, queue_id)) or ConsumeQueue(self._disk, topic, queue_id)

    def dispatch(self, record: Record, record_bytes: int) -> bool:
        """Index one durable record; return False if its kind is not indexed."""
        if not is_indexed(record):
            return False
        key = (record.topic, record.queue_id)
        queue = self._queues.get(key) or self.queue(*key)
        if self._frozen.is_open:
            self._frozen.before_change(key)
        # Of an imported log only: our own gives no queue offset twice, there `put` reports the bug.
        if record.physical_offset < self._imported_until and record.queue_offset < queue.end_offset:
            self._unsynced |= dict.fromkeys(queue.cut(record.queue_offset))
        for queue_offset in range(record.queue_offset, record.queue_offset + message_count(record)):
            queue.put(queue_offset, entry_of(record, record_bytes, queue_offset))
        self._changed[queue] = None
        return True

    def dispatch_many(self, topic: str, queue_id: int, queue_offset: int, entries: bytes) -> None:
        """Index many durable records of one queue, the first of which has `queue_offset`."""
        queue = self.queue(topic, queue_id)
        if self._frozen.is_open:
            self._frozen.before_change(queue.key)
        queue.put_many(queue_offset, entries)
        self._changed[queue] = None

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
        """Write the new entries of all queues here and now; on a full disk they wait in memory."""
        if (entries := self.take()) is not None:
            entries.write(self._disk)
            self.written()

    def take(self) -> EntriesToWrite | None:
        """Return what waits in memory, to be written before `written`; None for nothing or during a write."""
        if self._taken is not None or not self._changed:
            return None
        self._taken = EntriesToWrite([(queue, one) for queue in self._changed for one in queue.unwritten()])
        self._unsynced |= dict.fromkeys(one.path for _, one in self._taken.writes)
        return self._taken

    def written(self) -> None:
        """Let go of what was taken and written; what there was no room for stays."""
        assert self._taken is not None, "nothing was taken to be written"
        taken, self._taken = self._taken, None
        assert taken.written_count <= len(taken.writes), "more was written than was taken"
        for queue, one in taken.writes[: taken.written_count]:
            self._frozen.before_change(queue.key)
            queue.written(one)
            # A queue stays changed for what came to it while the worker wrote.
            if not queue.has_unwritten:
                self._changed.pop(queue, None)

    def unwritten(self) -> list[QueueWrite]:
        """Return what waits in memory: a checkpoint writes it first, or fails."""
        return [one for queue in self._changed for one in queue.unwritten()]

    def trim(self, log_first_offset: int) -> None:
        """Delete the entries that point below an offset up to which the log was deleted."""
        for key, queue in self._queues.items():
            self._frozen.before_change(key)
            queue.rise(queue.first_from(log_first_offset))
        self.delete_unneeded()

    def minimums(self, log_offset: int) -> list[tuple[str, int, int]]:
        """Return (topic, queue id, first offset at or above) of queues with entries below a log offset."""
        firsts = ((*key, queue.first_from(log_offset), queue) for key, queue in self._queues.items())
        return [
            (topic, queue_id, first) for topic, queue_id, first, queue in firsts if first > queue.min_offset
        ]

    def rise(self, minimums: Iterable[tuple[str, int, int]]) -> None:
        """Let queues begin at the offsets of (topic, queue id, offset) from now on."""
        for topic, queue_id, min_offset in minimums:
            self._frozen.before_change((topic, queue_id))
            self.queue(topic, queue_id).rise(min_offset)

    def delete_unneeded(self) -> None:
        """Delete the files in which no queue has entries any more."""
        for key, queue in self._queues.items():
            self._frozen.before_change(key)
            self._unsynced |= dict.fromkeys(queue.delete_unneeded())

    def take_unsynced(self) -> list[str]:
        """Return the paths of the files that were written since the last call, for a checkpoint to sync."""
        paths, self._unsynced = [*self._unsynced], {}
        return paths

    def not_synced(self, paths: Iterable[str]) -> None:
        """Take back paths that a checkpoint was to sync, which has failed: the next one syncs them."""
        self._unsynced |= dict.fromkeys(paths)

    def freeze(self) -> DeferredRows[tuple[str, int], ConsumeQueue]:
        """Return what a snapshot keeps of each queue: entry count, CRCs of its files, where it begins."""
        self._frozen.take_all()
        self._frozen = DeferredRows(self._queues, ConsumeQueue.taken, lambda key, now: (*key, *kept(now)))
        return self._frozen

    def adopt(self, frozen: Any) -> bool:
        """Take over the files of an earlier run; return False, with no queues at all, if they are not whole.

        Files that were being made anew when the power went may have holes; then their mark is missing.
        `frozen` is None in the first snapshot of an import, which is written before there are queues: those
        that are there were made by a start that did not come to a snapshot of its own.
        """
        assert not self._changed, "a store that has entries adopts no others"
        if frozen is None or self._disk.size(QUEUES_WHOLE) < 0:
            self.drop()
            return False
        for topic, queue_id, written_count, crcs, *min_offset in frozen:
            queue = self._queue(topic, queue_id, written_count)
            self._queues[(topic, queue_id)] = queue
            if not queue.adopt(crcs):
                self.drop()
                return False
            queue.rise(*min_offset or (0,))  # older snapshots do not say it
        return True

    def complete(self, frozen: Any, log_offset: int) -> None:
        """Let queues that were made anew end where they did: last records that the log lacks stay gaps."""
        for topic, queue_id, entry_count, _, *min_offset in frozen or ():
            queue = self.queue(topic, queue_id)
            queue.pad_to(max(entry_count, queue.end_offset), log_offset)
            queue.rise(*min_offset or (0,))
            assert queue.end_offset >= entry_count, f"{topic}, queue {queue_id}, gives offsets out again"
            self._changed[queue] = None

    def _queue(self, topic: str, queue_id: int, written_count: int = 0) -> ConsumeQueue:
        return ConsumeQueue(self._disk, topic, queue_id, written_count, self._found_damaged)

    def drop(self) -> None:
        """Delete all queues, to be made anew from the log."""
        assert self._taken is None, "a worker is writing entries of these queues"
        self._queues.clear()
        self._changed.clear()
        self._unsynced.clear()
        self._frozen = NOTHING
        self._disk.delete(QUEUES_WHOLE)
        self._disk.delete(CONSUMEQUEUE)


def gathered(frozen: DeferredRows[tuple[str, int], ConsumeQueue]) -> Iterator[QueueWrite]:
    """Yield what the queues had gathered when they were frozen: a checkpoint writes it first, or fails."""
    taken: TakenQueue
    for key, taken in frozen.items():
        yield from writes_of(key, taken)


def files_named(frozen: Any) -> Iterator[tuple[str, int]]:
    """Yield (path, length in bytes) of the files that a snapshot's part (`Dispatch.freeze`) counts on.

    The oldest may have been deleted since.
    """
    for topic, queue_id, entry_count, crcs, *_ in frozen or ():
        yield from files_of(topic, queue_id, entry_count, (first_byte for first_byte, _ in crcs))


def entry_of(record: Record, record_bytes: int, queue_offset: int) -> Entry:
    """Return the entry at `queue_offset`, one of those that a record takes; a gap if it is unreadable."""
    try:
        stored = pick(record, queue_offset).properties
    except StoreDamaged:
        return Entry(record.physical_offset, 0, 0)
    code = 0
    if _LITE_TOPIC in stored and (lite_topic := properties.value_of(stored, properties.LITE_TOPIC)):
        code = lite_code(lite_topic)
    elif _TAG in stored:
        code = tags_code(properties.value_of(stored, properties.TAG))
    return Entry(record.physical_offset, record_bytes, code)
