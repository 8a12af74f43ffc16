"""Elapsed time, by which leases end: the broker's time without the steps by which the system clock was set.

    broker's time   10:00:00   10:00:10 | set an hour forward | 11:00:10   11:00:20
    elapsed         10:00:00   10:00:10 |                     | 10:00:10   10:00:20

A consumer counts the span of its lease by a clock of its own, which no step of this machine's clock moves.
So `Lease.visible_ms` and `Lease.renewed_until_ms` are elapsed time while a core runs, and so are the timers
that end leases (`services.broker.spine.scheduler`). All else is the broker's time: `leased_ms`, which is a
part of the handle, and what callers and records are told.

Rules:
- The core reads no clock: the shell compares its two clocks at each call and tells of a step before the call
  (`Broker.clock_jumped`, `services.live.clock`).
- A start counts no steps yet: elapsed time begins as the broker's time. What records say of a lease's end is
  read as that, so that a restart goes by the system clock (`Leases.restore`).

Weak spot: a record of a lease tells its end by the clock of when it was written. If the clock is set after
that, and then the broker restarts, the step counts as time that has passed.
"""

from __future__ import annotations


class LeaseClock:
    """How far the broker's clock has been set forward since the start, in ms; below 0 it was set back."""

    def __init__(self) -> None:
        self._steps_ms = 0

    def step(self, by_ms: int) -> None:
        """Count a step of the broker's clock."""
        self._steps_ms += by_ms

    def elapsed(self, now_ms: int) -> int:
        """Return a broker's time as elapsed time, in ms."""
        return now_ms - self._steps_ms

    def told(self, elapsed_ms: int) -> int:
        """Return an elapsed time as the broker's time, in ms since 1970: for callers and records."""
        return elapsed_ms + self._steps_ms
