"""Whether somebody set the system clock: it is compared with a clock that only counts, at each call.

Both move alike. What the system clock has gained or lost since the last step is a step when it is
`STEP_MS_MIN` or more; so corrections that are smaller, as time services make them, are added up until they
are. A suspended machine counts no time: when it wakes, its clock has been set forward by the span of its
sleep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STEP_MS_MIN: Final = 20
"""More than the two reads of one look are ever apart, but for a process that is stopped between them."""
_LOOKS: Final = 3


class Jumps:
    """How far a system clock is ahead of one that counts; both return ms."""

    def __init__(self, wall_ms: Callable[[], int], counted_ms: Callable[[], float]) -> None:
        self._wall_ms, self._counted_ms = wall_ms, counted_ms
        self._ahead_ms = self.begun_ahead_ms = 0.0
        self.begin()

    def begin(self) -> None:
        """Count no step from before now."""
        self._ahead_ms = self.begun_ahead_ms = self._look()

    def seen(self, wall_ms: int) -> int:
        """Return by how many ms the clock, just read, was set forward; below 0: back, 0: not at all."""
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
