"""Detects steps of the system clock by comparison with a monotonic clock.

Both clocks run at the same rate. If the difference between the clocks has changed by `STEP_MS_MIN` or more
since the last step, the change is a new step. Smaller corrections, such as those of NTP, accumulate until
their sum reaches `STEP_MS_MIN`. The monotonic clock stops while the machine is suspended, so the suspension
appears as a forward step of the system clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STEP_MS_MIN: Final = 20
"""The minimum step, which exceeds the time between two clock reads unless the process is suspended."""
_LOOKS: Final = 3


class ClockSteps:
    """The lead of a system clock over a monotonic clock; both clocks return ms."""

    def __init__(self, wall_ms: Callable[[], int], counted_ms: Callable[[], float]) -> None:
        self._wall_ms, self._counted_ms = wall_ms, counted_ms
        self._ahead_ms = self.begun_ahead_ms = 0.0
        self.begin()

    def begin(self) -> None:
        """Ignore all steps before this call."""
        self._ahead_ms = self.begun_ahead_ms = self._measure_lead()

    def detect_step(self, wall_ms: int) -> int:
        """Return the step of the system clock at the reading `wall_ms` in ms; a backward step is negative."""
        if abs(wall_ms - self._counted_ms() - self._ahead_ms) < STEP_MS_MIN:
            return 0
        # A pause between the reads of the two clocks makes the system clock appear behind, never ahead.
        ahead_ms = max(self._measure_lead() for _ in range(_LOOKS))
        step_ms = round(ahead_ms - self._ahead_ms)
        if abs(step_ms) < STEP_MS_MIN:
            return 0
        self._ahead_ms += step_ms
        return step_ms

    def _measure_lead(self) -> float:
        return self._wall_ms() - self._counted_ms()
