"""The state that results from a store's log, computed by the broker's own code and converted to plain values.

The broker is started on an overlay (`services.store.read_only.reading`): it loads the newest snapshot and
replays the log after it. The result equals the content of a snapshot at that offset. The classes in this file
name its parts. Timers are not loaded (`services.store.read_only.timers`) and are iterated one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from commitlog.errors import StoreDamaged
from commitlog.log.log import CommitLog
from commitlog.records import properties
from commitlog.records.kinds import End
from commitlog.records.record import Record
from commitlog.snapshots import snapshot
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.timers.timer_ends import KIND_SHIFT
from services.store.read_only.opening import OpenStore
from services.store.read_only.reading import Overlay
from services.store.read_only.timers import Read, StoredTimers, Waiting
from tidewheel import property_names

_SETTINGS: Final = BrokerSettings(auto_create_topics=False)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic, its message type, and its number of queues."""

    name: str
    message_type: str
    queue_count: int


@dataclass(frozen=True, slots=True)
class TimerState:
    """A delayed message.

    While it is pending, `end` is PENDING and `due_ms` is set; afterwards, the other two times are set.
    """

    timer_offset: int
    topic: str
    message_id: str
    end: str
    due_ms: int | None
    ended_ms: int | None
    ended_offset: int | None


@dataclass(frozen=True, slots=True)
class HalfState:
    """A half message. `state` is OPEN, COMMITTED, ROLLED_BACK or EXPIRED."""

    half_offset: int
    state: str
    stored_ms: int | None
    next_check_ms: int | None
    check_count: int | None
    ended_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupState:
    """Progress of a group in one queue.

    All messages below `committed_offset` are acknowledged, and above it the ranges (first, count) in
    `done_above`.
    """

    group: str
    topic: str
    queue_id: int
    committed_offset: int
    done_above: tuple[tuple[int, int], ...]
    end_offset: int

    @property
    def lag(self) -> int:
        """The number of messages that are not acknowledged."""
        return self.end_offset - self.committed_offset - sum(count for _, count in self.done_above)


@dataclass(frozen=True, slots=True)
class RecurringState:
    """A schedule. Its runs up to `cursor_ms` are done."""

    name: str
    cursor_ms: int
    is_paused: bool
    sent_count: int


class State:
    """The parts of one snapshot, by name, and the timers."""

    def __init__(self, offset: int, parts: Mapping[str, Any], timers: StoredTimers) -> None:
        self.offset = offset
        self.timers = timers
        self.next_offsets: dict[tuple[str, int], int] = {
            (topic, queue_id): next_offset
            for topic, queue_id, next_offset, *_ in parts["store"]["next_offsets"]
        }
        self.last_store_ms: int = parts["store"]["last_store_ms"]
        self.epoch: int = parts["epoch"]
        self.topics = sorted((TopicState(*one[:3]) for one in parts["topics"]), key=lambda one: one.name)
        self.halves = _halves(parts["transactions"])
        self.schedules = [_recurring(one) for one in parts["schedules"]["running"]]
        self.user_count = len(parts["access"]["users"])
        self.groups = sorted(
            (
                GroupState(
                    group,
                    topic,
                    queue_id,
                    done["low"],
                    tuple((first, count) for first, count in done["done"]),
                    self._next(topic, queue_id),
                )
                for group, topic, queue_id, done in parts["groups"]["progress"]
            ),
            key=lambda one: (one.group, one.topic, one.queue_id),
        )

    def pending_timers(self) -> Iterator[TimerState]:
        """Return the pending delayed messages by due time."""
        return map(_pending, self.timers.waiting())

    def ended_timers(self) -> Iterator[TimerState]:
        """Yield the timers with a known end.

        Topic and message id are known only as long as their records are in the log.
        """
        for facts in self.timers.ends.newest(self.timers.disk):
            for timer_offset, _, ended_offset, ended_ms, extra in facts.tolist():
                topic, message_id = self._names(timer_offset)
                end = End(extra >> KIND_SHIFT).name
                yield TimerState(timer_offset, topic, message_id, end, None, ended_ms, ended_offset)

    def halves_in(self, *states: str) -> list[HalfState]:
        """Return the half messages in the given states."""
        return [one for one in self.halves if one.state in states]

    def _names(self, timer_offset: int) -> tuple[str, str]:
        try:
            return _names_of(self.timers.read(timer_offset))
        except StoreDamaged:
            return "", ""

    def _next(self, topic: str, queue_id: int) -> int:
        return self.next_offsets.get((topic, queue_id), 0)


def fold(store: OpenStore, now_ms: int, until: int | None = None, newest: int | None = None) -> State:
    """Return the state at `until`, which must be the start of a record, or at the durable offset.

    The replay begins at the newest snapshot, or at the newest one that is not after `newest`.
    """
    end = store.durable_offset if until is None else until
    disk = store.overlay(end)
    for offset in store.snapshot_offsets:
        if newest is not None and offset > newest:
            _hide(disk, offset)
    taken = Broker.open(disk, _SETTINGS, now_ms, end).checkpoint(now_ms)
    parts = taken.snapshot.parts
    return State(end, parts, StoredTimers.of_checkpoint(disk, taken.timers, parts, reader(store, end)))


def _hide(disk: Overlay, snapshot_offset: int) -> None:
    disk.delete(snapshot.path_of(snapshot_offset))


def stored_state(store: OpenStore, found: snapshot.Snapshot) -> State:
    """Return the state in a snapshot."""
    return State(
        found.offset, found.parts, StoredTimers.of_snapshot(store.overlay(), found.parts, reader(store))
    )


def reader(store: OpenStore, until: int | None = None) -> Read:
    """Return a function that reads records of a store's log."""
    end = store.durable_offset if until is None else until
    return CommitLog(store.overlay(end), store.segment_bytes, store.first_offset, end).read


def _pending(one: Waiting) -> TimerState:
    topic, message_id = ("", "") if one.record is None else _names_of(one.record)
    return TimerState(one.timer_offset, topic, message_id, "PENDING", one.due_ms, None, None)


def _names_of(timer: Record) -> tuple[str, str]:
    stored = timer.properties
    return properties.value_of(stored, property_names.REAL_TOPIC), properties.value_of(
        stored, property_names.MESSAGE_ID
    )


def _recurring(one: Any) -> RecurringState:
    return RecurringState(one["schedule"]["name"], one["cursor_ms"], one["is_paused"], one["sent_count"])


def _halves(frozen: Any) -> list[HalfState]:
    expired = [HalfState(one[0], "EXPIRED", None, None, None, one[1]) for one in frozen["expired"]]
    ended = [HalfState(one[0], one[1], None, None, None, one[2]) for one in frozen["ended"]]
    return [*map(_open, frozen["open"]), *expired, *ended]


def _open(one: list[Any]) -> HalfState:
    half_offset, stored_ms, next_check_ms, check_count, *_ = one
    return HalfState(half_offset, "OPEN", stored_ms, next_check_ms, check_count, None)
