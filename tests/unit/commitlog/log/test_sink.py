"""Tests that a sink receives every byte of the log in order, and only the length of unused segment ends."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from commitlog import layout
from commitlog.log.log import CommitLog
from commitlog.log.recovery import LogScan
from commitlog.log.sink import LogSink, Part, Zeros
from commitlog.records import record
from commitlog.records.record import Record
from tests.memory_disk import MemoryDisk

SEGMENT_BYTES = 4096


class Tee:
    """A sink that keeps a copy of the log and passes the parts to another sink."""

    def __init__(self, behind: LogSink) -> None:
        self._behind, self.appends_max = behind, behind.appends_max
        self.log = bytearray()
        self.given_bytes = 0

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        assert first_offset == len(self.log), "there is a gap"
        for part in parts:
            self.log += bytes(len(part)) if isinstance(part, Zeros) else part
            self.given_bytes += 0 if isinstance(part, Zeros) else len(part)
        self._behind.append(first_offset, parts, epoch)


def log_with_tee(disk: MemoryDisk, segment_bytes: int, *, sync: bool = True) -> tuple[CommitLog, Tee]:
    layout.reset_durable(disk, 0)
    log = CommitLog(disk, segment_bytes, 0, 0, sync=sync)
    log.sink = tee = Tee(log.sink)
    return log, tee


def flush(log: CommitLog, disk: MemoryDisk) -> None:
    flush = log.take_flush()
    if flush is not None:
        flush.write()
        log.complete_flush(flush)


def append_some(log: CommitLog, chance: random.Random) -> None:
    """Append records, some of which are longer than a segment or are appended several at a time."""
    if chance.random() < 0.7:
        log.append(Record(topic="t", body=b"x" * chance.choice((9, 300, 1900, SEGMENT_BYTES - 120, 5000))))
        return
    lengths = [len(record.encode(Record(topic="t", body=b"y" * 40)))] * 30
    many = bytearray()
    for _ in range(log.room_for(lengths)):
        new = Record(topic="t", body=b"y" * 40, physical_offset=log.end_offset + len(many))
        many += record.encode(new)
    log.append_encoded(many)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_whoever_has_all_parts_has_the_log_byte_by_byte(seed: int, sync: bool) -> None:
    chance, disk = random.Random(seed), MemoryDisk()
    log, tee = log_with_tee(disk, SEGMENT_BYTES, sync=sync)
    for _ in range(40):
        append_some(log, chance)
        if chance.random() < 0.3:
            flush(log, disk)
    flush(log, disk)
    assert len(tee.log) == log.end_offset
    firsts = layout.segment_offsets(disk)
    assert firsts == log.segments.first_offsets
    for first, end in zip(firsts, [*firsts[1:], log.end_offset], strict=True):
        assert bytes(disk.view(layout.segment_path(first))[: end - first]) == tee.log[first:end]
    sync_rest = log.take_sync()
    assert sync_rest is None if sync else sync_rest is not None
    if sync_rest is not None:
        sync_rest.run(disk)
    disk.crash(lambda count: 0)
    scan = LogScan(disk, SEGMENT_BYTES, stop_at=log.end_offset)
    assert (sum(found.record_bytes for found in scan) > 0, scan.damaged) == (True, [])
    assert scan.end_offset == log.end_offset


def test_the_unused_end_of_a_segment_is_said_as_a_length() -> None:
    disk, segment_bytes = MemoryDisk(), 64 * 1024 * 1024
    log, tee = log_with_tee(disk, segment_bytes)
    log.append(Record(topic="t", body=b"x"))
    log.room_for([segment_bytes - 100])
    log.append(Record(topic="t", body=b"y"))
    flush(log, disk)
    assert log.end_offset > segment_bytes
    assert tee.given_bytes < 400
