"""Producers, correct, faulty and disconnected, and operators, among the timers of `timer_world`.

    producers   send halves (with delivery times, keys, timer verbs), send them again, end them early, late,
                twice, both ways, with foreign and forged ids; answer check-backs at once, later, wrongly, or
                not at all; or are not connected
    operators   resolve open, expired and ended transactions, and request check-backs
    the world   everything of `timer_machine`: lost and torn writes, failed flushes, checkpoints, retention

Every answer is verified against the table of `transaction_oracle`, and every record of the log against the
answers: an unexpected commit, rollback or expiry is an error, as is a missing one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from commitlog import limits
from commitlog.records import properties
from commitlog.records.kinds import CHECK_TOPIC, HALF_TOPIC, LATE_TOPIC, OUTCOME_TOPIC
from commitlog.records.record import TYPE_COMMIT, Record
from services.broker.broker import Broker
from services.broker.spine.scheduler import Purpose
from services.broker.spine.values import (
    CheckBackRequest,
    Effect,
    HalfFilter,
    HalfView,
    PendingTimer,
    Resolution,
    TimerName,
    TransactionReceipt,
    Verdict,
)
from tests.simulation.faults import KINDS
from tests.simulation.timer_machine import SECOND, TOPICS
from tests.simulation.timer_oracle import Timer
from tests.simulation.timer_world import SPANS_MS, Verb, World
from tests.simulation.transaction_oracle import (
    AGAIN,
    DONE,
    PROMISED,
    REFUSED,
    Transaction,
    TransactionOracle,
)
from tests.simulation.tries import tried
from tidewheel import property_names
from tidewheel.errors import TransactionEnded
from txn import outcomes
from txn.checkback import CheckBackPolicy
from txn.errors import InvalidTransactionId
from txn.half import transaction_id
from txn.states import State

COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK
OUTCOMES = {COMMIT: State.COMMITTED, ROLLBACK: State.ROLLED_BACK}
NAMED = {"ROLLBACK": State.ROLLED_BACK, "EXPIRED": State.EXPIRED}


class TransactionWorld(World):
    """A broker, its machine, its clients, its operators and the oracle."""

    oracle: TransactionOracle

    def __init__(self, seed: int) -> None:
        self.count_max = (1, 2, 5)[seed % 3]
        self.is_alone = seed % 7 == 3
        super().__init__(seed)
        self.oracle = TransactionOracle(self.settings.timer_history_ms)
        self.answers: list[tuple[Transaction, Resolution]] = []
        """Later answers of producers to check-backs."""
        self.alone: defaultdict[str, dict[int, None]] = defaultdict(dict)
        """By topic: halves that wait for a producer; they have no check-backs until one connects."""

    def _kinds_hit(self, seed: int) -> tuple[str, ...]:
        """Exclude the files of timers: the transaction oracle queries timers before they are repaired."""
        return KINDS

    def _open(self, acknowledged_offset: int | None) -> Broker:
        policy = CheckBackPolicy(
            immunity_ms=500, interval_ms=400, interval_ms_max=2_000, count_max=self.count_max
        )
        self.settings = replace(self.settings, check_back=policy)
        return super()._open(acknowledged_offset)

    def step(self) -> None:
        usual = [
            self.send_half, self.send_half, self.send_half, self.send_half, self.send_half, self.send_again,
            self.end_half, self.end_half, self.end_half, self.end_any, self.end_any, self.resolve,
            self.answer, self.answer, self.create_check_back, self.come, self.lie, self.flush, self.flush,
            self.flush, self.take_flush, self.pass_time, self.pass_time, self.work_on_checkpoint,
            self.run_jobs, self.send_timer, self.send_timer, self.send_plain, self.verb, self.compare,
            self.tidy,
        ]  # fmt: skip
        rare = [self.crash, self.crash, self.fail_to_flush, self.fail_checkpoint, self.set_clock_back]
        self.endure(self.chance.choice(rare if self.chance.random() < 0.05 else usual))

    def tidy(self) -> None:
        """With retention, write checkpoints and run the housekeeping, which deletes old segments."""
        if self.settings.retention.deletes:
            for _ in range(6):
                self.work_on_checkpoint()
            self._tick(self.now_ms + self.settings.housekeeping_ms)
            self.flush()

    # Producers.

    def send_half(self) -> None:
        message = self._message()
        message.transactional = True
        message.properties.pop("TW_TIMER_UNIQUE", None)
        if self.chance.random() < 0.2:
            message.check_immunity_ms = self.chance.choice([SECOND, 10 * SECOND])
        if self.chance.random() < 0.4:
            message.delivery_ms = self.now_ms + self.chance.choice(SPANS_MS)
        verb = self._carry(message) if self.chance.random() < 0.4 else None
        receipt = self.broker.sending.send(message, self.now_ms)
        carried = (verb.kind, verb.name, verb.to_ms) if verb else None
        at = receipt.physical_offset
        self.oracle.transactions[at] = Transaction(at, receipt.transaction_id, message, self.now_ms, carried)
        if self.chance.random() < 0.2:
            again = self.broker.sending.send(tried(message, 1), self.now_ms)
            assert again.physical_offset == at, "a retry made a second half"

    def send_again(self) -> None:
        """Repeat the send of a half, which may have ended."""
        newest = {one.message.message_id: one for one in self.oracle.transactions.values()}
        if not newest:
            return
        one = self.chance.choice(list(newest.values())[-20:])
        if one.sent_ms <= self.seen_ms - self.settings.dedupe_ms or self.went_back:
            return
        receipt = self.broker.sending.send(tried(one.message, self.now_ms), self.now_ms)
        assert (receipt.physical_offset, receipt.transaction_id) == (one.offset, one.transaction_id)

    def end_half(self) -> None:
        """End a half that is open in the oracle."""
        waiting = [one for one in self.oracle.transactions.values() if one.state is State.OPEN]
        if waiting:
            self._end(self.chance.choice(waiting), self.chance.choice([COMMIT, COMMIT, ROLLBACK]))

    def end_any(self) -> None:
        """End any half, which may have ended long ago, or may not be durable yet."""
        if self.oracle.transactions:
            one = self.chance.choice(list(self.oracle.transactions.values()))
            for _ in range(self.chance.choice([1, 1, 2])):
                self._end(one, self.chance.choice([COMMIT, ROLLBACK]))

    def answer(self) -> None:
        """Answer an earlier check-back, regardless of the half's state."""
        if self.answers:
            one, how = self.answers.pop(self.chance.randrange(len(self.answers)))
            if self.oracle.transactions.get(one.offset) is one:
                self._end(one, how)

    def lie(self) -> None:
        """Verify that ends with foreign or forged ids change nothing."""
        if not self.oracle.transactions:
            return
        one = self.chance.choice(list(self.oracle.transactions.values()))
        other = next(topic for topic in TOPICS if topic != one.message.topic)
        self._refused(other, one.transaction_id, one.message.message_id)
        self._refused(one.message.topic, one.transaction_id, "m-forged")
        at = self.chance.randrange(self.broker.end_offset + 500)
        if at not in self.oracle.transactions:
            self._refused(
                one.message.topic, transaction_id(at, one.message.message_id), one.message.message_id
            )

    def _refused(self, topic: str, named: str, message_id: str) -> None:
        before = self.broker.end_offset
        for how in (COMMIT, ROLLBACK):
            try:
                self.broker.transactions.end(topic, named, message_id, how, self.now_ms)
            except InvalidTransactionId:
                continue
            raise AssertionError(f"{named} with {message_id} of {topic} was accepted")
        assert self.broker.end_offset == before, "what was refused was written"

    # Operators.

    def resolve(self) -> None:
        kept = [one for one in self.oracle.transactions.values() if one.state is State.EXPIRED]
        kept = kept or list(self.oracle.transactions.values())
        if kept:
            self._end(self.chance.choice(kept), self.chance.choice([COMMIT, ROLLBACK]), by_operator=True)

    def create_check_back(self) -> None:
        if not self.oracle.transactions:
            return
        one = self.chance.choice(list(self.oracle.transactions.values()))
        self._look_at_half(one)
        try:
            question = self.broker.transactions.create_check_back(one.transaction_id)
        except InvalidTransactionId:
            assert self._may_be_unknown(one)
        except TransactionEnded:
            assert one.state is not State.OPEN
        else:
            assert one.state is State.OPEN
            self._asked(question)

    def come(self) -> None:
        """Connect a producer: waiting halves of its topic get check-backs at once."""
        topic = self.chance.choice(TOPICS)
        self.broker.transactions.schedule_waiting_check_backs(topic, self.now_ms)
        self._wake(topic, limits.CHECKS_WOKEN_MAX)

    def _is_alone(self, one: Transaction, is_there: bool, due_ms: int) -> None:
        """Record a check-back, or that a half waits for a producer; a check-back wakes one more half."""
        waiting = self.alone[one.message.topic]
        if is_there:
            waiting.pop(one.offset, None)
            self._wake(one.message.topic, 1)
        elif due_ms <= self.now_ms:
            waiting.setdefault(one.offset)

    def _wake(self, topic: str, count_max: int) -> None:
        waiting = self.alone[topic]
        for at in [at for at in waiting if self.oracle.transactions[at].state is not State.OPEN]:
            del waiting[at]
        for at in list(waiting)[:count_max]:
            del waiting[at]
            due_ms = self.broker._scheduler.due_ms(Purpose.CHECK, at)
            assert due_ms <= self.now_ms or self.went_back, "not asked about at once"

    def _reopen(self, trusted_offset: int | None) -> None:
        """Reopen the broker; after a start all due halves get check-backs again."""
        self.alone.clear()
        super()._reopen(trusted_offset)

    # Check-backs.

    def _carry_out(self, effects: list[Effect]) -> None:
        questions = [effect for effect in effects if isinstance(effect, CheckBackRequest)]
        super()._carry_out([effect for effect in effects if not isinstance(effect, CheckBackRequest)])
        for question in questions:
            one = self.oracle.transactions[int(question.transaction_id[:16], 16)]
            immunity_ms = one.message.check_immunity_ms or self.settings.check_back.immunity_ms
            assert one.stored_ms >= 0, "asked about a half that is not durable"
            assert self.now_ms >= one.stored_ms + immunity_ms or self.went_back, "asked too early"
            assert one.offset not in self.alone[question.topic], f"asked again, though nobody came: {one}"
            self._asked(question)

    def _asked(self, question: CheckBackRequest) -> None:
        """Handle a check-back: verify it, and let a producer, if there is one, answer in one of its ways."""
        one = self.oracle.transactions[int(question.transaction_id[:16], 16)]
        assert one.state is State.OPEN, f"asked about {one}"
        assert (question.topic, question.half_offset) == (one.message.topic, one.offset)
        is_there = not self.is_alone and self.chance.random() < 0.7
        message = self.broker.transactions.message(question.half_offset) if is_there else None
        if message is not None:
            assert (message.message_id, message.body) == (one.message.message_id, one.message.body)
        how = self.chance.choice([COMMIT, ROLLBACK])
        due_ms = self.broker.half_views.get_half(one.transaction_id).next_check_ms
        kind = self.chance.choice(["silent", "silent", "at once", "later", "before"])
        if kind == "before":
            self._end(one, how)
        self.broker.transactions.complete_check_back(question.transaction_id, is_there, self.now_ms)
        if one.state is State.OPEN:
            self._is_alone(one, is_there, due_ms)
        if is_there and kind == "at once":
            self._end(one, how)
        elif is_there and kind == "later":
            self.answers.append((one, how))

    # The table.

    def _end(self, one: Transaction, how: Resolution, *, by_operator: bool = False) -> None:
        """End a transaction, and verify the answer against the promised one."""
        self._look_at_half(one)
        self._look_at_timers(one)
        promised = PROMISED[(one.state, how, by_operator)]
        before = self.broker.end_offset
        told = self._told_of_end(one, how, by_operator)
        if isinstance(told, InvalidTransactionId):
            assert self._may_be_unknown(one), f"{one} is not known"
        elif isinstance(told, TransactionEnded):
            assert promised is REFUSED, f"{how} is refused: {one}: {told}"
            assert one.state.value in str(told)
            assert told.durable_at in (0, one.ends[-1].offset + 1)
            if one.state is State.EXPIRED and not by_operator and len(one.late) < outcomes.LATE_ENDS_MAX:
                assert self.broker.end_offset > before, f"came late, and was not noted: {one}"
                one.late.append((self._last_offset(self.broker.end_offset), how.value))
                return
        elif told.repeated:
            assert promised is AGAIN, f"{how} is said to repeat: {one}"
            assert told.durable_at in (0, one.ends[-1].offset + 1)
        else:
            assert promised is DONE, f"{how} is accepted: {one}"
            self._ended(one, how, told.durable_at)
            return
        assert self.broker.end_offset == before, "what changes nothing was written"

    def _told_of_end(
        self, one: Transaction, how: Resolution, by_operator: bool
    ) -> TransactionReceipt | InvalidTransactionId | TransactionEnded:
        try:
            if by_operator:
                return self.broker.transactions.resolve(one.transaction_id, how, "because", self.now_ms)
            topic, message_id = one.message.topic, one.message.message_id
            return self.broker.transactions.end(topic, one.transaction_id, message_id, how, self.now_ms)
        except (InvalidTransactionId, TransactionEnded) as error:
            return error

    def _ended(self, one: Transaction, how: Resolution, durable_at: int) -> None:
        at = self._last_offset(durable_at)
        one.end(OUTCOMES[how], at)
        if how is COMMIT:
            self._carried(one.message.topic, Verb(*one.verb) if one.verb else None, at)
            if one.message.delivery_ms is not None:
                self._set(at, one.message)

    def _in_step(self, name: TimerName | None) -> Timer | None:
        """Update the oracle; a name forgotten while pending may reappear after the clock was set back."""
        offsets = self.oracle.names.get(name) if name else None
        if name and offsets and offsets[-1] in self.oracle.forgotten[name]:
            found = self.broker.timers.get_timer(name, self.now_ms)
            if isinstance(found, PendingTimer) or found.verdict not in (Verdict.NEVER_SET, Verdict.FORGOTTEN):
                self.oracle.forgotten[name].discard(offsets[-1])
        return super()._in_step(name)

    def _look_at_timers(self, one: Transaction) -> None:
        topic, key = one.message.topic, one.message.properties.get("TW_TIMER_KEY", "")
        named = self._meant(topic, one.verb[1]) if one.verb else None
        for name in (named, TimerName(topic, key=key)):
            self._in_step(name)

    def _look_at_half(self, one: Transaction) -> None:
        """Compare a half; record an expiry that is decided and not yet durable, which `follow` verifies."""
        view = self._view(one)
        if view is None:
            assert self._may_be_unknown(one), f"{one} is not known"
            return
        if view.state is State.EXPIRED and one.state is State.OPEN:
            assert view.ended_offset >= self.followed, f"{one} has not expired, yet {view}"
            one.end(State.EXPIRED, view.ended_offset)
        assert view.state is one.state, f"{one}, yet {view}"
        if view.state is State.EXPIRED:
            assert [asked_for for asked_for, _ in view.late] == [asked_for for _, asked_for in one.late]
        if view.ended_offset >= 0:
            assert view.ended_offset == one.ends[-1].offset, f"{one}, yet {view}"

    def _view(self, one: Transaction) -> HalfView | None:
        try:
            return self.broker.half_views.get_half(one.transaction_id)
        except InvalidTransactionId:
            return None

    def _may_be_unknown(self, one: Transaction) -> bool:
        """Return whether a half is not durable yet, or has ended and was deleted by retention."""
        is_deleted = one.offset < self.broker._log.first_offset and not one.is_waiting
        return one.offset >= self.broker.durable_offset or is_deleted

    # The log.

    def _follow(self, record: Record) -> None:
        at = record.physical_offset
        if record.topic == HALF_TOPIC:
            self.oracle.transactions[at].stored_ms = record.store_ms
        elif record.topic == CHECK_TOPIC:
            one = self.oracle.transactions[record.half_offset]
            assert record.body == b""
            missing_count = record.reconsume_times - one.check_count - 1
            is_in_gap = missing_count > 0 and bool(self.faults.gaps)
            assert missing_count == 0 or is_in_gap, f"a check is missing: {one}"
            one.check_count = record.reconsume_times
        elif record.topic == LATE_TOPIC:
            assert (at, record.body.decode()) in self.oracle.transactions[record.half_offset].late
        elif record.topic == OUTCOME_TOPIC:
            self._follow_outcome(record)
        elif record.type == TYPE_COMMIT:
            one = self.oracle.transactions[record.half_offset]
            one.found(State.COMMITTED, at)
            self._is_same(properties.to_message(record), one.message)
        super()._follow(record)

    def _follow_outcome(self, record: Record) -> None:
        one = self.oracle.transactions[record.half_offset]
        state = NAMED[properties.value_of(record.properties, property_names.OUTCOME)]
        if state is State.EXPIRED:
            assert one.check_count >= self.count_max, f"expired without {self.count_max} checks: {one}"
            if one.state is State.OPEN:
                one.end(State.EXPIRED, record.physical_offset)
        one.found(state, record.physical_offset)

    def compare(self) -> None:
        if not self.broker.is_quiet:
            return
        self.follow()
        for timer in self.oracle.pending().values():
            self._in_step(TimerName(timer.topic, key=timer.key))  # later than the history: forgotten
        super().compare()
        for topic in TOPICS:
            self._wake(topic, 0)
            assert list(self.broker.transactions.waiting_check_backs.of(topic)) == list(self.alone[topic])
        gauges = self.broker.gauges()
        waiting = {state: self.oracle.in_state(state) for state in (State.OPEN, State.EXPIRED)}
        assert (gauges.open_halves, gauges.expired_halves) == tuple(map(len, waiting.values()))
        listed = {one.half_offset: one for one in self._all_halves()}
        assert set(listed) == waiting[State.OPEN] | waiting[State.EXPIRED]
        for at, view in listed.items():
            one = self.oracle.transactions[at]
            assert (view.state, view.check_count) == (one.state, one.check_count), f"{view}, yet {one}"
        for one in self.oracle.transactions.values():
            self._look_at_half(one)

    def _all_halves(self) -> list[HalfView]:
        listed: list[HalfView] = []
        after = None
        while True:
            page = self.broker.half_views.page(HalfFilter(), after, self.chance.choice([1, 7, 1000]))
            listed += page.halves
            after = page.after
            if after is None:
                return listed

    # The end.

    def settle_transactions(self) -> None:
        """End all remaining transactions by producers and operators."""
        self.flush()
        for one in list(self.oracle.transactions.values()):
            if one.is_waiting:
                self._end(one, self.chance.choice([COMMIT, ROLLBACK]), by_operator=self.chance.random() < 0.5)
        self.flush()
        for one in list(self.oracle.transactions.values()):
            if one.is_waiting:
                self._end(one, self.chance.choice([COMMIT, ROLLBACK]), by_operator=True)

    def check_ends(self) -> None:
        """Verify that each transaction has one end in the log, and that consumers get what was committed."""
        assert not self._all_halves()
        for one in self.oracle.transactions.values():
            assert one.seen == one.ends, one
            assert [end.state in (State.COMMITTED, State.ROLLED_BACK) for end in one.ends].count(True) == 1
        if self.settings.retention.deletes:
            return
        for one in self.oracle.transactions.values():
            view = self._view(one)
            assert view is not None
            assert view.state is one.state
        ids = {one.message.message_id for one in self.oracle.transactions.values()}
        seen = Counter(message_id for message_id in visible_ids(self.broker) if message_id in ids)
        assert seen == self.oracle.visible_ids(), "consumers do not see what was committed"


def visible_ids(broker: Broker) -> Iterator[str]:
    """Yield the ids of all messages in users' queues."""
    for topic in broker.topics.all():
        for queue_id in range(topic.queue_count):
            for at in range(*broker.finding.queue_range(topic.name, queue_id)):
                [delivery] = broker.finding.read(topic.name, queue_id, at, 1)
                yield delivery.message.message_id
