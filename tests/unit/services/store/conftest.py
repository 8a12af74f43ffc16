"""A store with a little of everything in it, in memory or in files, and the broker that made it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk import Disk
from commitlog.memory_disk import MemoryDisk
from commitlog.message import Message
from commitlog.real_disk import RealDisk
from services.broker.broker import Broker
from services.broker.settings import BrokerSettings
from services.broker.values import Resolution, SendReceipt
from txn.checkback import CheckBackPolicy

START_MS = 1_763_700_000_000
SEGMENT_BYTES = 13 * 1024
MESSAGE_COUNT = 150
SETTINGS = BrokerSettings(
    segment_bytes=SEGMENT_BYTES,
    queue_count=2,
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
                checkpoint = self.broker.checkpoint(self.now_ms)
                checkpoint.write(self.disk)
                self.broker.checkpointed(checkpoint)

    def flush(self) -> None:
        """Makes everything durable and visible."""
        while (flush := self.broker.take_flush()) is not None:
            flush.write(self.disk)
            self.broker.flushed(flush, self.now_ms)

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
        receipt = self.broker.send(message, self.now_ms)
        self.flush()
        if message.transactional:
            self._halves.append((message, receipt))
        if receipt.recall_handle:
            self._handles.append(receipt.recall_handle)

    def _answer(self, number: int) -> None:
        if len(self._halves) > 2:
            message, receipt = self._halves.pop(0)
            end = Resolution.ROLLBACK if number % 3 == 0 else Resolution.COMMIT
            self.broker.end_transaction(
                "orders", receipt.transaction_id, message.message_id, end, self.now_ms
            )
        if number % 20 == 19:
            self.broker.recall("orders", self._handles.pop(), self.now_ms)
        if number % 5 == 0:
            for one in self.broker.receive("carts", "orders", "*", 3, 10_000, "c", False, self.now_ms):
                self.broker.ack("carts", "orders", one.receipt_handle, self.now_ms)


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
