"""`structure`: `timingwheel.partitions` alone, offsets only, compared with heapq and SQLite.

Offsets only: a timer is its due time and a number; no record, no name, no log. Set: `put` in batches, with
the checkpoints that the structure requests. Advance: virtual time advances 15 seconds at a time; files are
split, read ahead and taken in due order until none is left.
Everything runs in one thread, and is as durable as in the broker.
"""

from __future__ import annotations

import heapq
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from commitlog.disk.real_disk import RealDisk
from parts.shell import DAY_MS, disk_bytes, memory
from timingwheel.partition import ROW
from timingwheel.partitions import Partitions

BATCH = 65_536
TAKE = 10_000
SQLITE_BATCH = 10_000
STEP_MS = 15_000
AHEAD_MS = 60_000
START_MS = 1_800_000_000_000


def due_times(count: int, span_ms: int) -> Iterator[tuple[int, Any]]:
    """Yield (number of the first, due times) in batches, uniform over the span."""
    dice = np.random.default_rng(1)
    for first in range(0, count, BATCH):
        size = min(BATCH, count - first)
        yield first, START_MS + dice.integers(0, span_ms, size, dtype=np.uint64)


def partitions(where: str, count: str, span_ms: str) -> dict[str, Any]:
    """Set and advance timers in the shipped structure; return rates, disk and memory."""
    root = Path(where)
    root.mkdir()
    wheel = Wheel(RealDisk(root))
    set_seconds = wheel.set(int(count), int(span_ms))
    stored = sum(disk_bytes(root).values())
    advance_seconds = wheel.advance(int(count), START_MS + int(span_ms))
    return {
        "count": int(count),
        "set_per_second": round(int(count) / set_seconds),
        "advance_per_second": round(int(count) / advance_seconds),
        "disk_bytes_per_timer": round(stored / int(count), 1),
        **memory(),
    }


class Wheel:
    """The structure with the broker's checkpoints and read-ahead."""

    def __init__(self, disk: RealDisk) -> None:
        self._disk = disk
        self._now_ms = START_MS - DAY_MS
        self._partitions = Partitions(disk, self._now_ms)

    def set(self, count: int, span_ms: int) -> float:
        """Put all timers, with checkpoints; return the seconds."""
        began = time.perf_counter()
        for first, due_ms in due_times(count, span_ms):
            offsets = range(first + 1, first + 1 + len(due_ms))
            self._partitions.put(list(zip(due_ms.tolist(), offsets, strict=True)))
            if self._partitions.wants_checkpoint:
                self._checkpoint()
        self._checkpoint()
        return time.perf_counter() - began

    def advance(self, count: int, until_ms: int) -> float:
        """Advance time until all timers have been taken, in due order; return the seconds."""
        began, taken, offsets_sum, last_ms = time.perf_counter(), 0, 0, 0
        self._now_ms = START_MS - AHEAD_MS
        while taken < count:
            self._step(until_ms)
            while len(rows := self._partitions.take_due(self._now_ms, TAKE)[0]):
                due_ms = rows["due_ms"]
                assert last_ms <= due_ms[0]
                assert (due_ms[1:] >= due_ms[:-1]).all()
                assert due_ms[-1] <= self._now_ms
                taken, last_ms = taken + len(rows), int(due_ms[-1])
                offsets_sum += int(rows["timer_offset"].sum())
                self._partitions.watermark = (last_ms, int(rows["timer_offset"][-1]))
        assert offsets_sum == count * (count + 1) // 2, "each once"
        return time.perf_counter() - began

    def _step(self, until_ms: int) -> None:
        self._now_ms += STEP_MS
        assert self._now_ms < until_ms + DAY_MS, "timers are lost"
        look = self._partitions.advance(self._now_ms)
        assert not look.near, "all were written before"
        while look.job is not None:
            look.job.run(self._disk)
            self._partitions.complete_read_ahead(look.job)
            look = self._partitions.advance(self._now_ms)
        if self._partitions.wants_checkpoint:
            self._checkpoint()

    def _checkpoint(self) -> None:
        done = self._partitions.to_write(self._now_ms)
        done.write(self._disk, offsets_only)
        done.freeze()
        done.delete_unused(self._disk)
        self._partitions.written(done)


def offsets_only(timer_offsets: Any) -> tuple[Any, list[bytes]]:
    """Return rows without records."""
    rows = np.zeros(len(timer_offsets), ROW)
    rows["timer_offset"] = timer_offsets
    return rows, [b""] * len(rows)


def heap(where: str, count: str, span_ms: str) -> dict[str, Any]:
    """Set and advance timers in a heap of tuples: in memory, nothing durable."""
    dice = random.Random(1)
    held: list[tuple[int, int]] = []
    times = [START_MS + dice.randrange(int(span_ms)) for _ in range(int(count))]
    before = memory()["rss_mib"]
    began = time.perf_counter()
    for number, due_ms in enumerate(times):
        heapq.heappush(held, (due_ms, number))
    set_seconds = time.perf_counter() - began
    began = time.perf_counter()
    while held:
        heapq.heappop(held)
    return {
        "count": int(count),
        "set_per_second": round(int(count) / set_seconds),
        "advance_per_second": round(int(count) / (time.perf_counter() - began)),
        "rss_bytes_per_timer": round((memory()["peak_rss_mib"] - before) * 1024 * 1024 / int(count)),
    }


def sqlite(where: str, count: str, span_ms: str) -> dict[str, Any]:
    """Set and advance timers in a table clustered by due time: WAL, a synced commit per 10,000."""
    dice = random.Random(1)
    times = [(START_MS + dice.randrange(int(span_ms)), number) for number in range(int(count))]
    Path(where).mkdir()
    table = sqlite3.connect(Path(where) / "timers.db", isolation_level=None)
    table.execute("PRAGMA journal_mode=WAL")
    table.execute("PRAGMA synchronous=FULL")
    table.execute(
        "CREATE TABLE timers (due_ms INTEGER, number INTEGER, PRIMARY KEY (due_ms, number)) WITHOUT ROWID"
    )
    began = time.perf_counter()
    for first in range(0, len(times), SQLITE_BATCH):
        table.execute("BEGIN")
        table.executemany("INSERT INTO timers VALUES (?, ?)", times[first : first + SQLITE_BATCH])
        table.execute("COMMIT")
    set_seconds = time.perf_counter() - began
    began = time.perf_counter()
    first_rows = "SELECT due_ms, number FROM timers ORDER BY due_ms, number LIMIT ?"
    while rows := table.execute(first_rows, (SQLITE_BATCH,)).fetchall():
        table.execute("DELETE FROM timers WHERE (due_ms, number) <= (?, ?)", rows[-1])
    return {
        "count": int(count),
        "set_per_second": round(int(count) / set_seconds),
        "advance_per_second": round(int(count) / (time.perf_counter() - began)),
        **memory(),
    }
