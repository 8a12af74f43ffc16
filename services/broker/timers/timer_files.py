"""The timer files of a checkpoint: partitions of time, names and ends, and the table of queues.

The snapshot names all these files with their lengths, so they are consistent as of one log offset.

Of the files that no snapshot names any more, those of times in doubt are kept: damaged bytes contained timers
of these times, and an older file may have the last copy of their records. A time is in doubt from the
detection of damage until a checkpoint begins after all its timers are rebuilt and durable; a failed rescue
does not change that.
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
class Doubt:
    """The timers in doubt, when a checkpoint begins and later."""

    spans: list[Span] = field(default_factory=list)
    """The times in doubt when the checkpoint begins."""
    now: Callable[[], list[Span]] = list
    """Returns the current times in doubt, in any thread: a checkpoint may find damage."""
    is_rescuing: bool = False
    """Whether a rescue is running when the checkpoint begins; none begins before it is written."""


@dataclass(slots=True, eq=False)
class TimersToWrite:
    """The timers at one moment, for a checkpoint."""

    partitions: PartitionsToWrite
    ends: EndsToWrite
    source: TimerSource
    queues: QueueTable
    doubt: Doubt

    def write(self, disk: Disk) -> None:
        """Write and sync, in a worker thread. Raise OSError."""
        self.partitions.write(disk, self.source.fetch)
        self.ends.write(disk)

    def freeze(self) -> Any:
        """Return the snapshot part, once the files are written."""
        return {
            "partitions": self.partitions.freeze(),
            "ends": self.ends.freeze(),
            "queues": self.queues.freeze(),
        }

    def tidy(self, disk: Disk) -> None:
        """Delete files that neither this snapshot nor the one before it names, unless they are needed."""
        self.partitions.tidy(disk, [*self.doubt.spans, *self.doubt.now()])
        if not self.doubt.is_rescuing:  # a rescue reads the runs that existed when it began
            self.ends.tidy(disk)
