"""Implements group commit.

Each flush passes to the sink all records that have been appended since the previous flush.

Appending a record does not wait for a flush. Records that are appended during flushes in progress are written
by the next flush. As a result, the number of records per sync increases with the load. If the load is low,
each record is synced immediately. Several flushes may be in progress at the same time. The log is durable up
to the beginning of the first incomplete flush. A flush requires one write and one sync for each segment that
it writes to (`commitlog.sink`). `Flush.write` runs in a worker thread, and also publishes the durable offset
to processes that read the live log.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

from commitlog import layout
from commitlog.disk import Disk
from commitlog.sink import LogSink, Part


class Publisher:
    """Publishes the durable offset.

    The durable offset never decreases, even if flushes are completed in a different order.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._count = 0
        self._epoch = self._epoch_count = self._accepted_count = 0
        self.flying: deque[Flush] = deque()
        """The flushes that have not been published yet, in log order."""

    def ended(self) -> None:
        """Publish the end offset of the last flush before the first incomplete flush.

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

        A failed write is ignored, because the next flush publishes a later offset. The next call writes to
        the other line of the file only if this write succeeds, so that a failed write never destroys the
        newer line. A process that reads an offset also obtains the epoch of the offset, or a later epoch that
        has already begun.
        """
        with suppress(OSError):
            self._publish_epoch(epoch)
            layout.publish_durable(self._disk, offset, self._count + 1)
            self._count += 1

    def publish_accepted(self, offset: int, epoch: int) -> None:
        """Publish the offset up to which a follower has copied the cluster's log.

        The copied part of the log may not have been synced yet.
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
    """The parts of one flush, and the offset at which the log ends after the flush."""

    sink: LogSink
    first_offset: int
    parts: list[Part]
    end_offset: int
    epoch: int
    """The epoch in which all of the parts were appended."""
    makes_segment: bool
    """True if a segment begins in this flush."""
    publisher: Publisher | None = None
    """The publisher of the durable offset, or None if the flush is not synced."""
    is_synced: bool = False
    is_written: bool = False

    @property
    def sync(self) -> bool:
        """True if the parts are synced when they are written."""
        return self.publisher is not None

    def write(self, alone: AbstractContextManager[object] | None = None) -> None:
        """Pass the parts of the flush to the sink.

        If OSError is raised, the state of the parts on disk is unknown. If several threads write flushes,
        `alone` must be a lock that prevents concurrent updates of the durable offset.
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
    """A sync of files. After the sync, the log is on disk up to `end_offset`, where its epoch is `epoch`."""

    paths: list[str]
    end_offset: int
    epoch: int = 0

    def run(self, disk: Disk) -> None:
        """Sync the files in a worker thread, or raise OSError if a sync fails."""
        for path in self.paths:
            disk.sync(path)
