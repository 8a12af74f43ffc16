"""The second core is compared regularly, starts in each way, and detects a core that applies differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pytest

from commitlog.facts.facts import EpochBegun, MessagesFinished
from services.broker.broker import Broker
from tests.simulation import receiving_world, test_broker, timer_world, transaction_world
from tests.simulation.second_core import SecondCore, World

WORLDS: Final[dict[str, Callable[[int], World]]] = {
    "timers": timer_world.World,
    "transactions": transaction_world.TransactionWorld,
    "receiving": receiving_world.World,
    "broker": test_broker.World,
}
STEPS: Final = 300


def played(make: Callable[[int], World], seed: int) -> SecondCore:
    world = make(seed)
    world.faults.spares_files = True
    second = SecondCore(world, seed)
    for _ in range(STEPS):
        world.step()
        second.look()
    return second


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("first_seed", [9, 4], ids=["late", "from the start"])
def test_it_is_compared_all_along(name: str, first_seed: int) -> None:
    second = played(WORLDS[name], first_seed)
    assert second.compared_count >= STEPS // 25
    assert second.epoch > 0


@pytest.mark.parametrize(("fact", "table"), [(MessagesFinished, "groups"), (EpochBegun, "epoch")])
def test_a_core_that_applies_otherwise_is_found(
    fact: type, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_replicated = Broker.append_replicated

    def without_a_kind(self: Broker, encoded: Sequence[bytes], end_offset: int, now_ms: int) -> None:
        self._appliers[fact] = lambda fact, stamp: None
        append_replicated(self, encoded, end_offset, now_ms)

    monkeypatch.setattr(Broker, "append_replicated", without_a_kind)
    with pytest.raises(AssertionError, match=table):
        played(WORLDS["broker"], 4)
