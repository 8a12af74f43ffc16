"""Elapsed time, which is used for leases and is not affected by steps of the system clock.

    broker's time   10:00:00   10:00:10 | step forward by one hour | 11:00:10   11:00:20
    elapsed time    10:00:00   10:00:10 |                          | 10:00:10   10:00:20

A consumer measures the duration of a lease with its own clock, which is not affected by steps of the broker's
system clock. For this reason, `Lease.visible_ms`, `Lease.renewed_until_ms`, and the lease timers
(`services.broker.spine.scheduler`) use elapsed time while a core is in use. All other times are expressed in
the broker's time, including `leased_ms`, which is part of the receipt handle, and the times in responses and
records.

Rules:
- The core does not read a clock. Instead, the server compares the system clock with a monotonic clock before
  each call, and reports clock steps to the core (`Broker.record_clock_jump`, `services.live.clock`).
- Clock steps before startup are unknown, so elapsed time is equal to the broker's time at startup. Recovery
  treats the lease end times in records as elapsed times. Therefore, the remaining time of a lease after a
  restart depends on the system clock (`Leases.restore`).

Weak spot: a lease record contains the end time of the lease according to the broker's clock at the time of
writing. If the clock is changed after the record has been written, and the broker is then restarted, the
clock step is treated as elapsed time.
"""

from __future__ import annotations


class LeaseClock:
    """The sum of all clock steps since startup, in milliseconds. A step back counts as a negative number."""

    def __init__(self) -> None:
        self._steps_ms = 0

    def add_step(self, by_ms: int) -> None:
        """Add a step of the broker's clock, in milliseconds."""
        self._steps_ms += by_ms

    def to_elapsed_time(self, now_ms: int) -> int:
        """Convert a time of the broker's clock to elapsed time in milliseconds."""
        return now_ms - self._steps_ms

    def to_broker_time(self, elapsed_ms: int) -> int:
        """Convert an elapsed time to the broker's time in ms since 1970, for responses and records."""
        return elapsed_ms + self._steps_ms
