"""Detection of steps of the system clock, by comparison with a monotonic clock at each call.

Both clocks run at the same rate. A difference of `STEP_MS_MIN` or more since the last step is a new step;
smaller corrections, as NTP makes them, add up until they reach it. The monotonic clock stops while the
machine is suspended: on resume, the system clock has stepped forward by the length of the suspension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STEP_MS_MIN: Final = 20
"""Longer than the time between the two reads of a look, unless the process is stopped between them."""
_LOOKS: Final = 3


class Jumps:
    """The lead of a system clock over a monotonic clock; both return ms."""

    def __init__(self, wall_ms: Callable[[], int], counted_ms: Callable[[], float]) -> None:
        self._wall_ms, self._counted_ms = wall_ms, counted_ms
        self._ahead_ms = self.begun_ahead_ms = 0.0
        self.begin()

    def begin(self) -> None:
        """Ignore steps before now."""
        self._ahead_ms = self.begun_ahead_ms = self._look()

    def seen(self, wall_ms: int) -> int:
        """Return the step of the clock, just read, in ms: above 0 forward, below 0 back, 0 no step."""
        if abs(wall_ms - self._counted_ms() - self._ahead_ms) < STEP_MS_MIN:
            return 0
        # A pause between the two reads makes the clock seem behind, never ahead.
        ahead_ms = max(self._look() for _ in range(_LOOKS))
        step_ms = round(ahead_ms - self._ahead_ms)
        if abs(step_ms) < STEP_MS_MIN:
            return 0
        self._ahead_ms += step_ms
        return step_ms

    def _look(self) -> float:
        return self._wall_ms() - self._counted_ms()
