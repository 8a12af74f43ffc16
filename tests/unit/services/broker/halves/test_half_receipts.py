"""A client's retry of a half gets the first receipt: after a start too, of any version, and not for ever."""

from __future__ import annotations

import json

import pytest

from commitlog import applied_limits
from commitlog.facts.facts import HalfStored, facts_of
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.broker import Broker
from services.broker.halves.half_receipts import HalfReceipts, row_of
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import SendReceipt
from services.broker.timers import recall
from tests.applied import limited
from tests.memory_disk import MemoryDisk
from txn import half

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(broker_name="b")
KEPT_MS = applied_limits.BY_VERSION[applied_limits.OLDEST].half_receipts_kept_ms


def made() -> HalfReceipts:
    return Broker.open(MemoryDisk(), SETTINGS, NOW_MS).transactions.receipts


def stored(number: int, store_ms: int = NOW_MS, due_ms: int | None = None) -> Record:
    message = Message(topic="t", body=b"x", message_id=f"M{number}", transactional=True, delivery_ms=due_ms)
    record = half.half_record(message, 0, store_ms)
    record.store_ms, record.physical_offset, record.queue_offset = store_ms, number * 100, number
    return record


def apply(receipts: HalfReceipts, record: Record) -> None:
    (fact,) = facts_of(record)
    assert isinstance(fact, HalfStored)
    receipts.add_half(
        fact.topic,
        fact.message_id,
        row_of(fact, record.store_ms, record.physical_offset, record.queue_offset),
    )


def receipt(number: int, due_ms: int | None = None) -> SendReceipt:
    name = f"M{number}"
    handle = "" if due_ms is None else recall.encode("t", due_ms, name, "b")
    return SendReceipt(
        name, number, number * 100, half.transaction_id(number * 100, name), handle, number * 100 + 1
    )


def names(receipts: HalfReceipts) -> list[str]:
    return [message_id for _, message_id, *_ in receipts.freeze()]


@pytest.mark.parametrize("due_ms", [None, NOW_MS + 5])
def test_what_was_frozen_answers_alike(due_ms: int | None) -> None:
    receipts, again = made(), made()
    apply(receipts, stored(7, due_ms=due_ms))
    again.thaw(json.loads(json.dumps([*receipts.freeze()])))
    for one in (receipts, again):
        assert one.find_receipt("t", "M7", NOW_MS) == receipt(7, due_ms)
        assert one.find_receipt("other", "M7", NOW_MS) is None
        assert one.find_receipt("t", "M7", NOW_MS + SETTINGS.dedupe_ms) is None


def test_the_oldest_are_forgotten_by_the_store_time_of_what_follows_and_by_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receipts = made()
    for number, store_ms in enumerate((0, 1, KEPT_MS, KEPT_MS + 1)):
        apply(receipts, stored(number, store_ms))
    assert names(receipts) == ["M2", "M3"]
    limited(monkeypatch, half_receipts_max=2)
    apply(receipts, stored(2, KEPT_MS + 2))
    assert names(receipts) == ["M3", "M2"], "a name that comes again is the newest"
    apply(receipts, stored(4, KEPT_MS + 2))
    assert names(receipts) == ["M2", "M4"]


def test_after_a_pause_the_old_ones_go_a_few_at_a_time() -> None:
    receipts = made()
    for number in range(20):
        apply(receipts, stored(number))
    counts = []
    for number in range(20, 30):
        apply(receipts, stored(number, NOW_MS + KEPT_MS))
        counts.append(len(receipts))
    assert counts == [17, 14, 11, 8, 5, 6, 7, 8, 9, 10]
    assert receipts.find_receipt("t", "M19", NOW_MS + KEPT_MS) is None
