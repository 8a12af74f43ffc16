"""A store whose segments have many sizes: everything reads it alike, and it goes on.

Where the `format` file was lost the size of segments is derived. Of a single segment that a kill left short
that is a wrong size, and a record that does not fit into it is written across the next segment's beginning.
`OddLog` writes so, a flush for each record.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from commitlog import layout, store_format
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import StoreError
from commitlog.log.published_log import holes, open_log
from commitlog.log.recovery import LogScan
from commitlog.records import record
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.rocketmq.export_store import export_store
from services.store.copying.copying import copy_store
from services.store.read_only.opening import open_store
from services.store.verify.verify import verify
from spark_jobs.log.scan.decode import ALL, Wanted, batches
from spark_jobs.log.scan.slices import slices
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
SEGMENT_BYTES = 4096
COUNT = 40


class OddLog:
    """A log in which a segment begins at each multiple of a size that is guessed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.end_offset = 0
        self._segment_bytes = SEGMENT_BYTES
        self._gathered: list[tuple[int, int, bytearray]] = []

    def put(self, new: Record) -> None:
        left = self._segment_bytes - self.end_offset % self._segment_bytes
        new.physical_offset = self.end_offset
        encoded = record.encode(new)
        if len(encoded) + record.BLANK_BYTES > left < self._segment_bytes:
            self._gather(record.blank(left))
            self.end_offset += left - record.BLANK_BYTES
            new.physical_offset = self.end_offset
            encoded = record.encode(new)
        self._gather(encoded)

    def _gather(self, data: bytes | bytearray) -> None:
        position = self.end_offset % self._segment_bytes
        if not self._gathered or position == 0:
            self._gathered.append((self.end_offset - position, position, bytearray()))
        self._gathered[-1][2].extend(data)
        self.end_offset += len(data)

    def flush(self) -> None:
        for first_offset, position, data in self._gathered:
            path = self.root / layout.segment_path(first_offset)
            path.parent.mkdir(parents=True, exist_ok=True)
            if position == 0:
                path.write_bytes(bytes(self._segment_bytes))
            path.touch()
            with path.open("r+b") as file:
                file.seek(position)
                file.write(data)
        self._gathered.clear()
        (self.root / layout.FORMAT).write_bytes(store_format.encode(self._segment_bytes))
        (self.root / layout.DURABLE).write_bytes(layout.durable_lines(self.end_offset))

    def start_after_a_kill_in_a_start(self) -> None:
        """The only segment had been truncated; its length is what this start takes for the size of all."""
        self._segment_bytes = self.end_offset
        with (self.root / layout.segment_path(0)).open("r+b") as file:
            file.truncate(self.end_offset)


def records_of(bodies: list[int]) -> Iterator[Record]:
    """What a broker appends for messages with bodies of so many bytes, the topic included."""
    disk = MemoryDisk()
    broker = Broker.open(disk, BrokerSettings(segment_bytes=1 << 20, queue_count=1), NOW_MS)
    for number, body_bytes in enumerate(bodies):
        broker.sending.send(Message(topic="t", body=b"x" * body_bytes, message_id=f"M{number}"), NOW_MS)
    flush = broker.take_flush()
    assert flush is not None
    flush.write()
    broker.complete_flush(flush, NOW_MS)
    for found in LogScan(disk, 1 << 20):
        yield found.record


@pytest.fixture(params=range(3))
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    chance = random.Random(request.param)
    log = OddLog(tmp_path / "store")
    first = chance.randrange(2, 6)
    bodies = [20] * (first + 1) + [chance.choice((20, 100, 700, 2000)) for _ in range(COUNT - first - 1)]
    for number, one in enumerate(records_of(bodies)):
        log.put(one)
        if number == first:
            log.flush()
            log.start_after_a_kill_in_a_start()
        else:
            log.flush()
    log.flush()
    return log.root


def started(root: Path) -> list[str]:
    """What a broker has that starts here; then it sends one more."""
    disk = RealDisk(root)
    broker = Broker.open(disk, BrokerSettings(segment_bytes=SEGMENT_BYTES, queue_count=1), NOW_MS)
    assert broker.damaged == []
    first, end = broker.finding.queue_range("t", 0)
    found = [broker.finding.read("t", 0, at, 1)[0].message for at in range(first, end)]
    for number in range(end, end + 9):
        broker.sending.send(Message(topic="t", body=b"y" * (number * 50), message_id=f"M{number}"), NOW_MS)
    flush = broker.take_flush()
    assert flush is not None
    flush.write()
    broker.complete_flush(flush, NOW_MS)
    disk.close()
    return [one.message_id for one in found]


def seen_by_spark(root: Path, slice_bytes: int) -> list[str]:
    log, wanted = open_log(root), Wanted(bodies=ALL)
    assert holes(log) == []
    found = [batch for part in slices(log, slice_bytes) for batch in batches(part, wanted)]
    rows = pa.Table.from_batches(found, wanted.schema).to_pylist()
    assert [row for row in rows if row["kind"] == "damage"] == []
    return [row["message_id"] for row in rows if row["topic"] == "t"]


def test_a_store_with_segments_of_many_sizes_is_read_alike_by_all_and_goes_on(
    root: Path, tmp_path: Path
) -> None:
    expected = [f"M{number}" for number in range(COUNT)]
    assert not open_store(root).segments.is_uniform
    for round_ in range(2):
        verdict = verify(open_store(root), NOW_MS)
        assert verdict.is_sound, verdict.findings
        for slice_bytes in (300, 1 << 20):
            assert seen_by_spark(root, slice_bytes) == expected
        with pytest.raises(StoreError, match="log segments have different sizes"):
            export_store(root, tmp_path / "theirs", lambda said: None, NOW_MS)
        copy_store(root, tmp_path / f"copy-{round_}")
        assert seen_by_spark(tmp_path / f"copy-{round_}", 1 << 20) == expected
        assert started(tmp_path / f"copy-{round_}") == expected
        assert verify(open_store(tmp_path / f"copy-{round_}"), NOW_MS).is_sound
        assert started(root) == expected
        expected += [f"M{number}" for number in range(len(expected), len(expected) + 9)]
