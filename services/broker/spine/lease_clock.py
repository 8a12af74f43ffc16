"""Elapsed time for leases, unaffected by system clock steps.

    broker's time   10:00:00   10:00:10 | step forward by one hour | 11:00:10   11:00:20
    elapsed time    10:00:00   10:00:10 |                          | 10:00:10   10:00:20

A consumer measures its lease with its own clock, so steps of the broker's clock must not change the lease.
`Lease.visible_ms`, `Lease.renewed_until_ms`, and the lease timers (`services.broker.spine.scheduler`)
therefore use elapsed time. All other times are broker time, including `leased_ms` in the receipt handle and
the times in responses and records.

Rules:
- The core reads no clocks. Before each call, the server compares the system clock with a monotonic clock, and
  reports any steps to the core (`Broker.record_clock_jump`, `services.live.clock`).
- At startup, elapsed time equals broker time, because earlier clock steps are unknown. Recovery treats
  recorded lease end times as elapsed time. After a restart, a lease's remaining time thus depends on the
  system clock (`Leases.restore`).

Limitation: a lease record contains the lease's end according to the broker's clock at the time of writing. If
the clock then changes and the broker is restarted, the change is mistaken for elapsed time.
"""

from __future__ import annotations


class LeaseClock:
    """The sum of all clock steps since startup, in milliseconds. Steps back are negative."""

    def __init__(self) -> None:
        self._steps_ms = 0

    def add_step(self, by_ms: int) -> None:
        """Add a clock step in milliseconds."""
        self._steps_ms += by_ms

    def to_elapsed_time(self, now_ms: int) -> int:
        """Convert broker time to elapsed time in milliseconds."""
        return now_ms - self._steps_ms

    def to_broker_time(self, elapsed_ms: int) -> int:
        """Convert elapsed time to broker time in milliseconds since the Unix epoch."""
        return elapsed_ms + self._steps_ms
