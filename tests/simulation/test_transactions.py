"""Transactions under every producer, operator, clock and failure, against an oracle; see `transaction_world`.

The simulation is determined by its seed; `pytest tests/simulation/test_transactions.py --seed S` repeats it.
"""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from commitlog import limits
from commitlog.records.message import Message
from commitlog.snapshots import table
from services.broker.broker import Broker
from services.broker.spine.values import Resolution, SendReceipt, TransactionReceipt
from services.store.read_only.opening import look_at
from services.store.verify.verify import verify
from tests.applied import limited
from tests.memory_disk import MemoryDisk
from tests.simulation.second_core import SecondCore
from tests.simulation.transaction_tearing import (
    HALF_ID,
    NOW_MS,
    SEGMENT_BYTES,
    SETTINGS,
    commit,
    flush,
    messages,
    waits,
)
from tests.simulation.transaction_world import TransactionWorld
from tidewheel.errors import TransactionEnded
from txn import outcomes
from txn.errors import InvalidTransactionId
from txn.half import transaction_id
from txn.states import State


def test_every_transaction_ends_once_and_as_it_was_told(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 4 in (1, 2):
        limited(monkeypatch, ended_halves_max=3)  # most ends are read from the log
    if seed % 3 == 2:
        monkeypatch.setattr(outcomes, "LATE_ENDS_MAX", 1)
    if seed % 5 == 2:
        monkeypatch.setattr(limits, "CHECKS_WOKEN_MAX", 2)
    if seed % 2:
        monkeypatch.setattr(table, "PART_ROWS_MAX", 3)  # rows are removed from shared parts
        monkeypatch.setattr(table, "GONE_MAX", 2)
    world = TransactionWorld(seed)
    second = SecondCore(world, seed, upgrades=True)
    for _ in range(400):
        world.step()
        second.look()
    world.faults.cease()
    world.settle()
    world.compare()
    world.settle_transactions()
    world.settle()
    world.drain()
    world.check_names()
    world.check_ends()
    verdict = verify(look_at(world.disk, "the store"), world.now_ms)
    assert not world.faults.unexplained(verdict), verdict.findings
    world.crash()
    world.compare()
    world.check_ends()


@pytest.mark.parametrize("rolls", [False, True], ids=["within", "roll"])
@pytest.mark.parametrize("is_delayed", [False, True], ids=["now", "delayed"])
def test_a_commit_torn_at_any_byte_is_whole_or_was_never_made(is_delayed: bool, rolls: bool) -> None:
    torn = commit(is_delayed=is_delayed, rolls=rolls)
    states: Counter[State] = Counter()
    for number, disk in enumerate(torn.crashes()):
        broker = Broker.open(disk, SETTINGS, NOW_MS)
        found = broker.half_views.get_half(torn.half.transaction_id).state
        states[found] += 1
        assert (messages(broker), waits(broker)) == ((1, False) if found is State.COMMITTED else (0, True))
        how = list(Resolution)[number % 2]
        with contextlib.suppress(TransactionEnded):
            broker.transactions.end("t", torn.half.transaction_id, HALF_ID, how, NOW_MS)
        flush(broker, disk)
        is_committed = found is State.COMMITTED or how is Resolution.COMMIT
        assert (messages(broker), waits(broker)) == ((1, False) if is_committed else (0, True))
    assert set(states) == {State.OPEN, State.COMMITTED}


class Bench:
    """A broker with manual flushes."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.broker = Broker.open(self.disk, SETTINGS, NOW_MS)

    def half(self) -> SendReceipt:
        half = Message(topic="t", body=b"x", message_id=HALF_ID, transactional=True)
        receipt = self.broker.sending.send(half, NOW_MS)
        flush(self.broker, self.disk)
        return receipt

    def end(self, half: SendReceipt, how: Resolution = Resolution.COMMIT) -> TransactionReceipt:
        return self.broker.transactions.end("t", half.transaction_id, HALF_ID, how, NOW_MS)


def test_an_end_that_is_not_durable_is_remembered_however_many_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited(monkeypatch, ended_halves_max=0)
    bench = Bench()
    half = bench.half()
    assert not bench.end(half).repeated
    assert bench.end(half).repeated
    with pytest.raises(TransactionEnded, match="COMMITTED"):
        bench.end(half, Resolution.ROLLBACK)
    flush(bench.broker, bench.disk)
    assert bench.end(half).repeated


@pytest.mark.parametrize("room_bytes", [1, 2, 3, 4, 90])
def test_an_id_that_names_the_last_bytes_of_a_segment_names_no_half(room_bytes: int) -> None:
    bench = Bench()
    while bench.broker.durable_offset < SEGMENT_BYTES:
        bench.half()
        bench.broker.transactions.receipts._rows = table.Table()  # so that each is a new half
    forged = transaction_id(SEGMENT_BYTES - room_bytes, HALF_ID)
    with pytest.raises(InvalidTransactionId):
        bench.broker.transactions.end("t", forged, HALF_ID, Resolution.COMMIT, NOW_MS)
    with pytest.raises(InvalidTransactionId):
        bench.broker.half_views.get_half(forged)


def test_a_check_by_hand_does_not_bring_the_next_one_forward() -> None:
    bench = Bench()
    half = bench.half()
    due_ms = bench.broker.half_views.get_half(half.transaction_id).next_check_ms
    bench.broker.transactions.create_check_back(half.transaction_id)
    for asked in (False, True):
        bench.broker.transactions.complete_check_back(half.transaction_id, asked, NOW_MS)
        assert bench.broker.half_views.get_half(half.transaction_id).next_check_ms >= due_ms
