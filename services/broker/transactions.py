"""Half messages: ended by their producer, asked about when it is silent, expired when nobody ever answers."""

from __future__ import annotations

from typing import Any, Final

from commitlog import limits, properties
from commitlog.errors import InvalidTransactionId, StoreDamaged, TransactionEnded
from commitlog.record import TYPE_COMMIT, Record
from services.broker.agenda import Agenda, Purpose
from services.broker.carrying import Carrying
from services.broker.settings import BrokerSettings
from services.broker.statistics import Statistics
from services.broker.store import Store
from services.broker.timer_records import TIMER_TOPIC
from services.broker.timers import Timers
from services.broker.values import CheckBack, EndReceipt, Resolution
from services.broker.verb_properties import carried_verb
from txn import half, states
from txn.outcomes import Outcomes
from txn.states import Event, State

_EVENTS: Final = {Resolution.COMMIT: Event.COMMIT, Resolution.ROLLBACK: Event.ROLLBACK}


class Transactions:
    """The half messages of a broker."""

    def __init__(
        self,
        store: Store,
        agenda: Agenda,
        timers: Timers,
        carrying: Carrying,
        settings: BrokerSettings,
        statistics: Statistics,
    ) -> None:
        self._store = store
        self._agenda = agenda
        self._timers = timers
        self._carrying = carrying
        self._policy = settings.check_back
        self._history_ms = settings.timer_history_ms
        self._statistics = statistics
        self.outcomes = Outcomes()

    def stored(self, record: Record) -> None:
        """A half is durable: from now on it can be ended, and its first check is set."""
        immunity = properties.value_of(record.properties, properties.CHECK_IMMUNITY_SECONDS)
        first_ms = self._policy.first_check_ms(record.store_ms, int(immunity) * 1000 if immunity else None)
        self.outcomes.stored(record.physical_offset, record.store_ms, first_ms)
        self._agenda.place(Purpose.CHECK, record.physical_offset, first_ms)

    def end(
        self, topic: str, transaction_id: str, message_id: str, resolution: Resolution, now_ms: int
    ) -> EndReceipt:
        """Ends a transaction, or confirms that it ended so before; raises `TransactionEnded` if otherwise."""
        offset = half.half_offset(transaction_id, message_id)
        state = self.outcomes.state(offset)
        if state is None:
            raise InvalidTransactionId(f"{transaction_id} names no half message of this store.")
        if state is not State.OPEN:
            return self._end_again(offset, transaction_id, resolution)
        record = self._store.log.read(offset)
        _check_topic(record, topic)
        durable_at = self._append_end(record, _EVENTS[resolution], now_ms)
        return EndReceipt(transaction_id, resolution, False, durable_at)

    def check(self, half_offset: int, now_ms: int) -> CheckBack | None:
        """A half's check is due: whom to ask, or None if it has ended, or expires now."""
        waiting = self.outcomes.open.get(half_offset)
        if waiting is None:
            return None
        try:
            record = self._store.log.read(half_offset)
        except StoreDamaged:
            self._statistics.unreadable_records += 1
            return None
        if self._policy.is_exhausted(waiting.check_count):
            self._append_end(record, Event.EXPIRE, now_ms)
            return None
        message = properties.to_message(record)
        return CheckBack(half.transaction_id(half_offset, message.message_id), message)

    def check_asked(self, transaction_id: str, asked: bool, now_ms: int) -> None:
        """Tells whether a producer could be asked; only then the check counts. Sets the next one."""
        offset = int(transaction_id[:16], 16)
        waiting = self.outcomes.open.get(offset)
        if waiting is None:
            return
        waiting.next_check_ms = now_ms + limits.CHECK_NO_PRODUCER_RETRY_MS
        if asked:
            waiting.check_count += 1
            waiting.next_check_ms = self._policy.next_check_ms(now_ms, waiting.check_count)
            self._store.append(half.check_record(offset, waiting.check_count), now_ms)
        self._agenda.place(Purpose.CHECK, offset, waiting.next_check_ms)

    def recovered_commit(self, record: Record) -> None:
        """Takes over a commit from the committed record."""
        self._recovered_end(record, Event.COMMIT)

    def recovered_outcome(self, record: Record) -> None:
        """Takes over a rollback or an expiry from its record."""
        state = half.outcome_of(record)
        self._recovered_end(record, Event.EXPIRE if state is State.EXPIRED else Event.ROLLBACK)

    def recovered_check(self, record: Record) -> None:
        """Takes over the counter of a half's checks, and when to ask next."""
        waiting = self.outcomes.open.get(record.half_offset)
        if waiting is not None:
            waiting.check_count = record.reconsume_times
            waiting.next_check_ms = self._policy.next_check_ms(record.store_ms, waiting.check_count)
            self._agenda.place(Purpose.CHECK, record.half_offset, waiting.next_check_ms)

    def forget(self, now_ms: int) -> None:
        """Drops ends that are older than the kept history."""
        self.outcomes.forget(now_ms - self._history_ms)

    def freeze(self) -> Any:
        """What a snapshot keeps: see `Outcomes.freeze`."""
        return self.outcomes.freeze()

    def thaw(self, frozen: Any) -> None:
        """Takes a snapshot's part over."""
        self.outcomes.thaw(frozen)
        for half_offset, waiting in self.outcomes.open.items():
            self._agenda.place(Purpose.CHECK, half_offset, waiting.next_check_ms)

    def _end_again(self, offset: int, transaction_id: str, resolution: Resolution) -> EndReceipt:
        ended = self.outcomes.ended(offset)
        if states.after(ended.state, _EVENTS[resolution]) is None:
            raise TransactionEnded(
                f"{transaction_id} was {ended.state.value} at {ended.ended_ms} (ms since 1970).",
                durable_at=ended.durable_at,
            )
        return EndReceipt(transaction_id, resolution, True, ended.durable_at)

    def _append_end(self, record: Record, event: Event, now_ms: int) -> int:
        durable_at = self._append(_end_record(record, event), now_ms)
        self.outcomes.end(record.physical_offset, event, now_ms, durable_at)
        self._agenda.cancel(Purpose.CHECK, record.physical_offset)
        self._count(event, properties.value_of(record.properties, properties.REAL_TOPIC))
        return durable_at

    def _append(self, ending: Record, now_ms: int) -> int:
        """Appends the record of an end; a commit carries out the verb, and sets the timer, of its message."""
        carried = carried_verb(properties.to_message(ending), now_ms) if ending.type == TYPE_COMMIT else None
        cancelled = self._carrying.prepare(carried, ending, now_ms) if carried else None
        if ending.topic == TIMER_TOPIC:
            self._timers.mark_replaced(ending, cancelled, now_ms)
        durable_at = self._store.append(ending, now_ms)
        if carried and cancelled:
            self._carrying.appended(carried, cancelled, ending)
        if ending.topic == TIMER_TOPIC:
            self._timers.added(ending)
        return durable_at

    def _recovered_end(self, record: Record, event: Event) -> None:
        self.outcomes.end(record.half_offset, event, record.store_ms, 0)
        self._agenda.cancel(Purpose.CHECK, record.half_offset)

    def _count(self, event: Event, topic: str) -> None:
        counters = {
            Event.COMMIT: self._statistics.commits,
            Event.ROLLBACK: self._statistics.rollbacks,
            Event.EXPIRE: self._statistics.expired,
        }
        counters[event][topic] += 1


def _end_record(record: Record, event: Event) -> Record:
    if event is not Event.COMMIT:
        return half.outcome_record(record, states.OUTCOMES[event])
    if properties.value_of(record.properties, properties.DUE_MS):
        return half.committed_timer_record(record, TIMER_TOPIC)
    return half.committed_record(record)


def _check_topic(record: Record, topic: str) -> None:
    real_topic = properties.value_of(record.properties, properties.REAL_TOPIC)
    if topic != real_topic:
        raise InvalidTransactionId(f"It belongs to topic {real_topic!r}, not {topic!r}.")
