"""Detection of system clock steps by comparison with a monotonic clock.

Both clocks run at the same rate. A change of at least `STEP_MS_MIN` in the difference between the clocks is
reported as a step. Smaller corrections, such as those made by NTP, accumulate and are reported as one step
when the total reaches `STEP_MS_MIN`. The monotonic clock stops while the machine is suspended, so a
suspension is reported as a forward step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STEP_MS_MIN: Final = 20
"""Minimum size of a step in milliseconds.

This value exceeds the time between two consecutive clock readings in a running process.
"""
_READINGS: Final = 3


class ClockSteps:
    """Detects system clock steps by comparing the clock with a monotonic clock.

    Both clocks return the time in milliseconds.
    """

    def __init__(self, wall_ms: Callable[[], int], counted_ms: Callable[[], float]) -> None:
        self._wall_ms, self._counted_ms = wall_ms, counted_ms
        self._ahead_ms = self.lead_at_begin_ms = 0.0
        self.begin()

    def begin(self) -> None:
        """Ignore all clock steps before this call."""
        self._ahead_ms = self.lead_at_begin_ms = self._measure_lead()

    def detect_step(self, wall_ms: int) -> int:
        """Return the clock step in milliseconds at the clock reading `wall_ms`, or 0 if there is none.

        A backward step is returned as a negative number.
        """
        if abs(wall_ms - self._counted_ms() - self._ahead_ms) < STEP_MS_MIN:
            return 0
        # A pause between the readings of the two clocks can only reduce the measured difference.
        ahead_ms = max(self._measure_lead() for _ in range(_READINGS))
        step_ms = round(ahead_ms - self._ahead_ms)
        if abs(step_ms) < STEP_MS_MIN:
            return 0
        self._ahead_ms += step_ms
        return step_ms

    def _measure_lead(self) -> float:
        return self._wall_ms() - self._counted_ms()
