"""Compare the timers of a simulated broker with an oracle (`timer_world`).

The simulation includes all timer commands, clock changes, and failures, and is determined by its seed.
`pytest tests/simulation/test_timers.py --seed S` repeats the simulation of a seed.
"""

from __future__ import annotations

import pytest

from commitlog import limits
from services.store.read_only.opening import look_at
from services.store.verify.verify import verify
from tests.simulation.second_core import SecondCore
from tests.simulation.timer_world import World


def test_every_timer_ends_once_and_as_it_was_told(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 4 == 2:
        monkeypatch.setattr(limits, "DELIVERIES_PER_TICK_MAX", 7)
        monkeypatch.setattr(limits, "SCHEDULER_PER_TICK_MAX", 3)
    world = World(seed)
    second = SecondCore(world, seed, upgrades=True)
    for _ in range(400):
        world.step()
        second.look()
    world.faults.cease()
    world.settle()
    world.compare()
    world.drain()
    world.check_names()
    world.write_down()
    verdict = verify(look_at(world.disk, "the store"), world.now_ms)
    assert not world.faults.unexplained(verdict), verdict.findings
    world.crash()
    world.compare()
