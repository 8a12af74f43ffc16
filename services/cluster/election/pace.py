"""How far behind the shared log a node reads, and how its clock differs from the engine's.

    lag in records    what the engine has, less what this node has read; asked for once in ASK_MS at most
    lag in ms         the age of the newest record that was read, none once a read has found no more; and
                      the time since that read
    skew              this node's clock less the engine's

What a read has found is as new as the read at most, and what this node appended as old as the moment before
at least. So the engine's time of a record lies between two of a node's. Both are kept by the clock that never
goes back, the narrowest of the newest SAMPLES, and the wall clock is looked at when the skew is asked for: a
step of it shows at once.

    reads              when it was read, less the engine's time: the skew is at most so much
    own appends        when it began, less the engine's time: the skew is at least so much

A clock is off when that is proven, by more than OFF_MS. Who follows has no appends: whether it runs ahead or
all of SAMPLES reads were slow nobody knows, and it counts as off. Records that lay there before the node read
on are no measure of its clock, so they count for the lag alone.

Weak spot: a lag in bytes no record tells: what a node has not read, it does not know the length of. An engine
whose own clock steps is believed: then all nodes are off, and none better than another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from sharedlog.engine import Stored
from sharedlog.errors import Unknown

ASK_MS: Final = 1_000
SAMPLES: Final = 64
OFF_MS: Final = 2_000
"""By how much a clock differs that is off."""


class Pace:
    """What the reads of one node have told; `clock` is wall time, `monotonic` never goes back, both in ms."""

    def __init__(self, clock: Callable[[], int], monotonic: Callable[[], int]) -> None:
        self._clock, self._monotonic = clock, monotonic
        self._read_ms: int | None = None
        self._asked_ms: int | None = None
        self._age_ms = 0
        self._lag_records = 0
        self._has_all = False
        self._at_most: deque[int] = deque(maxlen=SAMPLES)
        self._at_least: deque[int] = deque(maxlen=SAMPLES)
        self._bounds_ms: tuple[int | None, int | None] = None, None
        """Between what the clock that never goes back, less the engine's, lies."""

    def read(self, found: list[Stored], end: Callable[[], int]) -> None:
        """Take in what a read has found; `end` asks for the offset behind the last record."""
        self._read_ms = now_ms = self._monotonic()
        if not found:
            self._has_all, self._age_ms, self._lag_records = True, 0, 0
            return
        newest, had_all = found[-1], self._has_all
        self._age_ms, self._has_all = max(0, self._clock() - newest.appended_ms), False
        if had_all:
            self._at_most.append(now_ms - newest.appended_ms)
            self._narrow()
        if self._asked_ms is None or now_ms - self._asked_ms >= ASK_MS:
            self._asked_ms = now_ms
            with suppress(Unknown):
                self._lag_records = max(0, end() - newest.offset - 1)

    def appended(self, began_ms: int, found: list[Stored]) -> None:
        """Take in the newest record, just read back, of a leader whose newest append began at `began_ms`."""
        if found:
            self._at_most.append(self._monotonic() - found[-1].appended_ms)
            self._at_least.append(began_ms - found[-1].appended_ms)
            self._narrow()

    def follows(self) -> None:
        """Take in that the node leads no more: its appends are of the past."""
        self._at_least.clear()
        self._narrow()

    def _narrow(self) -> None:
        """Keep the bounds for those that look from other threads."""
        self._bounds_ms = (
            max(self._at_least) if self._at_least else None,
            min(self._at_most) if self._at_most else None,
        )

    @property
    def skew_ms(self) -> int | None:
        """By how much the clock is ahead of the engine's, or less; None if nobody knows."""
        _, at_most = self._bounds_ms
        return None if at_most is None else at_most + self._ahead_ms()

    @property
    def is_off(self) -> bool:
        """Whether the clock is off."""
        at_least, at_most = self._bounds_ms
        if at_most is None:
            return False
        ahead_ms = self._ahead_ms()
        return at_most + ahead_ms < -OFF_MS or (at_most if at_least is None else at_least) + ahead_ms > OFF_MS

    def _ahead_ms(self) -> int:
        return self._clock() - self._monotonic()

    def view(self, *, leads: bool) -> dict[str, Any]:
        """Return what is known, as JSON can hold it; None for what is not."""
        since_ms = None if self._read_ms is None else self._monotonic() - self._read_ms
        return {
            "lag_records": 0 if leads else self._lag_records,
            "lag_ms": 0 if leads else None if since_ms is None else self._age_ms + since_ms,
            "clock_skew_ms": self.skew_ms,
            "clock_is_off": self.is_off,
        }
