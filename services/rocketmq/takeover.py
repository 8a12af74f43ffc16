"""What an Apache RocketMQ log means for those who come after it: a fold over its records.

A delayed message waits from its record in a timer topic (delay levels or the wheel) until a record of its
real topic with its message id follows: that is its delivery. RocketMQ's own cursors are not asked where the
log itself can tell: a power cut can keep a cursor and lose the delivery it counted. They decide only for
messages without an id. A record of the same timer topic for the same message is the same message moved on
(RocketMQ rolls far timers), and a delete marker ends it.

A half is open unless it lies below RocketMQ's half offset, an op record names its queue offset, or a later
copy took its place (RocketMQ writes a half again each time it asks about it). A half that RocketMQ gave up on
is expired.

Timers and halves of ours, in a log that we exported, and their ends, are what the facts of their records say
(`commitlog.facts`). Memory: what waits or is open, the retries, one number per queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from commitlog.facts.facts import CheckBackSent, Fact, HalfEnded, HalfStored, TimerEnded, TimerSet, facts_of
from commitlog.records import properties
from commitlog.records.compression import check_library
from commitlog.records.inner_batch import message_count
from commitlog.records.kinds import TIMER_TOPIC
from commitlog.records.record import INNER_BATCH, TYPE_COMMIT, TYPE_NORMAL, Record
from services.rocketmq.config_files import RocketmqConfig, TimerCheck
from services.rocketmq.names import (
    CHECK_TIMES,
    DELETED_KEY,
    DISCARD_TOPIC,
    LEVEL_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    is_broker_topic,
)
from services.rocketmq.receipts import REVIVE_PREFIX, InHand, Receipts
from services.rocketmq.retries import Retry, retry_of
from tidewheel import property_names

Name = tuple[str, str]
"""A message by its real topic and its message id."""

_NOBODY: Final = ("", "")


class Waiting(NamedTuple):
    """A delayed message: where its record lies, when it is due, and whether RocketMQ calls it delivered."""

    physical_offset: int
    topic: str
    message_id: str
    due_ms: int
    is_counted: bool
    retry: Retry | None


@dataclass(slots=True)
class Half:
    """A half: its place in the log and in its queue, and how often it was asked about."""

    physical_offset: int
    queue_offset: int
    name: Name
    check_count: int
    expired_ms: int | None = None


class Takeover:
    """The fold; `level_due_ms` says when a message of a delay level is due."""

    def __init__(self, config: RocketmqConfig, level_due_ms: Callable[[Record], int]) -> None:
        self.next_offsets: dict[tuple[str, int], int] = {}
        self.last_store_ms = 0
        self.record_count = 0
        self.batch_count = 0
        self._config = config
        self._level_due_ms = level_due_ms
        self._waiting: dict[Name, Waiting] = {}
        self._waiting_at: dict[int, Name] = {}
        self._halves: dict[int, Half] = {}
        self._half_at: dict[int, int] = {}
        self._half_named: dict[Name, int] = {}
        self._retries: dict[tuple[str, int, int], tuple[Retry, bool]] = {}
        self._receipts = Receipts(config)
        self._takers = {
            TIMER_TOPIC: self._marker,
            LEVEL_TOPIC: self._level,
            OP_TOPIC: self._op,
            DISCARD_TOPIC: self._discarded,
        }

    def take(self, record: Record) -> None:
        """Take one record; raise `LibraryMissing` if nobody could read its body here."""
        check_library(record.sys_flag)
        self.record_count += 1
        self.last_store_ms = max(self.last_store_ms, record.store_ms)
        if record.type in (TYPE_NORMAL, TYPE_COMMIT):
            self.batch_count += bool(record.sys_flag & INNER_BATCH)
            self.next_offsets[(record.topic, record.queue_id)] = record.queue_offset + message_count(record)
            self._takers.get(record.topic, self._message)(record)
        for fact in facts_of(record):
            self._apply(fact, record)

    def waiting(self) -> Iterator[Waiting]:
        """Return the delayed messages of user topics that were not delivered, by due time."""
        kept = (one for one in self._waiting.values() if not is_broker_topic(one.topic))
        return iter(sorted(kept, key=lambda one: one.due_ms))

    def halves(self) -> list[Half]:
        """Return the open and the expired halves, in log order."""
        first = self._config.half_offset()
        return [
            half
            for half in self._halves.values()
            if half.queue_offset >= first or half.expired_ms is not None
        ]

    def retries(self) -> list[Retry]:
        """Return copies of messages that a group failed on and was not given again, or had in hand."""
        held = {(one.topic, one.queue_id, one.queue_offset) for one in self._receipts.in_hand()}
        stored = [retry for at, (retry, is_given) in self._retries.items() if not is_given or at in held]
        return [*stored, *(one.retry for one in self._waiting.values() if one.retry is not None)]

    def in_hand(self) -> list[InHand]:
        """Return the messages of user topics that consumers held."""
        return [one for one in self._receipts.in_hand() if not is_broker_topic(one.topic)]

    def notes(self) -> list[str]:
        """Return what was found odd."""
        lost_count = sum(one.is_counted for one in self.waiting())
        if not lost_count:
            return []
        return [
            f"{lost_count} delayed messages count as delivered in RocketMQ's offsets, but the log holds no "
            "delivery of them; they are delivered now."
        ]

    def _apply(self, fact: Fact, record: Record) -> None:
        match fact:
            case TimerEnded():
                self._forget(self._waiting_at.get(fact.timer_offset, _NOBODY))
            case TimerSet() if not (fact.topic.startswith(REVIVE_PREFIX) or _value(record, DELETED_KEY)):
                check = self._config.timer_check or TimerCheck()
                is_counted = record.queue_offset < check.queue_offset and fact.due_ms < check.read_ms
                # RocketMQ's delivery has the id of the message, even where our timer does not go by it.
                self._wait(record, _name(record), fact.due_ms, is_counted)
            case HalfStored():
                self._half(fact, record)
            case CheckBackSent() if half := self._halves.get(fact.half_offset):
                half.check_count = fact.asked_count
            case HalfEnded(how="EXPIRED"):
                if half := self._halves.get(fact.half_offset):
                    half.expired_ms = record.store_ms
                    self._half_at.pop(half.queue_offset, None)  # of our export, an op record names it, too
            case HalfEnded():
                self._end_half(fact.half_offset)

    def _message(self, record: Record) -> None:
        if record.topic.startswith(RETRY_PREFIX):
            self._retry(record)
        elif record.topic.startswith(REVIVE_PREFIX):
            self._receipts.take(record)
        if self._waiting:
            self._forget((record.topic, _value(record, property_names.MESSAGE_ID)))

    def _marker(self, record: Record) -> None:
        """Take a receipt, or a delete marker: RocketMQ has them among its timers."""
        topic, deleted = _value(record, property_names.REAL_TOPIC), _value(record, DELETED_KEY)
        if topic.startswith(REVIVE_PREFIX):
            self._receipts.take(record)
        elif deleted:
            for message_id in (deleted, deleted.removeprefix(f"{topic}+"), deleted.removeprefix(topic)):
                self._forget((topic, message_id))

    def _level(self, record: Record) -> None:
        is_counted = record.queue_offset < self._config.delay_offsets.get(record.queue_id + 1, 0)
        self._wait(record, _name(record), self._level_due_ms(record), is_counted)

    def _wait(self, record: Record, name: Name, due_ms: int, is_counted: bool) -> None:
        if not name[0] or (is_counted and not name[1]):
            return
        key = name if name[1] else (name[0], f"@{record.physical_offset}")
        is_retry = name[0].startswith(RETRY_PREFIX)
        retry = retry_of(record, name[0], self._config) if is_retry else None
        self._forget(key)
        self._waiting[key] = Waiting(record.physical_offset, *name, due_ms, is_counted, retry)
        self._waiting_at[record.physical_offset] = key

    def _forget(self, key: Name) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            del self._waiting_at[waiting.physical_offset]

    def _retry(self, record: Record) -> None:
        retry = retry_of(record, record.topic, self._config)
        offsets = self._config.group_offsets.get((record.topic, retry.group), {})
        is_given = record.queue_offset < offsets.get(record.queue_id, 0)
        self._retries[(record.topic, record.queue_id, record.queue_offset)] = (retry, is_given)

    def _half(self, half: HalfStored, record: Record) -> None:
        name, offset = (half.topic, half.message_id), record.physical_offset
        if half.message_id:
            self._end_half(self._half_named.get(name, -1))
            self._half_named[name] = offset
        checks = _value(record, CHECK_TIMES)
        check_count = int(checks) if checks.isdigit() else 0
        self._halves[offset] = Half(offset, record.queue_offset, name, check_count)
        self._half_at[record.queue_offset] = offset

    def _op(self, record: Record) -> None:
        for queue_offset in record.body.decode(errors="replace").split(","):
            if queue_offset.isdigit():
                self._end_half(self._half_at.get(int(queue_offset), -1))

    def _discarded(self, record: Record) -> None:
        half = self._halves.get(self._half_named.get(_name(record), -1))
        if half is not None:
            half.expired_ms = record.store_ms

    def _end_half(self, physical_offset: int) -> None:
        half = self._halves.pop(physical_offset, None)
        if half is not None:
            if self._half_at.get(half.queue_offset) == physical_offset:
                del self._half_at[half.queue_offset]
            if self._half_named.get(half.name) == physical_offset:
                del self._half_named[half.name]


def _name(record: Record) -> Name:
    return _value(record, property_names.REAL_TOPIC), _value(record, property_names.MESSAGE_ID)


def _value(record: Record, name: str) -> str:
    return properties.value_of(record.properties, name)
