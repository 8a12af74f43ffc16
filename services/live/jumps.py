"""Whether somebody set the clock: wall time against a clock that only counts.

Both move alike; when wall time has moved by a second more or less than the other since the last look, it was
set. Small corrections, as time services make them, add up unnoticed: each look compares with the one before.
"""

from __future__ import annotations

from commitlog.limits import CLOCK_JUMP_MS_MIN


class Jumps:
    """The last look at both clocks, in milliseconds."""

    def __init__(self, wall_ms: int, counted_ms: float) -> None:
        self._ahead_ms = wall_ms - counted_ms

    def seen(self, wall_ms: int, counted_ms: float) -> int:
        """Look again; return by how many ms wall time was set forward (below 0: back), 0 if not at all."""
        ahead_ms = wall_ms - counted_ms
        jump_ms = round(ahead_ms - self._ahead_ms)
        self._ahead_ms = ahead_ms
        return jump_ms if abs(jump_ms) >= CLOCK_JUMP_MS_MIN else 0
