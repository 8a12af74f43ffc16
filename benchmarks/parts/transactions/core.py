"""Transactions in the broker's core alone: no server, no client, a real disk with syncs.

Producers take turns: each flush carries the calls of all of them since the last one, as in the live broker.
One producer waits for two flushes per transaction, 64 share them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from commitlog import limits
from commitlog.disk.real_disk import RealDisk
from commitlog.records.message import Message
from commitlog.records.record import encode
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import CheckBackRequest, Resolution, SendReceipt
from txn.half import check_record

BODY = bytes(range(256))
TOPIC = "orders"


class Core:
    """A core over the store in `root`, flushed by its caller."""

    def __init__(self, root: Path) -> None:
        self.disk = RealDisk(root)
        self.now_ms = time.time_ns() // 1_000_000
        settings = BrokerSettings(segment_bytes=limits.SEGMENT_BYTES_SMALL)
        self.broker = Broker.open(self.disk, settings, self.now_ms)
        self.sent = 0

    def half(self) -> SendReceipt:
        """Send a half of 256 bytes."""
        self.sent += 1
        message = Message(topic=TOPIC, body=BODY, message_id=f"M{self.sent:033d}", transactional=True)
        return self.broker.sending.send(message, self.now_ms)

    def commit(self, half: SendReceipt) -> None:
        """Commit a half."""
        self.broker.transactions.end(
            TOPIC, half.transaction_id, half.message_id, Resolution.COMMIT, self.now_ms
        )

    def flush(self) -> None:
        """Make everything durable, and write a checkpoint if one is due."""
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)
        if self.broker.is_checkpoint_due:
            checkpoint = self.broker.checkpoint(self.now_ms)
            checkpoint.write(self.disk)
            self.broker.complete_checkpoint(checkpoint)


def core(root: str, producers: str, seconds: str) -> dict[str, Any]:
    """Send halves and commit them, with `producers`, for `seconds`; return rate and log bytes."""
    one, count = Core(Path(root)), int(producers)
    began, until = time.monotonic(), time.monotonic() + float(seconds)
    first_offset = one.broker.end_offset
    while time.monotonic() < until:
        halves = [one.half() for _ in range(count)]
        one.flush()
        for half in halves:
            one.commit(half)
        one.flush()
    took = time.monotonic() - began
    log_bytes = one.broker.durable_offset - first_offset
    return {
        "transactions_per_second": round(one.sent / took, 1),
        "log_bytes_per_transaction": round(log_bytes / one.sent, 1),
    }


def checks(root: str, count: str) -> dict[str, Any]:
    """Leave `count` halves open, and make one check-back for each; return rate and log bytes."""
    one = Core(Path(root))
    for number in range(int(count)):
        one.half()
        if number % 1_000 == 999:
            one.flush()
    one.flush()
    one.now_ms += limits.CHECK_IMMUNITY_MS
    first_offset, asked = one.broker.end_offset, 0
    began = time.monotonic()
    while asked < int(count):
        for effect in one.broker.tick(one.now_ms):
            if isinstance(effect, CheckBackRequest):
                one.broker.transactions.complete_check_back(effect.transaction_id, True, one.now_ms)
                asked += 1
        one.flush()
    took = time.monotonic() - began
    return {
        "check_backs_per_second": round(asked / took, 1),
        "log_bytes_per_check_back": round((one.broker.durable_offset - first_offset) / asked, 1),
        "check_record_bytes": len(encode(check_record(1, 1, one.now_ms))),
    }
