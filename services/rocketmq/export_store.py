"""A store of Tidewheel becomes one that a genuine Apache RocketMQ broker opens and goes on from.

The segments are copied byte for byte (but for damage, see `filler`). Behind them come records that
say in RocketMQ's own way what ours say in ours, so that nothing that is over happens again and nothing that
waits is lost:

    in our store                     in the export
    half that has ended              its queue offset in an op record
    half that is open                stays where it is; from a keep file: written again
    half that expired                an op record, and a copy in TRANS_CHECK_MAX_TIME_TOPIC
    pending timer                    a fresh rmq_sys_wheel_timer record
    every other timer                lies below the wheel's offset in config/timercheck
    delay levels of an import        all below their offsets in config/delayOffset.json
    acknowledged up to an offset     config/consumerOffset.json
    acknowledged above a gap         cannot be said: those messages come again, and the summary names them
    topics, groups                   config/topics.json, config/subscriptionGroup.json
    schedules, users, their rights   cannot be said: the summary tells

Queues are written whole: from segments alone RocketMQ 5.4 makes them of the last ten only. Topics with inner
batches get its queues for those. `abort` is left in place, so that the broker also makes its key index. Its
settings must name our segment size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import NotAStore, StoreDamaged, StoreError
from commitlog.facts.facts import HalfStored, facts_of
from commitlog.lock import StoreLock
from commitlog.log.log import CommitLog
from commitlog.log.recovery import Damage
from commitlog.records import inner_batch
from commitlog.records.kinds import HALF_TOPIC, TIMER_TOPIC
from commitlog.records.message import MessageType
from commitlog.records.record import Record
from consumequeue.dispatch import entry_of, is_indexed
from consumequeue.entry import Entry
from services.rocketmq import batches, config_files
from services.rocketmq.append import Appender
from services.rocketmq.config_files import TRANSACTION_GROUP, TimerCheck, TopicConfig
from services.rocketmq.filler import fillers
from services.rocketmq.handover import Handover
from services.rocketmq.names import LEVEL_TOPIC, OP_TOPIC
from services.rocketmq.queues import QueueFiles
from services.rocketmq.source import refuse_if_live
from services.store.read_only.opening import OpenStore, open_store
from services.store.read_only.state import GroupState, State, fold

Say = Callable[[str], None]

_COPY_BYTES: Final = 8 * 1024 * 1024
_ABORT: Final = "abort"


@dataclass(frozen=True, slots=True)
class Repeat:
    """Messages of a queue that a group has acknowledged and that RocketMQ will give it again."""

    group: str
    topic: str
    queue_id: int
    from_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What an export holds; RocketMQ's `mappedFileSizeCommitLog` must be `segment_bytes`."""

    segment_bytes: int
    end_offset: int
    topic_count: int
    group_count: int
    pending_timer_count: int
    open_half_count: int
    expired_half_count: int
    op_count: int
    repeats: list[Repeat]
    damaged: list[Damage]
    notes: list[str]


def export_store(source: Path, target: Path, on_progress: Say, now_ms: int) -> ExportSummary:
    """Write the store in `source` as a RocketMQ store into the empty or missing folder `target`.

    `source` is only read, and its broker must be stopped: what came after the copy would be missing there.
    Raise a `StoreError` if either is not what it should be.
    """
    store = open_store(source)
    _refuse_many_sizes(store)
    refuse_if_live(source)
    lock = StoreLock(target)
    lock.acquire()
    disk = RealDisk(target)
    try:
        if names := [name for name in disk.list("") if name != "lock"]:
            raise NotAStore(
                f"{target} holds {names[0]!r}; an export needs an empty folder. Nothing was touched."
            )
        return _Export(store, disk, on_progress, now_ms).run()
    finally:
        disk.close()
        lock.release()


@dataclass(slots=True)
class _Seen:
    """What the pass over the log found."""

    half_offsets: dict[int, int] = field(default_factory=dict)
    delayed_halves: set[int] = field(default_factory=set)
    batch_topics: set[str] = field(default_factory=set)
    damaged: list[Damage] = field(default_factory=list)
    patches: list[tuple[int, bytes]] = field(default_factory=list)


class _Export:
    def __init__(self, store: OpenStore, disk: RealDisk, say: Say, now_ms: int) -> None:
        self._store = store
        self._disk = disk
        self._say = say
        self._now_ms = now_ms
        self._original = CommitLog(
            store.overlay(), store.segment_bytes, store.first_offset, store.durable_offset
        )
        self._queues = QueueFiles(disk.root)
        self._seen = _Seen()
        self._filler = Entry(0, 0x7FFFFFFF, 0)
        self._last_store_ms = 0

    def run(self) -> ExportSummary:
        try:
            self._disk.write(_ABORT, 0, b"0")
            self._say("reading the state")
            state = fold(self._store, self._now_ms)
            self._read()
            self._copy()
            handover = self._append(state)
            self._queues.finish()
            for topic in self._seen.batch_topics:
                batches.convert(self._disk.root, topic, self._read_original)
            self._write_config(state, handover)
            self._disk.delete(layout.DURABLE)
        except BaseException:
            for name in self._disk.list(""):
                self._disk.delete(name)
            raise
        return self._summary(state, handover)

    def _read(self) -> None:
        """Make the queues, and find halves and damage."""
        scan = self._store.scan()
        told_segment = -1
        for found in scan:
            while len(self._seen.damaged) < len(scan.damaged):
                self._cover(scan.damaged[len(self._seen.damaged)])
            record = found.record
            self._last_store_ms = max(self._last_store_ms, record.store_ms)
            segment = record.physical_offset // self._store.segment_bytes
            if segment != told_segment:
                told_segment = segment
                self._say(f"reading {layout.segment_path(segment * self._store.segment_bytes)}")
            self._index(record, found.record_bytes)
        for damaged in scan.damaged[len(self._seen.damaged) :]:
            self._cover(damaged)

    def _index(self, record: Record, record_bytes: int) -> None:
        if not is_indexed(record):
            return
        count = inner_batch.message_count(record)
        if count > 1:
            self._seen.batch_topics.add(record.topic)
        for half in (fact for fact in facts_of(record) if isinstance(fact, HalfStored)):
            self._seen.half_offsets[record.physical_offset] = record.queue_offset
            if half.due_ms is not None:
                self._seen.delayed_halves.add(record.physical_offset)
        for queue_offset in range(record.queue_offset, record.queue_offset + count):
            new = entry_of(record, record_bytes, queue_offset)
            self._queues.put(record.topic, record.queue_id, queue_offset, new, self._filler)

    def _cover(self, damaged: Damage) -> None:
        self._seen.damaged.append(damaged)
        for offset, covering in fillers(damaged, self._store.segment_bytes, self._last_store_ms):
            self._seen.patches.append((offset, covering))
            self._filler = Entry(offset, len(covering), 0)

    def _copy(self) -> None:
        end = self._store.durable_offset
        for first_offset in self._store.segment_offsets:
            if first_offset >= end:
                continue
            path = layout.segment_path(first_offset)
            self._say(f"copying {path}")
            self._disk.allocate(path, self._store.segment_bytes)
            view = self._store.files.view(path).upto(end - first_offset)
            for position in range(0, len(view), _COPY_BYTES):
                self._disk.write(path, position, bytes(view[position : position + _COPY_BYTES]))
        for offset, covering in self._seen.patches:
            position = offset % self._store.segment_bytes
            self._disk.write(layout.segment_path(offset - position), position, covering)
        for first_offset in self._store.segment_offsets:
            if first_offset < end:
                self._disk.sync(layout.segment_path(first_offset))

    def _append(self, state: State) -> Handover:
        self._say("writing what is still to happen")
        store = self._store
        log = CommitLog(self._disk, store.segment_bytes, store.first_offset, store.durable_offset)
        store_ms = max(self._last_store_ms, self._now_ms)
        appender = Appender(self._disk, log, dict(state.next_offsets), store_ms)
        handover = Handover(self._original.read, store.first_offset, appender, self._indexed)
        handover.timers(state.timers.waiting())
        handover.halves(state.halves, self._seen.half_offsets)
        appender.flush()
        return handover

    def _indexed(self, record: Record, record_bytes: int) -> None:
        queue_offset = record.queue_offset
        new = entry_of(record, record_bytes, queue_offset)
        self._queues.put(record.topic, record.queue_id, queue_offset, new, self._filler)

    def _read_original(self, physical_offset: int) -> Record | None:
        """Return a record of the copied log; None where a filler lies in the place of damage."""
        try:
            return self._original.read(physical_offset)
        except StoreDamaged:
            return None

    def _write_config(self, state: State, handover: Handover) -> None:
        now_ms = self._now_ms
        topics = {
            one.name: TopicConfig(
                one.name, one.queue_count, MessageType(one.message_type), one.name in self._seen.batch_topics
            )
            for one in state.topics
        }
        offsets = _group_offsets(state.groups)
        offsets[(HALF_TOPIC, TRANSACTION_GROUP)] = {0: handover.half_offset}
        offsets[(OP_TOPIC, TRANSACTION_GROUP)] = {0: handover.op_offset}
        levels = {
            queue_id + 1: offset
            for (topic, queue_id), offset in state.next_offsets.items()
            if topic == LEVEL_TOPIC
        }
        check = TimerCheck(now_ms, state.next_offsets.get((TIMER_TOPIC, 0), 0))
        groups = sorted({one.group for one in state.groups})
        files = {
            config_files.TOPICS: config_files.topics_json(topics, now_ms).encode(),
            config_files.CONSUMER_OFFSETS: config_files.consumer_offsets_json(offsets, now_ms).encode(),
            config_files.DELAY_OFFSETS: config_files.delay_offsets_json(levels, now_ms).encode(),
            config_files.GROUPS: config_files.groups_json(groups, now_ms).encode(),
            config_files.TIMER_CHECK: config_files.timer_check_bytes(check, now_ms),
        }
        for path, content in files.items():
            self._disk.write(path, 0, content)
            self._disk.sync(path)

    def _summary(self, state: State, handover: Handover) -> ExportSummary:
        notes = list(handover.notes)
        delayed = [one for one in state.halves_in("OPEN") if one.half_offset in self._seen.delayed_halves]
        if delayed:
            notes.append(
                f"{len(delayed)} open halves have a delivery time, which RocketMQ does not know: it delivers "
                "them when they are committed."
            )
        if state.schedules:
            names = ", ".join(one.name for one in state.schedules)
            notes.append(f"RocketMQ has no schedules; these are not there: {names}. Set them again.")
        if state.user_count:
            notes.append(f"Users, with their rules and tokens, that are not there: {state.user_count}.")
        return ExportSummary(
            segment_bytes=self._store.segment_bytes,
            end_offset=handover.end_offset,
            topic_count=len(state.topics),
            group_count=len({one.group for one in state.groups}),
            pending_timer_count=handover.timer_count,
            open_half_count=len(state.halves_in("OPEN")),
            expired_half_count=len(state.halves_in("EXPIRED")),
            op_count=handover.op_count,
            repeats=[_repeat(one) for one in state.groups if one.done_above],
            damaged=self._seen.damaged,
            notes=notes,
        )


def _refuse_many_sizes(store: OpenStore) -> None:
    """Raise `StoreError` if RocketMQ could not have the segments: its own begin at multiples of one size."""
    if not store.segments.is_uniform or store.first_offset % store.segment_bytes:
        raise StoreError(
            "Its log segments have different sizes, which RocketMQ cannot read. Nothing "
            "was written. Hand over what waits by sending it to RocketMQ again."
        )


def _group_offsets(groups: list[GroupState]) -> dict[tuple[str, str], dict[int, int]]:
    offsets: dict[tuple[str, str], dict[int, int]] = {}
    for one in groups:
        offsets.setdefault((one.topic, one.group), {})[one.queue_id] = one.committed_offset
    return offsets


def _repeat(one: GroupState) -> Repeat:
    count = sum(count for _, count in one.done_above)
    return Repeat(one.group, one.topic, one.queue_id, one.done_above[0][0], count)
