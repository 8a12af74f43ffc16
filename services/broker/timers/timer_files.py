"""Writes the timer files of a checkpoint: the time partitions, the names, the ends, and the queue table.

All timer files are listed in the snapshot with their lengths, so they are consistent as of a single log
offset.

A file that is not listed in any snapshot is deleted unless it covers a time in doubt. A time is in doubt if
timers that are due at that time were stored in a damaged part of a file. The last copies of the timer records
may then be in an older file. A time remains in doubt from the detection of the damage until the first
checkpoint that begins after all timers due at that time have been rebuilt and are durable. The failure of a
repair does not end this period.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from commitlog.disk import Disk
from services.broker.timers.timer_ends import EndsToWrite
from services.broker.timers.timer_source import QueueTable, TimerSource
from timingwheel.cascade import PartitionsToWrite, Span

TIMER_FILES: Final = "timer_files"
"""The name under which the timer files are listed in a snapshot."""


@dataclass(slots=True, frozen=True)
class TimesInDoubt:
    """The times that are in doubt when a checkpoint begins and while it is running."""

    spans: list[Span] = field(default_factory=list)
    """The times in doubt when the checkpoint begins."""
    now: Callable[[], list[Span]] = list
    """A thread-safe function that returns the times currently in doubt.

    The checkpoint may add further times.
    """
    is_rescuing: bool = False
    """Whether a repair is running when the checkpoint begins. No repair begins during a checkpoint."""


@dataclass(slots=True, eq=False)
class TimersToWrite:
    """A consistent state of all timers that is written by a checkpoint."""

    partitions: PartitionsToWrite
    ends: EndsToWrite
    source: TimerSource
    queues: QueueTable
    doubt: TimesInDoubt

    def write(self, disk: Disk) -> None:
        """Write and sync the files. This method runs in a worker thread. Raise OSError if the disk fails."""
        self.partitions.write(disk, self.source.fetch)
        self.ends.write(disk)

    def freeze(self) -> Any:
        """Return the state to be stored in a snapshot.

        The state is complete only after `write` has returned.
        """
        return {
            "partitions": self.partitions.freeze(),
            "ends": self.ends.freeze(),
            "queues": self.queues.freeze(),
        }

    def delete_unused(self, disk: Disk) -> None:
        """Delete the files that are listed neither in the new snapshot nor in the previous snapshot.

        Files that cover a time in doubt, or that are being read by a repair, are kept.
        """
        self.partitions.delete_unused(disk, [*self.doubt.spans, *self.doubt.now()])
        if not self.doubt.is_rescuing:  # A repair reads the runs that existed when it began.
            self.ends.delete_unused(disk)
