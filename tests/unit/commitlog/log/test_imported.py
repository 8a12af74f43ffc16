"""Tests that imported records are verified by RocketMQ's rules, and all other records by their CRC."""

from __future__ import annotations

import pytest

from commitlog import layout
from commitlog.errors import StoreDamaged
from commitlog.log import imported
from commitlog.log.log import CommitLog
from commitlog.log.recovery import Damage, LogScan
from commitlog.records import record
from commitlog.records.record import Record
from commitlog.snapshots.snapshot import Snapshot
from tests.memory_disk import MemoryDisk

SEGMENT_BYTES = 4096


def stored(disk: MemoryDisk, *, with_crc: bool) -> tuple[int, int]:
    """Create a log with two records, and return the offset of the second record and the end of the log."""
    end = 0
    disk.allocate(layout.segment_path(0), SEGMENT_BYTES)
    starts = []
    for number in range(2):
        new = Record(topic="orders", body=b"paid %d" % number, queue_offset=number, physical_offset=end)
        data = record.encode(new, with_crc=with_crc)
        starts.append(end)
        disk.write(layout.segment_path(0), end, data)
        end += len(data)
    layout.reset_durable(disk, end)
    return starts[1], end


def test_a_copied_record_needs_no_crc_property() -> None:
    disk = MemoryDisk()
    second, end = stored(disk, with_crc=False)
    imported.write(disk, end)
    scan = LogScan(disk, SEGMENT_BYTES)
    assert [found.record.body for found in scan] == [b"paid 0", b"paid 1"]
    assert scan.damaged == []
    assert CommitLog(disk, SEGMENT_BYTES, 0, end).read(second).body == b"paid 1"


def test_behind_the_copied_log_a_record_without_crc_is_damage() -> None:
    disk = MemoryDisk()
    second, end = stored(disk, with_crc=False)
    imported.write(disk, second)
    scan = LogScan(disk, SEGMENT_BYTES)
    assert [found.record.body for found in scan] == [b"paid 0"]
    assert scan.damaged == [Damage(second, end)]
    with pytest.raises(StoreDamaged):
        CommitLog(disk, SEGMENT_BYTES, 0, end).read(second)


@pytest.mark.parametrize(("with_crc", "place"), [(False, -11), (True, -31), (True, -25)])
def test_a_flipped_bit_in_a_copied_record_is_seen(with_crc: bool, place: int) -> None:
    disk = MemoryDisk()
    second, end = stored(disk, with_crc=with_crc)
    imported.write(disk, end)
    disk.write(layout.segment_path(0), end + place, b"?")
    scan = LogScan(disk, SEGMENT_BYTES)
    assert len(list(scan)) == 1
    assert scan.damaged == [Damage(second, end)]


def test_an_unreadable_mark_is_refused_before_records_are_called_damaged() -> None:
    disk = MemoryDisk()
    disk.write(imported.PATH, 0, b"x")
    with pytest.raises(StoreDamaged, match="imported"):
        imported.read(disk)


def test_an_imported_store_without_snapshots_is_not_started_from_its_log() -> None:
    disk = MemoryDisk()
    imported.check_start(disk, None)
    imported.write(disk, 500)
    imported.check_start(disk, Snapshot(500, {}))
    for start in (None, Snapshot(499, {})):
        with pytest.raises(StoreDamaged, match="import again"):
            imported.check_start(disk, start)
