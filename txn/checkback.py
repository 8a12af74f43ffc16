"""When to ask a producer what became of its half message.

A half is left alone for its immunity, then asked about with growing pauses, at most `count_max` times;
after the last unanswered check it expires. Only checks that reached a producer count: with no producer
connected the half just waits. Pauses: interval, doubled each time, at most `interval_ms_max`.
"""

from __future__ import annotations

from dataclasses import dataclass

from commitlog import limits


@dataclass(slots=True, frozen=True)
class CheckBackPolicy:
    """The pauses of check-backs in milliseconds, and how many there are at most."""

    immunity_ms: int = limits.CHECK_IMMUNITY_MS
    interval_ms: int = limits.CHECK_INTERVAL_MS
    interval_ms_max: int = limits.CHECK_INTERVAL_MS_MAX
    count_max: int = limits.CHECK_COUNT_MAX

    def first_check_ms(self, stored_ms: int, immunity_ms: int | None) -> int:
        """When a half stored at `stored_ms` is first asked about; its own immunity goes before ours."""
        return stored_ms + (self.immunity_ms if immunity_ms is None else immunity_ms)

    def next_check_ms(self, asked_ms: int, check_count: int) -> int:
        """When to look again after check number `check_count` was sent at `asked_ms`."""
        pause_ms = self.interval_ms << min(check_count - 1, 32)
        return asked_ms + min(pause_ms, self.interval_ms_max)

    def is_exhausted(self, check_count: int) -> bool:
        """Whether a half with this many checks expires instead of being asked again."""
        return check_count >= self.count_max
