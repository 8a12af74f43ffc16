"""Tests that damaged batches of a timer file are reported and that all other batches can be read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.limits import TIMER_BATCH_BYTES_MAX
from tests.memory_disk import MemoryDisk
from timingwheel import partition
from timingwheel.partition import (
    HEAD,
    IN_LOG,
    PAIR,
    ROW,
    TOMBSTONE,
    WITH_RECORDS,
    WITHOUT_RECORDS,
    Gap,
    Window,
)

PATH = "timers/0-00000000000000000000"


def rows_of(*offsets: int) -> partition.Rows:
    rows = np.zeros(len(offsets), ROW)
    rows["timer_offset"], rows["due_ms"] = offsets, np.array(offsets) * 10
    return rows


def pairs_of(*offsets: int) -> partition.Rows:
    return rows_of(*offsets)[["due_ms", "timer_offset"]].astype(PAIR)


def stored() -> tuple[MemoryDisk, int, list[int]]:
    """Return a file that contains one batch of each kind, and the position of each batch."""
    disk, length, starts = MemoryDisk(), 0, []
    first = partition.encode_rows(0, rows_of(1, 2), [b"one", b"twice"])
    for encode in (
        lambda position: first,
        lambda position: partition.encode_pairs(position, WITHOUT_RECORDS, pairs_of(3, 4)),
        lambda position: partition.encode_pairs(position, TOMBSTONE, pairs_of(1)),
    ):
        starts.append(length)
        for batch in encode(length):
            disk.write(PATH, length, batch)
            length += len(batch)
    disk.sync(PATH)
    return disk, length, starts


def read(disk: MemoryDisk, length: int) -> tuple[list[tuple[int, list[int]]], list[Gap]]:
    damage: list[Gap] = []
    found = partition.batches(Window(disk, PATH, length), damage)
    return [(batch.kind, batch.rows["timer_offset"].tolist()) for batch in found], damage


def test_what_was_written_is_read() -> None:
    disk, length, _ = stored()
    assert read(disk, length) == ([(WITH_RECORDS, [1, 2]), (WITHOUT_RECORDS, [3, 4]), (TOMBSTONE, [1])], [])
    batch = next(partition.batches(Window(disk, PATH, length), []))
    at, size = batch.rows["record_at"].tolist(), batch.rows["record_bytes"].tolist()
    assert [disk.read(PATH, *where) for where in zip(at, size, strict=True)] == [b"one", b"twice"]


def test_any_byte_of_a_head_or_row_that_is_changed_is_told_of_and_costs_only_its_batch() -> None:
    whole, length, starts = stored()
    expected, _ = read(whole, length)
    records_at = HEAD.size + 2 * ROW.itemsize
    for position in range(length):
        disk, _, _ = stored()
        disk.flip_bit(PATH, position * 8 + position % 8)
        found, damage = read(disk, length)
        if records_at <= position < starts[1]:
            assert (found, damage) == (expected, []), "a record has its own CRC"
            continue
        hit = max(number for number, start in enumerate(starts) if start <= position)
        assert found == expected[:hit] + expected[hit + 1 :], position
        assert len(damage) == 1
        assert damage[0].position == starts[hit]


@given(st.integers(0, 330))
def test_a_file_that_is_too_short_is_told_of(length_left: int) -> None:
    disk, length, starts = stored()
    disk.truncate(PATH, min(length - 1, length_left))
    found, damage = read(disk, length)
    assert len(damage) == 1
    rows_end = [start + size for start, size in zip(starts, (160, 64, 48), strict=True)]
    assert len(found) == len([end for end in rows_end if end <= min(length - 1, length_left)])


def test_a_batch_copied_into_a_record_is_not_taken_for_one() -> None:
    inner = next(partition.encode_pairs(0, WITHOUT_RECORDS, pairs_of(9)))
    disk, length = MemoryDisk(), 0
    for rows, record in ((rows_of(1), inner), (rows_of(2), b"x")):
        for batch in partition.encode_rows(length, rows, [record]):
            disk.write(PATH, length, batch)
            length += len(batch)
    disk.sync(PATH)
    disk.flip_bit(PATH, 8 * 17)
    found, damage = read(disk, length)
    assert found == [(WITH_RECORDS, [2])]
    assert len(damage) == 1


def test_records_that_are_too_much_for_one_batch_fill_several() -> None:
    record = bytes(3 * 1024 * 1024)
    batches = list(partition.encode_rows(0, rows_of(1, 2, 3, 4, 5), [record] * 5))
    assert len(batches) == 3
    assert all(len(batch) <= TIMER_BATCH_BYTES_MAX for batch in batches)


def test_rows_and_records_must_agree() -> None:
    with pytest.raises(AssertionError):
        list(partition.encode_rows(0, rows_of(1, 2), [b"one"]))


def test_a_timer_without_its_record_says_that_it_is_in_the_log() -> None:
    rows = partition.as_rows(pairs_of(7))
    assert (rows["record_at"].tolist(), rows["record_bytes"].tolist()) == ([IN_LOG], [0])


def test_the_deleted_are_left_out() -> None:
    tombstones = np.array([2, 3, 9], np.uint64)
    assert partition.alive(rows_of(1, 2, 3, 4), tombstones)["timer_offset"].tolist() == [1, 4]
