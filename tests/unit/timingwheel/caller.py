"""Simulates the broker as a caller of the upper levels of the timing wheel.

The simulated broker has its own wheel, log, and checkpoints, and can crash.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.records import record
from tests.memory_disk import MemoryDisk
from timingwheel.boundaries import Numbers
from timingwheel.cascade import PartitionsToWrite
from timingwheel.due_run import ReadAhead
from timingwheel.partition import IN_LOG, ROW, Rows
from timingwheel.partitions import Partitions

SortKey = tuple[int, int]
FOREVER_MS = 1 << 60


def record_of(offset: int) -> bytes:
    """Return the log record at an offset, including its CRC."""
    content = b"record %d " % offset * (1 + offset % 5)
    return content + record.crc_text(zlib.crc32(content) & record.CRC_MASK)


def fetch(offsets: Numbers) -> tuple[Rows, list[bytes]]:
    """Return the rows and records of the timers at the given log offsets."""
    rows = np.zeros(len(offsets), ROW)
    rows["timer_offset"], rows["queue"], rows["id_hash"] = offsets, offsets % 7, offsets * 31
    return rows, [record_of(offset) for offset in offsets.tolist()]


class Caller:
    """A caller that adds, cancels, and delivers timers. `pending` contains the expected pending timers."""

    def __init__(self, disk: Disk, now_ms: int, rows_max: int = 5) -> None:
        self.disk, self.now_ms, self.rows_max = disk, now_ms, rows_max
        self.partitions = Partitions(disk, now_ms, rows_max)
        self.pending: set[SortKey] = set()
        self.delivered: list[SortKey] = []
        self.wheel: set[SortKey] = set()
        self.log: list[tuple[str, SortKey]] = []
        self.offset = 0
        self.snapshot: tuple[Any, int] = (None, 0)
        self.job: ReadAhead | None = None
        self.checkpoint: PartitionsToWrite | None = None
        self._logged_count = 0

    def put(self, due_ms: int) -> None:
        self.offset += 1
        self._do("put", (due_ms, self.offset))
        self.pending.add((due_ms, self.offset))

    def put_many(self, dues_ms: list[int]) -> None:
        offsets = range(self.offset + 1, self.offset + 1 + len(dues_ms))
        self.offset += len(dues_ms)
        sort_keys = list(zip(dues_ms, offsets, strict=True))
        self.partitions.put(sort_keys)
        self.log += [("put", sort_key) for sort_key in sort_keys]
        self.wheel |= {sort_key for sort_key in sort_keys if sort_key[0] < self.partitions.near_until_ms}
        self.pending |= set(sort_keys)

    def cancel(self, sort_key: SortKey) -> None:
        self._do("delete", sort_key)
        self.pending.discard(sort_key)

    def look(self) -> None:
        look = self.partitions.advance(self.now_ms)
        self.wheel |= set(look.near)
        self.job = look.job or self.job

    def read(self) -> bool:
        if self.job is None:
            return False
        self.job.run(self.disk)
        self.wheel |= set(self.partitions.complete_read_ahead(self.job))
        self.job = None
        return True

    def begin_checkpoint(self) -> None:
        if self.checkpoint is None:
            self.checkpoint = self.partitions.to_write(self.now_ms)
            self._logged_count = len(self.log)

    def write_checkpoint(self) -> None:
        """Write the files of the checkpoint. The changes take effect only when the checkpoint ends."""
        if self.checkpoint is not None and self.checkpoint.new_files is None:
            self.checkpoint.write(self.disk, fetch)

    def end_checkpoint(self, *, fails: bool = False) -> None:
        if self.checkpoint is None:
            return
        self.write_checkpoint()
        done, self.checkpoint = self.checkpoint, None
        if fails:
            self.partitions.failed(done)
            return
        assert not done.unreadable
        self.snapshot = done.freeze(), self._logged_count
        done.delete_unused(self.disk)
        self.partitions.written(done)

    def crash(self, choose: Callable[[int], int] = lambda length: length // 2) -> None:
        """Discard the in-memory state, and restart from the last snapshot and the later log entries."""
        if isinstance(self.disk, MemoryDisk):
            self.disk.crash(choose)
        self.partitions = Partitions(self.disk, self.now_ms, self.rows_max)
        self.wheel, self.job, self.checkpoint = set(), None, None
        frozen, logged_count = self.snapshot
        self.partitions.adopt(frozen, self.now_ms)
        for verb, sort_key in self.log[logged_count:]:
            self._apply(verb, sort_key)

    def settle(self) -> None:
        """Deliver all due timers. Reads and checkpoints are performed as needed."""
        for _ in range(10_000):
            self.look()
            moved = self.read()
            moved = self.deliver(3) or moved
            if self.partitions.wants_checkpoint:
                self.begin_checkpoint()
            if self.checkpoint is not None:
                self.end_checkpoint()
                moved = True
            upcoming_ms = self.partitions.next_advance_ms(self.now_ms)
            if not moved and (upcoming_ms is None or upcoming_ms > self.now_ms):
                return
        raise AssertionError("it never settles")

    def deliver(self, count_max: int) -> bool:
        """Deliver up to `count_max` rows, or the first timer of the wheel if it precedes the next row."""
        first = min(self.wheel, default=None)
        head_ms = self.partitions.head_due_ms()
        if head_ms is not None and head_ms <= self.now_ms and (first is None or head_ms <= first[0]):
            rows, path = self.partitions.take_due(self.now_ms, count_max, None if first is None else first[0])
            for row in rows:
                self._check_record(row, path)
                self._deliver((int(row["due_ms"]), int(row["timer_offset"])))
            return len(rows) > 0 or self.partitions.head_due_ms() != head_ms
        if first is None or first[0] > self.now_ms:
            return False
        self._deliver(first)
        return True

    def listed(
        self, from_ms: int = 0, until_ms: int = FOREVER_MS, after: SortKey | None = None
    ) -> list[SortKey]:
        found: list[SortKey] = []
        for rows, path in self.partitions.scan(from_ms, until_ms, after):
            for row in rows:
                self._check_record(row, path)
            found += zip(rows["due_ms"].tolist(), rows["timer_offset"].tolist(), strict=True)
        return found

    def _check_record(self, row: Any, path: str | None) -> None:
        if int(row["record_at"]) == IN_LOG:
            return
        assert path is not None
        record = self.disk.read(path, int(row["record_at"]), int(row["record_bytes"]))
        assert record == record_of(int(row["timer_offset"]))
        assert int(row["queue"]) == int(row["timer_offset"]) % 7

    def _deliver(self, sort_key: SortKey) -> None:
        assert sort_key in self.pending, f"{sort_key} is not pending"
        assert sort_key[0] <= self.now_ms, "early"
        assert not self.delivered or sort_key > self.delivered[-1], "not in due order"
        self.pending.discard(sort_key)
        self.delivered.append(sort_key)
        self._do("fired", sort_key)

    def _do(self, verb: str, sort_key: SortKey) -> None:
        self.log.append((verb, sort_key))
        self._apply(verb, sort_key)

    def _apply(self, verb: str, sort_key: SortKey) -> None:
        if verb == "put":
            self.partitions.put([sort_key])
            if sort_key[0] < self.partitions.near_until_ms:
                self.wheel.add(sort_key)
            return
        self.wheel.discard(sort_key)
        if verb == "delete":
            self.partitions.delete(*sort_key)
        else:
            self.partitions.watermark = sort_key
