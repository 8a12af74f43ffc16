"""The file `format`: what older versions read of it, how large segments are, and what becomes of damage."""

from __future__ import annotations

from contextlib import suppress

import pytest

from commitlog import layout, record, store_format
from commitlog.errors import NotAStore, StoreTooNew
from commitlog.store_format import Format
from tests.memory_disk import Death, Fault, MemoryDisk

WITHOUT_TAILS = store_format.WITHOUT_TAILS
SIZE = 4096


def with_segments(*sizes: int, step: int = SIZE) -> MemoryDisk:
    """A store of version 1 with segments of these lengths, full of something."""
    disk = MemoryDisk()
    disk.write(layout.FORMAT, 0, b"1\n")
    layout.reset_durable(disk, 1)
    for number, size in enumerate(sizes):
        disk.write(layout.segment_path(number * step), 0, b"x" * size)
    return disk


def test_a_new_store_says_how_large_its_segments_are_whatever_is_asked_for_later() -> None:
    disk = MemoryDisk()
    assert store_format.open_format(disk, SIZE) == Format(WITHOUT_TAILS, SIZE)
    assert store_format.open_format(disk, 7 * SIZE) == Format(WITHOUT_TAILS, SIZE)


def test_version_1_reads_a_version_that_is_too_new_for_it() -> None:
    assert int(store_format.encode(SIZE)[:64].decode(errors="replace").strip()) == store_format.VERSION


def test_a_store_of_version_2_becomes_one_of_version_3_which_version_2_refuses() -> None:
    disk = with_segments(SIZE, SIZE)
    store_format.write(disk, store_format.encode(SIZE, 2))
    assert store_format.open_format(disk, 9 * SIZE) == Format(WITHOUT_TAILS, SIZE)
    assert disk.read(layout.FORMAT, 0, 200) == store_format.encode(SIZE, WITHOUT_TAILS)


def test_a_store_whose_snapshots_keep_tails_is_refused_by_programs_that_know_none() -> None:
    disk = MemoryDisk()
    store_format.open_format(disk, SIZE)
    store_format.raise_to_tails(disk)
    assert store_format.open_format(disk, 9 * SIZE) == Format(store_format.VERSION, SIZE)
    operations = disk.operations
    store_format.raise_to_tails(disk)
    assert disk.operations == operations, "it is raised once"
    disk.write(layout.FORMAT, 64, b"x")
    assert store_format.open_format(disk, 9 * SIZE).version == store_format.VERSION


def test_what_cannot_be_opened_is_refused_and_left_alone() -> None:
    newer = store_format.VERSION + 1
    disk, foreign, rocketmq = MemoryDisk(), MemoryDisk(), MemoryDisk()
    disk.write(layout.FORMAT, 0, b"%d\n" % newer)
    foreign.write("pg_wal", 0, b"x")
    rocketmq.write(layout.segment_path(0), 0, b"x")
    before = [one.operations for one in (disk, foreign, rocketmq)]
    with pytest.raises(StoreTooNew, match=f"format {newer}, this version reads up to {newer - 1}"):
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
    content = store_format.encode(SIZE, WITHOUT_TAILS)
    for bit in range(8 * len(content)):
        disk = with_segments(SIZE, SIZE)
        store_format.write(disk, content)
        disk.flip_bit(layout.FORMAT, bit)
        found = store_format.open_format(disk, 9 * SIZE)
        assert (found.segment_bytes, bool(found.problem)) == (SIZE, True), bit
        assert store_format.open_format(disk, 9 * SIZE) == Format(WITHOUT_TAILS, SIZE)


@pytest.mark.parametrize("content", [None, b"", b"\0" * 110])
def test_a_lost_file_is_made_again_where_another_proves_the_store_ours(content: bytes | None) -> None:
    disk = with_segments(SIZE, SIZE)
    disk.delete(layout.FORMAT)
    if content is not None:
        disk.write(layout.FORMAT, 0, content)
    assert store_format.open_format(disk, 9 * SIZE).problem
    assert store_format.open_format(disk, 9 * SIZE) == Format(store_format.VERSION, SIZE), "it may keep tails"


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
def test_the_size_in_a_store_of_version_1_is_derived_once(
    sizes: tuple[int, ...], reserve_bytes: int, expected: int
) -> None:
    disk = with_segments(*sizes)
    if reserve_bytes >= 0:
        disk.allocate(layout.RESERVE, reserve_bytes)
    assert store_format.open_format(disk, 3 * SIZE) == Format(WITHOUT_TAILS, expected)
    assert store_format.open_format(disk, SIZE // 2) == Format(WITHOUT_TAILS, expected)


@pytest.mark.parametrize("end", [bytes(8), record.blank(8)])
def test_a_single_whole_segment_has_its_own_size(end: bytes) -> None:
    disk = with_segments(SIZE - len(end))
    disk.write(layout.segment_path(0), SIZE - len(end), end)
    assert store_format.open_format(disk, 3 * SIZE) == Format(WITHOUT_TAILS, SIZE)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("was_version_1", [False, True])
def test_a_death_or_failure_at_any_step_leaves_the_old_file_or_the_new_one(
    fault: Fault, was_version_1: bool
) -> None:
    number = is_struck = 1
    while is_struck:
        for kept in (0, 1):
            disk = with_segments(SIZE, SIZE) if was_version_1 else MemoryDisk()
            disk.crash(lambda count: count)
            disk.strike(number, fault)
            with suppress(Death, OSError):
                store_format.open_format(disk, SIZE)
            is_struck = disk.is_struck
            disk.crash(lambda count, kept=kept: count * kept)  # type: ignore[misc]
            assert store_format.open_format(disk, SIZE) == Format(WITHOUT_TAILS, SIZE)
        number += 1
    assert number > 3
