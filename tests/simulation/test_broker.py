"""The core under a manual clock and a disk that dies, loses, tears and fails, against a dictionary oracle.

The oracle records only the *answers* to clients, which are given when their records are durable:

* a message whose send was acknowledged is received, and is never lost afterwards;
* a delayed message is in the log exactly once as delivered, not early, unless its recall was answered;
* a recalled one is never delivered, and one whose recall came too late is;
* a half ends as answered, in one committed record or none; one without an end stays open;
* a message whose acknowledgement was answered is never delivered again;
* every message is found by its id, as often as it was stored;
* a message whose last send was refused, of any kind, is not stored by an earlier call either.

Any disk operation may be the last of the process, or fail (`faults`). With asynchronous flushes a client
counts as answered when the records are on disk. In every third seed new messages are refused at times, as by
a full disk, and clients retry or give up; this applies to all kinds of messages. Each try of a message has
its properties in another order.

The simulation is determined by its seed; `pytest tests/simulation --seed S` repeats it.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from commitlog.disk.disk import SyncFailed
from commitlog.log.flush import Flush
from commitlog.log.recovery import LogScan, trusted_until
from commitlog.log.retention import RetentionPolicy, Retirement
from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import Record
from consumequeue.filters.filter import EVERYTHING
from consumequeue.groups.receipts import decode
from services.broker.broker import Broker
from services.broker.deduplication import WINDOW_MS
from services.broker.spine.errors import DiskFull
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import (
    CheckBackRequest,
    Delivery,
    Effect,
    Resolution,
    RetireSegments,
    RunTimersJob,
    SendReceipt,
    Verdict,
)
from services.live.durability import required_offset
from services.store.read_only.opening import look_at
from services.store.verify.verify import verify
from tests.memory_disk import Death, MemoryDisk
from tests.simulation.faults import Faults
from tests.simulation.second_core import SecondCore
from tests.simulation.tries import CUTS, TAILS, some_properties, tried
from tidewheel import property_names
from tidewheel.errors import InvalidReceiptHandle, TransactionEnded
from txn.checkback import CheckBackPolicy
from txn.errors import InvalidTransactionId

START_MS = 1_763_700_000_000
HOUR_MS = 3_600_000
SETTINGS = BrokerSettings(
    segment_bytes=4096,
    queue_count=2,
    check_back=CheckBackPolicy(immunity_ms=500, interval_ms=400, count_max=1_000_000),
)
FORGETFUL = replace(SETTINGS, housekeeping_ms=2_000, retention=RetentionPolicy(log_bytes_max=5 * 4096))
"""Odd seeds delete their log as fast as allowed."""
GROUP, TOPIC = "g", "t"


@dataclass(slots=True)
class Told:
    """The answers to clients, by message id."""

    normal: set[str] = field(default_factory=set)
    delayed: dict[str, SendReceipt] = field(default_factory=dict)
    halves: dict[str, SendReceipt] = field(default_factory=dict)
    recalled: set[str] = field(default_factory=set)
    too_late: set[str] = field(default_factory=set)
    ended: dict[str, Resolution] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)


class World:
    """A broker, its disk, its clients and the oracle, all driven by one seed."""

    patience_ms = WINDOW_MS
    """The time for which a client without an answer sends again, in ms."""
    may_be_troubled = True

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = MemoryDisk()
        self.now_ms = START_MS
        settings = FORGETFUL if seed % 2 else SETTINGS
        self.settings = replace(
            settings, tail_entries_max=TAILS[seed % len(TAILS)], cut_queues_max=CUTS[seed % len(CUTS)]
        )
        if seed % 5 in (2, 3):
            self.settings = replace(self.settings, sync_flush=False)
        self.trouble = random.Random(seed) if self.may_be_troubled and seed % 3 == 0 else None
        """The random generator of refusals of new messages; None for no refusals."""
        self.faults = Faults(self.chance, self.disk)
        self.broker = self.opened()
        self.retirements: list[Retirement] = []
        self.places: defaultdict[str, dict[tuple[int, int], int]] = defaultdict(dict)
        """Deliveries of each message: (queue id, queue offset) -> log offset."""
        self.told = Told()
        self.unanswered: dict[str, tuple[Message, int, int]] = {}
        """Messages without an answer: the message, the time at which its sender gives up, the log's start."""
        self._calls: Counter[str] = Counter()
        self.due_ms: dict[str, int] = {}
        self.recalls_tried: set[str] = set()
        self.ends_tried: dict[str, set[Resolution]] = {}
        self.held: list[Delivery] = []
        self.flying: list[Flush] = []
        self.waiting: list[tuple[int, object]] = []
        self.count = 0
        self.receive()  # an unknown group would not protect messages from retention

    @property
    def client_ms(self) -> int:
        """The clock of clients, in ms."""
        return self.now_ms

    @property
    def reign(self) -> int:
        """A number that identifies the owner of the clock `now_ms`."""
        return 0

    def opened(self) -> Broker:
        """Return the first core."""
        return Broker.open(self.disk, self.settings, self.now_ms)

    def step(self) -> None:
        """Do one action, in which the process may die, or a disk operation fail."""
        self.meet_trouble(0.1)
        self.endure(self._step)

    def meet_trouble(self, chance: float) -> None:
        """With probability `chance`, begin or end the refusal of new messages."""
        if self.trouble is not None and self.trouble.random() < chance:
            stopped = DiskFull("It has no room.") if self.trouble.random() < 0.6 else None
            self.broker.housekeeping.stopped = stopped

    def endure(self, act: Callable[[], object]) -> None:
        """Run an action in which the process may die, or a disk operation fail."""
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

    def _step(self) -> None:
        actions = [
            self.send, self.send, self.send_delayed, self.send_half, self.end, self.recall,
            self.receive, self.acknowledge, self.pass_time, self.flush, self.flush, self.take_flush,
        ]  # fmt: skip
        if self.chance.random() < 0.04:
            self.chance.choice([self.crash, self.crash, self.fail_to_flush, self.checkpoint])()
        else:
            self.chance.choice(actions)()
        if self.broker.is_checkpoint_due and self.chance.random() < 0.3:
            self.checkpoint()

    def send(self) -> None:
        """Send a message; a client without an answer sends again, until it gives up."""
        self._send_first(self._message())
        if self.chance.random() < 0.2:
            self._send_again()

    def _send_first(self, message: Message) -> None:
        first_offset = self.broker.store.log.first_offset
        self.unanswered[message.message_id] = message, self.client_ms + self.patience_ms, first_offset
        self._send(message)

    def _send(self, message: Message) -> None:
        """Make the first or another call for a message."""
        call = self._calls[message.message_id] = self._calls[message.message_id] + 1
        try:
            receipt = self.broker.sending.send(tried(message, call), self.now_ms)
        except DiskFull as refusal:
            self._tell(required_offset(refusal), lambda: self._refused(message.message_id, call))
        else:
            self._tell(receipt.durable_at, lambda: self._sent(message, receipt))

    def _refused(self, message_id: str, call: int) -> None:
        """Handle a refusal: the client calls again later, or gives up, which makes the refusal final.

        The answer to a call is ignored if the client has called again.
        """
        assert self.trouble is not None, "nothing is refused"
        is_heard = message_id in self.unanswered and call == self._calls[message_id]
        if is_heard and self.trouble.random() < 0.5:
            del self.unanswered[message_id]
            self.told.refused.add(message_id)

    def _sent(self, message: Message, receipt: SendReceipt) -> None:
        message_id = message.message_id
        assert message_id not in self.told.refused, f"{message_id} was refused at last, and then stored"
        self.unanswered.pop(message_id, None)
        if message.transactional:
            known = self.told.halves.setdefault(message_id, receipt)
        elif message.delivery_ms is not None:
            known = self.told.delayed.setdefault(message_id, receipt)
        else:
            known = receipt
            self.told.normal.add(message_id)
        assert known.physical_offset == receipt.physical_offset, f"{message_id} was stored twice"

    def _send_again(self) -> None:
        for message, until_ms, first_offset in list(self.unanswered.values()):
            if self.client_ms < until_ms and first_offset == self.broker.store.log.first_offset:
                self._send(message)
            else:
                del self.unanswered[message.message_id]

    def send_delayed(self) -> None:
        message = self._message()
        message.delivery_ms = self.now_ms + self.chance.choice([0, 3, 90, 700, 5_000, 400_000])
        self.due_ms[message.message_id] = message.delivery_ms
        self._send_kind(message)
        if self.chance.random() < 0.3:
            self._send(message)

    def send_half(self) -> None:
        message = self._message()
        message.transactional = True
        self._send_kind(message)

    def _send_kind(self, message: Message) -> None:
        """Send a message; if refusals are possible, its client retries."""
        if self.trouble is not None:
            self._send_first(message)
        else:
            self._send(message)

    def end(self) -> None:
        if not self.told.halves:
            return
        message_id = self.chance.choice(sorted(self.told.halves))
        self._end(message_id, self.chance.choice(list(Resolution)))

    def recall(self) -> None:
        if not self.told.delayed:
            return
        message_id = self.chance.choice(sorted(self.told.delayed))
        handle = self.told.delayed[message_id].recall_handle
        verdict = self.broker.timers.recall(TOPIC, handle, self.now_ms)
        self.recalls_tried.add(message_id)
        if message_id in self.told.recalled:
            assert verdict.verdict is Verdict.ALREADY
        if verdict.verdict in (Verdict.CANCELLED, Verdict.ALREADY):
            self._tell(verdict.durable_at, lambda: self.told.recalled.add(message_id))
        else:
            assert verdict.verdict is Verdict.TOO_LATE
            assert verdict.ended_ms >= self.due_ms[message_id]
            self._tell(verdict.durable_at, lambda: self.told.too_late.add(message_id))

    def receive(self) -> None:
        got = self.broker.receiving.receive(
            GROUP, TOPIC, EVERYTHING, self.chance.randrange(1, 9), 10_000, "c", False, self.now_ms
        ).deliveries
        for delivery in got:
            assert delivery.message.message_id not in self.told.acknowledged, "acknowledged, yet given out"
            place = delivery.queue_id, delivery.queue_offset
            self.places[delivery.message.message_id][place] = decode(delivery.receipt_handle).physical_offset
            self.check_not_early(delivery.message.message_id)
        self.held += got

    def check_not_early(self, message_id: str) -> None:
        """Verify that a delivered message is due."""
        if message_id in self.due_ms:
            assert self.now_ms >= self.due_ms[message_id], "given out early"

    def acknowledge(self) -> None:
        self.chance.shuffle(self.held)
        for _ in range(min(len(self.held), self.chance.randrange(4))):
            delivery = self.held.pop()
            message_id = delivery.message.message_id
            try:
                durable_at = self.broker.receiving.ack(GROUP, TOPIC, delivery.receipt_handle, self.now_ms)
            except InvalidReceiptHandle:
                continue
            self._tell(durable_at, lambda message_id=message_id: self.told.acknowledged.add(message_id))

    def pass_time(self) -> None:
        self._go_to(self.now_ms + self.chance.choice([1, 10, 300, 3_000, 12_000]))

    def flush(self) -> None:
        """Finish the flushes in flight and a new one, in any order."""
        self.take_flush()
        self.chance.shuffle(self.flying)
        for flush in self.flying:
            flush.write()
            self._carry_out(self.broker.complete_flush(flush, self.now_ms))
            self._hear()
        self.flying.clear()
        self.write_entries()
        if self.chance.random() < 0.4:
            self.sync()
        self._retire()

    def write_entries(self) -> None:
        """With probability 0.5, write the queue entries that wait in memory."""
        if self.chance.random() < 0.5 and (entries := self.broker.take_entries()) is not None:
            entries.write(self.disk)
            self.broker.complete_entries()

    def sync(self) -> None:
        """Sync the writes of asynchronous flushes."""
        sync = self.broker.take_sync()
        if sync is not None:
            sync.run(self.disk)
            self.broker.complete_sync(sync)
            self._hear()

    def take_flush(self) -> None:
        """Begin a flush that is finished later, or lost in a crash."""
        flush = self.broker.take_flush()
        if flush is not None:
            self.flying.append(flush)

    def checkpoint(self) -> None:
        """Write a checkpoint; with probability 0.1 delete derived files, which only costs time."""
        while not self.broker.is_quiet:
            self.flush()
        checkpoint = self.broker.checkpoint(self.now_ms)
        self.faults.threaten(0.15)
        try:
            checkpoint.write(self.disk)
        except OSError as error:
            self.broker.abandon_checkpoint(checkpoint)
            if isinstance(error, SyncFailed):
                self._reopen(self.broker.durable_offset)
        else:
            self.broker.complete_checkpoint(checkpoint)
            self._hear()
        if self.chance.random() < 0.1:
            self.disk.well()  # otherwise a part may remain, which is damage that no start detects
            self.disk.delete(self.chance.choice(["consumequeue", "keyindex"]))
            self._reopen(None)

    def crash(self) -> None:
        """Lose power, possibly during a flush; unanswered changes may or may not have happened."""
        self.take_flush()
        self.chance.shuffle(self.flying)
        for flush in self.flying[: self.chance.randrange(len(self.flying) + 1)]:
            self.disk.failing_syncs = self.chance.choice([0, 0, 1])
            with contextlib.suppress(OSError):
                flush.write()
        self._die(is_cut=True)

    def _die(self, *, is_cut: bool | None = None) -> None:
        self.faults.end_process(is_cut=is_cut)
        self.faults.damage(spares_torn=False)
        self._reopen(None)

    def fail_to_flush(self) -> None:
        """Fail some of the syncs: the core is discarded and rebuilt from the durable log."""
        self.take_flush()
        if not self.flying:
            return
        for flush in self.flying:
            self.disk.failing_syncs = self.chance.choice([0, 1])
            with contextlib.suppress(OSError):
                flush.write()
        self.disk.failing_syncs = 0
        self._reopen(self.broker.durable_offset)

    def settle(self) -> None:
        """Let time pass and receive everything, until no event is left, also within another hour."""
        self.faults.cease()
        self.held.clear()
        for number in range(200):
            self._take_all_until(self._leap_to if number % 3 else self._go_to)
            if self._is_at_rest():
                break
        for _ in range(3):
            self._take_all_until(self._leap_to, HOUR_MS // 3)

    def _take_all_until(self, go_to: Callable[[int], None], passing_ms: int = 20_000) -> None:
        """Let time pass, then receive and acknowledge available messages."""
        self.flush()
        go_to(self.now_ms + passing_ms)
        self.receive()
        for delivery in self.held:
            self.broker.receiving.ack(GROUP, TOPIC, delivery.receipt_handle, self.now_ms)
        self.held.clear()
        self.flush()
        self.sync()
        if self.broker.is_checkpoint_due:
            self.checkpoint()

    def _is_at_rest(self) -> bool:
        """Return whether no timer is pending, and no group has a message to receive or to acknowledge."""
        gauges = self.broker.gauges()
        is_taken = not any(self.broker.groups.lag().values()) and not any(
            self.broker.groups.leased_counts().values()
        )
        return is_taken and gauges.pending_timers == 0 and self.broker.is_quiet

    def check(self) -> None:
        """Compare the deliveries, and the log if it is complete, with the oracle."""
        count_of = {message_id: len(places) for message_id, places in self.places.items() if places}
        if not self.settings.retention.deletes:
            assert count_of == self._counted_in_the_log()
            assert count_of == {message_id: self._found(message_id) for message_id in count_of}
        assert all(count_of.get(message_id) == 1 for message_id in self.told.normal)
        assert not (shown := self.told.refused & count_of.keys()), f"refused at last, and there: {shown}"
        for offset in self.broker.transactions.outcomes.open:
            half = self.broker.store.log.read(offset)
            message_id = properties.value_of(half.properties, property_names.MESSAGE_ID)
            assert message_id not in self.told.refused, f"refused at last, and open: {message_id}"
        for message_id in self.told.delayed:
            self._check_delayed(message_id, count_of.get(message_id, 0))
        for message_id in self.told.halves:
            self._check_half(message_id, count_of.get(message_id, 0))
        assert self.broker.groups.lag().get((TOPIC, GROUP), 0) == 0
        assert self.broker.gauges().pending_timers == 0
        verdict = verify(look_at(self.disk, "the store"), self.now_ms)
        assert not self.faults.unexplained(verdict), verdict.findings

    def _found(self, message_id: str) -> int:
        found = self.broker.finding.find(TOPIC, message_id, 99).messages
        return sum(one.stored_topic == TOPIC for one in found)

    def _counted_in_the_log(self) -> dict[str, int]:
        scan = LogScan(self.disk, SETTINGS.segment_bytes)
        count_of: dict[str, int] = {}
        for record in (found.record for found in scan if found.record.topic == TOPIC):
            message_id = properties.value_of(record.properties, property_names.MESSAGE_ID)
            count_of[message_id] = count_of.get(message_id, 0) + 1
            self._check_lateness(record, message_id)
        assert all(one.first_offset in self.faults.gaps for one in scan.damaged)
        return count_of

    def _check_lateness(self, record: Record, message_id: str) -> None:
        if message_id in self.due_ms:
            assert record.store_ms >= self.due_ms[message_id], "delivered early"

    def _check_delayed(self, message_id: str, count: int) -> None:
        if message_id in self.told.recalled:
            assert count == 0, f"{message_id} was recalled, yet delivered"
        elif message_id in self.recalls_tried - self.told.too_late:
            assert count <= 1
        else:
            assert count == 1, f"{message_id} was delivered {count} times"

    def _check_half(self, message_id: str, count: int) -> None:
        told = self.told.ended.get(message_id)
        if told is not None:
            assert count == (told is Resolution.COMMIT), message_id
        elif not self.ends_tried.get(message_id):
            assert count == 0
        assert count <= 1

    def _end(self, message_id: str, resolution: Resolution) -> None:
        receipt = self.told.halves[message_id]
        self.ends_tried.setdefault(message_id, set()).add(resolution)
        try:
            end = self.broker.transactions.end(
                TOPIC, receipt.transaction_id, message_id, resolution, self.now_ms
            )
        except TransactionEnded as refused:
            assert self.told.ended.get(message_id) is not resolution
            other = Resolution.ROLLBACK if resolution is Resolution.COMMIT else Resolution.COMMIT
            self._tell(refused.durable_at, lambda: self._tell_end(message_id, other))
        else:
            self._tell(end.durable_at, lambda: self._tell_end(message_id, resolution))

    def _tell_end(self, message_id: str, resolution: Resolution) -> None:
        assert self.told.ended.setdefault(message_id, resolution) is resolution, "a transaction ended twice"

    def _message(self) -> Message:
        self.count += 1
        size = self.chance.choice([1, 40, 700, 1900])
        # Properties replace body bytes, so that schedules kept as regression tests are unchanged.
        given = some_properties(self.count) if size > 1 else {}
        body = b"x" * (size - len(properties.encode(given)))
        return Message(topic=TOPIC, body=body, message_id=f"M{self.count}", properties=given)

    def _go_to(self, now_ms: int) -> None:
        reign = self.reign
        while reign == self.reign and (due_ms := self.broker.next_due_ms()) is not None and due_ms <= now_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._carry_out(self.broker.tick(self.now_ms))
            if self.chance.random() < 0.5:
                self.flush()
        if reign == self.reign:
            self._leap_to(now_ms)

    def _leap_to(self, now_ms: int) -> None:
        """Set the clock in one step: events that were due before are late."""
        self.now_ms = now_ms
        self._carry_out(self.broker.tick(now_ms))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, CheckBackRequest):
                self.broker.transactions.complete_check_back(
                    effect.transaction_id, self.chance.random() < 0.5, self.now_ms
                )
                if self.chance.random() < 0.5:
                    self.broker.transactions.schedule_waiting_check_backs(effect.topic, self.now_ms)
            elif isinstance(effect, RetireSegments):
                self.retirements.append(effect.retirement)
            elif isinstance(effect, RunTimersJob):
                effect.job.run(self.disk)
                self.broker.complete_timers_job(effect.job)

    def _retire(self) -> None:
        """Run the allowed deletions; a crash may occur between a deletion and its completion in the core."""
        for retirement in self.retirements:
            if retirement.durable_at <= self.broker.durable_offset:
                self.faults.threaten(0.15)
                try:
                    retirement.run(self.disk)
                except OSError as error:
                    self.retirements = []
                    self.broker.abandon_retirement()
                    if isinstance(error, SyncFailed):
                        self._reopen(self.broker.durable_offset)
                    return
                self.retirements = []
                while self.chance.random() < 0.8:
                    if self.broker.continue_retirement(retirement, self.now_ms):
                        return
                    self.send()  # between queues that begin at the cut and others
                self._reopen(None)
                return

    def _tell(self, durable_at: int, news: object) -> None:
        self.waiting.append((durable_at, news))
        self._hear()

    def _hear(self) -> None:
        durable = self.broker.synced_offset
        due = [news for durable_at, news in self.waiting if durable_at <= durable]
        self.waiting = [(durable_at, news) for durable_at, news in self.waiting if durable_at > durable]
        for news in due:
            news()  # type: ignore[operator]

    def _reopen(self, acknowledged_offset: int | None) -> None:
        told_offset = self.broker.synced_offset
        if acknowledged_offset is not None:
            acknowledged_offset = trusted_until(self.disk, acknowledged_offset)
        self.retirements = []
        self.flying.clear()
        self.waiting.clear()
        self.held.clear()
        acknowledged_offset = self.faults.starts_that_die(self._open, acknowledged_offset)
        self.broker = self._open(acknowledged_offset)
        assert self.broker.end_offset >= told_offset, "what was told is gone"
        self._undo(told_offset)
        if not self.broker.groups.is_subscribed(GROUP, TOPIC):
            self.receive()  # a consumer keeps polling; see `__init__`
        self.meet_trouble(0.5)
        self._send_again()

    def _open(self, acknowledged_offset: int | None) -> Broker:
        broker = Broker.open(self.disk, self.settings, self.now_ms, acknowledged_offset)
        assert not self.faults.lost(broker, self.broker.synced_offset)
        return broker

    def _undo(self, synced_offset: int) -> None:
        """Remove deliveries undone by a power cut, which is possible for unsynced asynchronous flushes.

        Another record may have the same queue offset, or a gap if the log was torn there.
        """
        if self.settings.sync_flush:
            return
        for message_id, places in self.places.items():
            torn = [place for place, offset in places.items() if offset >= synced_offset]
            for place in [one for one in torn if not self._is_at(message_id, *one)]:
                del places[place]

    def _is_at(self, message_id: str, queue_id: int, queue_offset: int) -> bool:
        if all(topic.name != TOPIC for topic in self.broker.topics.all()):
            return False  # the power cut also took the record that created the topic
        first, end = self.broker.finding.queue_range(TOPIC, queue_id)
        if not first <= queue_offset < end:
            return False
        found = self.broker.finding.read(TOPIC, queue_id, queue_offset, 1)
        return [one.message.message_id for one in found] == [message_id]


def test_nothing_told_is_ever_untrue(seed: int) -> None:
    world = World(seed)
    second = SecondCore(world, seed)
    for _ in range(500):
        world.step()
        second.look()
    world.settle()
    world.check()


def test_a_half_that_was_never_stored_cannot_be_ended() -> None:
    world = World(0)
    world.send_half()
    with pytest.raises(InvalidTransactionId, match="was not given out by this store"):
        world.broker.transactions.end(TOPIC, "0" * 24, "M1", Resolution.COMMIT, world.now_ms)
