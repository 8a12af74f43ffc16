"""Writes the timer files of a checkpoint: time partitions, names, ends, and the queue table.

The snapshot lists all timer files with their lengths, so all files are consistent as of a single log offset.

A file that no snapshot lists is deleted unless it covers a time in doubt. A time is in doubt if timers due at
that time were in damaged bytes, because an older file may then have the last copy of their records. A time
remains in doubt from the detection of damage until the first checkpoint that begins after all timers due at
that time are rebuilt and durable, even if a rescue fails in between.
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
"""The name of the timers' part of a snapshot."""


@dataclass(slots=True, frozen=True)
class TimesInDoubt:
    """The times in doubt at the beginning of a checkpoint and during the checkpoint."""

    spans: list[Span] = field(default_factory=list)
    """The times in doubt when the checkpoint begins."""
    now: Callable[[], list[Span]] = list
    """A thread-safe function that returns the current times in doubt, which a checkpoint may extend."""
    is_rescuing: bool = False
    """Whether a rescue is running when the checkpoint begins; no rescue begins during a checkpoint."""


@dataclass(slots=True, eq=False)
class TimersToWrite:
    """The state of the timers at one moment, for a checkpoint."""

    partitions: PartitionsToWrite
    ends: EndsToWrite
    source: TimerSource
    queues: QueueTable
    doubt: TimesInDoubt

    def write(self, disk: Disk) -> None:
        """Write and sync the files, in a worker thread. Raise OSError."""
        self.partitions.write(disk, self.source.fetch)
        self.ends.write(disk)

    def freeze(self) -> Any:
        """Return the snapshot part, which is complete only after `write`."""
        return {
            "partitions": self.partitions.freeze(),
            "ends": self.ends.freeze(),
            "queues": self.queues.freeze(),
        }

    def tidy(self, disk: Disk) -> None:
        """Delete the files that neither the new snapshot nor the previous snapshot lists.

        Files that cover a time in doubt, or that a running rescue reads, are kept.
        """
        self.partitions.tidy(disk, [*self.doubt.spans, *self.doubt.now()])
        if not self.doubt.is_rescuing:  # A rescue reads the runs that existed at its beginning.
            self.ends.tidy(disk)
