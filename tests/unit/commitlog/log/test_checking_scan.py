"""Tests that a check-only scan finds the same damage as a scan that returns records."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from commitlog import layout
from commitlog.log import imported
from commitlog.log.log import CommitLog
from commitlog.log.recovery import Damage, LogScan
from commitlog.records import record
from commitlog.records.record import Record
from tests.memory_disk import MemoryDisk

SEGMENT_BYTES = 4096
RECORD_COUNT = 60
MAGIC_AT, PLACE_AT = 7, 35
"""The last byte of each of these fields in a record."""

Harm = Callable[[MemoryDisk], None]


@cache
def written() -> tuple[dict[str, bytes], int]:
    """Return the files of a log with several segments and bodies of various sizes, and the end of the log."""
    disk = MemoryDisk()
    layout.reset_durable(disk, 0)
    log = CommitLog(disk, SEGMENT_BYTES, 0, 0)
    for number in range(RECORD_COUNT):
        # Records with long topic names have a different magic number.
        topic = "t" * (200 if number % 7 == 0 else 3)
        body = record.encode(Record(topic="inner", body=b"x")) * 2 if number % 11 == 0 else b"x" * number * 8
        log.append(Record(topic=topic, body=body))
        if number % 5 == 0:
            flush = log.take_flush()
            assert flush is not None
            flush.write()
            log.complete_flush(flush)
    last = log.take_flush()
    if last is not None:
        last.write()
        log.complete_flush(last)
    paths = map(layout.segment_path, layout.segment_offsets(disk))
    return {path: bytes(disk.view(path)) for path in paths}, log.end_offset


def place(fraction: float) -> tuple[str, int]:
    """Return the file and the position within it at a given fraction of the log."""
    return place_of(int(fraction * (written()[1] - 1)))


def place_of(offset: int) -> tuple[str, int]:
    firsts = [int(path[-layout.OFFSET_DIGITS :]) for path in written()[0]]
    first = max(one for one in firsts if one <= offset)
    return layout.segment_path(first), offset - first


@cache
def records() -> list[tuple[int, int]]:
    """Return the offset and length of each record."""
    scan = LogScan(undamaged(), SEGMENT_BYTES)
    return [(one.record.physical_offset, one.record_bytes) for one in scan]


def undamaged() -> MemoryDisk:
    files, end_offset = written()
    disk = MemoryDisk()
    for path, content in files.items():
        disk.write(path, 0, content)
    layout.reset_durable(disk, end_offset)
    return disk


def flip(fraction: float, bit: int) -> Harm:
    path, position = place(fraction)
    return lambda disk: disk.flip_bit(path, position * 8 + bit)


def overwrite(fraction: float, filler: int, count: int) -> Harm:
    path, position = place(fraction)
    return lambda disk: disk.write(path, position, bytes([filler]) * count)


def tear(fraction: float) -> Harm:
    path, position = place(fraction)
    return lambda disk: disk.truncate(path, min(position, disk.size(path)))


def seal_another(number: int, field: int) -> Harm:
    """Replace a record with one that matches its CRC but has a different magic number or offset."""
    offset, record_bytes = records()[number]
    path, position = place_of(offset)
    stored = bytearray(written()[0][path][position : position + record_bytes])
    stored[field] ^= 1
    sealed = stored[: -record.CRC_BYTES] + record.crc_property(memoryview(stored[: -record.CRC_BYTES]))
    return lambda disk: disk.write(path, position, bytes(sealed))


FRACTIONS = st.floats(0, 1, allow_nan=False)
HARMS = st.one_of(
    st.builds(flip, FRACTIONS, st.integers(0, 7)),
    st.builds(overwrite, FRACTIONS, st.integers(0, 255), st.integers(1, 700)),
    st.builds(tear, FRACTIONS),
    st.builds(seal_another, st.integers(0, RECORD_COUNT - 1), st.sampled_from((MAGIC_AT, PLACE_AT))),
)


def found(
    disk: MemoryDisk, start_at: int, stop_at: int | None, *, only_checks: bool
) -> tuple[int, list[Damage]]:
    scan = LogScan(disk, SEGMENT_BYTES, start_at, stop_at)
    if only_checks:
        scan.check()
    else:
        for _ in scan:
            pass
    return scan.end_offset, scan.damaged


@given(
    harms=st.lists(HARMS, max_size=4),
    published=FRACTIONS,
    is_published=st.booleans(),
    imported_until=st.one_of(st.just(0.0), FRACTIONS),
    start=st.integers(0, 3),
    stop=st.one_of(st.none(), FRACTIONS),
)
def test_it_finds_the_same_end_and_the_same_damage(
    harms: list[Harm],
    published: float,
    is_published: bool,
    imported_until: float,
    start: int,
    stop: float | None,
) -> None:
    disk, end_offset = undamaged(), written()[1]
    if is_published:
        layout.reset_durable(disk, int(published * end_offset))
    else:
        disk.delete(layout.DURABLE)
    if int(imported_until * end_offset):
        imported.write(disk, int(imported_until * end_offset))
    for harm in harms:
        harm(disk)
    start_at = layout.segment_offsets(disk)[start]
    stop_at = None if stop is None else max(start_at, int(stop * end_offset))
    slow = found(disk, start_at, stop_at, only_checks=False)
    assert found(disk, start_at, stop_at, only_checks=True) == slow


def test_a_log_without_damage_is_passed_to_its_end() -> None:
    disk = undamaged()
    assert found(disk, 0, None, only_checks=True) == (written()[1], [])
    assert len(layout.segment_offsets(disk)) > 3, "or no blank is passed"
