"""Writes a checkpoint's timer files: time partitions, names, ends, and the queue table.

The snapshot lists all timer files with their lengths, so they are consistent as of a single log offset.

A file that no snapshot lists is deleted unless it covers a time in doubt. A time is in doubt if timers due at
that time were in a damaged part of a file. The last copies of their records may then be in an older file. The
time remains in doubt until all its timers have been rebuilt and made durable and a later checkpoint has
begun. A failed repair leaves the time in doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from commitlog.disk.disk import Disk
from services.broker.timers.timer_ends import EndsToWrite
from services.broker.timers.timer_source import QueueTable, TimerSource
from timingwheel.cascade import PartitionsToWrite, Span

TIMER_FILES: Final = "timer_files"
"""The snapshot key of the timer files."""


@dataclass(slots=True, frozen=True)
class UncertainTimes:
    """The times in doubt at the start of a checkpoint and during it."""

    spans: list[Span] = field(default_factory=list)
    """The times in doubt when the checkpoint begins."""
    now: Callable[[], list[Span]] = list
    """Returns the times currently in doubt, from any thread.

    The checkpoint may add more times.
    """
    is_repairing: bool = False
    """Whether a repair is running when the checkpoint begins. None begins during it."""


@dataclass(slots=True, eq=False)
class TimersToWrite:
    """A consistent state of all timers for a checkpoint."""

    partitions: PartitionsToWrite
    ends: EndsToWrite
    source: TimerSource
    queues: QueueTable
    doubt: UncertainTimes

    def write(self, disk: Disk) -> None:
        """Write and sync the files in a worker thread. Raise OSError if the disk fails."""
        self.partitions.write(disk, self.source.fetch)
        self.ends.write(disk)

    def freeze(self) -> Any:
        """Return the state for a snapshot. It is complete only after `write`."""
        return {
            "partitions": self.partitions.freeze(),
            "ends": self.ends.freeze(),
            "queues": self.queues.freeze(),
        }

    def delete_unused(self, disk: Disk) -> None:
        """Delete the files that neither the new nor the previous snapshot lists.

        Files that cover a time in doubt, or that a repair is reading, are kept.
        """
        self.partitions.delete_unused(disk, [*self.doubt.spans, *self.doubt.now()])
        if not self.doubt.is_repairing:  # A repair reads the runs that existed when it began.
            self.ends.delete_unused(disk)
