"""Which verbs append a record and then refuse, for what reason; every other refusal appends nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from commitlog import limits
from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.groups.group_values import GroupStart
from services.broker.groups.lite_subscribing import LiteStart, LiteStartPosition
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Resolution, SendReceipt, StartPosition, Subscriber, TimerName
from tests.memory_disk import MemoryDisk
from tidewheel.errors import TidewheelError
from txn.checkback import CheckBackPolicy

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(
    segment_bytes=1 << 20, check_back=CheckBackPolicy(immunity_ms=0, interval_ms=1, count_max=1)
)
EMPTY = Message(topic="new", body=b"", message_id="M")
URGENT = Message(topic="new", body=b"x", message_id="M", priority=1)

APPENDS_AND_REFUSES: Final = {
    "send": "its topic is made by its first message, also by one of a type that such a topic does not take",
    "send_many": "likewise",
    "receive": "likewise by its first receive, of a group for which there is no room",
    "create_group": "likewise",
    "redrive": "likewise, by a dead letter that a topic of its type cannot take",
    "lite.subscribe": "likewise, and the topic is none of lite topics",
    "end_transaction": "a producer's end that comes too late for an expired half is noted",
}


class Bench:
    """A broker with a half of each state, and a dead letter of a lite topic."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.broker = Broker.open(self.disk, SETTINGS, NOW_MS)
        self.broker.topics.create("%DLQ%g", MessageType.LITE, 1, NOW_MS)
        self.broker.sending.send(Message(topic="%DLQ%g", body=b"x", message_id="L", lite_topic="l"), NOW_MS)
        self.expired, self.committed = self.half("E"), self.half("C")
        self.broker.transactions.complete_check_back(self.expired.transaction_id, True, NOW_MS)
        self.end(self.committed, Resolution.COMMIT)
        self.broker.tick(NOW_MS + 1_000)
        self.open = self.half("O")

    def half(self, message_id: str) -> SendReceipt:
        receipt = self.broker.sending.send(
            Message(topic="t", body=b"x", message_id=message_id, transactional=True), NOW_MS
        )
        self.flush()
        return receipt

    def end(self, half: SendReceipt, how: Resolution) -> None:
        self.broker.transactions.end("t", half.transaction_id, half.message_id, how, NOW_MS)

    def receive(self, topic: str) -> None:
        self.broker.receiving.receive("h", topic, EVERYTHING, 1, 10_000, "c", False, NOW_MS)

    def send_many(self) -> None:
        [refused] = self.broker.sending.send_many([URGENT], NOW_MS)
        assert isinstance(refused, TidewheelError)
        raise refused

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, NOW_MS)


EARLIEST, LAST = GroupStart(StartPosition.EARLIEST), LiteStart(LiteStartPosition.LAST)
REFUSALS: Final[dict[str, list[Callable[[Bench], object]]]] = {
    "send": [
        lambda bench: bench.broker.sending.send(URGENT, NOW_MS),
        lambda bench: bench.broker.sending.send(EMPTY, NOW_MS),
        lambda bench: bench.broker.sending.send(replace(EMPTY, topic="t"), NOW_MS),
        lambda bench: bench.broker.sending.send(replace(EMPTY, topic="no name"), NOW_MS),
    ],
    "send_many": [Bench.send_many],
    "receive": [lambda bench: bench.receive("new"), lambda bench: bench.receive("t")],
    "create_group": [
        lambda bench: bench.broker.group_views.create("h", "new", EARLIEST, NOW_MS),
        lambda bench: bench.broker.group_views.create("no name", "new", EARLIEST, NOW_MS),
    ],
    "redrive": [
        lambda bench: bench.broker.dead_letters.redrive("g", 0, "new", NOW_MS),
        lambda bench: bench.broker.dead_letters.redrive("g", 7, "new", NOW_MS),
    ],
    "lite.subscribe": [
        lambda bench: bench.broker.lite.subscribe(Subscriber("h", "new", "c"), ["l"], LAST, NOW_MS)
    ],
    "end_transaction": [
        lambda bench: bench.end(bench.expired, Resolution.COMMIT),
        lambda bench: bench.end(bench.committed, Resolution.ROLLBACK),
        lambda bench: bench.end(replace_id(bench.open), Resolution.COMMIT),
    ],
    "resolve_transaction": [
        lambda bench: bench.broker.transactions.resolve(
            bench.committed.transaction_id, Resolution.ROLLBACK, "why", NOW_MS
        )
    ],
    "check_now": [lambda bench: bench.broker.transactions.create_check_back(bench.expired.transaction_id)],
    "create_topic": [lambda bench: bench.broker.topics.create("t", MessageType.FIFO, 1, NOW_MS)],
    "set_check_back": [
        lambda bench: bench.broker.transactions.set_check_back(
            "t", replace(SETTINGS.check_back, count_max=0), NOW_MS
        ),
        lambda bench: bench.broker.transactions.set_check_back("new", None, NOW_MS),
    ],
    "recall": [lambda bench: bench.broker.timers.recall("t", "no handle", NOW_MS)],
    "move_timer": [lambda bench: bench.broker.timers.move(TimerName("t", "M"), -1, NOW_MS)],
    "ack": [lambda bench: bench.broker.receiving.ack("g", "t", "no handle", NOW_MS)],
    "purge": [lambda bench: bench.broker.dead_letters.purge("g", 7, NOW_MS)],
    "delete_group": [lambda bench: bench.broker.group_views.delete("nobody", "", NOW_MS)],
    "delete_schedule": [lambda bench: bench.broker.schedules.delete("none", NOW_MS)],
}


def replace_id(receipt: SendReceipt) -> SendReceipt:
    return receipt._replace(message_id="forged")


def test_these_verbs_append_and_then_refuse_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_MAX", 0)
    appending = set()
    for verb, refusals in REFUSALS.items():
        for refuse in refusals:
            bench = Bench()
            before = bench.broker.end_offset
            with pytest.raises(TidewheelError):
                refuse(bench)
            if bench.broker.end_offset > before:
                appending.add(verb)
    assert appending == set(APPENDS_AND_REFUSES)
