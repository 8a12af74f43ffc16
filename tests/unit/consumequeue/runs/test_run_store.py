"""Tests both schemas of the run store against a dictionary, with failures and damage.

A damaged index may fail to answer a lookup, but must not return a wrong result. The files listed in the last
two snapshots must always exist unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.errors import StoreDamaged
from commitlog.layout import KEYINDEX
from consumequeue.indexes import keyindex
from consumequeue.indexes.keyindex import KEYS, KeyIndex
from consumequeue.indexes.name_hash import digest_of
from consumequeue.indexes.timerindex import FACTS, FactIndex
from consumequeue.indexes.timerindex_fact import FACT, Facts
from consumequeue.runs import run_store
from consumequeue.runs.bloom_filter import Mask
from consumequeue.runs.run_store import RunsToWrite
from consumequeue.runs.sorted_runs import BLOCK_BYTES, Run
from tests.memory_disk import MemoryDisk

TOPIC = "t"
NAMES = [*"abcdef", "absent"]
OFFSET_STEP = 100


def never(facts: Facts, now_ms: int) -> Mask:
    return np.zeros(len(facts), np.bool_)


class Keys:
    """The key index, which returns all offsets for a name, newest first."""

    folder, schema = KEYINDEX, KEYS

    def open(self, disk: MemoryDisk) -> KeyIndex:
        return KeyIndex(disk)

    def put(self, index: Any, name: str, offset: int) -> None:
        index.put_digests([digest_of(TOPIC, name)], [offset])

    def answer(self, index: Any, name: str) -> list[int]:
        return list(index.offsets(TOPIC, name, 0))

    def expected(self, offsets: list[int]) -> list[int]:
        return offsets[::-1]


class Ends:
    """The timer index, which returns the highest offset for a name.

    Every third fact is added in bulk together with an older fact.
    """

    folder, schema = "timers-ends", FACTS

    def open(self, disk: MemoryDisk) -> FactIndex:
        return FactIndex(disk, self.folder, never)

    def put(self, index: Any, name: str, offset: int) -> None:
        key, check = divmod(NAMES.index(name), 2)
        if offset % 3:
            index.put(key, check, offset, offset, 7)
        else:
            older = 0 if offset < OFFSET_STEP else offset - OFFSET_STEP - 1
            index.put_many(np.array([(key, check, offset, offset, 7), (key, check, older, 1, 1)], FACT))

    def answer(self, index: Any, name: str) -> list[int]:
        said = index.newest(*divmod(NAMES.index(name), 2))
        return [] if said is None else [said.offset]

    def expected(self, offsets: list[int]) -> list[int]:
        return offsets[-1:]


class Taken(NamedTuple):
    """The files listed in a snapshot, and the number of entries that were added before it."""

    frozen: Any
    count: int


class World:
    """An index, its disk, its log of added entries, its last two snapshots, and the flipped bits."""

    def __init__(self, kind: Keys | Ends) -> None:
        self.kind, self.disk = kind, MemoryDisk()
        self.log: list[str] = []
        self.snapshots = [Taken([], 0)]
        self.flipped: set[tuple[str, int]] = set()
        self.index: Any = kind.open(self.disk)

    def put(self, names: str) -> None:
        for name in names:
            self.kind.put(self.index, name, OFFSET_STEP * len(self.log))
            self.log.append(name)

    def checkpoint(self) -> None:
        done = self._written()
        self._name(done)
        done.delete_unused(self.disk)
        self._told(self.index.written, done)
        self.flipped = {one for one in self.flipped if self.disk.size(one[0]) >= 0}

    def fail_with_snapshot(self) -> None:
        """Write the snapshot to disk, but report the checkpoint as failed."""
        done = self._written()
        self._name(done)
        self._told(self.index.failed, done)

    def fail_without_snapshot(self) -> None:
        self._told(self.index.failed, self._written())

    def fail_to_write(self) -> None:
        done = self.index.to_write(0)
        self.put("ab")
        self.disk.failing_syncs = 1
        with suppress(OSError):
            done.write(self.disk)
        self.disk.failing_syncs = 0
        self.index.failed(done)

    def spill(self) -> None:
        self.index.spill(0)

    def cut_power(self) -> None:
        self.disk.crash(lambda length: 0)
        self._start(self.snapshots[-1], self.snapshots[:-1])

    def start_from_older(self) -> None:
        if len(self.snapshots) > 1:
            self._start(self.snapshots[0], self.snapshots[1:])

    def flip(self, choice: int) -> None:
        """Damage a file that is listed in the newest snapshot."""
        runs = self._runs(self.snapshots[-1])
        if runs:
            path = runs[choice % len(runs)].path
            bit = choice * 7919 % (8 * self.disk.size(path))
            if (path, bit) not in self.flipped:
                self._flip(path, bit)

    def restore(self) -> None:
        """Restore the damaged files from a backup, and restart."""
        for path, bit in list(self.flipped):
            self._flip(path, bit)
        assert not self.flipped
        self._start(self.snapshots[-1], self.snapshots[:-1])
        self.check()

    def check(self) -> None:
        offsets = defaultdict[str, list[int]](list)
        for place, name in enumerate(self.log):
            offsets[name].append(OFFSET_STEP * place)
        for name in NAMES:
            try:
                assert self.kind.answer(self.index, name) == self.kind.expected(offsets[name])
            except StoreDamaged:
                assert self.flipped
                assert self.index.damage
        for taken in self.snapshots:
            for run in self._runs(taken):
                is_hit = any(path == run.path for path, _ in self.flipped)
                assert run.is_sound(self.disk) or is_hit, f"{run.path} is not what a snapshot names"

    def _written(self) -> RunsToWrite:
        done: RunsToWrite = self.index.to_write(0)
        self.count = len(self.log)
        self.put("ca")
        done.write(self.disk)
        self.check()
        return done

    def _told(self, outcome: Callable[[RunsToWrite], None], done: RunsToWrite) -> None:
        """Report the outcome of a checkpoint. Damage that was found in the meantime remains known."""
        known = {run.path for run in self.index.damaged_runs}
        outcome(done)
        assert known & {run.path for run in self.index.runs} <= {run.path for run in self.index.damaged_runs}

    def _name(self, done: RunsToWrite) -> None:
        frozen = done.freeze()
        if frozen is None:
            assert self.kind.schema.is_derived
            assert self.flipped
        self.snapshots = [self.snapshots[-1], Taken(frozen, self.count)]

    def _start(self, taken: Taken, others: list[Taken]) -> None:
        self.snapshots = [*others, taken]
        self.index = self.kind.open(self.disk)
        why_not = self.index.adopt(taken.frozen, [one.frozen for one in others])
        assert not why_not or self.flipped or taken.frozen is None
        since = taken.count
        if why_not and self.kind.schema.is_derived:
            since = 0
        for place, name in enumerate(self.log[since:], since):
            self.kind.put(self.index, name, OFFSET_STEP * place)
        self.flipped = {one for one in self.flipped if self.disk.size(one[0]) >= 0}

    def _runs(self, taken: Taken) -> list[Run]:
        return [Run(self.kind.schema, self.kind.folder, *fields) for fields in taken.frozen or []]

    def _flip(self, path: str, bit: int) -> None:
        self.disk.flip_bit(path, bit)
        self.flipped ^= {(path, bit)}


STEPS = st.one_of(
    st.text("abcdef", min_size=1, max_size=12),
    st.sampled_from(["CHECKPOINT", "CHECKPOINT", "FAIL_WITH_SNAPSHOT", "FAIL_WITHOUT_SNAPSHOT"]),
    st.sampled_from(["FAIL_TO_WRITE", "SPILL", "CUT_POWER", "START_FROM_OLDER", "CHECK", "RESTORE"]),
    st.integers(0, 1 << 20),
)


@pytest.mark.parametrize("kind", [Keys(), Ends()])
@settings(max_examples=150)
@given(steps=st.lists(STEPS, max_size=40))
def test_it_says_what_a_dictionary_says_or_that_it_is_damaged(
    kind: Keys | Ends, steps: list[str | int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_store, "UNSAVED_MAX", 20)
        patch.setattr(keyindex, "BATCH_ENTRIES", 3)
        world = World(kind)
        for step in steps:
            if isinstance(step, int):
                world.flip(step)
            elif step.isupper():
                getattr(world, step.lower())()
            else:
                world.put(step)
        world.check()
        world.restore()
        world.checkpoint()
        world.check()


@pytest.mark.parametrize("kind", [Keys(), Ends()])
@pytest.mark.parametrize("filtered_max", [1 << 40, 0])
def test_every_bit_of_a_file_counts(
    kind: Keys | Ends, filtered_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(kind)
    monkeypatch.setattr(world.index, "_schema", replace(kind.schema, filtered_max=filtered_max))
    world.put("abcdef" * 100)
    world.checkpoint()
    (run,) = world.index.runs
    assert (run.filter is None) == (filtered_max == 0)
    for bit in range(0, 8 * world.disk.size(run.path), 211):
        world._flip(run.path, bit)
        assert not run.is_sound(world.disk)
        world._start(world.snapshots[-1], [])
        world.check()
        assert bool(world.index.damaged_runs) == (8 * BLOCK_BYTES <= bit < 8 * run.tail_at) or (
            bit < 8 * BLOCK_BYTES
        )
        world._flip(run.path, bit)
