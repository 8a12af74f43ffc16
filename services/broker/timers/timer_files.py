"""Write the timer files of a checkpoint: time partitions, names, ends, and the queue table.

The snapshot lists all timer files with their lengths. The files are therefore consistent as of a single log
offset.

A file that no snapshot lists is deleted unless it covers a time in doubt. A time is in doubt if timers due at
that time were in a damaged part of a file, because an older file may contain the last copies of their
records. The time remains in doubt until all affected timers have been rebuilt and are durable, and a later
checkpoint has begun. After a failed repair, the time remains in doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from commitlog.disk.disk import Disk
from services.broker.timers.timer_ends import CheckpointTimerEnds
from services.broker.timers.timer_source import QueueTable, TimerSource
from timingwheel.cascade import PartitionsToWrite, Span

TIMER_FILES: Final = "timer_files"
"""The key of the timer files in a snapshot."""


@dataclass(slots=True, frozen=True)
class UncertainTimes:
    """The times in doubt at the start of a checkpoint and during it."""

    spans: list[Span] = field(default_factory=list)
    """The times in doubt when the checkpoint begins."""
    now: Callable[[], list[Span]] = list
    """Return the times that are currently in doubt.

    This function may be called from any thread. The checkpoint itself may add times in doubt.
    """
    is_repairing: bool = False
    """Whether a repair is running when the checkpoint begins. No repair begins during a checkpoint."""


@dataclass(slots=True, eq=False)
class CheckpointTimers:
    """A consistent state of all timers for a checkpoint."""

    partitions: PartitionsToWrite
    ends: CheckpointTimerEnds
    source: TimerSource
    queues: QueueTable
    doubt: UncertainTimes

    def write(self, disk: Disk) -> None:
        """Write and sync the files in a worker thread. Raise OSError if the disk fails."""
        self.partitions.write(disk, self.source.fetch)
        self.ends.write(disk)

    def freeze(self) -> Any:
        """Return the state for a snapshot. The state is complete only after `write`."""
        return {
            "partitions": self.partitions.freeze(),
            "ends": self.ends.freeze(),
            "queues": self.queues.freeze(),
        }

    def delete_unused(self, disk: Disk) -> None:
        """Delete the files that are listed in neither the new nor the previous snapshot.

        Keep the files that cover a time in doubt, and the files that a repair is reading.
        """
        self.partitions.delete_unused(disk, [*self.doubt.spans, *self.doubt.now()])
        if not self.doubt.is_repairing:  # A repair reads the runs that existed when it began.
            self.ends.delete_unused(disk)
