"""What a checkpoint writes of the timers: partitions of time, names and ends, and the table of queues.

The snapshot names all these files with their lengths. So they are, together, as they were at one log offset.

Of the files that no snapshot names any more, those of times in doubt stay: damaged bytes held timers of these
times, and an older file may be the last that has their records. A time is in doubt from the moment in which
damage is met until a checkpoint begins after all was rebuilt, and so is durable; a rescue that fails ends no
doubt.
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
    """Which timers are not accounted for, as a checkpoint begins and since."""

    spans: list[Span] = field(default_factory=list)
    """The times in doubt as the checkpoint begins."""
    now: Callable[[], list[Span]] = list
    """Returns those in doubt at the call, in any thread: damage may be met during the checkpoint."""
    is_rescuing: bool = False
    """Whether a rescue is under way as the checkpoint begins; none begins before it is written."""


@dataclass(slots=True, eq=False)
class TimersToWrite:
    """The timers at one moment, for a checkpoint."""

    partitions: PartitionsToWrite
    ends: EndsToWrite
    source: TimerSource
    queues: QueueTable
    doubt: Doubt

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
        """Delete the files that neither this snapshot nor the one before it names, unless they are needed."""
        self.partitions.tidy(disk, [*self.doubt.spans, *self.doubt.now()])
        if not self.doubt.is_rescuing:  # a rescue reads the runs that there were when it began
            self.ends.tidy(disk)
