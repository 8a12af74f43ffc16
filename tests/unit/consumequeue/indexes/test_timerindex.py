"""Tests the timer index against a dictionary, with checkpoints, failures, restarts, and expiry."""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.errors import StoreDamaged
from consumequeue.indexes.timerindex import FactIndex, hashes_of
from consumequeue.indexes.timerindex_fact import FACT, Facts
from consumequeue.runs import run_store
from consumequeue.runs.bloom_filter import Mask
from consumequeue.runs.run_store import RunsToWrite
from tests.memory_disk import MemoryDisk

FOLDER = "timers-names"
HISTORY_MS = 1000
Fact = tuple[int, int, int, int, int]
Pair = tuple[int, int]


def is_expired(facts: Facts, now_ms: int) -> Mask:
    """Facts about names expire some time after their due time."""
    is_over: Mask = facts["at"] + np.uint64(HISTORY_MS) < now_ms
    return is_over


def never(facts: Facts, now_ms: int) -> Mask:
    return np.zeros(len(facts), np.bool_)


def facts_of(rows: list[Fact]) -> Facts:
    return np.array(rows, FACT)


def checkpoint(index: FactIndex, disk: MemoryDisk, now_ms: int = 0) -> object:
    """Perform a checkpoint, and return the state in the snapshot."""
    done = index.to_write(now_ms)
    done.write(disk)
    frozen = done.freeze()
    done.delete_unused(disk)
    index.written(done)
    return frozen


def filled(disk: MemoryDisk, rounds: int, per_round: int = 300) -> tuple[FactIndex, object]:
    """Add facts for keys at intervals of 1000.

    Each checkpoint has fewer facts than the previous one, so that no runs are merged.
    """
    index, frozen = FactIndex(disk, FOLDER, never), None
    offset = 0
    for _ in range(rounds):
        for _ in range(per_round):
            index.put(offset * 1000, offset, offset, 5, 6)
            offset += 1
        frozen = checkpoint(index, disk)
        per_round //= 2
    return index, frozen


def look(index: FactIndex, number: int) -> object:
    """Return the result of a lookup in `filled`, or None if the fact cannot be read."""
    try:
        return index.newest(number * 1000, number)
    except StoreDamaged:
        return None


class Oracle:
    """An index, its disk, and a dictionary with the expected facts."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.index = FactIndex(self.disk, FOLDER, is_expired)
        self.facts: list[Fact] = []
        self.frozen: object = None
        self.frozen_count = 0
        self.now_ms = 0

    def put(self, pairs: list[tuple[Pair, int]], is_bulk: bool) -> None:
        rows = [(*pair, 10 + len(self.facts) + more, at, 7 * at) for more, (pair, at) in enumerate(pairs)]
        self.facts += rows
        if is_bulk:
            self.index.put_many(facts_of(rows))
        else:
            for row in rows:
                self.index.put(*row)

    def checkpoint(self) -> None:
        self.frozen = checkpoint(self.index, self.disk, self.now_ms)
        self.frozen_count = len(self.facts)

    def lose_checkpoint(self) -> None:
        """Write the runs, and let the power fail before the snapshot is written."""
        self.index.to_write(self.now_ms).write(self.disk)
        self.reopen()

    def fail_while_facts_come(self) -> None:
        """Let writing the run fail."""
        done = self._to_write_while_facts_come()
        self.disk.failing_syncs = 1
        with suppress(OSError):
            done.write(self.disk)
        self.disk.failing_syncs = 0
        self.index.failed(done)

    def fail_later_while_facts_come(self) -> None:
        """Write the run, and let writing the snapshot fail."""
        done = self._to_write_while_facts_come()
        done.write(self.disk)
        self.index.failed(done)

    def spill(self) -> None:
        self.index.spill(self.now_ms)

    def wait(self) -> None:
        self.now_ms += HISTORY_MS

    def reopen(self) -> None:
        self.disk.crash(lambda length: 0)
        self.index = FactIndex(self.disk, FOLDER, is_expired)
        assert self.index.adopt(self.frozen) == ""
        for fact in self.facts[self.frozen_count :]:
            self.index.put(*fact)

    def check(self) -> None:
        """Verify that each fact is found or has expired.

        An older fact, or a fact for a different key, must never be returned.
        """
        newest = {fact[:2]: fact for fact in self.facts}
        pairs = [*PAIRS, (3, 3)]
        columns = np.array(pairs, np.uint64)
        is_known = self.index.contains_each(columns[:, 0].copy(), columns[:, 1].copy())
        for pair, known in zip(pairs, is_known.tolist(), strict=True):
            expected = newest.get(pair)
            said = self.index.newest(*pair)
            assert known == (said is not None)
            if expected is not None and expected[3] + HISTORY_MS >= self.now_ms:
                assert said == expected[2:]
            else:
                assert said is None or (expected is not None and said == expected[2:])

    def _to_write_while_facts_come(self) -> RunsToWrite:
        done = self.index.to_write(self.now_ms)
        self.put([((1, 1), self.now_ms), ((9, 9), self.now_ms)], is_bulk=False)
        return done


PAIRS = [(1, 0), (1, 1), (2, 0), (2**64 - 1, 2**64 - 1), (9, 9), (0, 0)]
SOME = st.lists(st.tuples(st.sampled_from(PAIRS), st.integers(0, 4000)), min_size=1, max_size=5)
STEPS = st.one_of(
    st.tuples(SOME, st.booleans()),
    st.sampled_from(
        ["checkpoint", "lose_checkpoint", "fail_while_facts_come", "fail_later_while_facts_come"]
    ),
    st.sampled_from(["reopen", "spill", "wait", "check"]),
)


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=40))
def test_it_says_what_a_dictionary_says(steps: list[tuple[list[tuple[Pair, int]], bool] | str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_store, "UNSAVED_MAX", 4)
        oracle = Oracle()
        for step in steps:
            getattr(oracle, step)() if isinstance(step, str) else oracle.put(*step)
        oracle.check()
        oracle.checkpoint()
        oracle.reopen()
        oracle.check()


def test_facts_may_come_in_any_order() -> None:
    disk = MemoryDisk()
    index = FactIndex(disk, FOLDER, never)
    for offset in (50, 90, 70, 20):
        index.put(1, 2, offset, offset, 0)
        for number in range(4):
            index.put(number + 100 * offset, 0, offset, 0, 0)
        checkpoint(index, disk)
    index.put(1, 2, 60, 60, 0)
    assert index.newest(1, 2) == (90, 90, 0)
    assert index.contains_each(np.array([1, 1], np.uint64), np.array([2, 3], np.uint64)).tolist() == [
        True,
        False,
    ]


def test_while_a_checkpoint_is_written_the_newest_counts_nevertheless() -> None:
    index = FactIndex(MemoryDisk(), FOLDER, never)
    index.put_many(facts_of([(1, 0, 10, 1, 1), (2, 0, 20, 2, 2), (3, 0, 30, 3, 3)]))
    index.to_write(0)
    index.put_many(facts_of([(1, 0, 11, 4, 4), (2, 0, 19, 5, 5), (4, 0, 40, 6, 6)]))
    expected = [(1, 0, 11, 4, 4), (2, 0, 20, 2, 2), (3, 0, 30, 3, 3), (4, 0, 40, 6, 6)]
    is_known = index.contains_each(np.arange(1, 6, dtype=np.uint64), np.zeros(5, np.uint64))
    assert is_known.tolist() == [True] * 4 + [False]
    assert [index.newest(fact[0], 0) for fact in expected] == [fact[2:] for fact in expected]


def test_a_start_deletes_what_no_snapshot_names() -> None:
    disk = MemoryDisk()
    index, frozen = filled(disk, rounds=2)
    index.put(1, 1, 1, 1, 1)
    index.to_write(0).write(disk)
    disk.write(f"{FOLDER}/unfinished", 0, b"part of a run")
    names = disk.list(FOLDER)
    assert FactIndex(disk, FOLDER, never).adopt(frozen) == ""
    assert disk.list(FOLDER) == names[:2]


def test_an_expired_fact_goes_unless_it_hides_an_older_one() -> None:
    disk = MemoryDisk()
    index = FactIndex(disk, FOLDER, is_expired)
    for number in range(100):
        index.put(number, 0, number, 1_000_000, 0)
    checkpoint(index, disk)
    index.put(7, 0, 200, 10, 0)
    index.put(777, 0, 201, 10, 0)
    frozen = checkpoint(index, disk, now_ms=5000)
    assert frozen == [[0, 0, 100, 100], [1, 200, 201, 1]]
    assert index.newest(7, 0) == (200, 10, 0)
    assert index.newest(777, 0) is None
    for number in range(300):
        index.put(1000 + number, 0, 300 + number, 1_000_000, 0)
    assert checkpoint(index, disk, now_ms=5000) == [[2, 0, 600, 399]]
    assert index.newest(7, 0) is None


def test_when_all_is_expired_no_file_is_left() -> None:
    disk = MemoryDisk()
    index = FactIndex(disk, FOLDER, is_expired)
    index.put(1, 0, 1, 10, 0)
    assert checkpoint(index, disk) == [[0, 1, 2, 1]]
    index.put(2, 0, 2, 10, 0)
    index.put(3, 0, 3, 10, 0)
    index.put(4, 0, 4, 10, 0)
    assert checkpoint(index, disk, now_ms=5000) == []
    assert checkpoint(index, disk, now_ms=5000) == []
    assert disk.list(FOLDER) == []
    assert index.newest(1, 0) is None


def test_the_snapshot_before_the_newest_can_be_adopted_too() -> None:
    disk = MemoryDisk()
    index, before = filled(disk, rounds=1)
    for turn in range(6):
        for number in range(300, 1300):
            index.put(number * 1000, number, number + 10_000 * turn, 5, 6)
        after = checkpoint(index, disk)
        for frozen in (before, after):
            again = FactIndex(_copied(disk), FOLDER, never)
            assert again.adopt(frozen) == ""
            assert again.newest(7000, 7) == (7, 5, 6)
        before = after


def test_runs_stay_few() -> None:
    disk = MemoryDisk()
    index = FactIndex(disk, FOLDER, never)
    for offset in range(2000):
        index.put(*hashes_of("t", str(offset)), offset, 0, 0)
        if offset % 40 == 39:
            checkpoint(index, disk)
    assert len(disk.list(FOLDER)) < 20
    assert [index.newest(*hashes_of("t", str(number))) for number in (0, 777, 1999)] == [
        (0, 0, 0),
        (777, 0, 0),
        (1999, 0, 0),
    ]


@pytest.mark.parametrize("how", ["missing", "shorter", "head", "another snapshot's"])
def test_a_lost_run_costs_the_answers_that_need_it_and_no_others(how: str) -> None:
    disk = MemoryDisk()
    _, frozen = filled(disk, rounds=3)
    path = f"{FOLDER}/{1:020d}"
    stored = disk.read(path, 0, disk.size(path))
    if how == "missing":
        disk.delete(path)
    elif how == "shorter":
        disk.truncate(path, 8191)
    elif how == "head":
        disk.flip_bit(path, 90)
    else:
        frozen[1][2] += 1
    index = FactIndex(disk, FOLDER, never)
    assert index.adopt(frozen).startswith(f"{path} is missing or damaged. What it says of timers")
    assert look(index, 520) == (520, 5, 6)
    with pytest.raises(StoreDamaged, match="restore the file from a backup"):
        index.newest(5, 5)
    assert [look(index, number) for number in (0, 310)] == [None, None]
    index.put(5, 5, 9999, 1, 1)
    assert index.newest(5, 5) == (9999, 1, 1)
    named = checkpoint(index, disk)
    assert [run[0] for run in named][:2] == [0, 1]
    if how != "another snapshot's":
        disk.write(path, 0, stored)
        disk.sync(path)
        again = FactIndex(disk, FOLDER, never)
        assert again.adopt(named) == ""
        assert [look(again, number) for number in (0, 310)] == [(0, 5, 6), (310, 5, 6)]


def test_a_damaged_run_is_left_out_of_merges_and_the_others_are_merged() -> None:
    disk = MemoryDisk()
    index, _ = filled(disk, rounds=2)
    path = f"{FOLDER}/{0:020d}"
    disk.flip_bit(path, 8 * 4096 * 2 + 5)
    for turn in range(20):
        for number in range(500, 1500):
            index.put(number * 1000, number, turn * 1000 + number, turn, 6)
        frozen = checkpoint(index, disk)
    assert frozen[0][0] == 0
    assert index.damage == f"{path} does not match its CRC."
    assert len(disk.list(FOLDER)) <= 4
    assert [look(index, number) for number in (5, 150, 299, 310)] == [
        (5, 5, 6),
        None,
        (299, 5, 6),
        (310, 5, 6),
    ]
    assert look(index, 1000) == (20_000, 19, 6)


def test_expired_facts_are_kept_while_a_lost_run_may_hold_older_ones() -> None:
    disk = MemoryDisk()
    index = FactIndex(disk, FOLDER, is_expired)
    for number in range(100):
        index.put(number, 0, number, 1_000_000, 0)
    frozen = checkpoint(index, disk)
    path = f"{FOLDER}/{0:020d}"
    stored = disk.read(path, 0, disk.size(path))
    disk.flip_bit(path, 3)
    index = FactIndex(disk, FOLDER, is_expired)
    assert index.adopt(frozen) != ""
    index.put(7, 0, 200, 10, 0)
    frozen = checkpoint(index, disk, now_ms=5000)
    disk.write(path, 0, stored)
    disk.sync(path)
    assert index.adopt(frozen) == ""
    assert index.newest(7, 0) == (200, 10, 0)


def test_memory_is_bounded_while_a_start_puts_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "UNSAVED_MAX", 100)
    disk = MemoryDisk()
    index = FactIndex(disk, FOLDER, never)
    for number in range(1000):
        index.put(number, 0, number, 0, 0)
        index.spill(0)
    assert 1 <= len(disk.list(FOLDER)) < 20
    assert index.is_full
    assert [index.newest(number, 0) for number in (0, 999)] == [(0, 0, 0), (999, 0, 0)]
    frozen = checkpoint(index, disk)
    assert not index.is_full
    again = FactIndex(disk, FOLDER, never)
    assert again.adopt(frozen) == ""
    assert again.newest(555, 0) == (555, 0, 0)


def test_runs_that_the_snapshot_names_survive_a_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "UNSAVED_MAX", 100)
    disk = MemoryDisk()
    _, frozen = filled(disk, rounds=2, per_round=10)
    for _ in range(2):
        index = FactIndex(disk, FOLDER, never)
        assert index.adopt(frozen) == ""
        for number in range(100, 1000):
            index.put(number * 1000, number, number, 0, 0)
            index.spill(0)
    after = checkpoint(index, disk)
    assert FactIndex(_copied(disk), FOLDER, never).adopt(frozen) == ""
    assert FactIndex(_copied(disk), FOLDER, never).adopt(after) == ""


def test_on_a_full_disk_a_start_keeps_facts_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "UNSAVED_MAX", 100)
    disk = MemoryDisk()
    index = FactIndex(disk, FOLDER, never)
    disk.failing_syncs = 1
    for number in range(150):
        index.put(number, 0, number, 0, 0)
        index.spill(0)
    assert disk.failing_syncs == 0
    assert disk.list(FOLDER) == ["unfinished"]
    assert index.newest(0, 0) == (0, 0, 0)
    for number in range(150, 200):
        index.put(number, 0, number, 0, 0)
        index.spill(0)
    assert disk.list(FOLDER) == [f"{1:020d}"]
    assert index.newest(0, 0) == (0, 0, 0)


def test_many_facts_about_one_take_the_room_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "UNSAVED_MAX", 100)
    index = FactIndex(MemoryDisk(), FOLDER, never)
    for offset in range(1000):
        index.put(1, 1, offset, offset, 0)
    assert not index.is_full
    assert index.newest(1, 1) == (999, 999, 0)


def test_dropped_is_empty() -> None:
    disk = MemoryDisk()
    index, _ = filled(disk, rounds=2)
    index.put(1, 1, 1, 1, 1)
    index.drop()
    assert disk.list(FOLDER) == []
    assert index.newest(0, 0) is index.newest(1, 1) is None
    assert index.adopt(None) == ""


def test_a_name_is_known_by_128_bits_that_topic_and_name_decide() -> None:
    digest = blake2b(b"t#a", digest_size=16).digest()
    key, check = hashes_of("t", "a")
    assert key.to_bytes(8, "little") + check.to_bytes(8, "little") == digest
    assert len({half for topic in "tu" for name in "ab" for half in hashes_of(topic, name)}) == 8


def _copied(disk: MemoryDisk) -> MemoryDisk:
    copy = MemoryDisk()
    for name in disk.list(FOLDER):
        path = f"{FOLDER}/{name}"
        copy.write(path, 0, disk.read(path, 0, disk.size(path)))
        copy.sync(path)
    return copy


def test_a_checkpoint_that_failed_may_have_a_snapshot_all_the_same() -> None:
    disk = MemoryDisk()
    index, _ = filled(disk, 1)
    index.put(1, 1, 10_000, 5, 6)
    failed = index.to_write(0)
    failed.write(disk)
    frozen = failed.freeze()  # The snapshot exists, but syncing its folder has failed.
    index.failed(failed)
    # No later checkpoint succeeds, although later runs merge the run of the failed checkpoint.
    for number in range(2, 300):
        index.put(number, number, 10_000 + number, 5, 6)
        following = index.to_write(0)
        following.write(disk)
        index.failed(following)
    checkpoint(index, disk)
    assert FactIndex(disk, FOLDER, never).adopt(frozen) == ""
