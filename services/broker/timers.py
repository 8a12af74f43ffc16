"""Delayed messages: stored as timer records, delivered when due, recalled before that.

A timer record lies in RocketMQ's timer topic with its due time and real topic; the log is the truth, the
wheel only knows when. Delivery appends the message to its real queue with `TW_TIMER_OFFSET` naming the
timer record, and a cancel appends a verb record naming it, so that after a restart nothing is delivered
twice or in spite of its recall. A timer ends once, at the moment that record is appended; whoever is told
waits until it is durable. Ends are remembered for `timer_history_ms`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from heapq import nsmallest
from operator import itemgetter
from typing import Any, Final, NamedTuple

from commitlog import properties
from commitlog.errors import InvalidRecallHandle, StoreDamaged
from commitlog.message import Message
from commitlog.record import COMPRESSED, COMPRESSION, TYPE_SYSTEM, Record
from services.broker import recall
from services.broker.agenda import Agenda, Purpose
from services.broker.recall import Recall
from services.broker.settings import BrokerSettings
from services.broker.statistics import Statistics
from services.broker.store import Store
from services.broker.values import PendingTimer, TimerVerdict, Verdict

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
VERB_TOPIC: Final = "TW_SYS_VERB"
CANCEL: Final = "CANCEL"
_DELIVERED_DROPS: Final = (properties.REAL_TOPIC, properties.REAL_QUEUE_ID)


class End(Enum):
    """How a timer ended; UNREADABLE when its record was damaged, which is reported."""

    DELIVERED = "DELIVERED"
    CANCELLED = "CANCELLED"
    UNREADABLE = "UNREADABLE"


class TimerEnd(NamedTuple):
    """How and when a timer ended, where the record of it begins, and the log offset behind that record."""

    end: End
    ended_ms: int
    ended_offset: int
    durable_at: int


class Timers:
    """The delayed messages of a broker."""

    def __init__(
        self, store: Store, agenda: Agenda, settings: BrokerSettings, statistics: Statistics
    ) -> None:
        self._store = store
        self._agenda = agenda
        self._settings = settings
        self._statistics = statistics
        self._offsets: dict[tuple[str, str], int] = {}
        self._ended: dict[int, TimerEnd] = {}
        self._names: dict[int, tuple[str, str]] = {}

    @property
    def pending_count(self) -> int:
        """How many delayed messages wait."""
        return len(self._names) - len(self._ended)

    def pending_offsets(self) -> Iterator[int]:
        """Where the timer records of all waiting messages lie."""
        return (offset for offset in self._names if offset not in self._ended)

    def pending(self, topic_prefix: str, count_max: int) -> list[PendingTimer]:
        """Up to `count_max` waiting messages for topics with a prefix, the first due first.

        Cost: a look at every timer in memory, and one record read for each that is returned.
        """
        waiting = (
            (self._agenda.due_ms(Purpose.TIMER, offset), offset)
            for offset in self.pending_offsets()
            if self._names[offset][0].startswith(topic_prefix)
        )
        return [self._pending(offset, due_ms) for due_ms, offset in nsmallest(count_max, waiting)]

    def armed(self, record: Record) -> None:
        """A timer record is durable: its message will be delivered when due."""
        timer_offset = record.physical_offset
        topic = properties.value_of(record.properties, properties.REAL_TOPIC)
        self._name(timer_offset, topic, properties.value_of(record.properties, properties.MESSAGE_ID))
        due_ms = int(properties.value_of(record.properties, properties.DUE_MS))
        self._agenda.place(Purpose.TIMER, timer_offset, due_ms)

    def deliver(self, timer_offset: int, now_ms: int) -> None:
        """A timer is due: its message goes to its real queue."""
        try:
            timer = self._store.log.read(timer_offset)
        except StoreDamaged:
            self._statistics.unreadable_records += 1
            self._end(timer_offset, TimerEnd(End.UNREADABLE, now_ms, timer_offset, 0))
            return
        message = delivered_record(timer)
        durable_at = self._store.append(message, now_ms)
        self._end(
            timer_offset, TimerEnd(End.DELIVERED, message.store_ms, message.physical_offset, durable_at)
        )
        due_ms = int(properties.value_of(timer.properties, properties.DUE_MS))
        self._statistics.late(message.topic, message.store_ms - max(due_ms, timer.store_ms))

    def recall(self, topic: str, handle: str, now_ms: int) -> TimerVerdict:
        """Cancels the message of a handle if it is still pending; says what became of it if not."""
        wanted = recall.decode(handle)
        if wanted.topic != topic:
            raise InvalidRecallHandle(f"It is for topic {wanted.topic!r}, not {topic!r}.")
        verdict = self._verdict(wanted, now_ms)
        self._statistics.verdicts[verdict.verdict.value] += 1
        return verdict

    def recovered_verb(self, record: Record) -> None:
        """Takes over a cancel from its record."""
        self._recovered_end(record, End.CANCELLED)

    def recovered_delivery(self, record: Record) -> None:
        """Takes over a delivery from its record."""
        self._recovered_end(record, End.DELIVERED)

    def forget(self, now_ms: int) -> None:
        """Drops the ends that are older than the kept history."""
        while self._ended:
            timer_offset, ended = next(iter(self._ended.items()))
            if ended.ended_ms > now_ms - self._settings.timer_history_ms:
                return
            del self._ended[timer_offset]
            name = self._names.pop(timer_offset)
            if self._offsets.get(name) == timer_offset:
                del self._offsets[name]

    def freeze(self) -> Any:
        """What a snapshot keeps: pending timers by due time, and the kept ends in their order."""
        pending = [
            [timer_offset, *name, self._agenda.due_ms(Purpose.TIMER, timer_offset)]
            for timer_offset, name in self._names.items()
            if timer_offset not in self._ended
        ]
        ended = [
            [timer_offset, *self._names[timer_offset], one.end.value, one.ended_ms, one.ended_offset]
            for timer_offset, one in self._ended.items()
        ]
        return {"pending": sorted(pending, key=itemgetter(3)), "ended": ended}

    def thaw(self, frozen: Any) -> None:
        """Takes a snapshot's part over."""
        for timer_offset, topic, message_id, due_ms in frozen["pending"]:
            self._name(timer_offset, topic, message_id)
            self._agenda.place(Purpose.TIMER, timer_offset, due_ms)
        for timer_offset, topic, message_id, end, ended_ms, ended_offset in frozen["ended"]:
            self._name(timer_offset, topic, message_id)
            self._ended[timer_offset] = TimerEnd(End(end), ended_ms, ended_offset, 0)

    def _pending(self, timer_offset: int, due_ms: int) -> PendingTimer:
        topic, message_id = self._names[timer_offset]
        try:
            stored = properties.value_of(self._store.log.read(timer_offset).properties, properties.KEYS)
        except StoreDamaged:
            stored = ""
        return PendingTimer(message_id, topic, tuple(stored.split()), due_ms)

    def _verdict(self, wanted: Recall, now_ms: int) -> TimerVerdict:
        timer_offset = self._offsets.get((wanted.topic, wanted.message_id))
        if timer_offset is None:
            kept_from_ms = now_ms - self._settings.timer_history_ms
            unknown = Verdict.FORGOTTEN if wanted.due_ms < kept_from_ms else Verdict.NEVER_SET
            return TimerVerdict(unknown, wanted.message_id, 0, -1, 0)
        ended = self._ended.get(timer_offset)
        verdict = _VERDICTS[ended.end] if ended else Verdict.CANCELLED
        ended = ended or self._cancel(timer_offset, wanted, now_ms)
        return TimerVerdict(verdict, wanted.message_id, ended.ended_ms, ended.ended_offset, ended.durable_at)

    def _cancel(self, timer_offset: int, wanted: Recall, now_ms: int) -> TimerEnd:
        record = cancel_record(timer_offset, wanted)
        durable_at = self._store.append(record, now_ms)
        ended = TimerEnd(End.CANCELLED, record.store_ms, record.physical_offset, durable_at)
        self._end(timer_offset, ended)
        return ended

    def _name(self, timer_offset: int, topic: str, message_id: str) -> None:
        self._names[timer_offset] = (topic, message_id)
        self._offsets[(topic, message_id)] = timer_offset

    def _recovered_end(self, record: Record, end: End) -> None:
        timer_offset = int(properties.value_of(record.properties, properties.TIMER_OFFSET))
        if timer_offset in self._names:
            self._end(timer_offset, TimerEnd(end, record.store_ms, record.physical_offset, 0))

    def _end(self, timer_offset: int, ended: TimerEnd) -> None:
        assert timer_offset not in self._ended, f"timer {timer_offset} ended twice"
        self._agenda.cancel(Purpose.TIMER, timer_offset)
        self._ended[timer_offset] = ended


_VERDICTS: Final = {
    End.DELIVERED: Verdict.TOO_LATE,
    End.CANCELLED: Verdict.ALREADY,
    End.UNREADABLE: Verdict.TOO_LATE,
}


def timer_record(message: Message, queue_id: int) -> Record:
    """The timer record of a delayed message, whose real queue will be `queue_id`."""
    assert message.delivery_ms is not None
    marks = {
        properties.DUE_MS: str(message.delivery_ms),
        properties.REAL_TOPIC: message.topic,
        properties.REAL_QUEUE_ID: str(queue_id),
    }
    return Record(
        topic=TIMER_TOPIC,
        body=message.body,
        properties=properties.encode(properties.of_message(message) | marks),
        sys_flag=COMPRESSED if message.gzip else 0,
        born_ms=message.born_ms,
        born_host=message.born_host,
    )


def delivered_record(timer: Record) -> Record:
    """The message of a timer record for its real queue, naming the timer."""
    stored = properties.decode(timer.properties)
    kept = {name: value for name, value in stored.items() if name not in _DELIVERED_DROPS}
    return Record(
        topic=stored[properties.REAL_TOPIC],
        queue_id=int(stored[properties.REAL_QUEUE_ID]),
        body=timer.body,
        properties=properties.encode(kept | {properties.TIMER_OFFSET: str(timer.physical_offset)}),
        sys_flag=timer.sys_flag & COMPRESSION,
        born_ms=timer.born_ms,
        born_host=timer.born_host,
    )


def cancel_record(timer_offset: int, wanted: Recall) -> Record:
    """The record that a timer was cancelled."""
    marks = {
        properties.VERB: CANCEL,
        properties.TIMER_OFFSET: str(timer_offset),
        properties.MESSAGE_ID: wanted.message_id,
        properties.REAL_TOPIC: wanted.topic,
    }
    return Record(topic=VERB_TOPIC, body=b"", properties=properties.encode(marks), sys_flag=TYPE_SYSTEM)
