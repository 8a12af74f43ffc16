"""Tests that kept records can be read, and that a flipped bit affects only a single record."""

from __future__ import annotations

import pytest

from commitlog.errors import StoreDamaged
from commitlog.log import keep
from commitlog.log.keep import KeepFiles
from commitlog.records import record
from commitlog.records.record import Record
from tests.memory_disk import MemoryDisk

OFFSETS = (100, 700, 900)


def stored(offset: int) -> bytes:
    return record.encode(Record(topic="half", body=b"%d" % offset, physical_offset=offset))


@pytest.fixture
def disk() -> MemoryDisk:
    made = MemoryDisk()
    made.write(keep.path_of(4096), 0, b"".join(map(stored, OFFSETS)))
    made.sync(keep.path_of(4096))
    return made


def test_kept_records_are_read_by_their_place_in_the_log(disk: MemoryDisk) -> None:
    kept = KeepFiles(disk)
    assert [kept.read(offset) for offset in OFFSETS] == [stored(offset) for offset in OFFSETS]
    with pytest.raises(StoreDamaged, match="not kept"):
        kept.read(101)


def test_a_flipped_bit_costs_only_the_record_it_hit(disk: MemoryDisk) -> None:
    first_bits = len(stored(OFFSETS[0])) * 8
    for bit in range(disk.size(keep.path_of(4096)) * 8):
        disk.flip_bit(keep.path_of(4096), bit)
        hit = OFFSETS[bit // first_bits]
        assert [offset for offset in OFFSETS if offset in KeepFiles(disk)] == [o for o in OFFSETS if o != hit]
        disk.flip_bit(keep.path_of(4096), bit)


def test_a_file_goes_with_the_last_record_that_was_needed(disk: MemoryDisk) -> None:
    kept, needed = KeepFiles(disk), set(OFFSETS)
    for offset in (900, 100):
        needed.discard(offset)
        assert kept.forget(needed.__contains__) == []
        assert all(one in kept for one in OFFSETS)
    needed.clear()
    assert kept.forget(needed.__contains__) == [keep.path_of(4096)]
    assert not any(one in kept for one in OFFSETS)
    assert kept.forget(needed.__contains__) == []


def test_many_records_are_looked_at_in_slices(monkeypatch: pytest.MonkeyPatch, disk: MemoryDisk) -> None:
    monkeypatch.setattr(keep, "_LOOKED_AT_ONCE", 2)
    kept, looked = KeepFiles(disk), []

    def is_needed(offset: int) -> bool:
        looked.append(offset)
        return False

    assert kept.forget(is_needed) == []
    assert looked == [900, 700]
    assert kept.forget(is_needed) == [keep.path_of(4096)]
    assert looked == [900, 700, 100]
