"""Timers due within seconds, in the wheel; and when exactly a timer counts as due.

A timer's *place* is (its due time, its offset). All timers are delivered in the order of their places, and
the place of the last one, the watermark, tells a restart what is done (`timingwheel.partitions`). So a timer
that is set when its time is already past takes a place at the watermark instead, never behind it.

After the clock was set back, the watermark lies in the future. Timers set then are delivered at their own
time, but their place on disk is still at the watermark; `Near.deviating` remembers where until they end.
A place is where this broker has put a timer, by its own clock: another one with the same log, or this one
after a restart, may choose another. So records name timers by their due times, and places are asked of here.
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

    def place_ms(self, timer_offset: int, due_ms: int, free_ms: int) -> int:
        """The due time of a new timer's place, which lies at `free_ms` at least."""
        place_ms = max(due_ms, free_ms, self._wheel.now_ms)
        if place_ms != due_ms:
            self.deviating[timer_offset] = place_ms
        return place_ms

    def placed_ms(self, timer_offset: int, due_ms: int) -> int:
        """The due time of the place of a timer that waits."""
        return self.deviating.get(timer_offset, due_ms)

    def put(self, timer_offset: int, due_ms: int) -> None:
        """Sets a timer, for its own time or at once."""
        self._wheel.place(timer_offset, due_ms)

    def end(self, timer_offset: int, due_ms: int) -> int:
        """Forgets a timer, if it is among these; returns the due time of its place."""
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
