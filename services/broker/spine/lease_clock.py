"""Convert between broker time and elapsed time, which is used for leases and ignores clock steps.

    broker time     10:00:00   10:00:10 | step forward by one hour | 11:00:10   11:00:20
    elapsed time    10:00:00   10:00:10 |                          | 10:00:10   10:00:20

A consumer measures a lease with the clock of its host. Steps of the broker clock must therefore not change
the duration of a lease. `Lease.visible_ms`, `Lease.renewed_until_ms`, and the lease timers
(`services.broker.spine.scheduler`) use elapsed time. All other times are in broker time, including
`leased_ms` in the receipt handle and the times in responses and records.

Rules:
- The core reads no clocks. Before each call, the server compares the system clock with a monotonic clock, and
  reports any steps to the core (`Broker.record_clock_jump`, `services.live.clock`).
- At startup, elapsed time equals broker time, because earlier clock steps are unknown. Recovery treats the
  recorded end of a lease as elapsed time. After a restart, the remaining time of a lease therefore depends on
  the system clock (`Leases.restore`).

Limitation: a lease record contains the end of the lease in broker time, as of the time at which the record
was written. If the clock is stepped later and the broker is restarted, the step is mistaken for elapsed time.
"""

from __future__ import annotations


class LeaseClock:
    """The sum of all clock steps since startup, in milliseconds. A backward step is negative."""

    def __init__(self) -> None:
        self._steps_ms = 0

    def add_step(self, by_ms: int) -> None:
        """Add a clock step of `by_ms` milliseconds."""
        self._steps_ms += by_ms

    def to_elapsed_time(self, now_ms: int) -> int:
        """Convert broker time to elapsed time. Both are in milliseconds."""
        return now_ms - self._steps_ms

    def to_broker_time(self, elapsed_ms: int) -> int:
        """Convert elapsed time to broker time, in milliseconds since the Unix epoch."""
        return elapsed_ms + self._steps_ms
