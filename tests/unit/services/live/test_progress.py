"""What is due and is not done is counted, with its age, and counting gives others their turns."""

from __future__ import annotations

import asyncio

import pytest

from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.live import progress
from services.live.progress import STALLED_MS, Progress, measure_progress, measure_with_pauses
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
LEASE_MS = 600_000
SETTINGS = BrokerSettings(segment_bytes=1 << 20)


class Bench:
    def __init__(self) -> None:
        self.disk, self.now_ms = MemoryDisk(), NOW_MS
        self.broker = Broker.open(self.disk, SETTINGS, NOW_MS)
        self.broker.topics.create("line", MessageType.FIFO, 1, NOW_MS)
        self.receive()

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def send(self, message_id: str, **attributes: object) -> str:
        # Attributes of several types: no one type of `**attributes` fits all.
        message = Message(body=b"x", message_id=message_id, **attributes)  # type: ignore[arg-type]
        receipt = self.broker.sending.send(message, self.now_ms)
        self.flush()
        return receipt.transaction_id

    def receive(self, group: str = "g") -> list[str]:
        got = self.broker.receiving.receive(
            group, "line", EVERYTHING, 1, LEASE_MS, "c", False, self.now_ms
        ).deliveries
        self.flush()
        return [one.receipt_handle for one in got]

    def measure(self) -> Progress:
        return asyncio.run(measure_with_pauses(self.broker, self.now_ms))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_half_that_is_due_counts_once_no_producer_of_its_topic_can_be_asked(bench: Bench) -> None:
    for number, topic in enumerate("aab"):
        transaction_id = bench.send(f"H{number}", topic=topic, transactional=True, check_immunity_ms=1_000)
        bench.now_ms += 1_000
        assert bench.measure().unasked_halves == number
        bench.broker.transactions.complete_check_back(transaction_id, False, bench.now_ms)
    bench.now_ms += 5_000
    found = bench.measure()
    assert (found.unasked_halves, found.unasked_age_ms) == (3, 7_000)
    bench.broker.transactions.schedule_waiting_check_backs("a", bench.now_ms)
    found = bench.measure()
    assert (found.unasked_halves, found.unasked_age_ms) == (1, 5_000)


def test_a_message_group_counts_while_a_message_of_it_waits_and_none_is_given_out(bench: Bench) -> None:
    for number in range(2):
        bench.send(f"M{number}", topic="line", message_group="north")
    (first,) = bench.receive()
    bench.now_ms += STALLED_MS - 1
    assert bench.measure().waiting_message_group_age_ms == 0, "nothing is known to wait"
    assert bench.receive() == []
    found = bench.measure()
    assert (found.stalled_message_groups, found.waiting_message_group_age_ms) == (0, STALLED_MS - 1)
    bench.now_ms += 1
    found = bench.measure()
    assert (found.stalled_message_groups, found.waiting_message_group_age_ms) == (1, STALLED_MS)
    bench.broker.receiving.ack("g", "line", first, bench.now_ms)
    bench.flush()
    assert bench.measure().stalled_message_groups == 1, "it has the turn, and nobody receives"
    assert len(bench.receive()) == 1
    found = bench.measure()
    assert (found.stalled_message_groups, found.waiting_message_group_age_ms) == (0, 0)


def test_bytes_behind_a_checkpoint_count_until_the_next_one_is_on_disk(bench: Bench) -> None:
    before = bench.measure().beyond_checkpoint_bytes
    bench.send("M", topic="other")
    beyond = bench.measure().beyond_checkpoint_bytes
    assert beyond > before
    done = bench.broker.checkpoint(bench.now_ms)
    assert bench.measure().beyond_checkpoint_bytes == beyond
    done.write(bench.disk)
    bench.broker.complete_checkpoint(done)
    assert bench.measure().beyond_checkpoint_bytes == 0
    bench.broker = Broker.open(bench.disk, SETTINGS, bench.now_ms)
    assert bench.measure().beyond_checkpoint_bytes == 0


def test_many_groups_are_looked_at_with_turns_for_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FLIGHTS_AT_ONCE", 4)
    bench.send("M", topic="line", message_group="north")
    for number in range(12):
        bench.receive(f"g{number}")
    assert len(list(measure_progress(bench.broker, bench.now_ms))) >= 3
