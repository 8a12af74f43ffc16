"""Group commit.

A flush writes all records appended since the previous flush.

An append does not wait for a flush. Records appended while flushes are in progress are added to the next
flush, so the number of records per sync grows with the load. At low load, each record is synced immediately.
Several flushes may be in progress. The log is durable up to the start of the first incomplete flush. A flush
requires one write and one sync per segment (`commitlog.log.sink`). `Flush.write` runs in a worker thread. It
also publishes the durable offset to processes that read the live log.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.log.sink import LogSink, Part


class Publisher:
    """Publishes the durable offset.

    The published offset never decreases, even if flushes complete out of order.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._count = 0
        self._epoch = self._epoch_count = self._accepted_count = 0
        self.flying: deque[Flush] = deque()
        """Flushes that are not published yet, in log order."""

    def ended(self) -> None:
        """Publish the end of the last flush that precedes all incomplete ones.

        The caller must serialize all calls.
        """
        ended: Flush | None = None
        while self.flying and self.flying[0].is_synced:
            is_next = ended is None or ended.end_offset == self.flying[0].first_offset
            assert is_next, "flushes are published out of order"
            ended = self.flying.popleft()
        if ended is not None:
            self.publish(ended.end_offset, ended.epoch)

    def publish(self, offset: int, epoch: int) -> None:
        """Publish a durable offset to processes that read the live log.

        A failed write is ignored, because the next flush publishes a new offset. Only a successful write
        switches to the other line of the file, so a failed write never destroys the newer line. A process
        that reads an offset also sees the epoch of that offset or a later epoch that has begun.
        """
        with suppress(OSError):
            self._publish_epoch(epoch)
            layout.publish_durable(self._disk, offset, self._count + 1)
            self._count += 1

    def publish_accepted(self, offset: int, epoch: int) -> None:
        """Publish the offset up to which a follower has copied the cluster's log.

        The copy may not be synced yet.
        """
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
    """The parts of a flush, and the end of the log after the flush."""

    sink: LogSink
    first_offset: int
    parts: list[Part]
    end_offset: int
    epoch: int
    """Epoch of all parts."""
    makes_segment: bool
    """Whether a segment begins in this flush."""
    publisher: Publisher | None = None
    """Publishes the durable offset. None if the flush is not synced."""
    is_synced: bool = False
    is_written: bool = False

    @property
    def sync(self) -> bool:
        """Whether writing the parts also syncs them."""
        return self.publisher is not None

    def write(self, alone: AbstractContextManager[object] | None = None) -> None:
        """Pass the parts to the sink.

        After OSError, the state of the parts on the disk is unknown. If several threads write flushes,
        `alone` must be a lock that protects the update of the durable offset.
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
    """A sync of files. It makes the log durable up to `end_offset`, where the current epoch is `epoch`."""

    paths: list[str]
    end_offset: int
    epoch: int = 0

    def run(self, disk: Disk) -> None:
        """Sync the files in a worker thread. Raise OSError if a sync fails."""
        for path in self.paths:
            disk.sync(path)
