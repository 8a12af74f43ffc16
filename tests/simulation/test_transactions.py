"""Transactions under every producer, operator, clock and failure, against an oracle: see `transaction_world`.

A seed decides everything; `pytest tests/simulation/test_transactions.py --seed S` plays it again.
"""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from commitlog.errors import TransactionEnded
from services.broker.broker import Broker
from services.broker.values import Resolution
from services.store.opening import look_at
from services.store.verify import verify
from tests.simulation.transaction_tearing import HALF_ID, NOW_MS, SETTINGS, commit, flush, messages, waits
from tests.simulation.transaction_world import TransactionWorld
from txn import outcomes
from txn.states import State


def test_every_transaction_ends_once_and_as_it_was_told(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 4 in (1, 2):
        monkeypatch.setattr(outcomes, "ENDED_HALVES_MAX", 3)  # most ends are read from the log
    world = TransactionWorld(seed)
    for _ in range(400):
        world.step()
    world.settle()
    world.compare()
    world.settle_transactions()
    world.settle()
    world.drain()
    world.check_names()
    world.check_ends()
    verdict = verify(look_at(world.disk, "the store"), world.now_ms)
    assert verdict.is_sound, verdict.findings
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
        found = broker.half(torn.half.transaction_id).state
        states[found] += 1
        assert (messages(broker), waits(broker)) == ((1, False) if found is State.COMMITTED else (0, True))
        how = list(Resolution)[number % 2]
        with contextlib.suppress(TransactionEnded):
            broker.end_transaction("t", torn.half.transaction_id, HALF_ID, how, NOW_MS)
        flush(broker, disk)
        is_committed = found is State.COMMITTED or how is Resolution.COMMIT
        assert (messages(broker), waits(broker)) == ((1, False) if is_committed else (0, True))
    assert set(states) == {State.OPEN, State.COMMITTED}
