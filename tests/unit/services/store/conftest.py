"""A store with a little of everything in it, in memory or in files, and the broker that made it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.disk.real_disk import RealDisk
from commitlog.records.message import Message
from commitlog.snapshots import snapshot
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Resolution, RunTimersJob, SendReceipt, TimerName, Verdict
from tests.memory_disk import MemoryDisk
from txn.checkback import CheckBackPolicy

START_MS = 1_763_700_000_000
SEGMENT_BYTES = 13 * 1024
MESSAGE_COUNT = 150
SETTINGS = BrokerSettings(
    segment_bytes=SEGMENT_BYTES,
    queue_count=2,
    tail_entries_max=1,
    check_back=CheckBackPolicy(immunity_ms=500, interval_ms=400),
)


class Shop:
    """A broker on `disk` and its clients, who send, receive, end transactions and recall, always alike."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.settings = SETTINGS
        self.now_ms = START_MS
        self.broker = Broker.open(disk, SETTINGS, START_MS)
        self._halves: list[tuple[Message, SendReceipt]] = []
        self._handles: list[str] = []

    def trade(self, message_count: int = MESSAGE_COUNT, snapshots_after: tuple[int, ...] = (70, 110)) -> None:
        """Sends messages of all kinds; some are received, ended, recalled or delivered meanwhile."""
        for number in range(message_count):
            self.now_ms += 10
            self._send(number)
            self._answer(number)
            self.broker.tick(self.now_ms)
            self.flush()
            if number in snapshots_after:
                self.checkpoint()

    def checkpoint(self) -> None:
        """Writes a snapshot with all that it names."""
        checkpoint = self.broker.checkpoint(self.now_ms)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)

    def flush(self) -> None:
        """Makes everything durable and visible."""
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)
        if (entries := self.broker.take_entries()) is not None:
            entries.write(self.disk)
            self.broker.complete_entries()

    def wait_until(self, now_ms: int) -> None:
        """Lets time pass at once, and everything happen that is due by then."""
        self.now_ms = now_ms
        is_going_on = True
        while is_going_on:
            jobs = [one.job for one in self.broker.tick(now_ms) if isinstance(one, RunTimersJob)]
            for job in jobs:
                job.run(self.disk)
                self.broker.complete_timers_job(job)
            is_going_on = bool(jobs) or self.broker.end_offset > self.broker.durable_offset
            self.flush()
            due_ms = self.broker.next_due_ms()
            is_going_on = is_going_on or (due_ms is not None and due_ms <= now_ms)

    def _send(self, number: int) -> None:
        message = Message(
            topic="orders",
            body=b"order %d" % number,
            message_id=f"M{number}",
            keys=(f"k{number}",),
            tag="new",
        )
        if number % 7 == 1:
            message.delivery_ms = self.now_ms + (300 if number % 2 else 600_000)
        elif number % 7 == 3:
            message.transactional = True
        receipt = self.broker.sending.send(message, self.now_ms)
        self.flush()
        if message.transactional:
            self._halves.append((message, receipt))
        if receipt.recall_handle:
            self._handles.append(receipt.recall_handle)

    def _answer(self, number: int) -> None:
        if len(self._halves) > 2:
            message, receipt = self._halves.pop(0)
            end = Resolution.ROLLBACK if number % 3 == 0 else Resolution.COMMIT
            self.broker.transactions.end(
                "orders", receipt.transaction_id, message.message_id, end, self.now_ms
            )
        if number % 20 == 19:
            self.broker.timers.recall("orders", self._handles.pop(), self.now_ms)
        if number % 5 == 0:
            for one in self.broker.receiving.receive(
                "carts", "orders", EVERYTHING, 3, 10_000, "c", False, self.now_ms
            ).deliveries:
                self.broker.receiving.ack("carts", "orders", one.receipt_handle, self.now_ms)


class TimerShop(Shop):
    """A broker that had every verb on timers, by every way, near and far, before and behind its snapshots."""

    DELAYS_MS = (300, 40_000, 3_600_000, 86_400_000, 3_000_000_000)

    def run(self) -> None:
        """Three rounds, with a snapshot after the first and the second."""
        for number in range(3):
            for delay_ms in self.DELAYS_MS:
                self.set(f"{number}-{delay_ms}", delay_ms)
            self._verbs(number)
            self.wait_until(self.now_ms + 1_000)
            if number < 2:
                self.checkpoint()

    def set(self, name: str, delay_ms: int, **marks: str) -> SendReceipt:
        """Sets a timer with a key and an id of its own."""
        marks.setdefault("TW_TIMER_KEY", f"key {name}")
        return self._sent(name, delay_ms=delay_ms, **marks)

    def _verbs(self, number: int) -> None:
        names = [f"{number}-{kind}" for kind in ("moved", "again", "cancelled", "fired", "carried", "kept")]
        for name in names:
            self.set(name, 50_000)
        moved, again, cancelled, fired, carried, _ = (
            TimerName("orders", key=f"key {name}") for name in names
        )
        now_ms = self.now_ms
        verdicts = [
            self.broker.timers.move(moved, now_ms + 7_200_000, now_ms).verdict,
            self.broker.timers.cancel(cancelled, "why", now_ms).verdict,
            self.broker.timers.fire(fired, now_ms).verdict,
        ]
        assert verdicts == [Verdict.MOVED, Verdict.CANCELLED, Verdict.FIRED]
        self.flush()
        self.set(f"{number}-set again", 90_000, TW_TIMER_KEY=again.key)
        self._sent(f"{number}-carrier", TW_TIMER_CANCEL=carried.key)
        self.set(f"{number}-late carrier", 60_000, TW_TIMER_CANCEL=f"key {number}-{self.DELAYS_MS[1]}")
        late = TimerName("orders", key=f"key {number}-late carrier")
        assert self.broker.timers.move(late, now_ms + 70_000, now_ms).verdict is Verdict.MOVED
        self.flush()

    def send_plain(self, name: str) -> None:
        """Sends a message that is no timer."""
        self._sent(name)

    def _sent(self, name: str, delay_ms: int = 0, **marks: str) -> SendReceipt:
        self.now_ms += 10
        message = Message(topic="orders", body=b"x" + name.encode(), message_id=name, keys=(f"k{name}",))
        message.properties = marks
        if delay_ms:
            message.delivery_ms = self.now_ms + delay_ms
        receipt = self.broker.sending.send(message, self.now_ms)
        self.flush()
        return receipt


@pytest.fixture
def timer_shop() -> TimerShop:
    """A shop of timers, its store in memory."""
    made = TimerShop(MemoryDisk())
    made.run()
    return made


@pytest.fixture
def timers_at(tmp_path: Path) -> Callable[[str], Path]:
    """Makes the same store in a folder of this name, with both snapshots behind the first segment."""

    def make(name: str) -> Path:
        disk = RealDisk(tmp_path / name)
        shop = TimerShop(disk)
        shop.run()
        for part in range(2):
            for number in range(50):
                shop.send_plain(f"plain {part} {number}")
            shop.checkpoint()
        disk.close()
        return tmp_path / name

    return make


@pytest.fixture
def trade() -> Callable[..., Shop]:
    """Makes a shop that traded, its store in memory."""

    def make(**how: Any) -> Shop:
        made = Shop(MemoryDisk())
        made.trade(**how)
        return made

    return make


@pytest.fixture
def shop(trade: Callable[..., Shop]) -> Shop:
    return trade()


@pytest.fixture
def store_at(tmp_path: Path) -> Callable[[str], Path]:
    """Makes the same store in a folder of this name."""

    def make(name: str) -> Path:
        root = tmp_path / name
        disk = RealDisk(root)
        Shop(disk).trade()
        disk.close()
        return root

    return make


@pytest.fixture
def retired() -> Callable[[Path], None]:
    """Deletes the first segment of a store."""
    return retire_first_segment


def retire_first_segment(root: Path) -> None:
    """Deletes the first segment of a store as retention does: so that everybody knows."""
    disk = RealDisk(root)
    disk.delete(layout.segment_path(0))
    for offset in snapshot.offsets(disk):
        found = snapshot.read(disk, offset)
        assert found is not None
        found.parts["store"]["may_begin_at"] = SEGMENT_BYTES
        found.write(disk)
    disk.close()
