"""One commit, torn at every byte of its writes, within a segment and across segments.

A flush may have several writes, to several files when the log continues in the next segment, and a disk may
keep them in any order. Therefore each prefix of every write is kept, with all and with nothing of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from commitlog.layout import COMMITLOG
from commitlog.records.kinds import HALF_TOPIC
from commitlog.records.message import Message
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import PendingTimer, Resolution, SendReceipt, TimerName
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
HOUR = 3_600_000
SEGMENT_BYTES = 4096
SETTINGS = BrokerSettings(segment_bytes=SEGMENT_BYTES, queue_count=1)
DEADLINE = TimerName("t", key="order:1")
HALF_ID = "half"


class HoldingDisk(MemoryDisk):
    """A disk that can postpone syncs."""

    is_holding = False

    def sync(self, path: str) -> None:
        if not self.is_holding:
            super().sync(path)

    def written(self) -> list[tuple[str, int]]:
        """Return (file, number of bytes) of each unsynced write."""
        return [(path, len(data)) for path, file in self._files.items() for _, data in file.unsynced if data]

    def after_crash(self, kept: list[int]) -> HoldingDisk:
        """Return the disk after a crash that kept the given number of bytes of each write, and all names."""
        disk, lengths = deepcopy(self), iter(kept)
        disk.is_holding = False
        for file in disk._files.values():
            file.unsynced = [(at, data and data[: next(lengths)]) for at, data in file.unsynced]
        disk.crash(lambda count: count)
        return disk


@dataclass(slots=True, frozen=True)
class Commit:
    """A half that carries a cancel, and the disk with its written and unsynced commit."""

    disk: HoldingDisk
    half: SendReceipt
    is_delayed: bool

    def crashes(self) -> Iterator[HoldingDisk]:
        """Yield every possible disk after a power cut; files derived from the log are present or not."""
        paths, lengths = map(list, zip(*self.disk.written(), strict=True))
        for torn, (path, length) in enumerate(zip(paths, lengths, strict=True)):
            for others in ([0] * len(lengths), lengths):
                for kept in range(length + 1 if path.startswith(COMMITLOG) else 0):
                    yield self.disk.after_crash([*others[:torn], kept, *others[torn + 1 :]])


def commit(*, is_delayed: bool, rolls: bool) -> Commit:
    """Write the commit of a half that cancels a timer."""
    disk = HoldingDisk()
    broker = Broker.open(disk, SETTINGS, NOW_MS)
    deadline = _message(b"too late", "deadline", delivery_ms=NOW_MS + HOUR)
    deadline.properties["TW_TIMER_KEY"] = DEADLINE.key
    broker.sending.send(deadline, NOW_MS)
    message = _message(b"paid", HALF_ID, transactional=True)
    message.properties["TW_TIMER_CANCEL"] = DEADLINE.key
    message.delivery_ms = NOW_MS + 2 * HOUR if is_delayed else None
    half = broker.sending.send(message, NOW_MS)
    number = 0
    while rolls and broker._log._left_bytes() > 700:
        number += 1
        broker.sending.send(_message(b"x" * 50, f"other-{number}"), NOW_MS)
    if rolls:
        broker.sending.send(_message(b"x" * (broker._log._left_bytes() - 350), "last"), NOW_MS)
    flush(broker, disk)
    disk.is_holding = True
    broker.transactions.end("t", half.transaction_id, HALF_ID, Resolution.COMMIT, NOW_MS)
    flush(broker, disk)
    assert (broker.end_offset > SEGMENT_BYTES) == rolls
    return Commit(disk, half, is_delayed)


def flush(broker: Broker, disk: MemoryDisk) -> None:
    """Flush the appended records."""
    while (one := broker.take_flush()) is not None:
        one.write()
        broker.complete_flush(one, NOW_MS)


def messages(broker: Broker) -> int:
    """Return how often the half's message is found: in its queue, or as a pending timer."""
    found = broker.finding.find("t", HALF_ID, 99).messages
    return sum(one.stored_topic != HALF_TOPIC for one in found)


def waits(broker: Broker) -> bool:
    """Return whether the timer to be cancelled is pending."""
    return isinstance(broker.timers.get_timer(DEADLINE, NOW_MS), PendingTimer)


def _message(body: bytes, message_id: str, **attributes: Any) -> Message:
    return Message(topic="t", body=body, message_id=message_id, **attributes)
