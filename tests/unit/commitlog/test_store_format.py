"""Tests the `format` file: rejected versions, segment sizes, and damage."""

from __future__ import annotations

import re
import zlib
from contextlib import suppress

import pytest

from commitlog import layout, store_format
from commitlog.errors import NotAStore, StoreTooNew, StoreTooOld
from commitlog.records import record
from commitlog.store_format import Format
from tests.memory_disk import Death, Fault, MemoryDisk

VERSION = store_format.VERSION
SIZE = 4096
THE_WAY = "store export FOLDER --store THIS.*store import FOLDER --store NEW.*Schedules.*set again"


def with_segments(*sizes: int, step: int = SIZE) -> MemoryDisk:
    """Create a store whose format has no second line, with non-empty segments of the given lengths."""
    disk = MemoryDisk()
    disk.write(layout.FORMAT, 0, store_format.encode(SIZE)[:64])
    layout.reset_durable(disk, 1)
    for number, size in enumerate(sizes):
        disk.write(layout.segment_path(number * step), 0, b"x" * size)
    return disk


def test_a_new_store_says_how_large_its_segments_are_whatever_is_asked_for_later() -> None:
    disk = MemoryDisk()
    assert store_format.open_format(disk, SIZE) == Format(VERSION, SIZE)
    assert store_format.open_format(disk, 7 * SIZE) == Format(VERSION, SIZE)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("has_size", [False, True])
def test_a_store_from_before_the_first_release_is_refused_and_left_alone(
    version: int, has_size: bool
) -> None:
    """The file of such a store contains a number without a name and, from version 2 on, the segment size."""
    line = b"%d segment_bytes %020d" % (version, SIZE)
    first = (b"%d\n" % version).ljust(63) + b"\n"
    content = first + b"%s %08x\n" % (line, zlib.crc32(line)) if has_size else b"%d\n" % version
    disk = MemoryDisk()
    disk.write(layout.FORMAT, 0, content)
    operations = disk.operations
    for asked in (lambda: store_format.open_format(disk, SIZE), lambda: store_format.read(disk)):
        with pytest.raises(StoreTooOld, match=f"as format {version}.*{THE_WAY}"):
            asked()
    assert disk.operations == operations


def test_a_store_of_an_older_release_is_refused_with_the_way_out() -> None:
    disk = MemoryDisk()
    disk.write(layout.FORMAT, 0, store_format.encode(SIZE, VERSION - 1))
    with pytest.raises(StoreTooOld, match=f"format {VERSION - 1}, this .* reads .* {VERSION}. Hand over"):
        store_format.open_format(disk, SIZE)


def test_a_program_from_before_the_first_release_refuses_a_store() -> None:
    """Such a program reads a number without a name, which may be followed by the segment size."""
    content = store_format.encode(SIZE)
    assert not re.match(rb"\d+ segment_bytes", content[64:])
    assert not content[:64].decode().strip().isdigit()


@pytest.mark.parametrize("kept_bytes", range(len(store_format.encode(SIZE))))
def test_a_file_that_is_cut_short_anywhere_is_made_whole_again(kept_bytes: int) -> None:
    disk = with_segments(SIZE, SIZE)
    disk.delete(layout.FORMAT)
    disk.write(layout.FORMAT, 0, store_format.encode(SIZE)[:kept_bytes])
    found = store_format.open_format(disk, 7 * SIZE)
    assert (found.version, found.segment_bytes) == (VERSION, SIZE)
    assert found.problem
    assert store_format.open_format(disk, 7 * SIZE) == Format(VERSION, SIZE)


def test_what_cannot_be_opened_is_refused_and_left_alone() -> None:
    newer = store_format.VERSION + 1
    disk, foreign, rocketmq = MemoryDisk(), MemoryDisk(), MemoryDisk()
    disk.write(layout.FORMAT, 0, b"tidewheel %d\n" % newer)
    foreign.write("pg_wal", 0, b"x")
    rocketmq.write(layout.segment_path(0), 0, b"x")
    before = [one.operations for one in (disk, foreign, rocketmq)]
    with pytest.raises(StoreTooNew, match=f"format {newer}, this version reads format {newer - 1}. Upgrade"):
        store_format.open_format(disk, SIZE)
    with pytest.raises(NotAStore, match="pg_wal"):
        store_format.open_format(foreign, SIZE)
    with pytest.raises(NotAStore, match="store import"):
        store_format.open_format(rocketmq, SIZE)
    disk.write(layout.FORMAT, 0, b"import not finished\n")
    with pytest.raises(NotAStore, match="import not finished"):
        store_format.open_format(disk, SIZE)
    assert [one.operations for one in (disk, foreign, rocketmq)] == [before[0] + 1, *before[1:]]


def test_files_of_queues_that_could_not_be_deleted_make_no_folder_anothers() -> None:
    store_format.check_names(["consumequeue.aside-1", "lock"], knows_format=False)
    with pytest.raises(NotAStore, match=r"consumequeue\.other"):
        store_format.check_names(["consumequeue.aside-1", "consumequeue.other"])


def test_a_flipped_bit_is_told_and_mended() -> None:
    content = store_format.encode(SIZE)
    for bit in range(8 * len(content)):
        disk = with_segments(SIZE, SIZE)
        store_format.write(disk, content)
        disk.flip_bit(layout.FORMAT, bit)
        found = store_format.open_format(disk, 9 * SIZE)
        assert (found.segment_bytes, bool(found.problem)) == (SIZE, True), bit
        assert store_format.open_format(disk, 9 * SIZE) == Format(VERSION, SIZE)


@pytest.mark.parametrize("content", [None, b"", b"\0" * 110])
def test_a_lost_file_is_made_again_where_another_proves_the_store_ours(content: bytes | None) -> None:
    disk = with_segments(SIZE, SIZE)
    disk.delete(layout.FORMAT)
    if content is not None:
        disk.write(layout.FORMAT, 0, content)
    assert store_format.open_format(disk, 9 * SIZE).problem
    assert store_format.open_format(disk, 9 * SIZE) == Format(VERSION, SIZE)


@pytest.mark.parametrize(
    ("sizes", "reserve_bytes", "expected"),
    [
        ((SIZE, SIZE, 100), SIZE, SIZE),
        ((SIZE, 0), -1, SIZE),
        ((100,), SIZE, SIZE),
        ((100,), -1, 3 * SIZE),
        ((100,), 50, 3 * SIZE),
        ((0,), -1, 3 * SIZE),
        ((0,), SIZE, SIZE),
        ((), -1, 3 * SIZE),
    ],
)
def test_a_size_that_is_lost_is_derived_once(
    sizes: tuple[int, ...], reserve_bytes: int, expected: int
) -> None:
    disk = with_segments(*sizes)
    if reserve_bytes >= 0:
        disk.allocate(layout.RESERVE, reserve_bytes)
    found = store_format.open_format(disk, 3 * SIZE)
    assert (found.segment_bytes, bool(found.problem)) == (expected, True)
    assert store_format.open_format(disk, SIZE // 2) == Format(VERSION, expected)


@pytest.mark.parametrize("end", [bytes(8), record.blank(8)])
def test_a_single_whole_segment_has_its_own_size(end: bytes) -> None:
    disk = with_segments(SIZE - len(end))
    disk.write(layout.segment_path(0), SIZE - len(end), end)
    assert store_format.open_format(disk, 3 * SIZE).segment_bytes == SIZE


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_death_or_failure_at_any_step_leaves_the_old_file_or_the_new_one(
    fault: Fault, is_damaged: bool
) -> None:
    number = is_struck = 1
    while is_struck:
        for kept in (0, 1):
            disk = with_segments(SIZE, SIZE) if is_damaged else MemoryDisk()
            disk.crash(lambda count: count)
            disk.strike(number, fault)
            with suppress(Death, OSError):
                store_format.open_format(disk, SIZE)
            is_struck = disk.is_struck
            disk.crash(lambda count, kept=kept: count * kept)  # type: ignore[misc]
            assert store_format.open_format(disk, SIZE).segment_bytes == SIZE
            assert store_format.open_format(disk, 9 * SIZE) == Format(VERSION, SIZE)
        number += 1
    assert number > 3
