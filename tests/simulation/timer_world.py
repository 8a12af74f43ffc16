"""The clients of `timer_machine`: every verb, by name and carried by messages, on any name of a timer.

The timers named may be pending, ended or unknown. Each answer is verified against `timer_oracle`, which
records the changes. When the broker is quiet all views are compared; `drain` then advances the time until no
timer is left.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from commitlog.records.message import Message
from services.broker.spine import record_versions
from services.broker.spine.errors import HoldConflict, KeyPending, VersionNotFinalized
from services.broker.spine.values import (
    PendingTimer,
    Resolution,
    SendReceipt,
    TimerFilter,
    TimerName,
    TimerVerdict,
    Verdict,
)
from tests.simulation.timer_machine import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    STEPS_MS,
    TOPICS,
    Machine,
)
from tests.simulation.timer_oracle import Half, Timer
from tests.simulation.tries import some_properties, tried
from tidewheel.errors import TidewheelError, TransactionEnded

SPANS_MS = (
    -5 * SECOND, 0, 0, 1, 3, 90, 700, 5 * SECOND, 8 * SECOND, 9 * SECOND, 17 * SECOND, 40 * SECOND,
    5 * MINUTE, 18 * MINUTE, 50 * MINUTE, 3 * HOUR, 19 * HOUR, 2 * DAY, 30 * DAY, 50 * DAY, 400 * DAY,
    3_000 * DAY, 3_650 * DAY,
)  # fmt: skip
EVERYTHING = TimerFilter()
KEYS = ("k1", "k2", "k3", "k4")


@dataclass(slots=True)
class Verb:
    """A verb carried by a message."""

    kind: str
    name: str
    to_ms: int = 0

    def given(self) -> dict[str, str]:
        to = {"TW_TIMER_TO": str(self.to_ms)} if self.kind == "MOVE" else {}
        return {f"TW_TIMER_{self.kind}": self.name} | to


_UNKNOWN: Final = (Verdict.NEVER_SET, Verdict.FORGOTTEN)


class World(Machine):
    """A broker, its machine, its clients and the oracle."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.sent: list[Message] = []
        self.handles: list[tuple[TimerName, str]] = []
        self.count = 0

    def step(self) -> None:
        usual = [
            self.send_timer, self.send_timer, self.send_timer, self.send_timer, self.send_plain,
            self.send_half, self.end_half, self.send_many, self.verb, self.verb, self.recall, self.retry,
            self.pass_time, self.pass_time, self.flush, self.flush, self.take_flush, self.work_on_checkpoint,
            self.run_jobs, self.compare, self.hold, self.release, self.release,
        ]  # fmt: skip
        rare = [
            self.crash, self.crash, self.fail_to_flush, self.fail_checkpoint, self.set_clock_back,
            self.send_burst, self.settle,
        ]  # fmt: skip
        self.endure(self.chance.choice(rare if self.chance.random() < 0.05 else usual))

    def hold(self) -> None:
        """Hold the timers of a topic."""
        topic = self.chance.choice(TOPICS)
        if topic not in self.broker.topics:
            return
        try:
            changed = self.broker.topic_changes.hold(topic, "why", self.now_ms)
        except HoldConflict:
            assert self.oracle.is_held(topic)
        except VersionNotFinalized:
            assert not record_versions.may_write(self.broker.store, record_versions.TOPIC_CHANGES)
        else:
            assert not self.oracle.is_held(topic)
            self.oracle.holds.append((changed.durable_at - 1, topic, True))

    def release(self) -> None:
        """Release the timers of a topic, or change the pace of a release."""
        topic, per_second = self.chance.choice(TOPICS), self.chance.choice([0, 0, 1, 30])
        if topic in self.broker.topics:
            self._release(topic, per_second)

    def _release(self, topic: str, per_second: int) -> None:
        try:
            changed = self.broker.topic_changes.release(topic, per_second, self.now_ms)
        except HoldConflict:
            assert not self.oracle.is_held(topic)
            held = [one for one in self.oracle.pending().values() if one.is_held and one.topic == topic]
            assert not held or not self.broker.is_quiet or self._is_unmended, (
                "what is held cannot be released"
            )
        else:
            self.oracle.holds.append((changed.durable_at - 1, topic, False))

    def _may_wait(self, timer: Timer) -> bool:
        """Return whether a due timer may be pending: held, or in a release at a limited rate."""
        is_slow = self.broker.topics.release_pace(timer.topic) > 0
        return timer.is_held and (is_slow or self.oracle.is_held(timer.topic))

    def send_burst(self) -> None:
        """Send many timers, most of them due at the same time."""
        due_ms = max(0, self.now_ms + self.chance.choice(SPANS_MS))
        for _ in range(self.chance.randrange(5, 30)):
            message = self._message()
            message.delivery_ms = due_ms + self.chance.choice([0, 0, 0, 1, 1000])
            self._send_timer(message, None)

    def send_timer(self) -> None:
        message = self._message()
        message.delivery_ms = max(0, self.now_ms + self.chance.choice(SPANS_MS))
        self._send_timer(message, self._carry(message) if self.chance.random() < 0.1 else None)

    def send_many(self) -> None:
        """Send many timers in one call: some with the same key, some repeated, some carrying a verb."""
        batch: list[tuple[Message, Verb | None]] = []
        for _ in range(self.chance.randrange(1, 25)):
            message = self._message()
            message.delivery_ms = max(0, self.now_ms + self.chance.choice(SPANS_MS))
            batch.append((message, self._carry(message) if self.chance.random() < 0.1 else None))
        again = [(tried(one, self.count), None) for one in self.sent[-20:] if self._is_known(one)]
        batch += self.chance.sample(again, min(len(again), self.chance.randrange(3)))
        self.chance.shuffle(batch)
        for message, verb in batch:
            self._look(message, verb)
        answers = self.broker.sending.send_many([message for message, _ in batch], self.now_ms)
        for (message, verb), answer in zip(batch, answers, strict=True):
            known = self.oracle.named(TimerName(message.topic, message.message_id))
            if any(message is one for one, _ in again):
                assert isinstance(answer, SendReceipt)
                assert known is not None
                assert answer.physical_offset == known.offset, "a retry made a second timer"
            else:
                self._answered(message, verb, answer)

    def _send_timer(self, message: Message, verb: Verb | None) -> None:
        self._look(message, verb)
        try:
            answer: SendReceipt | TidewheelError = self.broker.sending.send(message, self.now_ms)
        except KeyPending as refused:
            answer = refused
        self._answered(message, verb, answer)

    def _look(self, message: Message, verb: Verb | None) -> None:
        """Update the oracle for the timers named by a message."""
        key = message.properties.get("TW_TIMER_KEY", "")
        for name in (
            TimerName(message.topic, key=key),
            self._meant(message.topic, verb.name) if verb else None,
        ):
            self._in_step(name)

    def _answered(self, message: Message, verb: Verb | None, answer: SendReceipt | TidewheelError) -> None:
        key = message.properties.get("TW_TIMER_KEY", "")
        waiting = self.oracle.waiting(TimerName(message.topic, key=key)) if key else None
        if isinstance(answer, TidewheelError):
            assert isinstance(answer, KeyPending)
            assert waiting is not None, "refused, yet nothing waits"
            assert message.properties["TW_TIMER_UNIQUE"] == "true"
            return
        assert waiting is None or "TW_TIMER_UNIQUE" not in message.properties, "two wait for one key"
        self.sent.append(message)
        at = answer.physical_offset
        self.handles.append((TimerName(message.topic, message.message_id), answer.recall_handle))
        self._carried(message.topic, verb, at)
        self._set(at, message)

    def _is_known(self, message: Message) -> bool:
        known = self.oracle.named(TimerName(message.topic, message.message_id))
        return known is not None and known.stored_ms > self.seen_ms - self.settings.dedupe_ms

    def _set(self, at: int, message: Message) -> None:
        """Record a new timer, which replaces the pending one with its key."""
        timer = Timer(at, message, message.delivery_ms or 0, self.now_ms)
        waiting = self.oracle.waiting(TimerName(timer.topic, key=timer.key)) if timer.key else None
        if waiting is not None:
            self.oracle.end(waiting, "REPLACED", at, self.now_ms)
        self.oracle.set(timer)

    def send_plain(self) -> None:
        message = self._message()
        verb = self._carry(message) if self.chance.random() < 0.7 else None
        message.properties.pop("TW_TIMER_KEY", None)
        message.properties.pop("TW_TIMER_UNIQUE", None)
        if verb is not None:
            self._in_step(self._meant(message.topic, verb.name))
        receipt = self.broker.sending.send(message, self.now_ms)
        self._carried(message.topic, verb, receipt.physical_offset)

    def send_half(self) -> None:
        message = self._message()
        message.transactional = True
        message.properties.pop("TW_TIMER_UNIQUE", None)
        if self.chance.random() < 0.6:
            message.delivery_ms = self.now_ms + self.chance.choice(SPANS_MS)
        verb = self._carry(message) if self.chance.random() < 0.4 else None
        receipt = self.broker.sending.send(message, self.now_ms)
        at = receipt.physical_offset
        carried = (verb.kind, verb.name, verb.to_ms) if verb else None
        self.oracle.halves[at] = Half(at, receipt.transaction_id, message, carried)

    def end_half(self) -> None:
        durable = self.broker.durable_offset
        open_ones = [
            half for half in self.oracle.halves.values() if half.ended_offset < 0 and half.offset < durable
        ]
        if not open_ones:
            return
        half = self.chance.choice(open_ones)
        verb = Verb(*half.verb) if half.verb else None
        how = self.chance.choice([Resolution.COMMIT, Resolution.COMMIT, Resolution.ROLLBACK])
        topic, key = half.message.topic, half.message.properties.get("TW_TIMER_KEY", "")
        for name in (self._meant(topic, verb.name) if verb else None, TimerName(topic, key=key)):
            self._in_step(name)
        with contextlib.suppress(TransactionEnded):
            end = self.broker.transactions.end(
                topic, half.transaction_id, half.message.message_id, how, self.now_ms
            )
            half.ended_offset = end.durable_at - 1
            if how is Resolution.COMMIT:
                at = self._last_offset(end.durable_at)
                self._carried(topic, verb, at)
                if half.message.delivery_ms is not None:
                    self._set(at, half.message)

    def retry(self) -> None:
        """Repeat a send: it must not create a second timer."""
        if not self.sent:
            return
        message = self.chance.choice(self.sent[-20:])
        known = self.oracle.named(TimerName(message.topic, message.message_id))
        if known is None or not self._is_known(message):
            return
        receipt = self.broker.sending.send(tried(message, self.count), self.now_ms)
        assert receipt.physical_offset == known.offset, "a retry made a second timer"

    def verb(self) -> None:
        """Use a verb by message id or key, on a pending, ended or unknown timer."""
        name = self._any_name()
        self._in_step(name)
        timer, expected = self.oracle.named(name), self.oracle.expected(name)
        kind = self.chance.choice(["CANCEL", "CANCEL", "MOVE", "MOVE", "FIRE", "GET"])
        to_ms = max(0, self.now_ms + self.chance.choice(SPANS_MS))
        if kind == "CANCEL":
            self._told(name, timer, expected, self.broker.timers.cancel(name, "no longer", self.now_ms))
        elif kind == "MOVE":
            told = self.broker.timers.move(name, to_ms, self.now_ms)
            self._told(name, timer, expected, told, to_ms)
        elif kind == "FIRE":
            self._told(name, timer, expected, self.broker.timers.fire(name, self.now_ms))
        elif isinstance(found := self.broker.timers.get_timer(name, self.now_ms), PendingTimer):
            assert timer is not None
            assert not timer.ended
            assert found.message is not None
            assert found.message.body == timer.message.body
            self.oracle.check_look(found, timer)
        else:
            self._told(name, timer, expected, found)

    def recall(self) -> None:
        if self.handles:
            name, handle = self.chance.choice(self.handles)
            self._in_step(name)
            timer, expected = self.oracle.named(name), self.oracle.expected(name)
            self._told(name, timer, expected, self.broker.timers.recall(name.topic, handle, self.now_ms))

    def _told(
        self,
        name: TimerName,
        timer: Timer | None,
        expected: Verdict | None,
        told: TimerVerdict,
        to_ms: int = 0,
    ) -> None:
        """Verify a verdict against the oracle, and record the change."""
        if told.verdict in (Verdict.NEVER_SET, Verdict.FORGOTTEN):
            is_forgotten = self.oracle.may_be_forgotten(name, self.seen_ms)
            assert is_forgotten or expected is Verdict.NEVER_SET or timer is None, (name, timer, told)
            return
        assert timer is not None, f"{name} was never set, yet {told}"
        assert told.durable_at > told.ended_offset >= 0
        if expected is not None:
            assert (told.verdict, told.ended_offset) == (expected, timer.ended_offset), (timer, told)
            return
        assert told.verdict in (Verdict.CANCELLED, Verdict.MOVED, Verdict.FIRED), (timer, told)
        assert told.due_ms == timer.due_ms
        if told.verdict is Verdict.MOVED:
            by = self.broker.store.read_appended(told.ended_offset)
            self.oracle.moved(timer.offset, by, to_ms, self.now_ms)
        else:
            self.oracle.end(timer, told.verdict.value, told.ended_offset, self.now_ms)

    def _carried(self, topic: str, verb: Verb | None, at: int) -> None:
        """Record the verb of a message stored at an offset; the record of a move or fire precedes it."""
        if verb is None:
            return
        name = self._named_by(topic, verb.name)
        timer, expected = self.oracle.named(name), self.oracle.expected(name)
        if expected is not None:
            self.oracle.verdicts[at] = expected.value
            return
        assert timer is not None
        self.oracle.verdicts[at] = {"CANCEL": "CANCELLED", "MOVE": "MOVED", "FIRE": "FIRED"}[verb.kind]
        if verb.kind == "CANCEL":
            self.oracle.end(timer, "CANCELLED", at, self.now_ms)
            return
        before = self._last_offset(at)
        told = TimerVerdict(Verdict[f"{verb.kind}D"], "", 0, before, at, timer.due_ms)
        self._told(name, timer, None, told, verb.to_ms)

    def _in_step(self, name: TimerName | None) -> Timer | None:
        """Record a delivery that is decided and not yet durable, which `follow` verifies later.

        Return the pending timer with a name, or None.
        """
        if name is not None:
            self._remember(name)
        timer = self.oracle.named(name) if name else None
        if name is None or timer is None:
            return None
        found = self.broker.timers.get_timer(name, self.now_ms)
        if isinstance(found, TimerVerdict) and found.verdict in (Verdict.NEVER_SET, Verdict.FORGOTTEN):
            # The clock may have passed the history since the end of a held timer that is not durable yet.
            is_over = timer.is_held and self.broker.timers.ends.find_end(timer.offset) is not None
            is_long_ago = is_over or self.oracle.may_be_forgotten(name, self.seen_ms)
            assert is_long_ago, f"{timer} is forgotten too early"
            self.oracle.forget(name)
            return None
        if timer.ended:
            return None
        if isinstance(found, TimerVerdict) and found.verdict is Verdict.TOO_LATE:
            assert found.ended_offset >= self.followed, f"{timer} was not delivered, yet {found}"
            self.oracle.end(timer, "DELIVERED", found.ended_offset, self.now_ms)
            return None
        return timer

    def _meant(self, topic: str, name: str) -> TimerName:
        self._remember(TimerName(topic, key=name))
        return self._named_by(topic, name)

    def _named_by(self, topic: str, name: str) -> TimerName:
        """Return the name that a verb refers to in the oracle: a key, or else a message id.

        The core may have made later changes within the same batch.
        """
        by_key = TimerName(topic, key=name)
        return by_key if self.oracle.named(by_key) else TimerName(topic, name)

    def _remember(self, name: TimerName) -> None:
        """Restore a forgotten name that is known again after the clock was set back."""
        if self.oracle.names[name] and self.oracle.names[name][-1] in self.oracle.forgotten[name]:
            found = self.broker.timers.get_timer(name, self.now_ms)
            is_unknown = isinstance(found, TimerVerdict) and found.verdict in _UNKNOWN
            if not is_unknown:
                self.oracle.forgotten[name].discard(self.oracle.names[name][-1])

    def _any_name(self) -> TimerName:
        topic = self.chance.choice(TOPICS)
        if self.chance.random() < 0.3:
            return TimerName(topic, key=self.chance.choice(KEYS))
        return TimerName(topic, f"m{self.chance.randrange(self.count + 2)}")

    def _message(self) -> Message:
        self.count += 1
        given = some_properties(self.count)
        if self.chance.random() < 0.4:
            given["TW_TIMER_KEY"] = self.chance.choice(KEYS)
            if self.chance.random() < 0.3:
                given["TW_TIMER_UNIQUE"] = "true"
        body = self.chance.randbytes(self.chance.choice([1, 20, 200, 1500]))
        return Message(
            topic=self.chance.choice(TOPICS), body=body, message_id=f"m{self.count}",
            tag=self.chance.choice(["", "red", "blue"]), keys=("x", "y", "z")[: self.chance.randrange(4)],
            properties=given,
        )  # fmt: skip

    def _carry(self, message: Message) -> Verb:
        name = self._any_name()
        kind = self.chance.choice(["CANCEL", "CANCEL", "MOVE", "FIRE"])
        to_ms = max(0, self.now_ms + self.chance.choice(SPANS_MS)) if kind == "MOVE" else 0
        verb = Verb(kind, name.key or name.message_id, to_ms)
        message.properties |= verb.given()
        return verb

    def _last_offset(self, end_offset: int) -> int:
        """Return the offset of the last record before an offset, which may not be durable yet."""
        appended = self.broker.store._appended
        return max(one.offset for one in appended if one.stored and one.offset < end_offset)

    def compare(self) -> None:
        """Compare all views with the oracle, if the broker is quiet."""
        if not self.broker.is_quiet:
            return
        self.follow()
        if self._is_unmended:
            return
        pending = self.oracle.pending()
        assert self.broker.gauges().pending_timers == len(pending)
        assert self.broker.timer_views.count(TimerFilter()) == len(pending)
        nameless = sum(not one.topic for one in self.broker.timer_views.lost())
        for topic in TOPICS:
            count = sum(timer.topic == topic for timer in pending.values())
            assert count <= self.broker.timer_views.count(TimerFilter(topic=topic)) <= count + nameless
        self.oracle.check_keys()
        held = sum(timer.is_held for timer in pending.values())
        assert (
            sum(self.broker.topic_changes.describe_use(topic).held_timers for topic in self._topics()) == held
        )
        wanted = TimerFilter(
            topic=self.chance.choice(["", *TOPICS]),
            key=self.chance.choice(["", "k1", "x", "z", f"m{self.count - 3}"]),
            tag=self.chance.choice(["", "", "red"]),
        )
        matching = {offset for offset, timer in pending.items() if timer.is_wanted(wanted)}
        listed = {one.timer_offset for one in self._all_listed(wanted)}
        assert listed <= matching
        assert not {offset for offset in matching - listed if self.oracle.is_remembered(pending[offset])}
        is_by_topic = wanted == TimerFilter(topic=wanted.topic)
        assert 0 <= self.broker.timer_views.count(wanted) - len(listed) <= is_by_topic * nameless
        self.oracle.check_page(self._all_listed())
        if not any(timer.is_late_set for timer in pending.values()):
            from_ms = self.now_ms + self.chance.choice(SPANS_MS)
            window = TimerFilter(from_ms=from_ms, until_ms=from_ms + self.chance.choice(STEPS_MS))
            inside = [t for t in pending.values() if window.from_ms <= t.due_ms < window.until_ms]
            assert self.broker.timer_views.count(window) == len(inside)
            assert sum(count for _, count in self.broker.timer_views.histogram(window, MINUTE)) == len(inside)

    def _topics(self) -> list[str]:
        return [topic for topic in TOPICS if topic in self.broker.topics]

    def _all_listed(self, wanted: TimerFilter = EVERYTHING) -> list[PendingTimer]:
        listed: list[PendingTimer] = []
        after = None
        while True:
            page = self.broker.timer_views.read_page(wanted, after, self.chance.choice([1, 7, 1000]))
            listed += page.timers
            after = page.after
            if after is None:
                return listed

    def settle(self) -> None:
        """Complete all work possible at this time; verify that no due timer is pending then."""
        for _ in range(2_000):
            self.flush()
            self.run_jobs(0)
            if self.broker.is_checkpoint_due or self.checkpoint is not None:
                self.work_on_checkpoint()
            self._tick(self.now_ms)
            if not self._is_busy() and not self._is_to_be_read_again():
                break
        self.follow()
        self.check_told()
        assert not self._is_busy(), f"never comes to rest at {self.now_ms}, due {self.broker.next_due_ms()}"
        if not self._is_unmended:
            late = [timer for timer in self.oracle.pending().values() if timer.due_ms <= self.now_ms]
            late = [timer for timer in late if not self._may_wait(timer)]
            if self.went_back:  # a timer set late is due at its set time, by the clock of that time
                late = [timer for timer in late if timer.due_ms > timer.stored_ms]
            assert not late, f"still waiting at {self.now_ms}: {late}"

    @property
    def _is_unmended(self) -> bool:
        """Whether damage is still to be found or repaired: a failed read waits for housekeeping."""
        return bool(self.faults.hit) and not self.is_whole

    def _is_busy(self) -> bool:
        due_ms = self.broker.next_due_ms()
        is_due = due_ms is not None and due_ms <= self.now_ms
        is_waiting = bool(self.jobs) or self.checkpoint is not None or self.broker.is_checkpoint_due
        return is_due or is_waiting or not self.broker.is_quiet

    def _is_to_be_read_again(self) -> bool:
        """Return whether a read has failed recently; if so, advance to its retry within a second."""
        pending = self.oracle.pending().values()
        is_late = any(timer.due_ms <= self.now_ms and not self._may_wait(timer) for timer in pending)
        due_ms = self.broker.next_due_ms()
        if not is_late or due_ms is None or due_ms > self.now_ms + SECOND:
            return False
        self._tick(due_ms)
        return True

    def drain(self) -> None:
        """Advance to the due time of each timer until none is pending."""
        self.now_ms = max(self.now_ms, self.seen_ms)
        unmended_count = 0
        while pending := self.oracle.pending():
            for topic in TOPICS:
                if topic in self.broker.topics:
                    self._release(topic, 0)
            next_ms = min(timer.due_ms for timer in pending.values())
            self.broker.postpone_housekeeping(next_ms + DAY)
            self._tick(max(self.now_ms, next_ms))
            self.settle()
            unmended_count += self._is_unmended
            assert unmended_count < 100, "damage is never mended"
            if self.went_back or self._is_unmended:
                self._tick(self.now_ms + 2 * DAY)
        self.settle()
        self.compare()

    def write_down(self) -> None:
        """Write two checkpoints, so that no snapshot is older than the repairs."""
        for _ in range(2):
            self.send_plain()
            self.settle()
            done = self.broker.checkpoint(self.now_ms)
            done.write(self.disk)
            self.broker.complete_checkpoint(done)

    def check_names(self) -> None:
        """Verify that every name has the outcome of its timer, or is forgotten after the history."""
        for name in list(self.oracle.names):
            self._remember(name)
            found = self.broker.timers.get_timer(name, self.now_ms)
            assert isinstance(found, TimerVerdict), f"{name} waits, yet nothing does"
            self._told(name, self.oracle.named(name), self.oracle.expected(name), found)
