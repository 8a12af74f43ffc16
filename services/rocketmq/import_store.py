"""An Apache RocketMQ store becomes a store of Tidewheel, with nothing that was still to happen forgotten.

The segments are copied byte for byte up to the log's verified end, so every message keeps its queue, its
queue offset and its place. What RocketMQ keeps beside its log is taken over in two ways:

    in a snapshot at the copied end     every queue's next offset, and how far each group is
    as our own records behind it        topics; a timer record for each delayed message that waits, of delay
                                        levels and of the timer wheel; a copy of each open or expired half

So what must still happen rests on records with a whole-record CRC, like all that a broker writes itself. The
last step is a start of the broker, which makes queues and key index, and its snapshot.

Until all primary data is written, the `format` file names no version, so no incomplete import is opened. A
failed import leaves nothing behind: `format` names no version before anything is deleted, and is deleted
last. After a crash, or if the disk refuses the deletion, the next import deletes an incomplete store. If
`format` names a version, the store is complete, and any start completes its indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from commitlog import layout, store_format
from commitlog.disk.disk import Disk
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import NotAStore
from commitlog.facts.acks import ranges_of
from commitlog.lock import StoreLock
from commitlog.log import imported
from commitlog.log.log import CommitLog
from commitlog.log.recovery import Damage
from commitlog.records.message import MessageType
from commitlog.snapshots.snapshot import Snapshot
from consumequeue.groups.offsets import kept
from services.broker.broker import Broker
from services.broker.derived import KEYS, QUEUES, QUEUES_MADE_AT
from services.broker.spine.settings import BrokerSettings
from services.broker.timers.timer_files import TIMER_FILES
from services.rocketmq.config_files import TopicConfig, read_config
from services.rocketmq.levels import LevelTimes
from services.rocketmq.names import is_broker_topic
from services.rocketmq.pending import Pending
from services.rocketmq.retries import find_unfinished
from services.rocketmq.source import RocketmqLog, open_log
from services.rocketmq.takeover import Takeover

Say = Callable[[str], None]

_COPY_BYTES: Final = 8 * 1024 * 1024
_UNFINISHED: Final = b"import not finished\n"
_SETTINGS: Final = BrokerSettings(auto_create_topics=False)


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What an import took over; `notes` are sentences about what it could not, or found odd."""

    record_count: int
    first_offset: int
    end_offset: int
    topic_count: int
    group_count: int
    pending_timer_count: int
    open_half_count: int
    expired_half_count: int
    inner_batch_count: int
    redelivered_count: int
    damaged: list[Damage]
    notes: list[str]


def import_store(source: Path, target: Path, on_progress: Say, now_ms: int) -> ImportSummary:
    """Take the RocketMQ store in `source` over into the empty or missing folder `target`.

    `source` is only read. Raise a `StoreError` if either is not what it should be, `StoreLocked` if a broker
    runs on one of them, `LibraryMissing` if bodies are compressed in a way that nobody could read here.
    """
    log = open_log(source)
    lock = StoreLock(target)
    lock.acquire()
    disk = RealDisk(target)
    try:
        return take_over(log, disk, str(target), on_progress, now_ms)
    finally:
        disk.close()
        lock.release()


def take_over(log: RocketmqLog, disk: Disk, name: str, on_progress: Say, now_ms: int) -> ImportSummary:
    """Take `log` over onto `disk`, which errors call `name`; what a dead import left is cleared away."""
    if _is_unfinished(disk):
        on_progress("clearing away an import that did not finish")
        _empty(disk)
    _check_empty(disk, name)
    return _Import(log, disk, on_progress, now_ms).run()


class _Import:
    def __init__(self, log: RocketmqLog, disk: Disk, say: Say, now_ms: int) -> None:
        self._log = log
        self._disk = disk
        self._say = say
        self._now_ms = now_ms
        self._config = read_config(log.files)
        self._takeover = Takeover(self._config, LevelTimes(log.files).due_ms)
        self._ages: dict[int, int] = {}

    def run(self) -> ImportSummary:
        self._read()
        try:
            store_format.write(self._disk, _UNFINISHED)
            self._copy()
            redelivered_count = self._write_snapshot()
            pending = self._write_pending()
            store_format.write(self._disk, store_format.encode(self._log.segment_bytes))
            self._make_derived()
        except BaseException:
            with suppress(OSError):  # what cannot be deleted says itself what it is
                self._undo()
            raise
        return self._summary(pending, redelivered_count)

    def _undo(self) -> None:
        """Delete all of it; from the first moment on it is no store."""
        if not _is_unfinished(self._disk):
            store_format.write(self._disk, _UNFINISHED)
        _empty(self._disk)

    def _read(self) -> None:
        """Pass over the source, once."""
        for found in self._log.records():
            self._takeover.take(found.record)
            segment = found.record.physical_offset // self._log.segment_bytes * self._log.segment_bytes
            if segment not in self._ages:
                self._say(f"reading {layout.segment_path(segment)}")
            self._ages[segment] = found.record.store_ms

    def _copy(self) -> None:
        """Copy the segments up to the verified end; what lies behind it stays zero."""
        for first_offset in self._log.segment_offsets:
            if first_offset < self._log.end_offset:
                self._say(f"copying {layout.segment_path(first_offset)}")
                self._copy_segment(first_offset)
        layout.reset_durable(self._disk, self._log.end_offset)
        if self._log.end_offset:
            imported.write(self._disk, self._log.end_offset)

    def _copy_segment(self, first_offset: int) -> None:
        path = layout.segment_path(first_offset)
        self._disk.allocate(path, self._log.segment_bytes)
        view = self._log.files.view(path).upto(self._log.end_offset - first_offset)
        for position in range(0, len(view), _COPY_BYTES):
            self._disk.write(path, position, bytes(view[position : position + _COPY_BYTES]))
        self._disk.sync(path)

    def _write_snapshot(self) -> int:
        """Return the state at the copied end; return how many messages are given to their group again."""
        end = self._log.end_offset
        log = CommitLog(self._disk, self._log.segment_bytes, self._log.first_offset, end)
        empty = Broker(self._disk, log, _SETTINGS, self._now_ms).checkpoint(self._now_ms)
        empty.timers.write(self._disk)
        parts = empty.snapshot.parts | {TIMER_FILES: empty.timers.freeze()}
        parts |= {QUEUES: None, QUEUES_MADE_AT: end, KEYS: None}
        offsets = [[*queue, offset] for queue, offset in self._takeover.next_offsets.items()]
        parts["store"] |= {
            "next_offsets": offsets,
            "last_store_ms": self._takeover.last_store_ms,
            "segment_store_ms": list(self._ages.items()),
        }
        parts["groups"], redelivered_count = self._groups()
        Snapshot(end, parts).write(self._disk)
        return redelivered_count

    def _groups(self) -> tuple[Any, int]:
        """Return the groups' part of the snapshot: all below its offset is done, but for what it held."""
        unfinished = find_unfinished(self._log, self._config, self._takeover.retries(), self._say)
        for held in self._takeover.in_hand():
            unfinished.setdefault(held[:3], set()).add(held.queue_offset)
        members: dict[str, list[str]] = {}
        progress: list[Any] = []
        for (topic, group), offsets in self._config.group_offsets.items():
            if is_broker_topic(topic):
                continue
            members.setdefault(topic, []).append(group)
            for queue_id, offset in offsets.items():
                known = min(offset, self._takeover.next_offsets.get((topic, queue_id), 0))
                again = unfinished.get((group, topic, queue_id), set())
                progress.append([group, topic, queue_id, _done(known, again)])
        none: dict[str, Any] = {"joined": {}, "policies": {}, "filters": [], "missed": []}
        return none | {"members": members, "progress": progress}, sum(map(len, unfinished.values()))

    def _write_pending(self) -> Pending:
        """Our own records behind the copied log."""
        self._say("writing what is still to happen")
        log = CommitLog(self._disk, self._log.segment_bytes, self._log.first_offset, self._log.end_offset)
        store_ms = max(self._takeover.last_store_ms, self._now_ms)
        pending = Pending(self._disk, log, dict(self._takeover.next_offsets), store_ms, self._config.notes)
        for waiting in self._takeover.waiting():
            pending.timer(waiting)
        for half in self._takeover.halves():
            pending.half(half)
        for topic in self._topics(pending.queue_counts):
            pending.topic(topic)
        pending.flush()
        return pending

    def _topics(self, needed_counts: dict[str, int]) -> Iterable[TopicConfig]:
        """Return the configured topics, and those that only records tell of.

        Each with all queues that it uses.
        """
        topics = {name: one for name, one in self._config.topics.items() if not is_broker_topic(name)}
        for topic, queue_id in self._takeover.next_offsets:
            needed_counts[topic] = max(needed_counts.get(topic, 1), queue_id + 1)
        for name, queue_count in needed_counts.items():
            if not is_broker_topic(name):
                known = topics.get(name) or TopicConfig(name, 1, MessageType.MIXED)
                topics[name] = replace(known, queue_count=max(known.queue_count, queue_count))
        return [topics[name] for name in sorted(topics)]

    def _make_derived(self) -> None:
        """Start the broker, and write the snapshot that a serving broker will start from."""
        self._say("making the queues and the key index")
        broker = Broker.open(self._disk, _SETTINGS, self._now_ms)
        broker.checkpoint(self._now_ms).write(self._disk)

    def _summary(self, pending: Pending, redelivered_count: int) -> ImportSummary:
        return ImportSummary(
            record_count=self._takeover.record_count,
            first_offset=self._log.first_offset,
            end_offset=self._log.end_offset,
            topic_count=pending.topic_count,
            group_count=len(
                {group for topic, group in self._config.group_offsets if not is_broker_topic(topic)}
            ),
            pending_timer_count=pending.timer_count,
            open_half_count=pending.open_half_count,
            expired_half_count=pending.expired_half_count,
            inner_batch_count=self._takeover.batch_count,
            redelivered_count=redelivered_count,
            damaged=self._log.damaged,
            notes=self._config.notes + self._takeover.notes(),
        )


def _done(known: int, again: set[int]) -> dict[str, Any]:
    """Progress up to `known` without the offsets in `again`, as `consumequeue.groups.offsets` freezes it."""
    again = {offset for offset in again if offset < known}
    if not again:
        return kept(known)
    low = min(again)
    done = ranges_of(offset for offset in range(low, known) if offset not in again)
    return kept(low) | {"done": done}


def _is_unfinished(disk: Disk) -> bool:
    """Return whether a store is half an import; it is, too, where `format` was just about to be written."""
    size = disk.size(layout.FORMAT)
    if size < 0:
        return set(disk.list("")) - {"lock"} == {store_format.FRESH}
    return disk.read(layout.FORMAT, 0, size) == _UNFINISHED


def _check_empty(disk: Disk, name: str) -> None:
    there = [one for one in disk.list("") if one != "lock"]
    if not there:
        return
    what = f"{name} holds {there[0]!r}"
    if imported.PATH in there and layout.FORMAT in there:
        what = f"{name} is a store already, made by an import that took everything over: a broker can start"
    raise NotAStore(f"{what}. An import needs an empty folder; nothing was touched.")


def _empty(disk: Disk) -> None:
    """Delete what an import made; the file that says that this is half of one goes last."""
    ours = (layout.KNOWN_NAMES | {imported.PATH}) - {"lock", layout.FORMAT}
    for name in [*sorted(ours & set(disk.list(""))), layout.FORMAT]:
        disk.delete(name)
