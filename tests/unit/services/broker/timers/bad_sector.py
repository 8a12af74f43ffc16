"""Timers on a disk with a bad sector, and time that passes while some reads of files are not done.

`go` lets time pass as `LiveBroker` does: it ticks, runs the jobs that read files of timers, flushes, and
writes a checkpoint when one is due. A job that `runs` leaves out, or that meets an error of the disk, has
failed, as it has where the process is out of descriptors.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EIO

from commitlog.disk.view import View
from services.broker.broker import Broker
from services.broker.spine.values import RunTimersJob
from tests.memory_disk import MemoryDisk
from tests.unit.services.broker.timers.test_timer_repair import IDS
from tests.unit.services.broker.timers.test_timers import DAY, HOUR, MINUTE, Store, by_id

TICKS = 60
"""More than any rescue here takes."""


class BadSector(MemoryDisk):
    """A disk that cannot read some bytes of a file, or nothing; `failing_count`: how often it cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.path, self.first, self.end = "none", 0, 1 << 62
        self.failing_count = 1 << 62
        self.is_dead = False

    def read(self, path: str, position: int, length: int) -> bytes:
        is_bad = path == self.path and position < self.end and position + length > self.first
        if self.is_dead or (is_bad and self.failing_count):
            self.failing_count -= 1
            raise OSError(EIO, "fails by the test", path)
        return super().read(path, position, length)

    def view(self, path: str) -> View:
        return View(lambda position, length: self.read(path, position, length), self.size(path))


def all_jobs(_: object) -> bool:
    return True


def no_jobs(_: object) -> bool:
    return False


def go(store: Store, by_ms: int = 0, runs: Callable[[object], bool] = all_jobs) -> int:
    """Let time pass, with the jobs that `runs` allows. Return how many jobs an error of the disk failed."""
    store.now_ms, failed_count = store.now_ms + by_ms, 0
    for _ in range(TICKS):
        for effect in store.broker.tick(store.now_ms):
            if isinstance(effect, RunTimersJob):
                failed_count += _do(store, effect, runs)
        store.flush()
        if store.broker.is_checkpoint_due:
            store.checkpoint()
    return failed_count


def _do(store: Store, effect: RunTimersJob, runs: Callable[[object], bool]) -> bool:
    """Do a job. Return whether an error of the disk failed it."""
    if not runs(effect.job):
        store.broker.requeue_timers_job(effect.job)
        return False
    try:
        effect.job.run(store.disk)
    except OSError:
        store.broker.requeue_timers_job(effect.job)
        return True
    store.broker.complete_timers_job(effect.job)
    return False


def drained(store: Store) -> list[str]:
    """Let all timers become due. Return the ids of all messages delivered, sorted."""
    for step_ms in (MINUTE, HOUR, 2 * HOUR, 2 * DAY, 60 * DAY):
        go(store, step_ms)
    return sorted(one.message_id for one in store.delivered())


def on_bad_sector() -> tuple[Store, BadSector]:
    """Return an empty store on such a disk, which reads everything as yet."""
    store, disk = Store(), BadSector()
    store.disk = disk
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    return store, disk


def filled() -> tuple[Store, BadSector]:
    """Return one as `test_timer_repair.filled`: timers in several files, of which one was cancelled since."""
    store, disk = on_bad_sector()
    for message_id, delay_ms in zip(IDS, (30 * 1_000, HOUR, DAY, 40 * DAY), strict=True):
        store.send(message_id, delay_ms, key=f"key {message_id}")
        store.send(f"{message_id} cancelled", delay_ms + 1)
    store.checkpoint()
    for message_id in IDS:
        store.broker.timers.cancel(by_id(f"{message_id} cancelled"), "", store.now_ms)
    store.checkpoint()
    return store, disk
