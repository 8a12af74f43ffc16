"""Group commit: everything appended since the last flush goes to the sink at once (see `commitlog.sink`).

The writer never waits: records gather while flushes are under way, and the next flush takes them all. So
the number of records that share a sync grows with the load, and an idle log syncs each record at once.
Several flushes may be under way; the log is durable up to the end of the last one before which none is open.
On disk that is one write and one sync per segment. Only `Flush.write` touches it; the shell runs it in a
worker thread. It tells live readers, too, how far the log is on disk.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

from commitlog import layout
from commitlog.disk import Disk
from commitlog.sink import LogSink, Part


class Publisher:
    """What tells live readers how far the log is on disk, of flushes that end in any order; only forwards."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._count = 0
        self._epoch = self._epoch_count = self._accepted_count = 0
        self.flying: deque[Flush] = deque()
        """The flushes that are not published, in log order."""

    def ended(self) -> None:
        """Publish the flushes that are on disk and have only such before them; for one thread at a time."""
        ended: Flush | None = None
        while self.flying and self.flying[0].is_synced:
            is_next = ended is None or ended.end_offset == self.flying[0].first_offset
            assert is_next, "flushes are published out of order"
            ended = self.flying.popleft()
        if ended is not None:
            self.publish(ended.end_offset, ended.epoch)

    def publish(self, offset: int, epoch: int) -> None:
        """Tell live readers a durable offset; where the disk refuses that, the next flush tells more.

        Two lines take turns only when one was written: a torn one must not be the newer. Who sees an offset
        sees its epoch, or a newer one that has begun.
        """
        with suppress(OSError):
            self._publish_epoch(epoch)
            layout.publish_durable(self._disk, offset, self._count + 1)
            self._count += 1

    def publish_accepted(self, offset: int, epoch: int) -> None:
        """Tell live readers how far this log has taken in another one, synced or not."""
        with suppress(OSError):
            self._publish_epoch(epoch)
            layout.publish_accepted(self._disk, offset, self._accepted_count + 1)
            self._accepted_count += 1

    def _publish_epoch(self, epoch: int) -> None:
        if epoch > self._epoch:
            layout.publish_epoch(self._disk, epoch, self._epoch_count + 1)
            self._epoch, self._epoch_count = epoch, self._epoch_count + 1


@dataclass(slots=True, eq=False)
class Flush:
    """What one flush gives to the sink, and the log's end once it and those before it are durable."""

    sink: LogSink
    first_offset: int
    parts: list[Part]
    end_offset: int
    epoch: int
    """Under which all of it was appended."""
    makes_segment: bool
    """Whether a segment begins in it."""
    publisher: Publisher | None = None
    """Who is told that it is on disk; None: it is not synced."""
    is_synced: bool = False
    is_written: bool = False

    @property
    def sync(self) -> bool:
        """Whether what it writes is synced."""
        return self.publisher is not None

    def write(self, alone: AbstractContextManager[object] | None = None) -> None:
        """Hand the parts to the sink; raise OSError, after which nothing is certain.

        Where flushes are written by several threads, `alone` lets in one of them at a time.
        """
        parts_bytes = sum(map(len, self.parts))
        assert self.first_offset + parts_bytes == self.end_offset, "the parts of a flush have a gap"
        self.sink.append(self.first_offset, self.parts, self.epoch)
        if self.publisher is not None:
            with alone or nullcontext():
                self.is_synced = True
                self.publisher.ended()


@dataclass(slots=True, frozen=True)
class Sync:
    """Files to sync, and the log's end that is on disk then, with its epoch."""

    paths: list[str]
    end_offset: int
    epoch: int = 0

    def run(self, disk: Disk) -> None:
        """Sync the files, in a worker thread; raise OSError."""
        for path in self.paths:
            disk.sync(path)
