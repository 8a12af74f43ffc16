"""Topics altered, held, purged and deleted, and messages moved, under every failure; see `topic_world`.

The simulation is determined by its seed; `pytest tests/simulation/test_topics.py --seed S` repeats it.
"""

from __future__ import annotations

from services.store.read_only.opening import look_at
from services.store.verify.verify import verify
from tests.simulation.second_core import SecondCore
from tests.simulation.topic_world import World


def test_a_change_of_a_topic_happens_whole_or_not_at_all_and_loses_nothing_else(seed: int) -> None:
    world = World(seed)
    second = SecondCore(world, seed)
    for _ in range(400):
        world.step()
        second.look()
    world.faults.cease()
    world.endure(world.compare)
    verdict = verify(look_at(world.disk, "the store"), world.now_ms)
    assert not world.faults.unexplained(verdict), verdict.findings
    world.crash()
    world.compare()


def test_the_world_does_what_it_is_for() -> None:
    counts = sum((_played(seed).counts for seed in range(6)), start=World(0).counts)
    verbs = ("alter", "purge", "delete", "hold", "release", "refused", "expired", "MOVED", "LEASED")
    assert all(counts[verb] >= 10 for verb in verbs), counts
    assert counts["expired at once"], counts


def _played(seed: int) -> World:
    world = World(seed)
    for _ in range(400):
        world.step()
    return world
