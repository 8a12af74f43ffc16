"""What a checkpoint writes of the timers: partitions of time, names and ends, and the table of queues.

The snapshot names all these files with their lengths. So they are, together, as they were at one log offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from commitlog.disk import Disk
from services.broker.timer_ends import EndsToWrite
from services.broker.timer_source import QueueTable, TimerSource
from timingwheel.cascade import PartitionsToWrite

TIMER_FILES: Final = "timer_files"
"""The name of the timers' part of a snapshot."""


@dataclass(slots=True, eq=False)
class TimersToWrite:
    """The timers at one moment, for a checkpoint."""

    partitions: PartitionsToWrite
    ends: EndsToWrite
    source: TimerSource
    queues: QueueTable
    keeps_files: bool
    """Whether a rescue reads what no snapshot names; the next checkpoint deletes it."""

    def write(self, disk: Disk) -> None:
        """Write and sync; in a worker thread. Raise OSError."""
        self.partitions.write(disk, self.source.fetch)
        self.ends.write(disk)

    def freeze(self) -> Any:
        """Return what the snapshot keeps, once the files are written."""
        return {
            "partitions": self.partitions.freeze(),
            "ends": self.ends.freeze(),
            "queues": self.queues.freeze(),
        }

    def tidy(self, disk: Disk) -> None:
        """Delete the files that neither this snapshot nor the one before it names, unless they are read."""
        if self.keeps_files:
            return
        self.partitions.tidy(disk)
        self.ends.tidy(disk)
