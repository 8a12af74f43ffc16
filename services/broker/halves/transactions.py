"""Half messages, which are committed or rolled back, or expire after too many check-backs.

    requested outcome --> state of the half message --> table (`txn.states`) --> one record, or an error

A change takes effect when its record is appended (`apply`). A new half message can be committed or rolled
back only once its record is durable (`publish`). An attempt by a producer to commit or roll back an expired
half message is rejected and recorded.

Open and expired half messages and the latest outcomes are kept in memory (`txn.outcomes`). Older outcomes are
read from the log. If a half message is in the log but its state is not in memory, it was committed if the key
index finds its committed record, and was rolled back otherwise. If a half message was deleted by retention or
written by another broker, its outcome is known only while the outcome is in memory.

For speed, `send` and `_commit` append messages without building or parsing a `Record`.

Each open half message has a timer (`Purpose.CHECK`), an entry in `waiting_check_backs` or `_to_read`, or a
check-back in progress. Limitations: a half message is considered rolled back if log damage has destroyed its
committed record. If a caller begins a check-back but never calls `complete_check_back`, the half message gets
no more check-backs until the broker restarts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.facts.facts import CheckBackSent, HalfEnded, HalfStored, LateEndRequested, OfHalf, Stamp
from commitlog.records import properties
from commitlog.records.kinds import HALF_TOPIC, TIMER_TOPIC
from commitlog.records.message import Message
from commitlog.records.record import TYPE_COMMIT, Record
from services.broker.halves.half_receipts import HalfReceipts, row_of
from services.broker.spine.appended import NewMessage
from services.broker.spine.errors import TooManyHalves
from services.broker.spine.scheduler import Purpose, Scheduler
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.statistics import Statistics
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics
from services.broker.spine.values import CheckBackRequest, Resolution, SendReceipt, Topic, TransactionReceipt
from services.broker.spine.verb_properties import has_verb, may_have_verb, parse_verb
from services.broker.timers.timers import Timers
from services.broker.timers.verb_executor import VerbExecutor
from tidewheel import property_names
from tidewheel.durations import away
from tidewheel.errors import TransactionEnded
from txn import half, states
from txn.checkback import CheckBackPolicy, WaitingCheckBacks
from txn.errors import InvalidTransactionId
from txn.outcomes import Ended, OpenHalf, Outcomes
from txn.recent_halves import RecentHalves, Sent
from txn.states import Event, State

_EVENTS: Final = {Resolution.COMMIT: Event.COMMIT, Resolution.ROLLBACK: Event.ROLLBACK}
_RESOLVING: Final = {
    Resolution.COMMIT: Event.RESOLVE_COMMIT,
    Resolution.ROLLBACK: Event.RESOLVE_ROLLBACK,
}


class Transactions:
    """The half messages of a broker."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        topics: Topics,
        timers: Timers,
        verb_executor: VerbExecutor,
        settings: BrokerSettings,
        statistics: Statistics,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._topics = topics
        self._timers = timers
        self._verb_executor = verb_executor
        self._policy = settings.check_back
        self._statistics = statistics
        self._counters = {
            State.COMMITTED: statistics.commits,
            State.ROLLED_BACK: statistics.rollbacks,
            State.EXPIRED: statistics.expired,
        }
        self.outcomes = Outcomes()
        self.receipts = HalfReceipts(store, settings)
        self.waiting_check_backs = WaitingCheckBacks()
        """The open half messages whose check-backs are due but wait for a producer."""
        self._recent = RecentHalves()
        self._to_read: deque[int] = deque()
        self._searched_offset = 0
        """The log offset below which half messages have been checked for lost records."""

    def send(self, message: Message, queue_id: int, now_ms: int) -> SendReceipt:
        """Store a half message. A commit adds the message to queue `queue_id` of its topic."""
        topic, message_id = message.topic, message.message_id
        check_ms = self.policy(topic).first_check_ms(now_ms, message.check_immunity_ms)
        stored, fact = half.half_of(message, queue_id, check_ms)
        appended = self._store.append(NewMessage(message, stored, HALF_TOPIC, 0, (fact,)), now_ms)
        offset, end_offset, queue_offset, store_ms = appended[:4]
        row = row_of(fact, store_ms, offset, queue_offset)
        receipt = self.receipts.build_receipt(topic, message_id, half.id_crc(message_id), row)
        if message.delivery_ms is None and not has_verb(message):
            self._recent.add(receipt.transaction_id, Sent(offset, message, queue_id, end_offset - offset))
        return receipt

    def apply(self, fact: OfHalf, stamp: Stamp) -> None:
        """Apply a stored half message, an outcome, a check-back, or a late request."""
        match fact:
            case HalfStored():
                row = row_of(fact, stamp.store_ms, stamp.offset, stamp.queue_offset)
                self.receipts.add_half(fact.topic, fact.message_id, row)
            case HalfEnded():
                self._scheduler.cancel(Purpose.CHECK, fact.half_offset)
                if len(self.waiting_check_backs) and (waiting := self.outcomes.waiting(fact.half_offset)):
                    self.waiting_check_backs.discard(waiting.topic, fact.half_offset)
                outcome = half.state_after(fact)
                self.outcomes.end(fact.half_offset, outcome, stamp.store_ms, stamp.offset)
            case CheckBackSent():
                self._count_check(fact, stamp)
            case LateEndRequested():
                self.outcomes.record_late_request(fact.half_offset, fact.asked_for, stamp.store_ms)

    def publish(self, durable: Sequence[tuple[HalfStored | HalfEnded, Stamp]]) -> None:
        """Mark half messages that are now durable as open, and schedule their first check-backs.

        If too many outcomes are in memory, the oldest durable outcomes are removed.
        """
        due_together: dict[int, list[int]] = {}
        for fact, stamp in durable:
            if isinstance(fact, HalfStored):
                first_ms = half.check_ms_of(fact, stamp.store_ms)
                waiting = OpenHalf(stamp.store_ms, first_ms, 0, fact.topic, half.id_crc(fact.message_id))
                self.outcomes.open_half(stamp.offset, waiting)
                due_together.setdefault(first_ms, []).append(stamp.offset)
        for first_ms, offsets in due_together.items():
            self._scheduler.schedule_many(Purpose.CHECK, offsets, first_ms)
        self.outcomes.forget(durable[-1][1].offset, self._store.applied.ended_halves_max)

    def check_room(self) -> None:
        """Raise `TooManyHalves` if the number of open and expired half messages has reached the limit."""
        count = len(self.outcomes.open) + len(self.outcomes.expired)
        if count >= limits.HALVES_WAITING_MAX:
            raise TooManyHalves(
                f"{count} are open or have expired. Let producers end theirs, or resolve them: "
                "tidewheel txn ls --state expired"
            )

    def end(
        self, topic: str, transaction_id: str, message_id: str, resolution: Resolution, now_ms: int
    ) -> TransactionReceipt:
        """Commit or roll back a transaction, or confirm that it already has this outcome.

        Raise `TransactionEnded` if the transaction has another outcome, or `InvalidTransactionId` if the id
        is unknown.
        """
        sent = self._recent.take(transaction_id) if resolution is Resolution.COMMIT else None
        if sent is not None and sent.half_offset in self.outcomes.open:
            message = sent.message
            if message.message_id == message_id and message.topic == topic:
                return self._commit(sent, transaction_id, now_ms)
        offset = half.half_offset(transaction_id, message_id)
        try:
            record = self.find(offset, transaction_id)
        except InvalidTransactionId:
            # Retention may have deleted the half message although its outcome is still in memory.
            remembered = self.outcomes.ended(offset)
            if remembered is None or remembered.topic != topic:
                raise
            return self._confirm_end(remembered, transaction_id, resolution, _EVENTS[resolution], now_ms)
        _check_topic(record, topic, transaction_id)
        return self._end(record, transaction_id, resolution, _EVENTS[resolution], "", now_ms)

    def _commit(self, sent: Sent, transaction_id: str, now_ms: int) -> TransactionReceipt:
        """Commit an open half message whose content is in memory, without reading the log."""
        half_offset, message, queue_id, _ = sent
        stored, topic = half.commit_properties(message), message.topic
        ended = (HalfEnded(half_offset, "COMMIT"),)
        new = NewMessage(message, stored, topic, queue_id, ended, half_offset)
        offset = self._store.append(new, now_ms).offset
        assert offset > half_offset, "a half is committed before it is stored"
        self._statistics.commits[topic] += 1
        return TransactionReceipt(transaction_id, Resolution.COMMIT, False, offset + 1)

    def resolve(
        self, transaction_id: str, resolution: Resolution, reason: str, now_ms: int
    ) -> TransactionReceipt:
        """Commit or roll back a half message on behalf of an operator, and record the reason.

        Raise `TransactionEnded` if the transaction has another outcome, or `InvalidTransactionId` if the id
        is unknown.
        """
        record = self.find(half.unverified_offset(transaction_id), transaction_id)
        return self._end(record, transaction_id, resolution, _RESOLVING[resolution], reason, now_ms)

    def find(self, offset: int, transaction_id: str) -> Record:
        """Return the half message record of a transaction.

        Raise `InvalidTransactionId` if the id is unknown, or `StoreDamaged` if the record is unreadable.
        """
        if not self.is_known(offset):
            raise unknown_half_error(transaction_id)
        try:
            record = self._store.read(offset)
        except StoreDamaged as error:
            # Report the damage instead of an unknown id, because the half message is known to exist.
            if self.outcomes.state(offset) in (State.OPEN, State.EXPIRED):
                raise
            raise unknown_half_error(transaction_id) from error
        message_id = properties.of_record(record).get(property_names.MESSAGE_ID, "")
        if half.transaction_id(offset, message_id) != transaction_id:
            raise unknown_half_error(transaction_id)
        return record

    def is_known(self, offset: int) -> bool:
        """Return whether `offset` is the log offset of a known half message."""
        if self.outcomes.state(offset) is not None:
            return True
        log = self._store.log
        is_ours = max(log.imported_until, log.first_offset) <= offset < log.durable_offset
        return is_ours and self._store.dispatch.queue(HALF_TOPIC, 0).holds(offset)

    def read_outcome(self, record: Record) -> Ended | None:
        """Return the outcome of a half message, or None if the half message is open.

        Raise `StoreDamaged` if the outcome must be read from the log and the record of the outcome is
        unreadable.
        """
        offset = record.physical_offset
        if offset in self.outcomes.open:
            return None
        return self.outcomes.ended(offset) or self._find_logged_outcome(record)

    def policy(self, topic: str) -> CheckBackPolicy:
        """Return the check-back policy for the half messages of a topic."""
        return self._topics.check_back(topic) or self._policy

    def begin_check_back(self, half_offset: int, now_ms: int) -> CheckBackRequest | None:
        """Return the next check-back to send for a half message, or None if it has ended.

        Also return None if the half message must first be read from the log by `read_due_halves`.
        """
        waiting = self.outcomes.waiting(half_offset)
        if waiting is None:
            return None
        if waiting.id_crc < 0 or self.policy(waiting.topic).is_exhausted(waiting.check_count):
            self._to_read.append(half_offset)
            return None
        return _check_back_of(half_offset, waiting)

    def has_halves_to_read(self) -> bool:
        """Return whether half messages wait for `read_due_halves` and records may be appended."""
        return bool(self._to_read) and not self._store.has_flush_backlog

    def read_due_halves(self, now_ms: int) -> list[CheckBackRequest]:
        """Expire half messages that have no check-backs left, and return check-backs for the others.

        The half message must be read from the log, because an expiry record contains the message id. Each
        call reads at most about `CHECKS_READ_PER_TICK_BYTES_MAX` bytes.
        """
        read_bytes, questions = 0, []
        while self.has_halves_to_read() and read_bytes < limits.CHECKS_READ_PER_TICK_BYTES_MAX:
            half_offset = self._to_read.popleft()
            waiting = self.outcomes.waiting(half_offset)
            if waiting is None:
                continue
            record = self._read_half(half_offset)
            if record is None:
                self._end_unreadable_half(half_offset, now_ms)
                continue
            read_bytes += len(record.body)
            if self.policy(waiting.topic).is_exhausted(waiting.check_count):
                self._append_end(record, Event.EXPIRE, "", now_ms)
            else:
                crc = half.id_crc(properties.value_of(record.properties, property_names.MESSAGE_ID))
                questions.append(_check_back_of(half_offset, waiting._replace(id_crc=crc)))
        return questions

    def roll_back_lost_halves(self, now_ms: int) -> list[int]:
        """Roll back half messages whose records are lost, and return their log offsets.

        A record is lost if it is in neither the log nor a keep file. Each call examines up to
        `HALVES_KEPT_EXAMINED_AT_ONCE` half messages below the first log offset, starting after the last half
        message that the previous call examined.
        """
        log, count = self._store.log, limits.HALVES_KEPT_EXAMINED_AT_ONCE
        assert self._searched_offset <= log.first_offset, "the log begins before where it began"
        looked_at = self.outcomes.some_from(None, self._searched_offset, count)
        below = [half_offset for half_offset in looked_at if half_offset < log.first_offset]
        self._searched_offset = below[-1] + 1 if len(below) == count else log.first_offset
        lost = [half_offset for half_offset in below if half_offset not in log.keep]
        for half_offset in lost:
            self._end_unreadable_half(half_offset, now_ms)
        return lost

    def _end_unreadable_half(self, half_offset: int, now_ms: int) -> None:
        """Roll back a half message whose record is unreadable."""
        waiting = self.outcomes.waiting(half_offset)
        topic = "" if waiting is None else waiting.topic
        stub = Record(
            topic=HALF_TOPIC,
            body=b"",
            properties=properties.encode({property_names.REAL_TOPIC: topic}),
            physical_offset=half_offset,
        )
        self._append_end(stub, Event.RESOLVE_ROLLBACK, "UNREADABLE: nobody has its record any more", now_ms)

    def create_check_back(self, transaction_id: str) -> CheckBackRequest:
        """Return an immediate check-back for a half message, regardless of its schedule.

        Raise `TransactionEnded` if the transaction has ended, or `InvalidTransactionId` if the id is unknown.
        """
        offset = self.find(half.unverified_offset(transaction_id), transaction_id).physical_offset
        waiting = self.outcomes.waiting(offset)
        if waiting is None:
            raise self._ended_error(transaction_id, self.read_outcome(self._store.read(offset)))
        return CheckBackRequest(transaction_id, waiting.topic, offset)

    def message(self, half_offset: int) -> Message | None:
        """Return the content of a half message for a check-back, or None if its record is damaged."""
        record = self._read_half(half_offset)
        if record is None:
            # The next tick rolls the half message back, because a check-back is impossible.
            self._to_read.append(half_offset)
            return None
        return properties.to_message(record)

    def complete_check_back(self, transaction_id: str, asked: bool, now_ms: int) -> None:
        """Complete a check-back.

        If `asked` is true, the check-back was sent to a producer and is counted, and the next check-back is
        scheduled. If `asked` is false, a due check-back waits for a producer, and a manual check-back that is
        not due does not change the schedule.
        """
        offset = half.unverified_offset(transaction_id)
        waiting = self.outcomes.waiting(offset)
        if waiting is None:
            return
        if asked:
            count = waiting.check_count + 1
            next_check_ms = self.policy(waiting.topic).next_check_ms(now_ms, count)
            self._store.append(half.check_record(offset, count, next_check_ms), now_ms)
            self._schedule_waiting(waiting.topic, 1, now_ms)
        elif waiting.next_check_ms <= now_ms:
            self._scheduler.cancel(
                Purpose.CHECK, offset
            )  # After a manual check-back, the timer still exists.
            self.waiting_check_backs.add(waiting.topic, offset)
        elif not self.waiting_check_backs.holds(waiting.topic, offset):
            # The check-back was requested manually before the due time. A half message in
            # `waiting_check_backs` must not have a timer, even after a clock step.
            self._scheduler.schedule(Purpose.CHECK, offset, waiting.next_check_ms)

    def schedule_waiting_check_backs(self, topic: str, now_ms: int) -> None:
        """Schedule up to `CHECKS_WOKEN_MAX` check-backs of a topic that wait for a producer."""
        self._schedule_waiting(topic, limits.CHECKS_WOKEN_MAX, now_ms)

    def oldest_waiting_check_back_ms(self) -> int | None:
        """Return the earliest due time of the check-backs that wait for a producer, or None."""
        oldest = (self.outcomes.waiting(offset) for offset in self.waiting_check_backs.oldest())
        return min((one.next_check_ms for one in oldest if one is not None), default=None)

    def set_check_back(self, topic: str, policy: CheckBackPolicy | None, now_ms: int) -> Topic:
        """Set the check-back policy of a topic, or restore the default if `policy` is None.

        Half messages that wait for a producer expire if the new policy allows no further check-backs. Raise
        `TopicNotFound` if the topic does not exist.
        """
        changed = self._topics.set_check_back(topic, policy, now_ms)
        for offset in self.waiting_check_backs.of(topic):
            waiting = self.outcomes.waiting(offset)
            if waiting is not None and self.policy(topic).is_exhausted(waiting.check_count):
                self.waiting_check_backs.discard(topic, offset)
                self._scheduler.schedule(Purpose.CHECK, offset, now_ms)
        return changed

    def freeze(self) -> Any:
        """Return the state for a snapshot (`Outcomes.freeze`)."""
        return self.outcomes.freeze()

    def thaw(self, frozen: Any) -> None:
        """Restore the state from a snapshot, and schedule the check-backs of open half messages."""
        self.outcomes.thaw(frozen)
        for half_offset, (_, next_check_ms, *_) in self.outcomes.open.items():
            self._scheduler.schedule(Purpose.CHECK, half_offset, next_check_ms)

    def _end(
        self,
        record: Record,
        transaction_id: str,
        resolution: Resolution,
        event: Event,
        reason: str,
        now_ms: int,
    ) -> TransactionReceipt:
        """Process a `txn.states` event, which either ends the half message or is rejected.

        If the half message has expired, the rejected request is recorded.
        """
        ended = self.read_outcome(record)
        if ended is not None and not (ended.state is State.EXPIRED and event in states.RESOLVING):
            if ended.state is State.EXPIRED and self.outcomes.accepts_late_request(record.physical_offset):
                self._store.append(half.late_record(record.physical_offset, event.value), now_ms)
            return self._confirm_end(ended, transaction_id, resolution, event, now_ms)
        durable_at = self._append_end(record, event, reason, now_ms)
        return TransactionReceipt(transaction_id, resolution, False, durable_at)

    def _confirm_end(
        self, ended: Ended, transaction_id: str, resolution: Resolution, event: Event, now_ms: int
    ) -> TransactionReceipt:
        """Return the receipt for a repeated request. Raise `TransactionEnded` if the outcomes differ."""
        if states.after(ended.state, event) is not ended.state:
            raise self._ended_error(transaction_id, ended, now_ms)
        return TransactionReceipt(transaction_id, resolution, True, ended.durable_at)

    def _ended_error(
        self, transaction_id: str, ended: Ended | None, now_ms: int | None = None
    ) -> TransactionEnded:
        """Return an error with the outcome of the transaction, and its age if `now_ms` is given.

        If the transaction has expired, the error contains the command that resolves it.
        """
        assert ended is not None, "an open half is refused as ended"
        when = f" {away(ended.ended_ms - now_ms)}" if ended.ended_ms and now_ms is not None else ""
        what_next = (
            f" Resolve it by hand: tidewheel txn resolve {transaction_id}"
            if ended.state is State.EXPIRED
            else ""
        )
        return TransactionEnded(
            f"{transaction_id} was {ended.state.value}{when}.{what_next}", durable_at=ended.durable_at
        )

    def _find_logged_outcome(self, record: Record) -> Ended:
        """Return the outcome of a half message whose state is not in memory.

        The half message was committed if the log contains its committed record, and was rolled back
        otherwise.
        """
        stored = properties.of_record(record)
        topic, message_id = (
            stored.get(property_names.REAL_TOPIC, ""),
            stored.get(property_names.MESSAGE_ID, ""),
        )
        for offset in self._store.offsets_by_key_or_id(topic, message_id, self._store.log.first_offset):
            # The offsets are in descending order. All remaining records are older than the half message.
            if offset <= record.physical_offset:
                break
            found = self._store.read(offset)
            if found.type == TYPE_COMMIT and found.half_offset == record.physical_offset:
                return Ended(State.COMMITTED, found.store_ms, offset)
        return Ended(State.ROLLED_BACK, 0, -1)

    def _append_end(self, record: Record, event: Event, reason: str, now_ms: int) -> int:
        """Append the record of an outcome, and count the outcome.

        Return the offset up to which the log must be durable before a response is sent.
        """
        durable_at = self._append(_end_record(record, event, reason), now_ms)
        assert durable_at > record.physical_offset, "a half ends before it is stored"
        topic = properties.of_record(record).get(property_names.REAL_TOPIC, "")
        self._counters[states.OUTCOMES[event]][topic] += 1
        return durable_at

    def _append(self, ending: Record, now_ms: int) -> int:
        """Append the record of an outcome, and return its end offset.

        A timer operation in a committed message is also executed. Raise `StoreDamaged` if the names of timers
        cannot be read, in which case no record is appended.
        """
        if ending.topic == TIMER_TOPIC:
            # This call may raise an error, and must therefore precede the append of a record for a timer
            # operation.
            self._timers.mark_replaced(ending, now_ms)
        if ending.type == TYPE_COMMIT and may_have_verb(ending.properties):
            carried = parse_verb(properties.to_message(ending), now_ms)
            if carried:
                self._verb_executor.execute(carried, ending, now_ms)
        if ending.topic == TIMER_TOPIC:
            self._timers.mark_replaced(ending, now_ms)
        return self._store.append(ending, now_ms).end_offset

    def _count_check(self, fact: CheckBackSent, stamp: Stamp) -> None:
        """Record the check-back count of a half message, and schedule the next check-back."""
        next_check_ms = half.check_ms_of(fact, stamp.store_ms)
        waiting = self.outcomes.record_check_back(fact.half_offset, fact.asked_count, next_check_ms)
        if waiting is not None:
            self.waiting_check_backs.discard(waiting.topic, fact.half_offset)
            self._scheduler.schedule(Purpose.CHECK, fact.half_offset, waiting.next_check_ms)

    def _schedule_waiting(self, topic: str, count_max: int, now_ms: int) -> None:
        """Schedule up to `count_max` check-backs of a topic that wait for a producer."""
        for offset in self.waiting_check_backs.take(topic, count_max):
            self._scheduler.schedule(Purpose.CHECK, offset, now_ms)

    def _read_half(self, half_offset: int) -> Record | None:
        """Return the record of a half message, or None if the record is damaged."""
        try:
            return self._store.read(half_offset)
        except StoreDamaged:
            return None


def unknown_half_error(transaction_id: str) -> InvalidTransactionId:
    """Return the error for a transaction id that is unknown or not accessible to the caller."""
    return InvalidTransactionId(
        f"{transaction_id} names no half message of this store. An id has 24 hex digits; those of a key are "
        "listed by: tidewheel txn ls --topic TOPIC --key KEY"
    )


def _check_back_of(half_offset: int, waiting: OpenHalf) -> CheckBackRequest:
    transaction_id = half.transaction_id_of(half_offset, waiting.id_crc)
    return CheckBackRequest(transaction_id, waiting.topic, half_offset)


def _end_record(record: Record, event: Event, reason: str) -> Record:
    outcome = states.OUTCOMES[event]
    if outcome is not State.COMMITTED:
        return half.outcome_record(record, outcome, reason)
    if property_names.DUE_MS in properties.of_record(record):
        return half.committed_timer_record(record, TIMER_TOPIC, reason)
    return half.committed_record(record, reason)


def _check_topic(record: Record, topic: str, transaction_id: str) -> None:
    """Raise `InvalidTransactionId` if the topic is wrong. The error does not reveal the real topic."""
    real_topic = properties.of_record(record).get(property_names.REAL_TOPIC, "")
    if topic != real_topic:
        raise InvalidTransactionId(f"{transaction_id} names no half message of topic {topic!r}.")
