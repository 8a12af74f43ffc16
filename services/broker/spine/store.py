"""Append records to the log, and maintain the queues and the key index.

Every change to the broker's state is made by appending a record to the store.

    draft --append--> stamped, added to the flush, applied ....flush.... durable, indexed, published

1. `append` assigns offsets and a store time to a draft, adds the encoded record to the next flush, and
   applies the record immediately. An operation can therefore use the changed state before the flush. Store
   times never decrease, even if the clock is set back.
2. The `apply` methods of the parts depend only on a fact and its stamp, not on a clock, a setting, or the
   disk. Recovery and followers therefore build the same tables from the same records. Both must call
   `prepare_queue` before `apply` for each record (`Broker.append_replicated`).
3. `complete_flush` returns the newly durable records in log order. The broker then publishes these records to
   the queues, the key index, the timers, and the receivers.

A response that depends on a record is sent only when the log is durable up to the end of the record. Each of
the four draft types has an encoder that returns an `AppendResult`. Recovery creates an `AppendResult` from
each log record (`services.broker.spine.appended`).

Limitation: records are applied before they are durable, and changes cannot be undone. If a flush fails, the
core must be discarded and the store reopened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from sys import intern
from typing import Any, Final, get_args

import numpy as np

from commitlog import applied_limits, limits
from commitlog.applied_limits import AppliedLimits
from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.facts.facts import Fact, LogCut, OfGroup, facts_of
from commitlog.log import imported
from commitlog.log.flush import Flush
from commitlog.log.log import CommitLog
from commitlog.log.recovery import FoundRecord
from commitlog.log.retention import SegmentAge
from commitlog.records import bulk, inner_batch
from commitlog.records.bulk import Integers
from commitlog.records.message import Host
from commitlog.records.record import COMPRESSED, TYPE_COMMIT, TYPE_SYSTEM, Record, encode_fields
from commitlog.snapshots.snapshot import Rows
from consumequeue.dispatch import Dispatch, is_indexed
from consumequeue.entry import ENTRY_FORMAT, Entry, tags_code
from consumequeue.indexes.keyindex import KeyIndex, other_keys_of
from consumequeue.indexes.name_hash import digest_of
from consumequeue.queue import ConsumeQueue
from services.broker.spine.appended import AppendResult, AppliedRecord, Draft, NewMessage, to_append_result
from services.broker.spine.damage import DamageList
from services.broker.spine.encoded_batch import EncodedBatch, TimersDelivered
from services.broker.spine.recent_ids import NEWEST_COUNT, RecentIds
from services.broker.spine.store_times import StoreTimes
from services.broker.spine.values import DamagedPart

_OFFSET_FACT_TYPES: Final = frozenset((*get_args(OfGroup), LogCut))
"""The facts that change group offsets. The open records of the groups are appended before such a fact."""
_new: Final = tuple.__new__
"""Create a named tuple in one third of the time taken by the constructor."""


class Store:
    """The log, the queues, and the key index of a broker."""

    def __init__(
        self, disk: Disk, log: CommitLog, host: Host, tail_entries_max: int = limits.TAIL_ENTRIES_MAX
    ) -> None:
        self.log = log
        self.damage = DamageList(log)
        self._imported_until = imported.read(disk)
        self.dispatch = Dispatch(
            disk, self._imported_until, partial(self.damage.report_file, "queue"), tail_entries_max
        )
        self.keys = KeyIndex(disk)
        self.last_store_ms = 0
        self.host = host
        self.version = applied_limits.OLDEST
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._appended: deque[AppendResult] = deque()
        self._segment_store_ms: dict[int, int] = {}
        self.times = StoreTimes()
        self.ids: RecentIds | None = None
        """The recent message ids, or None if the store accepts no messages."""
        self.may_begin_at = 0
        """The highest valid value of the first log offset.

        If the log begins at a higher offset, segments are missing.
        """
        self.apply_to_parts: Callable[[AppendResult], None] = _ignore_record
        self.close_open_records: Callable[[], None] = _ignore_close
        self._encoders: Final[Mapping[type, Callable[[Any, int], AppendResult]]] = {
            Record: self._encode,
            AppliedRecord: self._encode_applied,
            NewMessage: self._encode_message,
            EncodedBatch: self._append_encoded_batch,
        }

    def read(self, physical_offset: int, *, is_alone: bool = False) -> Record:
        """Return the durable record at a log offset.

        If `is_alone` is true, do not read any bytes after the record. Report and raise `StoreDamaged` if the
        record is unreadable, or raise OSError if the disk fails.
        """
        try:
            return self.log.read(physical_offset, 0) if is_alone else self.log.read(physical_offset)
        except StoreDamaged as error:
            self.damage.report_record(physical_offset, error)
            raise

    def read_appended(self, physical_offset: int) -> Record:
        """Return the record at a log offset, even if the record is not durable yet.

        Raise the same errors as `read`.
        """
        try:
            return self.log.appended(physical_offset)
        except StoreDamaged as error:
            self.damage.report_record(physical_offset, error)
            raise

    def read_entry(self, queue: ConsumeQueue, queue_offset: int, entry: Entry) -> Record:
        """Return the record of a queue entry. Raise `StoreDamaged` if the record is unreadable.

        The error is reported as log damage, because the queue entry has been verified.
        """
        try:
            return self._read_entry_record(queue_offset, entry)
        except StoreDamaged as error:
            self.damage.report_record(entry.physical_offset, error)
            raise

    def probe(self, queue: ConsumeQueue, queue_offset: int) -> Record | None:
        """Return the record of an entry in an unverified queue file, or None if the record is unreadable.

        Do not report damage to the record, because only searches that verify their results call this method.
        Raise `StoreDamaged` if the queue is damaged.
        """
        entry = queue.peek(queue_offset)
        if entry.record_bytes == 0 or entry.physical_offset < self.log.first_offset:
            return None
        with suppress(StoreDamaged):
            return self._read_entry_record(queue_offset, entry)
        return None

    def _read_entry_record(self, queue_offset: int, entry: Entry) -> Record:
        """Return the record of a queue entry. Raise `StoreDamaged` if the entry or the record is invalid."""
        log = self.log
        if entry.physical_offset >= log.durable_offset or not 0 < entry.record_bytes <= log.record_bytes_max:
            raise StoreDamaged(f"The entry at queue offset {queue_offset} leads nowhere.")
        record = inner_batch.pick(log.read(entry.physical_offset, entry.record_bytes), queue_offset)
        if record.queue_offset != queue_offset:
            raise StoreDamaged(f"The entry at queue offset {queue_offset} leads to another record.")
        return record

    def offsets_by_key_or_id(self, topic: str, name: str, first_offset: int) -> Iterator[int]:
        """Yield the log offsets of durable records that may have a given key or message id.

        Report and raise `StoreDamaged` if the index is unreadable. See `KeyIndex.offsets`.
        """
        try:
            yield from self.keys.offsets(topic, name, first_offset)
        except StoreDamaged as error:
            self.report_key_index(error.detail)
            raise

    def report_unreadable(self, physical_offsets: Collection[int]) -> None:
        """Reread records that a search in another thread could not read. Report those still unreadable."""
        for physical_offset in physical_offsets:
            with suppress(StoreDamaged):
                self.read(physical_offset)

    def report_gap(self, queue: ConsumeQueue, queue_offset: int, entry: Entry) -> None:
        """Report a queue gap unless known damage explains the gap or RocketMQ left it in an imported log."""
        place, has_damage_between = entry.physical_offset, self.damage.has_damage_between
        if place < self._imported_until:
            return
        if not (
            has_damage_between(-1, place)
            and has_damage_between(_offset_before_gap(queue, queue_offset, place), place)
        ):
            self.damage.report_queue_gap(*queue.key, queue_offset, place)

    def gap_end(self, queue: ConsumeQueue, queue_offset: int, entry: Entry) -> int:
        """Return the queue offset after a gap.

        In an imported log, the returned offset may be inside the gap.
        """
        if entry.physical_offset >= self._imported_until:
            return queue.whole_gap_end(queue_offset)
        # In an imported log, the record after the gap may be an inner batch.
        return queue.gap_end(queue_offset)

    def report_key_index(self, what: str) -> None:
        """Report damage to the key index. The next startup rebuilds the whole index."""
        self.damage.report(DamagedPart("index", "", what), "index")

    @property
    def has_flush_backlog(self) -> bool:
        """Whether the number of unflushed bytes exceeds the limit for internal appends."""
        return self.log.end_offset - self.log.durable_offset > limits.UNFLUSHED_BYTES_MAX

    def append(self, new: Draft, now_ms: int) -> AppendResult:
        """Stamp and encode a draft, add the record to the next flush, and apply the facts.

        A response that depends on the record must wait until the log is durable up to `end_offset`. If the
        draft is an `EncodedBatch`, only the records that fit into the current segment are appended.
        """
        store_ms = now_ms if now_ms > self.last_store_ms else self.last_store_ms
        appended = self._encoders[type(new)](new, store_ms)
        self._appended.append(appended)
        self.apply(appended)
        # A new message without facts does not change the state of any part, because the topic already exists.
        if appended.facts or type(new) is not NewMessage:
            self.apply_to_parts(appended)
        return appended

    def _encode(self, new: Record, store_ms: int) -> AppendResult:
        facts = facts_of(new)
        if not _OFFSET_FACT_TYPES.isdisjoint(map(type, facts)):
            self.close_open_records()
            store_ms = max(store_ms, self.last_store_ms)
        return self._append_record(new, store_ms, facts)

    def _encode_applied(self, new: AppliedRecord, store_ms: int) -> AppendResult:
        return self._append_record(new.record, store_ms, ())

    def _append_record(self, new: Record, store_ms: int, facts: Sequence[Fact]) -> AppendResult:
        new.store_ms = store_ms
        new.store_host = self.host
        is_queued = new.type != TYPE_SYSTEM
        new.queue_offset = self._next_offsets.get((new.topic, new.queue_id), 0) if is_queued else 0
        self.log.append(new)
        return to_append_result(new, self.log.end_offset - new.physical_offset, facts)

    def _encode_message(self, new: NewMessage, store_ms: int) -> AppendResult:
        message, stored, topic, queue_id, facts, half_offset, id_digest = new
        log, queue = self.log, (topic, queue_id)
        queue_offset = self._next_offsets.get(queue, 0)
        sys_flag = (0 if half_offset is None else TYPE_COMMIT) | (COMPRESSED if message.gzip else 0)
        # A record that does not fit into the segment is encoded again for the next segment, because its
        # encoding contains its log offset.
        while True:
            offset = log.end_offset
            encoded = encode_fields(
                topic, message.body, stored, queue_id, queue_offset, offset, sys_flag,
                message.born_ms, message.born_host, store_ms, self.host, 0, 0, half_offset or 0,
            )  # fmt: skip
            if log.gather(encoded):
                break
        return _new(AppendResult, (
            offset, log.end_offset, queue_offset, store_ms, facts, encoded, queue,
            ENTRY_FORMAT.pack(offset, len(encoded), tags_code(message.tag)), half_offset is None,
            id_digest or digest_of(message.topic, message.message_id), message.topic, other_keys_of(message),
        ))  # fmt: skip

    def _append_encoded_batch(self, copies: EncodedBatch, store_ms: int) -> AppendResult:
        copies = copies.slice_rows(0, self.log.room_for(copies.record_bytes.tolist()))
        assert len(copies), "a segment takes one record at least, or the rest of a run would wait for ever"
        ends, offset = np.cumsum(copies.record_bytes), self.log.end_offset
        starts = ends - copies.record_bytes
        queue_offsets = self._assign_queue_offsets(copies)
        bulk.stamp(copies.content, starts, ends, offset + starts, queue_offsets, store_ms)
        self.log.append_encoded(copies.content)
        run = TimersDelivered(copies, offset + starts, queue_offsets, store_ms)
        return AppendResult(offset, self.log.end_offset, 0, store_ms, (run,))

    def apply(self, appended: AppendResult) -> None:
        """Update the next queue offset, last store time, segment age, and recent ids."""
        offset, _, queue_offset, store_ms, _, _, queue, _, is_sent, id_digest, _, _ = appended
        if store_ms > self.last_store_ms:
            self.last_store_ms = store_ms
        self._segment_store_ms[self.log.segment_of(offset)] = store_ms
        if store_ms >= self.times.next_ms:
            self.times.add_record(store_ms, offset)
        if queue is not None:
            next_offsets = self._next_offsets
            if queue_offset >= next_offsets.get(queue, 0):
                next_offsets[queue] = queue_offset + 1
        if is_sent and (ids := self.ids) is not None:
            if id_digest in ids.newest:
                ids.flush_newest_ids()
            ids.newest[id_digest] = offset  # This is `RecentIds.put`, inlined.

    def prepare_queue(self, record: Record) -> None:
        """Begin an empty queue with a gap if log damage has destroyed its first records.

        Recovery and followers must call this method for each record before `apply`. Queue offsets are
        assigned once and without gaps. In an imported log, a record replaces all queue entries at or above
        its queue offset.
        """
        expected = self._next_offsets.get((record.topic, record.queue_id), 0)
        if record.queue_offset > expected:
            self.dispatch.begin_with_gap(record, expected)
        self.dispatch.truncate_imported_queue(record)

    def reserve_offsets(self, run: TimersDelivered) -> None:
        """Update the next queue offsets after a batch of timer deliveries."""
        codes, positions, begins = run.copies.group_by_queue()
        lasts = run.queue_offsets[positions[begins[1:] - 1]].tolist()
        for code, last in zip(codes, lasts, strict=True):
            self.reserve_offset(*run.copies.queues[code], last)

    @property
    def applied(self) -> AppliedLimits:
        """The limits that apply to records of the current version."""
        return applied_limits.BY_VERSION[self._limits_row]

    @property
    def version(self) -> int:
        """The version in the newest epoch record, which determines how records are applied."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version, self._limits_row = version, applied_limits.row_of(version)

    def freeze(self) -> Any:
        """Return the next queue offsets, segment ages, and other state for a snapshot."""
        ages = list(self._segment_store_ms.items())
        return {
            "next_offsets": Rows([self._next_offsets.copy()], lambda key, offset: (*key, offset)),
            "last_store_ms": self.last_store_ms,
            "segment_store_ms": ages,
            "times": self.times.freeze(),
            "may_begin_at": max(self.may_begin_at, self.log.first_offset),
            "first_offset": self.log.first_offset,
            "version": self.version,
        }

    def thaw(self, frozen: Any) -> None:
        """Restore the state from a snapshot."""
        self.last_store_ms = frozen["last_store_ms"]
        self._segment_store_ms = dict(frozen["segment_store_ms"])
        self.times.thaw(frozen["times"])
        self.may_begin_at = frozen["may_begin_at"]
        self.version = frozen["version"]
        self.truncate_log(frozen["first_offset"])
        for topic, queue_id, offset in frozen["next_offsets"]:
            self._next_offsets[(intern(topic), queue_id)] = offset

    def segment_ages(self) -> list[SegmentAge]:
        """Return all segments, oldest first, with the store time of the newest record in each segment."""
        offsets = self.log.segment_offsets()
        return [SegmentAge(offset, self._segment_store_ms.get(offset, 0)) for offset in offsets]

    def truncate_log(self, first_offset: int) -> None:
        """Truncate the log before `first_offset`. Records below `first_offset` are no longer read."""
        self.log.cut(first_offset)
        self._segment_store_ms = {
            offset: ms for offset, ms in self._segment_store_ms.items() if offset >= first_offset
        }

    def reserve_offset(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Reserve a queue offset, even if damage has destroyed the record at that offset."""
        key = (topic, queue_id)
        self._next_offsets[key] = max(self._next_offsets.get(key, 0), queue_offset + 1)

    def unflushed(self) -> Iterator[AppendResult]:
        """Return an iterator over the appended records that are not durable yet, in log order."""
        return iter(self._appended)

    @property
    def unflushed_count(self) -> int:
        """The number of appended records that are not durable yet."""
        return len(self._appended)

    def complete_flush(self, flush: Flush) -> Iterator[AppendResult]:
        """Advance the durable offset, and yield the newly durable records in log order."""
        before_offset = self.log.durable_offset
        self.log.complete_flush(flush)
        durable_offset = self.log.durable_offset
        assert before_offset <= durable_offset <= self.log.end_offset, "durable goes forward, within the log"
        while self._appended and self._appended[0].end_offset <= durable_offset:
            yield self._appended.popleft()

    def index(self, durable: Sequence[AppendResult]) -> None:
        """Add durable records to their queues and to the key index, in log order.

        Records without a queue are ignored.
        """
        runs: dict[tuple[str, int], tuple[int, list[bytes]]] = {}
        digests, offsets = list[bytes](), list[int]()
        for offset, _, queue_offset, _, _, _, queue, entries, _, id_digest, topic, names in durable:
            if queue is None:
                continue
            if (run := runs.get(queue)) is None:
                # If the records belong to many queues, most lists in `runs` have a single element.
                runs[queue] = queue_offset, [entries]
            else:
                run[1].append(entries)
            if id_digest:
                digests.append(id_digest)
                offsets.append(offset)
            for name in names:
                digests.append(digest_of(topic, name))
                offsets.append(offset)
        self.dispatch.dispatch_runs((key, first, b"".join(entries)) for key, (first, entries) in runs.items())
        self.keys.put_digests(digests, offsets)
        if self.ids is not None and len(self.ids.newest) >= NEWEST_COUNT:
            self.ids.flush_newest_ids()

    def index_delivery_batch(self, run: TimersDelivered) -> None:
        """Add a batch of durable timer deliveries to the queues and the key index."""
        self.dispatch.dispatch_runs(run.entries())
        self.keys.put_many(*run.names())

    def index_keys(self, found: FoundRecord) -> None:
        """Add a record to the key index during recovery, and spill the index if it grows too large."""
        if is_indexed(found.record):
            self.keys.put(found.record)
            self.keys.spill(self.log.first_offset)

    def _assign_queue_offsets(self, copies: EncodedBatch) -> Integers:
        codes, positions, begins = copies.group_by_queue()
        firsts = np.array([self._next_offsets.get(copies.queues[code], 0) for code in codes], np.int64)
        offsets = np.empty(len(copies), np.int64)
        offsets[positions] = np.repeat(firsts - begins[:-1], np.diff(begins)) + np.arange(len(copies))
        return offsets


def _offset_before_gap(queue: ConsumeQueue, queue_offset: int, place: int) -> int:
    """Return one plus the log offset of the record before a queue gap.

    The log damage that caused the gap is between the records before and after the gap. If the record before
    the gap is unknown because the queue file is damaged, return `place`, the log offset of the record after
    the gap.
    """
    with suppress(StoreDamaged):
        return queue.place_before_gap(queue_offset) + 1
    return place


def _ignore_record(appended: AppendResult) -> None:
    """Do nothing. The store of a command-line tool has no parts."""


def _ignore_close() -> None:
    """Do nothing. The store of a command-line tool has no consumer groups."""
