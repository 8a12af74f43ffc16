"""Tests that a file with bad sectors is read completely and that unreadable blocks are returned as zeros."""

from __future__ import annotations

from errno import EACCES, EIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory_disk import MemoryDisk
from timingwheel import sectors

BLOCK = 4096
BLOCK_COUNT = 12
PATH = "timers/it"


class BadSectors(MemoryDisk):
    """A disk on which some blocks cannot be read.

    If `is_short` is true, a read returns the bytes that precede a bad block, as on Linux.
    """

    def __init__(self, bad: set[int], *, is_short: bool) -> None:
        super().__init__()
        self.bad, self.is_short = bad, is_short

    def read(self, path: str, position: int, length: int) -> bytes:
        content = super().read(path, position, length)
        touched = range(position // BLOCK, (position + max(1, len(content)) - 1) // BLOCK + 1)
        first = next((block for block in touched if content and block in self.bad), None)
        if first is None:
            return content
        if self.is_short and first * BLOCK > position:
            return content[: first * BLOCK - position]
        raise OSError(EIO, "fails by the test", path)


def written(disk: BadSectors, tail_bytes: int) -> bytes:
    content = bytes(1 + number % 251 for number in range(BLOCK_COUNT * BLOCK + tail_bytes))
    disk.write(PATH, 0, content)
    return content


def as_read(content: bytes, bad: set[int]) -> bytes:
    return b"".join(
        bytes(len(content[at : at + BLOCK])) if at // BLOCK in bad else content[at : at + BLOCK]
        for at in range(0, len(content), BLOCK)
    )


BAD = st.sets(st.integers(0, BLOCK_COUNT))
SPAN = st.tuples(st.integers(0, BLOCK_COUNT * BLOCK), st.integers(0, BLOCK_COUNT * BLOCK))


@given(BAD, st.booleans(), st.integers(0, 100), SPAN)
def test_a_bad_sector_costs_its_block_alone(
    bad: set[int], is_short: bool, tail_bytes: int, span: tuple[int, int]
) -> None:
    disk = BadSectors(bad, is_short=is_short)
    there = as_read(written(disk, tail_bytes), bad)
    position = min(span[0], len(there))
    length = min(span[1], len(there) - position)  # As in a snapshot, the range ends within the file.
    unread: list[sectors.Extent] = []
    assert sectors.read(disk, PATH, position, length, unread) == there[position : position + length]
    end = position + length
    noted = {block for first, until in unread for block in range(first // BLOCK, (until - 1) // BLOCK + 1)}
    touched = {block for block in bad if block * BLOCK < end and (block + 1) * BLOCK > position}
    assert noted == (touched if length else set())
    assert unread == sorted(unread)


@given(BAD, st.booleans(), st.lists(SPAN, max_size=5))
def test_spans_are_whole_each_and_back_to_back(
    bad: set[int], is_short: bool, spans: list[tuple[int, int]]
) -> None:
    disk = BadSectors(bad, is_short=is_short)
    there = as_read(written(disk, 0), bad)
    expected = b"".join(there[at : at + length].ljust(length, b"\0") for at, length in spans)
    assert sectors.read_many(disk, PATH, spans, []) == expected


def test_another_failure_of_the_disk_is_raised() -> None:
    disk = MemoryDisk()

    def refuse(path: str, position: int, length: int) -> bytes:
        raise OSError(EACCES, "fails by the test", path)

    disk.read = refuse  # type: ignore[method-assign]
    with pytest.raises(PermissionError):
        sectors.read(disk, PATH, 0, 10, [])
    with pytest.raises(PermissionError):
        sectors.read_many(disk, PATH, [(0, 10)], [])


def test_a_disk_that_can_read_one_of_the_files_can_read() -> None:
    disk = BadSectors({0}, is_short=False)
    written(disk, 0)
    with pytest.raises(OSError, match="fails by the test"):
        sectors.require_reading(disk, [PATH, "missing"])
    disk.bad = {1}
    sectors.require_reading(disk, ["missing", PATH])
    sectors.require_reading(disk, [])
