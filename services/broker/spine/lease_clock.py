"""Elapsed time, the time base of leases: the broker's time without the steps of the system clock.

    broker's time   10:00:00   10:00:10 | set an hour forward | 11:00:10   11:00:20
    elapsed         10:00:00   10:00:10 |                     | 10:00:10   10:00:20

A consumer measures a lease with its own clock, which is not affected by steps of the broker's system clock.
Therefore `Lease.visible_ms`, `Lease.renewed_until_ms`, and the timers that end leases
(`services.broker.spine.scheduler`) use elapsed time while a core runs. Times other than lease ends are in the
broker's time, including `leased_ms`, which is part of the receipt handle, and the times in answers and
records.

Rules:
- The core reads no clock. The shell compares the system clock with a monotonic clock at each call, and
  reports a step before the call (`Broker.clock_jumped`, `services.live.clock`).
- No steps are known at startup, so elapsed time begins at the broker's time. Recovery reads the lease ends in
  records as elapsed time, so the remaining time after a restart depends on the system clock
  (`Leases.restore`).

Weak spot: a lease record contains the end of the lease in the broker's time at the time of writing. If the
clock is set after the record was written and the broker then restarts, the step counts as elapsed time.
"""

from __future__ import annotations


class LeaseClock:
    """The sum of the clock's steps since startup, in ms, or a negative sum if the clock was set back."""

    def __init__(self) -> None:
        self._steps_ms = 0

    def add_step(self, by_ms: int) -> None:
        """Add a step of the broker's clock."""
        self._steps_ms += by_ms

    def to_elapsed_time(self, now_ms: int) -> int:
        """Convert a time of the broker's clock to elapsed time, in ms."""
        return now_ms - self._steps_ms

    def to_broker_time(self, elapsed_ms: int) -> int:
        """Convert an elapsed time to the broker's time, in ms since 1970, for answers and records."""
        return elapsed_ms + self._steps_ms
