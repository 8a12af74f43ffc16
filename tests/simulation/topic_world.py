"""Topics that are altered, purged, deleted and created again, and the journal, on a faulty disk.

Each action of a client or an operator appends records. The oracle keeps, for each record, the log offset of
its end and its effect, so the state after a crash is known exactly: the effects of the remaining records of
the log, in order. An acknowledged action is among them, because its records were durable before the answer.

    sent       a message of a topic is at a queue offset
    emptied    the queues of a topic begin at these offsets, by a purge or because of its retention
    left       a group no longer receives a topic
    deleted    a topic is deleted
    made       a topic has a type, a number of queues and a retention
    joined     a group receives a topic
    waiting    a timer or a half of a topic is pending, or ended
    held       the timers of a topic are held, or released
    noted      an action is in the journal

A move of a message sends its copy, then finishes the message for each group; without a group the queue begins
after it. A copy without its end, left by a crash, is found by the next move.

Pending timers and halves are compared with the counts of `use`; a refused change must have no effect.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from commitlog.disk.disk import SyncFailed
from commitlog.facts.facts import GroupJoined, LogCut
from commitlog.log.recovery import trusted_until
from commitlog.log.retention import RetentionPolicy, Retirement
from commitlog.records.message import Message, MessageType
from commitlog.records.properties import to_message
from commitlog.records.record import Record
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.groups.group_values import GroupQueue
from services.broker.journal import JournalEntry
from services.broker.spine import record_versions
from services.broker.spine.appended import AppendResult
from services.broker.spine.errors import HoldConflict, TopicInUse, TopicNotFound, VersionNotFinalized
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Delivery, Effect, Resolution, RetireSegments, TimerName, Verdict
from services.broker.topic_changes import TopicChange
from tests.memory_disk import Death
from tests.simulation.faults import Faults
from tests.simulation.timer_machine import Disk
from tests.simulation.tries import CUTS, TAILS
from tidewheel.errors import ClientMistake

START_MS = 1_763_700_000_000
SEGMENT_BYTES = 4096
HOUR_MS = 3_600_000
TOPICS = ("a", "b")
GROUPS = ("g", "h")
SETTINGS = BrokerSettings(
    segment_bytes=SEGMENT_BYTES, queue_count=2, auto_create_topics=False, housekeeping_ms=2_000
)
DELETING = RetentionPolicy(log_bytes_max=4 * SEGMENT_BYTES, group_pin_ms=365 * 24 * HOUR_MS)
Place = tuple[str, int, int]
"""A topic, a queue id, a queue offset."""


@dataclass(slots=True)
class State:
    """The state that results from the records of the log."""

    topics: dict[str, tuple[MessageType, int, int]] = field(default_factory=dict)
    begins: dict[tuple[str, int], int] = field(default_factory=dict)
    messages: dict[Place, str] = field(default_factory=dict)
    groups: dict[str, set[str]] = field(default_factory=lambda: {topic: set() for topic in TOPICS})
    waiting: list[tuple[str, str, str]] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    journal: list[str] = field(default_factory=list)
    copies: set[str] = field(default_factory=set)

    def pending(self, topic: str) -> set[str]:
        """Return the ids of the messages of a topic that are not purged."""
        return {
            message_id
            for (name, queue_id, offset), message_id in self.messages.items()
            if name == topic and offset >= self.begins.get((name, queue_id), 0)
        }


Effect_ = Callable[[State], object]
PLAIN = (MessageType.NORMAL, MessageType.MIXED)


class World:
    """A broker, its clients and operators, its disk and its clock."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk, self.now_ms, self.count = Disk(), START_MS, 0
        self.settings = replace(
            SETTINGS, tail_entries_max=TAILS[seed % len(TAILS)], cut_queues_max=CUTS[seed % len(CUTS)]
        )
        if seed % 2:
            self.settings = replace(self.settings, retention=DELETING)
        self.faults = Faults(self.chance, self.disk)
        self.records: list[tuple[int, Effect_]] = []
        """The end of each record, and its effect, in log order."""
        self.done: list[tuple[int, str, str, str]] = []
        """The offset that makes an acknowledgement durable, its group, topic and message id."""
        self.broker = Broker.open(self.disk, self.settings, self.now_ms)
        self.retirements: list[Retirement] = []
        self.counts = Counter[str]()
        self.moved: dict[str, str] = {}
        """The topic from which each message was moved, by its id."""
        self.stored_ms: dict[str, int] = {}
        """The store time of each message that was sent."""

    def step(self) -> None:
        """Do one random action."""
        acts: list[tuple[float, Callable[[], object]]] = [
            (8, self.send), (4, self.receive), (2, self.make), (1, self.set_timer), (1, self.end_timer),
            (1, self.begin_half), (1, self.end_half), (2, self.purge), (3, self.delete), (2, self.alter),
            (2, self.hold), (1, self.release), (2, self.note), (3, self.move), (6, self.flush),
            (1, self.checkpoint), (1, self.crash), (2, self.pass_time),
        ]  # fmt: skip
        [act] = self.chance.choices([act for _, act in acts], [weight for weight, _ in acts])
        self.endure(act)

    # Clients.

    def send(self, topic: str = "") -> None:
        """Send a message, which is accepted if the topic exists with a suitable type."""
        topic, message_id = topic or self.chance.choice(TOPICS), self._new_id()
        known = self.state().topics.get(topic)
        try:
            receipt = self.broker.sending.send(
                Message(topic=topic, body=b"x" * 80, message_id=message_id), self.now_ms
            )
        except TopicNotFound:
            assert known is None
        except ClientMistake:
            assert known is not None
            assert known[0] not in PLAIN
        else:
            assert known is not None
            entry = self.broker.store.read_appended(receipt.physical_offset)
            self.stored_ms[message_id] = entry.store_ms
            self._add(_sent((topic, entry.queue_id, receipt.queue_offset), message_id))

    def receive(self, group: str = "", topic: str = "") -> None:
        """Receive a topic with a group, acknowledge half of the messages, and fail with a quarter."""
        group, topic = group or self.chance.choice(GROUPS), topic or self.chance.choice(TOPICS)
        known, before = self.state().topics.get(topic), self.broker.store.unflushed_count
        try:
            found = self.broker.receiving.receive(
                group, topic, EVERYTHING, 8, 20_000, "c", False, self.now_ms
            )
        except TopicNotFound:
            assert known is None
            return
        assert known is not None
        for one in islice(self.broker.store.unflushed(), before, None):
            if any(isinstance(fact, GroupJoined) for fact in one.facts):
                self.records.append((one.end_offset, _joined(topic, group)))
        state = self.state()
        for one in found.deliveries:
            message_id = one.message.message_id
            assert message_id in state.pending(topic), f"{message_id} is delivered, and was purged"
            assert self._is_open(group, topic, message_id), f"{message_id} is delivered, and was finished"
            if self.chance.random() < 0.5:
                durable_at = self.broker.receiving.ack(group, topic, one.receipt_handle, self.now_ms)
                self.done.append((durable_at, group, topic, message_id))
            elif self.chance.random() < 0.5:
                self.broker.receiving.retry(group, topic, one.receipt_handle, 60_000, self.now_ms)

    def set_timer(self) -> None:
        """Set a timer."""
        topic = self.chance.choice(TOPICS)
        timer = Message(topic=topic, body=b"x", message_id=self._new_id(), delivery_ms=self.now_ms + HOUR_MS)
        with suppress(TopicNotFound, ClientMistake):
            self.broker.sending.send(timer, self.now_ms)
            self._add(_waiting("timer", topic, timer.message_id))

    def end_timer(self) -> None:
        """Cancel a timer, if one is pending."""
        waiting = [one for one in self.state().waiting if one[0] == "timer"]
        if waiting:
            _, topic, message_id = self.chance.choice(waiting)
            verdict = self.broker.timers.cancel(TimerName(topic, message_id), "", self.now_ms)
            assert verdict.verdict is Verdict.CANCELLED
            self._add(_ended("timer", topic, message_id))

    def begin_half(self) -> None:
        """Begin a transaction."""
        topic = self.chance.choice(TOPICS)
        half = Message(topic=topic, body=b"x", message_id=self._new_id(), transactional=True)
        with suppress(TopicNotFound, ClientMistake):
            receipt = self.broker.sending.send(half, self.now_ms)
            self._add(_waiting("half", topic, receipt.transaction_id))

    def end_half(self) -> None:
        """Roll a transaction back, if one is open."""
        waiting = [one for one in self.state().waiting if one[0] == "half"]
        if waiting and self.broker.is_quiet:
            _, topic, transaction_id = self.chance.choice(waiting)
            self.broker.transactions.resolve(transaction_id, Resolution.ROLLBACK, "", self.now_ms)
            self._add(_ended("half", topic, transaction_id))

    # Operators.

    def make(self, topic: str = "", message_type: MessageType | None = None, queue_count: int = 0) -> None:
        """Create a topic that does not exist."""
        topic = topic or self.chance.choice(TOPICS)
        if topic not in self.state().topics:
            message_type = message_type or self.chance.choice(PLAIN)
            queue_count = queue_count or self.chance.choice([1, 2, 3])
            self.broker.topics.create(topic, message_type, queue_count, self.now_ms)
            self._add(_made(topic, message_type, queue_count, 0))

    def alter(self) -> None:
        """Change the type, the number of queues, or the retention, which discards old messages at once."""
        topic = self.chance.choice(TOPICS)
        message_type = self.chance.choice([None, MessageType.NORMAL, MessageType.MIXED, MessageType.DELAY])
        queue_count = self.chance.choice([None, 1, 2, 3, 4])
        retention_ms = self.chance.choice([None, None, 0, 1_000, 5_000, 60_000])
        self.alter_to(topic, message_type, queue_count, retention_ms, discard=self.chance.random() < 0.5)

    def alter_to(
        self,
        topic: str,
        message_type: MessageType | None,
        queue_count: int | None,
        retention_ms: int | None,
        *,
        discard: bool,
    ) -> None:
        """Change a topic to the given properties, and verify the result."""
        before = self.broker.store.unflushed_count
        changed = self._change(
            "alter", topic, message_type, queue_count, retention_ms=retention_ms, discard=discard
        )
        if changed is not None and changed.topic != changed.use.topic:
            now = changed.topic
            was = changed.use.topic
            assert now.queue_count >= was.queue_count
            if now.queue_count > was.queue_count and was.message_type is MessageType.MIXED:
                assert changed.use.unfinished == 0
            made, *cuts = islice(self.broker.store.unflushed(), before, None)
            effect = _made(topic, now.message_type, now.queue_count, now.retention_ms)
            self.records.append((made.end_offset, effect))
            self._note_cuts(cuts)
            assert discard or now.retention_ms == was.retention_ms or not changed.expired.unfinished
            assert bool(cuts) == bool(changed.expired.messages)
            self.counts["expired at once"] += len(cuts)

    def _note_cuts(self, appended: Iterable[AppendResult]) -> None:
        """Record the new first offsets of queues after a retention; verify that none is discarded early."""
        for one in appended:
            for fact in one.facts:
                if not isinstance(fact, LogCut) or fact.cut_offset or not fact.queues:
                    continue
                state, ends = self.state(), {(topic, at): end for topic, at, end in fact.queues}
                for (topic, queue_id, offset), message_id in state.messages.items():
                    begin = state.begins.get((topic, queue_id), 0)
                    if begin <= offset < ends.get((topic, queue_id), 0) and topic in state.topics:
                        retention_ms = state.topics[topic][2]
                        is_cut = self.broker.store.log.first_offset > 0
                        is_old = self.stored_ms[message_id] + retention_ms < one.store_ms
                        assert is_cut or (retention_ms and is_old), f"{message_id} is discarded early"
                self.records.append((one.end_offset, _begun(ends)))
                self.counts["expired"] += 1

    def purge(self, topic: str = "", *, discard: bool | None = None) -> None:
        """Purge a topic."""
        topic = topic or self.chance.choice(TOPICS)
        discard = self.chance.random() < 0.5 if discard is None else discard
        ends = self._ends(topic)
        changed = self._change("purge", topic, discard=discard)
        if changed is not None:
            assert discard or not changed.use.unfinished
            if changed.use.messages:
                self._add(_emptied(topic, ends))

    def delete(self, topic: str = "", *, discard: bool | None = None) -> None:
        """Delete a topic, its queues and its subscriptions, in one record."""
        topic = topic or self.chance.choice(TOPICS)
        discard = self.chance.random() < 0.7 if discard is None else discard
        ends = self._ends(topic)
        changed = self._change("delete", topic, discard=discard)
        if changed is None:
            return
        assert (changed.use.timers, changed.use.halves) == (0, 0)
        assert discard or not changed.use.unfinished
        self._add(_emptied(topic, ends))
        self.records += [(self.broker.end_offset, _left(topic, one.group)) for one in changed.use.groups]
        self._add(_deleted(topic))

    def hold(self, topic: str = "") -> None:
        """Hold the timers of a topic."""
        topic = topic or self.chance.choice(TOPICS)
        if self._change("hold", topic, "why") is not None:
            assert topic not in self.state().held
            self._add(_held(topic))

    def release(self, topic: str = "") -> None:
        """Release the timers of a topic."""
        topic = topic or self.chance.choice(TOPICS)
        if self._change("release", topic, self.chance.choice([0, 7])) is not None:
            assert topic in self.state().held
            self._add(_released(topic))

    def note(self) -> None:
        """Add an entry to the journal."""
        about = self._new_id()
        self.broker.journal.add_entry(
            JournalEntry("ann", "h", "p", "verb", about, "", "done", ""), self.now_ms
        )
        self._add(_noted(about))

    def move(self) -> None:
        """Move an unfinished message to the other topic, once."""
        source, target = self.chance.sample(TOPICS, 2)
        self.move_from(source, target)

    def move_from(self, source: str, target: str) -> None:
        """Move unfinished messages of a queue of one topic to the other, once."""
        topics = self.state().topics
        if (
            source not in topics
            or target not in topics
            or not {topics[source][0], topics[target][0]} <= {*PLAIN}
        ):
            return
        queue_id = self.chance.randrange(topics[source][1])
        page = self.broker.topic_moves.read_page(source, queue_id, 0, self.broker.end_offset, 4)
        groups = self.broker.groups.groups_of(source)
        for one in page.messages[: 1 if not groups else 4]:
            message_id = one.message.message_id
            if message_id in self.moved and self.moved[message_id] != source:
                continue  # in this topic it is a copy, which groups of the topic may have finished before
            before = self.broker.store.unflushed_count
            moved = self.broker.topic_moves.move(source, queue_id, one.queue_offset, target, self.now_ms)
            self.counts[moved.verdict] += 1
            if moved.verdict != "MOVED":
                assert self.broker.store.unflushed_count == before, (
                    "a message that stays has changed something"
                )
                continue
            self.moved[message_id] = source
            place = f"{source}:{queue_id}:{one.queue_offset}"
            self._note_move(place, list(islice(self.broker.store.unflushed(), before, None)))
            self.done += [(moved.durable_at, group, source, message_id) for group in groups]

    def _note_move(self, place: str, appended: list[AppendResult]) -> None:
        """Record the copy of a moved message, if it is new, and the queue that begins after it."""
        for one in appended:
            if isinstance(one.stored, Record) and one.queue is not None and one.queue[0] in TOPICS:
                copy = to_message(one.stored)
                assert copy.properties["TW_REDRIVE_OF"] == place
                assert place not in self.state().copies, "a message is copied twice"
                self.records.append(
                    (one.end_offset, _copied(place, (*one.queue, one.queue_offset), copy.message_id))
                )
            for fact in one.facts:
                if isinstance(fact, LogCut):
                    ends = {(topic, at): end for topic, at, end in fact.queues or ()}
                    self.records.append((one.end_offset, _begun(ends)))

    def _change(self, verb: str, topic: str, *arguments: object, **named: int | None) -> TopicChange | None:
        """Call a verb on a topic; a refusal changes nothing."""
        known, end_offset = self.state().topics.get(topic), self.broker.end_offset
        try:
            changed: TopicChange = getattr(self.broker.topic_changes, verb)(
                topic, *arguments, self.now_ms, **named
            )
        except TopicNotFound:
            assert known is None
        except (HoldConflict, TopicInUse, ClientMistake):
            assert known is not None
            self.counts["refused"] += 1
        except VersionNotFinalized:
            assert verb in ("alter", "delete", "hold")
            assert not record_versions.may_write(self.broker.store, record_versions.TOPIC_CHANGES)
        else:
            assert known is not None
            self.counts[verb] += 1
            return changed
        assert self.broker.end_offset == end_offset, "a refused change has changed something"
        return None

    def _ends(self, topic: str) -> dict[tuple[str, int], int]:
        """Return the durable ends of the queues of a topic."""
        queues = self.broker.store.dispatch.queues_of(topic, 8)
        return {(topic, queue_id): queue.end_offset for queue_id, queue in queues}

    # Time and the disk.

    def pass_time(self) -> None:
        """Let time pass, and run due events."""
        self.now_ms += self.chance.choice([1, 100, 3_000, 30_000])
        before, unflushed = self.broker.end_offset, self.broker.store.unflushed_count
        self._carry_out(self.broker.tick(self.now_ms))
        assert before <= self.broker.end_offset
        self._note_cuts(islice(self.broker.store.unflushed(), unflushed, None))

    def flush(self) -> None:
        """Flush the appended records."""
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self._carry_out(self.broker.complete_flush(flush, self.now_ms))
        if self.chance.random() < 0.5 and (entries := self.broker.take_entries()) is not None:
            entries.write(self.disk)
            self.broker.complete_entries()
        self._retire()

    def checkpoint(self) -> None:
        """Write a checkpoint."""
        while not self.broker.is_quiet:
            self.flush()
        checkpoint = self.broker.checkpoint(self.now_ms)
        try:
            checkpoint.write(self.disk)
        except OSError as error:
            self.broker.abandon_checkpoint(checkpoint)
            if isinstance(error, SyncFailed):
                self._reopen(self.broker.durable_offset)
        else:
            self.broker.complete_checkpoint(checkpoint)

    def crash(self) -> None:
        """Lose power, possibly during a flush."""
        flush = self.broker.take_flush()
        if flush is not None and self.chance.random() < 0.5:
            self.faults.threaten(0.5)
            with suppress(OSError, Death):
                flush.write()
        self._die()

    def endure(self, act: Callable[[], object]) -> None:
        """Run an action in which the process may die, or the disk fail."""
        self.faults.threaten()
        try:
            act()
        except Death:
            self._die()
        except OSError:
            self._reopen(self.broker.durable_offset)
        self.faults.relent()
        if not self.broker.housekeeping.has_reserve:
            self.disk.well()
            self.broker.housekeeping.measure_space()

    def _die(self) -> None:
        self.faults.end_process()
        self.faults.damage()
        self._reopen(None)

    def _reopen(self, acknowledged_offset: int | None) -> None:
        told_offset = self.broker.durable_offset
        if acknowledged_offset is not None:
            acknowledged_offset = trusted_until(self.disk, acknowledged_offset)
        self.retirements = []
        acknowledged_offset = self.faults.starts_that_die(self._opened, acknowledged_offset)
        self.broker = self._opened(acknowledged_offset)
        end_offset = self.broker.end_offset
        assert end_offset >= told_offset, "a told record is gone"
        self.records = [one for one in self.records if one[0] <= end_offset]
        # Of an acknowledgement only the offset to wait for is known: it was answered, or may have happened.
        self.done = [one for one in self.done if one[0] <= told_offset]
        self.compare()

    def _opened(self, acknowledged_offset: int | None) -> Broker:
        self.now_ms += 1
        broker = Broker.open(self.disk, self.settings, self.now_ms, acknowledged_offset)
        assert not self.faults.lost(broker, self.broker.durable_offset)
        return broker

    def _carry_out(self, effects: list[Effect]) -> None:
        self.retirements += [one.retirement for one in effects if isinstance(one, RetireSegments)]

    def _retire(self) -> None:
        for retirement in self.retirements:
            if retirement.durable_at > self.broker.durable_offset:
                continue
            self.retirements = []
            try:
                retirement.run(self.disk)
            except OSError:
                self.broker.abandon_retirement()
                return
            while not self.broker.continue_retirement(retirement, self.now_ms):
                pass
            return

    # The oracle.

    def state(self) -> State:
        """Return the state that results from the records of the log."""
        state = State()
        for _, effect in self.records:
            effect(state)
        return state

    def compare(self) -> None:
        """Flush until the broker is quiet, and compare it with the oracle."""
        while not self.broker.is_quiet:
            self.flush()
        state, first_offset = self.state(), self.broker.store.log.first_offset
        assert {
            one.name: (one.message_type, one.queue_count, one.retention_ms)
            for one in self.broker.topics.all()
        } == state.topics
        assert self.broker.topics.held == state.held
        for topic in state.topics:
            use = self.broker.topic_changes.describe_use(topic)
            waiting = Counter(kind for kind, name, _ in state.waiting if name == topic)
            assert (use.timers, use.halves) == (waiting["timer"], waiting["half"])
            assert {one.group for one in use.groups} == state.groups[topic]
            pending = state.pending(topic)
            found = {one.message.message_id for one in self._messages(topic)}
            assert found <= pending, "a purged message is there"
            if first_offset == 0:
                assert found == pending, "a message is gone"
            for group in state.groups[topic]:
                expected = {one for one in pending if self._is_open(group, topic, one)}
                unfinished = {one.message.message_id for one in self._messages(topic, group)}
                assert unfinished <= expected, "a finished message is open"
        for topic in {*TOPICS} - state.topics.keys():
            assert not self.broker.groups.groups_of(topic), "a deleted topic has groups"
        entries = [one.entry.about for one in self.broker.journal.page(None, 1_000).entries][::-1]
        assert entries == state.journal[len(state.journal) - len(entries) :]
        assert first_offset > 0 or len(entries) == len(state.journal), "an act is gone"

    def _messages(self, topic: str, group: str = "") -> Iterator[Delivery]:
        """Yield the messages of a topic, or with a group those that it has not finished."""
        for queue_id in range(self.broker.topics.get(topic).queue_count):
            first, end = self.broker.finding.queue_range(topic, queue_id)
            offsets = self.broker.groups.peek_in_flight(GroupQueue(group, topic, queue_id)).offsets
            for one in self.broker.finding.read(topic, queue_id, first, max(0, end - first)):
                if not group or not offsets.is_done(one.queue_offset):
                    yield one

    def _is_open(self, group: str, topic: str, message_id: str) -> bool:
        """Return whether no durable acknowledgement of a group names a message."""
        durable_offset = self.broker.durable_offset
        acked = {(one[1], one[2], one[3]) for one in self.done if one[0] <= durable_offset}
        return (group, topic, message_id) not in acked

    def _add(self, effect: Effect_) -> None:
        """Record the effect of the newest record."""
        self.records.append((self.broker.end_offset, effect))

    def _new_id(self) -> str:
        self.count += 1
        return f"M{self.count}"


def _sent(place: Place, message_id: str) -> Effect_:
    return lambda state: state.messages.update({place: message_id})


def _copied(copied_from: str, place: Place, message_id: str) -> Effect_:
    def effect(state: State) -> None:
        state.copies.add(copied_from)
        state.messages[place] = message_id

    return effect


def _joined(topic: str, group: str) -> Effect_:
    return lambda state: state.groups[topic].add(group)


def _left(topic: str, group: str) -> Effect_:
    return lambda state: state.groups[topic].discard(group)


def _waiting(kind: str, topic: str, name: str) -> Effect_:
    return lambda state: state.waiting.append((kind, topic, name))


def _ended(kind: str, topic: str, name: str) -> Effect_:
    return lambda state: state.waiting.remove((kind, topic, name))


def _made(topic: str, message_type: MessageType, queue_count: int, retention_ms: int) -> Effect_:
    return lambda state: state.topics.update({topic: (message_type, queue_count, retention_ms)})


def _deleted(topic: str) -> Effect_:
    def delete(state: State) -> None:
        del state.topics[topic]
        state.held.discard(topic)

    return delete


def _held(topic: str) -> Effect_:
    return lambda state: state.held.add(topic)


def _released(topic: str) -> Effect_:
    return lambda state: state.held.discard(topic)


def _emptied(topic: str, ends: dict[tuple[str, int], int]) -> Effect_:
    return lambda state: state.begins.update(ends)


def _begun(ends: dict[tuple[str, int], int]) -> Effect_:
    return lambda state: state.begins.update(ends)


def _noted(about: str) -> Effect_:
    return lambda state: state.journal.append(about)
