"""Tests the key index against a dictionary, with merges, restarts, damage, and retention."""

from __future__ import annotations

import struct
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.errors import StoreDamaged
from commitlog.layout import KEYINDEX
from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import INNER_BATCH, Record
from consumequeue.indexes import keyindex
from consumequeue.indexes.keyindex import (
    ENTRY,
    KEYS,
    KeyIndex,
    carries,
    hash_of,
    messages_of,
    names_of,
    other_keys_of,
    runs_named,
)
from consumequeue.indexes.name_hash import digest_of
from consumequeue.runs import run_store, sorted_runs
from consumequeue.runs.bloom_filter import probe_of
from consumequeue.runs.sorted_runs import Entries, Run, write_run
from tests.memory_disk import MemoryDisk

TOPIC = "t"


def record(offset: int, keys: str = "", message_id: str = "", topic: str = TOPIC, real: str = "") -> Record:
    values = {"KEYS": keys, "UNIQ_KEY": message_id, "REAL_TOPIC": real}
    stored = "".join(f"{name}\x01{value}\x02" for name, value in values.items() if value).encode()
    return Record(topic=topic, body=b"", properties=stored, physical_offset=offset)


def entries(*pairs: tuple[int, int]) -> Entries:
    return np.array(list(pairs), ENTRY)


def checkpoint(index: KeyIndex, disk: MemoryDisk, first_offset: int = 0) -> object:
    """Perform a checkpoint, and return the state in the snapshot."""
    to_write = index.to_write(first_offset)
    to_write.write(disk)
    frozen = to_write.freeze()
    to_write.delete_unused(disk)
    index.written(to_write)
    return frozen


def written(disk: MemoryDisk, *pairs: tuple[int, int]) -> Run | None:
    return write_run(disk, KEYS, KEYINDEX, 0, [entries(*pairs)], len(pairs))


def found_in(disk: MemoryDisk, run: Run, key_hash: int) -> list[int]:
    if not run.may_hold(probe_of(key_hash)):
        return []
    return [offset for found in run.find(disk, key_hash) for offset in reversed(found["offset"].tolist())]


def found(index: KeyIndex, key: str, first_offset: int = 0) -> list[int]:
    return list(index.offsets(TOPIC, key, first_offset))


def found_or_damaged(index: KeyIndex, key: str) -> list[int] | None:
    try:
        return found(index, key)
    except StoreDamaged:
        return None


def filled(disk: MemoryDisk, rounds: int, per_round: int = 300) -> tuple[KeyIndex, object]:
    index, frozen = KeyIndex(disk), None
    for number in range(rounds * per_round):
        index.put(record(number * 100, keys=f"k{number} all"))
        if number % per_round == per_round - 1:
            frozen = checkpoint(index, disk)
    return index, frozen


class Oracle:
    """An index, its disk, and a dictionary with the expected entries."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.index = KeyIndex(self.disk)
        self.records: list[Record] = []
        self.frozen: object = []
        self.frozen_count = 0
        self.first_offset = 0

    def put(self, keys: list[str]) -> None:
        self.records.append(record(100 * len(self.records), " ".join(keys), f"id{len(self.records)}"))
        self.index.put(self.records[-1])

    def checkpoint(self) -> None:
        self.frozen = checkpoint(self.index, self.disk, self.first_offset)
        self.frozen_count = len(self.records)

    def lose_checkpoint(self) -> None:
        """Write the runs, and let the power fail before the snapshot is written."""
        self.index.to_write(self.first_offset).write(self.disk)
        self.reopen()

    def reopen(self) -> None:
        self.disk.crash(lambda length: 0)
        self.index = KeyIndex(self.disk)
        assert self.index.adopt(self.frozen) == ""
        for one in self.records[self.frozen_count :]:
            self.index.put(one)

    def retain(self) -> None:
        self.first_offset += (100 * len(self.records) - self.first_offset) // 2

    def check(self) -> None:
        expected: defaultdict[str, list[int]] = defaultdict(list)
        for one in reversed(self.records):
            if one.physical_offset >= self.first_offset:
                for name in names_of(one)[1]:
                    expected[name].append(one.physical_offset)
        for key in [*"abc", "nobody", *(f"id{number}" for number in range(len(self.records)))]:
            assert list(self.index.offsets(TOPIC, key, self.first_offset)) == expected[key]
        named = [(hash_of(TOPIC, name), offset) for name in expected for offset in expected[name]]
        chunks = self.index.entries_from(self.first_offset)
        assert sorted(pair for chunk in chunks for pair in chunk.tolist()) == sorted(named)


STEPS = st.one_of(
    st.lists(st.sampled_from("abc"), max_size=3),
    st.sampled_from(["checkpoint", "lose_checkpoint", "reopen", "retain", "check"]),
)


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=60))
def test_it_says_what_a_dictionary_says(steps: list[list[str] | str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyindex, "BATCH_ENTRIES", 4)
        oracle = Oracle()
        for step in steps:
            oracle.put(step) if isinstance(step, list) else getattr(oracle, step)()
        oracle.check()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1) | st.integers(0, 3), st.integers(0, 9)), max_size=900))
def test_a_run_finds_every_hash_it_holds_and_no_other(pairs: list[tuple[int, int]]) -> None:
    disk = MemoryDisk()
    stored = sorted((key_hash, offset) for offset, (key_hash, _) in enumerate(pairs))
    run = written(disk, *stored)
    if run is None:
        assert not stored
        return
    for key_hash in {0, 1, 5, 2**64 - 1, *(key_hash for key_hash, _ in stored)}:
        expected = [offset for one, offset in reversed(stored) if one == key_hash]
        assert found_in(disk, run, key_hash) == expected


def test_one_key_in_every_record_is_found_newest_first_without_reading_all_of_it() -> None:
    disk = CountingDisk()
    run = written(disk, *((7, offset) for offset in range(200_000)))
    assert run is not None
    disk.read_count = 0
    newest = (offset for one in run.find(disk, 7) for offset in reversed(one["offset"].tolist()))
    assert [next(newest) for _ in range(300)] == list(range(199_999, 199_699, -1))
    assert found_in(disk, run, 8) == []
    assert disk.read_count <= 3


def test_a_hash_takes_one_block() -> None:
    disk = CountingDisk()
    spread = sorted((hash_of(TOPIC, str(number)), number) for number in range(100_000))
    run = written(disk, *spread)
    assert run is not None
    disk.read_count = 0
    for number in range(0, 100_000, 100):
        assert found_in(disk, run, hash_of(TOPIC, str(number))) == [number]
    # If a block begins with the key, the preceding block may also contain it.
    assert disk.read_count <= 1000 + 10


def test_a_key_that_no_record_has_costs_neither_reads_nor_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyindex, "BATCH_ENTRIES", 200)
    disk, searched = CountingDisk(), list[object]()
    bounds = keyindex.bounds
    monkeypatch.setattr(keyindex, "bounds", lambda *columns: searched.append(columns) or bounds(*columns))
    index, _ = filled(disk, rounds=20)
    for number in range(6000, 8000):
        index.put(record(number * 100, keys=f"k{number}"))
    disk.read_count = 0
    assert not any(found(index, f"absent{number}") for number in range(500))
    assert disk.read_count < 500 * len(index.runs) * 0.05
    assert len(searched) < 500 * 10 * 0.05
    assert [found(index, f"k{number}") for number in (7, 7999)] == [[700], [799_900]]


def test_runs_stay_few_and_are_never_lost() -> None:
    disk = MemoryDisk()
    index, _ = filled(disk, rounds=50, per_round=40)
    assert len(disk.list(KEYINDEX)) < 20
    assert [found(index, f"k{number}") for number in (0, 777, 1999)] == [[0], [77_700], [199_900]]
    assert found(index, "all") == [number * 100 for number in reversed(range(2000))]


def test_a_merge_holds_a_chunk_of_each_source_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "READ_BLOCKS", 1)
    disk = MemoryDisk()
    _, frozen = filled(disk, rounds=3, per_round=2000)
    runs = runs_named(frozen)
    passes = sorted_runs.passes([run.chunks(disk) for run in runs], "key", "offset")
    chunks = list(map(KEYS.merged, passes))
    assert max(map(len, chunks)) <= len(runs) * KEYS.block_entries
    assert np.array_equal(np.concatenate(chunks), np.sort(np.concatenate(chunks)))
    assert sum(map(len, chunks)) == sum(run.entry_count for run in runs)


def test_what_retention_has_deleted_is_gone_after_a_merge() -> None:
    disk = MemoryDisk()
    index, _ = filled(disk, rounds=3)
    assert found(index, "k1", first_offset=50_000) == []
    index.put(record(90_000, keys="new"))
    frozen = checkpoint(index, disk, first_offset=85_000)
    checkpoint(index, disk, first_offset=85_000)
    assert sum(count for _, _, _, count in frozen) < 2 * 300 + 2  # type: ignore[attr-defined]
    assert found(index, "k899", 85_000) == [89_900]


@pytest.mark.parametrize("lost", ["missing", "shorter", "head", "another snapshot's"])
def test_a_start_takes_all_runs_or_none(lost: str) -> None:
    disk = MemoryDisk()
    _, frozen = filled(disk, rounds=1)
    (name,) = disk.list(KEYINDEX)
    path = f"{KEYINDEX}/{name}"
    if lost == "missing":
        disk.delete(path)
    elif lost == "shorter":
        disk.truncate(path, 8191)
    elif lost == "head":
        disk.flip_bit(path, 90)
    else:
        frozen = [[0, 0, 29_901, 601]]
    left = disk.list(KEYINDEX)
    index = KeyIndex(disk)
    assert index.adopt(frozen) == f"{path} is missing or damaged"
    assert found(index, "k1") == []
    assert disk.list(KEYINDEX) == left, "the snapshot names it still"
    for number in range(2):
        index.put(record(50_000 + number, keys="new"))
        checkpoint(index, disk)
    assert name not in disk.list(KEYINDEX)


def test_what_another_snapshot_names_stays_whatever_is_made_since() -> None:
    disk = MemoryDisk()
    older, older_frozen = filled(disk, rounds=1)
    older.put(record(90_000, keys="new"))
    newer_frozen = checkpoint(older, disk)
    assert newer_frozen != older_frozen
    index = KeyIndex(disk)
    assert index.adopt(newer_frozen, [older_frozen, None]) == ""
    assert KeyIndex(disk).adopt(older_frozen) == ""


def test_a_checkpoint_that_failed_may_have_a_snapshot_all_the_same() -> None:
    disk = MemoryDisk()
    index, _ = filled(disk, rounds=1)
    index.put(record(90_000, keys="new"))
    failed = index.to_write(0)
    failed.write(disk)
    frozen = failed.freeze()  # The snapshot exists, but syncing its folder has failed.
    index.failed(failed)
    index.put(record(90_100, keys="newer"))
    checkpoint(index, disk)
    again = KeyIndex(disk)
    assert again.adopt(frozen) == ""
    assert found(again, "new") == [90_000]


def test_a_flipped_bit_is_never_an_answer_and_ends_with_an_index_made_anew() -> None:
    disk = MemoryDisk()
    index, _ = filled(disk, rounds=1)
    path = f"{KEYINDEX}/{disk.list(KEYINDEX)[0]}"
    (run,) = index.runs
    for bit in range(8 * sorted_runs.BLOCK_BYTES + 5, 8 * run.tail_at, 9_973):
        disk.flip_bit(path, bit)
        index = KeyIndex(disk)
        assert index.adopt([run.freeze()]) == ""
        answers = [found_or_damaged(index, f"k{number}") for number in range(0, 300, 7)]
        assert None in answers
        assert all(answer in (None, [7 * 100 * turn]) for turn, answer in enumerate(answers))
        disk.flip_bit(path, bit)


def test_a_damaged_run_is_left_out_of_merges_and_of_the_next_start() -> None:
    disk = MemoryDisk()
    index, _ = filled(disk, rounds=1, per_round=3000)
    (name,) = disk.list(KEYINDEX)
    disk.flip_bit(f"{KEYINDEX}/{name}", 8 * sorted_runs.BLOCK_BYTES * 3)
    for number in range(3000, 22_000):
        index.put(record(number * 100, keys=f"k{number}"))
    assert checkpoint(index, disk) is None
    assert found(index, "k4000") == [400_000]
    assert name in disk.list(KEYINDEX)
    again = KeyIndex(disk)
    assert again.adopt(None) == "the snapshot names no sound files"
    assert disk.list(KEYINDEX) == []


def test_entries_of_a_damaged_run_are_not_left_out_silently() -> None:
    disk = MemoryDisk()
    index, _ = filled(disk, rounds=1)
    (run,) = index.runs
    disk.flip_bit(run.path, 8 * sorted_runs.BLOCK_BYTES + 5)
    with pytest.raises(StoreDamaged):
        list(index.entries_from(0))
    assert run.path in index.damage


@given(
    st.lists(
        st.lists(st.text("abid0 ", min_size=1, max_size=4).filter(str.strip), max_size=3).map(tuple),
        max_size=20,
    )
)
def test_messages_are_found_by_what_their_records_are_found_by(all_keys: list[tuple[str, ...]]) -> None:
    by_record, by_message = KeyIndex(MemoryDisk()), KeyIndex(MemoryDisk())
    put: list[tuple[bytes, int]] = []
    for number, keys in enumerate(all_keys):
        message = Message(topic=TOPIC, body=b"x", message_id=f"id{number}", keys=keys)
        put += [(digest_of(TOPIC, name), number) for name in (message.message_id, *other_keys_of(message))]
        stored = properties.encode_message(message)
        by_record.put(Record(topic=TOPIC, body=b"x", properties=stored, physical_offset=number))
    by_message.put_digests([digest for digest, _ in put], [offset for _, offset in put])
    first, second = (
        sorted(pair for chunk in index.entries_from(0) for pair in chunk.tolist())
        for index in (by_record, by_message)
    )
    assert first == second


def test_memory_is_bounded_while_a_start_puts_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "UNSAVED_MAX", 100)
    monkeypatch.setattr(keyindex, "BATCH_ENTRIES", 10)
    disk = MemoryDisk()
    index = KeyIndex(disk)
    for number in range(1000):
        index.put(record(number * 100, message_id=str(number)))
        index.spill(0)
    assert len(disk.list(KEYINDEX)) > 1
    assert index.is_full
    assert [found(index, str(number)) for number in (0, 999)] == [[0], [99_900]]
    checkpoint(index, disk)
    assert not index.is_full


def test_each_word_and_the_id_are_keys_under_the_real_topic() -> None:
    half = record(0, keys="o-1 c-2", message_id="M1", topic="RMQ_SYS_TRANS_HALF_TOPIC", real="orders")
    assert names_of(half) == ("orders", dict.fromkeys(["o-1", "c-2", "M1"]))
    assert carries(half, "orders", "c-2")
    assert not carries(half, "orders", "o-1 c-2")
    assert not carries(half, "RMQ_SYS_TRANS_HALF_TOPIC", "M1")


def inner(body: bytes, message_id: str, keys: str) -> bytes:
    stored = f"UNIQ_KEY\x01{message_id}\x02KEYS\x01{keys}\x02".encode()
    rest = struct.pack(">IIii", 0, 0, 0, len(body)) + body + struct.pack(">H", len(stored)) + stored
    return struct.pack(">i", 4 + len(rest)) + rest


def test_a_batch_is_found_by_the_names_of_each_of_its_messages() -> None:
    batch = record(300, message_id="outer")
    batch.sys_flag, batch.properties = INNER_BATCH, batch.properties + b"INNER_NUM\x012\x02"
    batch.body = inner(b"first", "A", "k") + inner(b"second", "B", "k")
    assert list(names_of(batch)[1]) == ["outer", "k", "A", "B"]
    assert [one.body for one in messages_of(batch) if carries(one, TOPIC, "B")] == [b"second"]
    index = KeyIndex(MemoryDisk())
    index.put(batch)
    assert found(index, "k") == found(index, "A") == [300]
    batch.body = batch.body[:-1]
    assert list(names_of(batch)[1]) == ["outer", "k", "A"]


class CountingDisk(MemoryDisk):
    """A disk that counts reads."""

    read_count = 0

    def read(self, path: str, position: int, length: int) -> bytes:
        self.read_count += 1
        return super().read(path, position, length)
