"""Elapsed time, by which leases end: the broker's time without the steps of the system clock.

    broker's time   10:00:00   10:00:10 | set an hour forward | 11:00:10   11:00:20
    elapsed         10:00:00   10:00:10 |                     | 10:00:10   10:00:20

A consumer measures its lease with its own clock, which steps of this machine's clock do not affect. So
`Lease.visible_ms` and `Lease.renewed_until_ms` are in elapsed time while a core runs, and so are the timers
that end leases (`services.broker.spine.scheduler`). All other times are the broker's: `leased_ms`, which is
part of the handle, and the times in answers and records.

Rules:
- The core reads no clock: the shell compares its two clocks at each call and reports a step before the call
  (`Broker.clock_jumped`, `services.live.clock`).
- A start counts no steps yet: elapsed time begins as the broker's time. Lease ends in records are read as
  elapsed time, so a restart follows the system clock (`Leases.restore`).

Weak spot: a lease record has its end in the broker's time at its writing. If the clock is set after that, and
the broker then restarts, the step counts as elapsed time.
"""

from __future__ import annotations


class LeaseClock:
    """The sum of the broker's clock steps since the start, in ms; negative if it was set back."""

    def __init__(self) -> None:
        self._steps_ms = 0

    def step(self, by_ms: int) -> None:
        """Add a step of the broker's clock."""
        self._steps_ms += by_ms

    def elapsed(self, now_ms: int) -> int:
        """Convert a broker's time to elapsed time, in ms."""
        return now_ms - self._steps_ms

    def told(self, elapsed_ms: int) -> int:
        """Convert an elapsed time to the broker's time, in ms since 1970, for answers and records."""
        return elapsed_ms + self._steps_ms
