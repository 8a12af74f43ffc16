"""The shipped core on a real disk, driven as by `services.live`, but without a loop and on any clock.

    send_many, tick --> core --> flushes, checkpoints, read-ahead in worker threads --> completed in the core

The rules are those of `services.live.flushing`: a flush takes everything gathered, several are in flight at
a time, none begins while a checkpoint is due and another flush is in flight, and a checkpoint is written by a
worker while the core continues, up to a bound.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from commitlog import limits
from commitlog.disk.real_disk import RealDisk
from commitlog.log.flush import Flush
from commitlog.records.message import Message
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Effect, RunTimersJob
from services.process.memory import keep_little

BATCH = 1_000
TOPIC = "reminders"
BODY = bytes(range(256))
DAY_MS = 86_400_000
UNFLUSHED_BYTES_MAX = 8 * 1024 * 1024

Clock = Callable[[], int]


def real_ms() -> int:
    """Return wall time in milliseconds."""
    return time.time_ns() // 1_000_000


def memory_mib(name: str) -> float:
    """Return a memory figure of this process in MiB: VmRSS, RssAnon, or VmHWM for the peak of VmRSS."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024, 1)


def memory() -> dict[str, float]:
    """Return the current and the peak resident memory of this process."""
    return {"rss_mib": memory_mib("VmRSS"), "peak_rss_mib": memory_mib("VmHWM")}


def disk_bytes(root: Path) -> dict[str, int]:
    """Return the bytes on disk of each top-level folder of a store.

    Files directly in `root` are not counted, for example the preallocated `reserve`.
    """
    found: dict[str, int] = {}
    for folder, _, names in os.walk(root):
        if folder != str(root):
            part = Path(folder).relative_to(root).parts[0]
            taken = sum((Path(folder) / name).stat().st_blocks * 512 for name in names)
            found[part] = found.get(part, 0) + taken
    return found


def message(number: int, due_ms: int) -> Message:
    """Return a delayed message of 256 bytes with an id of a client's length and a unique key."""
    return Message(
        topic=TOPIC,
        body=BODY,
        message_id=f"M{number:033d}",
        delivery_ms=due_ms,
        properties={"TW_TIMER_KEY": f"order-{number}"},
        born_ms=due_ms - 1,
    )


class Shell:
    """A core over the store in `root` with the time of `clock`; or an already `opened` one."""

    def __init__(
        self, root: Path, clock: Clock = real_ms, opened: tuple[RealDisk, Broker] | None = None
    ) -> None:
        keep_little()
        root.mkdir(parents=True, exist_ok=True)
        self.disk = RealDisk(root) if opened is None else opened[0]
        self.clock = clock
        self._pool = ThreadPoolExecutor(limits.FLUSHES_IN_FLIGHT_MAX + 1)
        self._ended: SimpleQueue[tuple[Callable[[], None], BaseException | None]] = SimpleQueue()
        self._under_way_count = self._flying_count = 0
        self._is_checkpointing = False
        self.checkpoint_count, self.checkpoint_seconds = 0, 0.0
        self.core = Broker.open(self.disk, BrokerSettings(), clock()) if opened is None else opened[1]

    def turn(self) -> None:
        """Run due work, complete the finished jobs of the workers, and submit new ones."""
        due_ms = self.core.next_due_ms()
        if due_ms is not None and due_ms <= self.clock():
            self._carry_out(self.core.tick(self.clock()))
        while self._take_up(wait=False):
            pass
        self._begin()
        while self.core.end_offset - self.core.durable_offset > UNFLUSHED_BYTES_MAX:
            self._take_up(wait=True)
            self._begin()

    def durable(self) -> None:
        """Wait until all appended records are durable."""
        wanted = self.core.end_offset
        self._begin()
        while self.core.durable_offset < wanted:
            self._take_up(wait=True)
            self._begin()

    def settle(self) -> None:
        """Wait until the workers have no more jobs."""
        self._begin()
        while self._under_way_count:
            self._take_up(wait=True)
            self._begin()

    def checkpoint(self) -> None:
        """Write a checkpoint now, as at a clean stop."""
        self.settle()
        self.core.checkpoint(self.clock()).write(self.disk)

    def close(self) -> None:
        """Wait for the workers, and close the store."""
        self.settle()
        self._pool.shutdown()
        self.disk.close()

    def _begin(self) -> None:
        while not self._is_held() and (flush := self.core.take_flush()) is not None:
            self._flying_count += 1
            self._give(flush.write, partial(self._flushed, flush))
        self._calm()

    def _calm(self) -> None:
        is_calm = self._flying_count == 0 and not self._is_checkpointing
        if is_calm and self.core.is_checkpoint_due:
            self._checkpoint()

    def _is_held(self) -> bool:
        if self._is_checkpointing and self.core.is_checkpoint_overdue:
            return True
        return self._flying_count > 0 and self.core.is_checkpoint_due

    def _flushed(self, flush: Flush) -> None:
        self._flying_count -= 1
        self._carry_out(self.core.complete_flush(flush, self.clock()))
        self._calm()

    def _checkpoint(self) -> None:
        last = self.core.take_flush()
        if last is not None:
            last.write()
            self._carry_out(self.core.complete_flush(last, self.clock()))
        checkpoint, began = self.core.checkpoint(self.clock()), time.perf_counter()
        self._is_checkpointing = True

        def written() -> None:
            self._is_checkpointing = False
            self.checkpoint_count += 1
            self.checkpoint_seconds += time.perf_counter() - began
            self.core.complete_checkpoint(checkpoint)

        self._give(partial(checkpoint.write, self.disk), written)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, RunTimersJob):
                then = partial(self.core.complete_timers_job, effect.job)
                self._give(partial(effect.job.run, self.disk), then)

    def _give(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Run `work` in a worker, and then `then` in this thread (`_take_up`)."""

        def run() -> None:
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:
                error = raised
            self._ended.put((then, error))

        self._under_way_count += 1
        self._pool.submit(run)

    def _take_up(self, *, wait: bool) -> bool:
        try:
            then, error = self._ended.get(block=wait)
        except Empty:
            return False
        self._under_way_count -= 1
        if error is not None:
            raise error
        then()
        return True


def held(where: str, count: str) -> dict[str, Any]:
    """Open a store with `count` pending timers; return the anonymous memory of this process."""
    shell = Shell(Path(where))
    assert shell.core.gauges().pending_timers == int(count)
    return {"rss_anon_mib": memory_mib("RssAnon"), "pending": int(count)}
