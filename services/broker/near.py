"""Timers due within seconds, in the wheel; and when exactly a timer counts as due.

A timer's *sort key* is (sort_ms, timer_offset); `sort_ms` is its due time, nearly always. All timers are
delivered in the order of their sort keys, and that of the last one, the watermark, tells a restart what is
done (`timingwheel.partitions`). So a timer that is set when its time is already past gets the time of the
watermark instead, never an earlier one.

After the clock was set back, the watermark lies in the future. Timers set then are delivered at their own
time, but are sorted on disk at the watermark; `Near.deviating` remembers their `sort_ms` until they end. It
follows this broker's own clock: another broker with the same log, or this one after a restart, may choose
another. So records name timers by their due times, and sort keys are asked of here.
"""

from __future__ import annotations

from typing import Any

from commitlog.limits import CLOCK_BACK_MS_MIN
from timingwheel.wheel import Wheel


class Near:
    """The wheel of the timers that are due soon."""

    def __init__(self) -> None:
        self._wheel = Wheel(0)
        self._seen_ms = 0
        self.deviating: dict[int, int] = {}

    def __contains__(self, timer_offset: int) -> bool:
        return timer_offset in self._wheel

    def assign_sort_ms(self, timer_offset: int, due_ms: int, free_ms: int) -> int:
        """Choose the `sort_ms` of a new timer: its due time, but `free_ms` at least."""
        sort_ms = max(due_ms, free_ms, self._wheel.now_ms)
        if sort_ms != due_ms:
            self.deviating[timer_offset] = sort_ms
        return sort_ms

    def sort_ms(self, timer_offset: int, due_ms: int) -> int:
        """Return the `sort_ms` of a timer that waits."""
        return self.deviating.get(timer_offset, due_ms)

    def put(self, timer_offset: int, due_ms: int) -> None:
        """Sets a timer, for its own time or at once."""
        self._wheel.schedule(timer_offset, due_ms)

    def end(self, timer_offset: int, due_ms: int) -> int:
        """Forget a timer, if the wheel has it; return its `sort_ms`."""
        self._wheel.cancel(timer_offset)
        return self.deviating.pop(timer_offset, due_ms)

    def take(self, until_ms: int, count_max: int) -> list[tuple[int, int]]:
        """Up to `count_max` timers due by `until_ms`, in order: (due time, offset)."""
        return self._wheel.advance(until_ms, count_max)

    def next_due_ms(self) -> int | None:
        """When the next one may be due."""
        return self._wheel.next_due_ms()

    def follow(self, now_ms: int) -> int:
        """Learns the time; returns by how much the clock was set back since the last look."""
        back_ms = self._seen_ms - now_ms
        if back_ms > CLOCK_BACK_MS_MIN:
            self._wheel = self._wheel.rebased(min(self._wheel.now_ms, now_ms))
        self._seen_ms = now_ms
        return max(0, back_ms)

    def freeze(self) -> Any:
        """What a snapshot keeps: the rest is in the partitions."""
        return list(self.deviating.items())

    def thaw(self, frozen: Any) -> None:
        """Takes a snapshot's part over."""
        self.deviating = dict(frozen)
