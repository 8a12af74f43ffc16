"""A second core over the same records as the first: which of their tables differ, and why today.

At quiet moments of the worlds a core is started on a copy of the disk, and its tables are held against those
of the core that lives (`tests.simulation.tables`). What state the two paths make differently is listed here;
nothing else may differ, and what does not any more must leave the list. The list is the work of the spine:
one way for state to change, which a start and a follower share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import pytest

from commitlog.memory_disk import MemoryDisk
from services.broker.broker import Broker
from services.broker.settings import BrokerSettings
from tests.simulation import receiving_world, timer_machine, timer_world, transaction_world
from tests.simulation.faults import Faults
from tests.simulation.tables import tables

DIFFERS_TODAY: Final = {}
SEEDS: Final = range(6)
STEPS: Final = 300
LOOK_EVERY: Final = 6


class World(Protocol):
    """What the worlds have in common."""

    broker: Broker
    disk: MemoryDisk
    settings: BrokerSettings
    now_ms: int
    faults: Faults

    def step(self) -> None:
        """Do something."""


WORLDS: Final[dict[str, Callable[[int], World]]] = {
    "timers": timer_world.World,
    "transactions": transaction_world.TransactionWorld,
    "receiving": receiving_world.World,
}


def copied(disk: MemoryDisk) -> MemoryDisk:
    """A disk with the same files, on which nothing fails."""
    copy = timer_machine.Disk()
    for path in disk.paths():
        copy.write(path, 0, bytes(disk.view(path)))
        copy.sync(path)
        copy.sync_folder(path.rpartition("/")[0])
    return copy


def differing(world: World) -> Iterator[str]:
    """The tables of which a second core has others."""
    live = tables(world.broker)
    second = tables(Broker.open(copied(world.disk), world.settings, world.now_ms))
    assert live.keys() == second.keys()
    yield from (name for name in live if live[name] != second[name])


def is_whole(world: World) -> bool:
    """Whether nothing was damaged, which a start sees to otherwise than a core that runs."""
    return world.broker.is_quiet and not world.broker.damage and not world.broker.unsound


@pytest.fixture(scope="module")
def found() -> Counter[str]:
    """How often each table differed, in all worlds."""
    counts: Counter[str] = Counter()
    for make in WORLDS.values():
        for seed in SEEDS:
            world = make(seed)
            world.faults.spares_files = True
            for number in range(STEPS):
                world.step()
                if number % LOOK_EVERY == 0 and is_whole(world):
                    counts.update(["looks", *differing(world)])
    return counts


def test_a_second_core_agrees_on_all_tables_but_those_that_two_paths_make_today(found: Counter[str]) -> None:
    assert found["looks"] > 20
    assert sorted(found.keys() - {"looks"}) == sorted(DIFFERS_TODAY)
