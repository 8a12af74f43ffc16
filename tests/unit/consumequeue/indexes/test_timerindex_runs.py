"""Tests lookups in files of facts, their cost, and the effects of damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.errors import StoreDamaged
from consumequeue.indexes.timerindex import FACTS, FactIndex, hashes_of
from consumequeue.indexes.timerindex_fact import FACT, FactContent, Facts, newest_of
from consumequeue.runs import sorted_runs
from consumequeue.runs.bloom_filter import Filter, Mask, probe_of, probes_of
from consumequeue.runs.sorted_runs import Run, write_run
from tests.memory_disk import MemoryDisk

FOLDER = "timers-ends"
HASHES = st.integers(0, 2**64 - 1)
KEYS = st.lists(st.tuples(HASHES | st.integers(0, 5), st.integers(0, 60)), max_size=500, unique=True)


class CountingDisk(MemoryDisk):
    """A disk that counts reads."""

    read_count = 0

    def read(self, path: str, position: int, length: int) -> bytes:
        self.read_count += 1
        return super().read(path, position, length)


def written(disk: MemoryDisk, facts: Facts, number: int = 0) -> Run:
    run = write_run(disk, FACTS, FOLDER, number, iter([newest_of(facts)]), len(facts))
    assert run is not None
    return run


def loaded(disk: MemoryDisk, run: Run) -> Run:
    again = Run(FACTS, FOLDER, *run.freeze())
    again.load(disk)
    return again


def about(pairs: list[tuple[int, int]]) -> Facts:
    return np.array([(*pair, place, 2 * place, 3 * place) for place, pair in enumerate(pairs)], FACT)


def named(count: int) -> Facts:
    return about([hashes_of("t", str(number)) for number in range(count)])


def ended(count: int) -> Facts:
    """Return facts whose keys are offsets with occasional gaps."""
    return about([(number * 312 + number // 1000 * 10**7, 0) for number in range(count)])


def found(disk: MemoryDisk, run: Run, key: int, check: int) -> FactContent | None:
    if run.lost or run.may_hold(probe_of(key)):
        for facts in run.find(disk, key):
            for _, found_check, *said in facts.tolist():
                if found_check == check:
                    return FactContent(*said)
    return None


def nothing_expires(facts: Facts, now_ms: int) -> Mask:
    return np.zeros(len(facts), np.bool_)


@settings(max_examples=80)
@given(KEYS, st.sampled_from(["", "filter", "fences"]))
def test_a_run_finds_what_it_holds_and_nothing_else(pairs: list[tuple[int, int]], without: str) -> None:
    if not pairs:
        return
    disk = MemoryDisk()
    run = loaded(disk, written(disk, about(pairs)))
    if without:
        setattr(run, without, None)
    for place, pair in enumerate(pairs):
        assert found(disk, run, *pair) == (place, 2 * place, 3 * place)
    for key in {0, 3, 2**64 - 1, *(key ^ 1 for key, _ in pairs)}:
        if (key, 7) not in pairs:
            assert found(disk, run, key, 7) is None


def test_no_facts_make_no_file() -> None:
    disk = MemoryDisk()
    assert write_run(disk, FACTS, FOLDER, 0, iter([np.empty(0, FACT)]), 0) is None
    assert disk.list(FOLDER) == []


@pytest.mark.parametrize("kind", [named, ended])
def test_what_is_there_takes_a_block_and_what_is_not_none(kind: object) -> None:
    disk = CountingDisk()
    facts = kind(20_000)
    run = loaded(disk, written(disk, facts))
    disk.read_count = 0
    for key, check, *said in facts[::20].tolist():
        assert found(disk, run, key, check) == tuple(said)
    assert disk.read_count <= 1000 + 20
    disk.read_count = 0
    for key in facts["key"][::20].tolist():
        assert found(disk, run, key + 1, 0) is None
    assert disk.read_count < 30


def test_without_fences_it_takes_a_few_blocks() -> None:
    disk = CountingDisk()
    facts = ended(20_000)
    run = written(disk, facts)
    run.fences = None
    disk.read_count = 0
    for key, check, *said in facts[::20].tolist():
        assert found(disk, run, key, check) == tuple(said)
    assert disk.read_count < 1000 * 20


def test_a_flipped_bit_anywhere_is_never_a_wrong_answer() -> None:
    disk = MemoryDisk()
    facts = newest_of(named(250))
    run = written(disk, facts)
    wanted = [(key, check, tuple(said)) for key, check, *said in facts[::9].tolist()]
    tail_bit, size = 8 * run.tail_at, disk.size(run.path)
    for bit in [*range(0, tail_bit, 487), *range(tail_bit, 8 * size, 7)]:
        disk.flip_bit(run.path, bit)
        index = FactIndex(disk, FOLDER, nothing_expires)
        assert (index.adopt([run.freeze()]) != "") == (bit < 8 * 4096)
        refusals = 0
        for key, check, said in wanted:
            try:
                assert index.newest(key, check) == said
                assert index.newest(key, check + 1) is None
            except StoreDamaged:
                refusals += 1
        assert (refusals > 0) == (bit < tail_bit)
        disk.flip_bit(run.path, bit)


@pytest.mark.parametrize("cut", [1, 8, 9, 500, 10**9])
def test_a_tail_that_is_cut_costs_only_time(cut: int) -> None:
    disk = MemoryDisk()
    facts = named(300)
    run = written(disk, facts)
    disk.truncate(run.path, max(run.tail_at, disk.size(run.path) - cut))
    run = loaded(disk, run)
    assert not run.lost
    assert [found(disk, run, *fact[:2]) for fact in facts.tolist()] == [fact[2:] for fact in facts.tolist()]


def test_another_file_under_its_name_is_not_believed() -> None:
    disk = MemoryDisk()
    run, other = written(disk, named(300)), written(disk, ended(300), number=1)
    disk.write(run.path, 0, disk.read(other.path, 0, disk.size(other.path)))
    run = loaded(disk, run)
    with pytest.raises(StoreDamaged, match=f"{run.path} is missing or damaged"):
        found(disk, run, *hashes_of("t", "5"))


def test_a_merge_holds_a_chunk_of_each_source_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "READ_BLOCKS", 1)
    disk = MemoryDisk()
    facts = named(6000)
    runs = [written(disk, facts[at::3], at) for at in range(3)]
    chunks = list(sorted_runs.passes([run.chunks(disk) for run in runs], "key", "check"))
    assert max(map(len, chunks)) <= len(runs) * FACTS.block_entries
    assert np.array_equal(np.concatenate([newest_of(chunk) for chunk in chunks]), newest_of(facts))


@settings(max_examples=60)
@given(st.lists(HASHES | st.integers(0, 9), min_size=1, max_size=300), st.integers(0, 100_000))
def test_a_filter_never_denies_what_it_holds(keys: list[int], more: int) -> None:
    held = Filter.for_at_most(len(keys) + more)
    stored = np.array(keys, np.uint64)
    held.add(stored)
    folded = held.folded(len(set(keys)))
    assert all(held.may_hold(probe_of(key)) and folded.may_hold(probe_of(key)) for key in keys)
    assert folded.may_hold_each(*probes_of(stored)).all()


@pytest.mark.parametrize("step", [1, 64, 312, 1 << 20])
@pytest.mark.parametrize("spare", [1, 37])
def test_a_filter_denies_nearly_all_else_and_is_small(step: int, spare: int) -> None:
    keys = np.arange(0, 50_000 * step, step, dtype=np.uint64)
    held = Filter.for_at_most(len(keys) * spare)
    held.add(keys)
    held = held.folded(len(keys))
    others = keys + np.uint64(50_000 * step)
    is_thought = held.may_hold_each(*probes_of(others))
    assert is_thought.mean() < 0.02
    assert [held.may_hold(probe_of(key)) for key in others[:500].tolist()] == is_thought[:500].tolist()
    assert 12 <= 8 * held.words.nbytes / len(keys) <= 25


@pytest.mark.parametrize("blocks", [[], [0], [1, 2], [0, 1, 2]])
def test_what_can_be_read_of_a_damaged_run_is_taken_over_and_counted(blocks: list[int]) -> None:
    """The operator is informed of the number of unreadable facts and the total number of facts."""
    disk, facts = MemoryDisk(), newest_of(named(250))
    run = written(disk, facts)
    assert run.block_count == 3
    for block in blocks:
        disk.flip_bit(run.path, 8 * (1 + block) * sorted_runs.BLOCK_BYTES + 99)
    index = FactIndex(disk, FOLDER, nothing_expires)
    index.adopt([run.freeze()])
    index.check([run.number], 0)
    [damaged] = index.damaged_runs
    count = index.remove_run(damaged)
    assert not index.damaged_runs
    answers = {index.newest(key, check) == FactContent(*said) for key, check, *said in facts.tolist()}
    known = [fact for fact in facts.tolist() if index.newest(*fact[:2]) == FactContent(*fact[2:])]
    assert count == len(known)
    assert answers == {bool(known), len(blocks) == 0}
