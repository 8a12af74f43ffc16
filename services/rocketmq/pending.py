"""What was still to happen in a RocketMQ store, written as our own records behind its copied log."""

from __future__ import annotations

from dataclasses import replace

from commitlog.disk.disk import Disk
from commitlog.facts.facts import TopicSet, record_of
from commitlog.limits import PROPERTIES_STORED_BYTES_MAX
from commitlog.log.log import CommitLog
from commitlog.records import properties
from commitlog.records.kinds import HALF_TOPIC, TIMER_TOPIC, without_endings
from commitlog.records.record import COMPRESSION, CRC_BYTES, Record
from services.rocketmq.append import Appender
from services.rocketmq.config_files import TopicConfig
from services.rocketmq.names import DELAY_LEVEL
from services.rocketmq.takeover import Half, Waiting
from tidewheel import property_names
from txn.half import check_record, outcome_record
from txn.states import State


class Pending:
    """Appends to `log`; each record gets the next offset of its queue. Counts what it wrote."""

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        next_offsets: dict[tuple[str, int], int],
        store_ms: int,
        notes: list[str],
    ) -> None:
        self.queue_counts: dict[str, int] = {}
        """How many queues the real topics of what was written need."""
        self.timer_count = 0
        self.open_half_count = 0
        self.expired_half_count = 0
        self.topic_count = 0
        self._log = log
        self._appender = Appender(disk, log, next_offsets, store_ms)
        self._notes = notes

    def timer(self, waiting: Waiting) -> None:
        """Add a timer record with the message of a delayed one, due at the same time."""
        original = self._original(waiting.physical_offset)
        if original is None:
            return
        stored = without_endings(original.properties)
        stored.pop(DELAY_LEVEL, None)
        stored[property_names.DUE_MS] = str(waiting.due_ms)
        self.timer_count += self._append_copy(original, TIMER_TOPIC, properties.encode(stored))

    def half(self, half: Half) -> None:
        """Add a copy of a half, with the count of its checks, and its end if it has expired."""
        original = self._original(half.physical_offset)
        if original is None or not self._append_copy(original, HALF_TOPIC, original.properties):
            return
        copy = replace(original, physical_offset=self._appender.last_offset)
        if half.expired_ms is not None:
            self._appender.append(outcome_record(copy, State.EXPIRED))
            self.expired_half_count += 1
            return
        if half.check_count:
            self._appender.append(check_record(copy.physical_offset, half.check_count))
        self.open_half_count += 1

    def topic(self, topic: TopicConfig) -> None:
        """Add a topic."""
        fact = TopicSet(topic.name, topic.message_type.value, topic.queue_count)
        self._appender.append(record_of(fact))
        self.topic_count += 1

    def flush(self) -> None:
        """Make all of it durable."""
        self._appender.flush()

    def _original(self, physical_offset: int) -> Record | None:
        """Return a record of the copied log; None, with a note, if it names no real queue."""
        found = self._log.read(physical_offset)
        stored = properties.decode(found.properties)
        queue_id = stored.get(property_names.REAL_QUEUE_ID, "")
        if not queue_id.isdigit() or not stored.get(property_names.REAL_TOPIC):
            self._notes.append(
                f"The record at log offset {physical_offset} names no real queue; it stays where it is."
            )
            return None
        topic = stored[property_names.REAL_TOPIC]
        self.queue_counts[topic] = max(self.queue_counts.get(topic, 1), int(queue_id) + 1)
        return found

    def _append_copy(self, original: Record, topic: str, stored: bytes) -> bool:
        if len(stored) + CRC_BYTES + 1 > PROPERTIES_STORED_BYTES_MAX:
            self._notes.append(
                f"The properties of the record at log offset {original.physical_offset} leave no room for a "
                "CRC; it is not taken over."
            )
            return False
        sys_flag = original.sys_flag & COMPRESSION
        self._appender.append(
            replace(original, topic=topic, queue_id=0, properties=stored, sys_flag=sys_flag)
        )
        return True
