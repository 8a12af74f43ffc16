"""Measures the lag of a node behind the shared log, and its clock skew relative to the engine.

    lag in records    the number of records in the engine minus the number of records that this node has read,
                      measured at most once every LAG_QUERY_MS
    lag in ms         the age of the newest record when it was read, or zero after a read without new records,
                      plus the time since that read
    skew              this node's clock minus the engine's clock

The engine sets the timestamp of a record after the append has started and before any read returns the record.
The timestamp is therefore between two times that the node can measure. Both skew bounds are relative to the
monotonic clock, and are the tightest among the last SAMPLES records. A jump of the wall clock is detected
immediately, because the wall clock is read only when the skew is requested.

    reads              the time of the read minus the engine's timestamp is an upper bound of the skew
    own appends        the start of the append minus the engine's timestamp is a lower bound of the skew

A clock is off if the bounds prove a difference of more than OFF_MS. A follower cannot distinguish a fast
clock from SAMPLES consecutive slow reads, because it appends no records. In both cases, the follower
considers its clock to be off. The skew is measured only from records read after the node has caught up.

Limitation: the lag in bytes is unknown, because the sizes of unread records are unknown. If the engine's
clock jumps, the clocks of all nodes appear to be off, and no node is preferred as the leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from sharedlog.engine import Stored
from sharedlog.errors import EngineUnavailable

LAG_QUERY_MS: Final = 1_000
SAMPLES: Final = 64
OFF_MS: Final = 2_000
"""Difference from the engine's clock, in milliseconds, above which a clock is off."""


class LagAndSkew:
    """The lag and the clock skew of a node.

    The function `clock` returns the wall-clock time, and `monotonic` returns the monotonic time, both in
    milliseconds.
    """

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
        """The lower and upper bounds of the monotonic clock minus the engine's clock, in milliseconds."""

    def record_read(self, found: list[Stored], end: Callable[[], int]) -> None:
        """Record the result of a read. The function `end` returns the end offset of the engine's log."""
        self._read_ms = now_ms = self._monotonic()
        if not found:
            self._has_all, self._age_ms, self._lag_records = True, 0, 0
            return
        newest, had_all = found[-1], self._has_all
        self._age_ms, self._has_all = max(0, self._clock() - newest.appended_ms), False
        if had_all:
            self._at_most.append(now_ms - newest.appended_ms)
            self._recompute_bounds()
        if self._asked_ms is None or now_ms - self._asked_ms >= LAG_QUERY_MS:
            self._asked_ms = now_ms
            with suppress(EngineUnavailable):
                self._lag_records = max(0, end() - newest.offset - 1)

    def record_own_append(self, began_ms: int, found: list[Stored]) -> None:
        """Update a leader's bounds from the newest record, which it has just read back.

        The argument `began_ms` is the monotonic start time of the last confirmed append.
        """
        if found:
            self._at_most.append(self._monotonic() - found[-1].appended_ms)
            self._at_least.append(began_ms - found[-1].appended_ms)
            self._recompute_bounds()

    def drop_append_bounds(self) -> None:
        """Discard the bounds that this node derived from its own appends as the leader."""
        self._at_least.clear()
        self._recompute_bounds()

    def _recompute_bounds(self) -> None:
        """Recompute both bounds, and publish them to other threads in a single atomic assignment."""
        self._bounds_ms = (
            max(self._at_least) if self._at_least else None,
            min(self._at_most) if self._at_most else None,
        )

    @property
    def skew_ms(self) -> int | None:
        """The upper bound of the clock skew in milliseconds, or None if the skew is unknown."""
        _, at_most = self._bounds_ms
        return None if at_most is None else at_most + self._ahead_ms()

    @property
    def is_clock_skewed(self) -> bool:
        """Whether this node's clock differs from the engine's clock by more than OFF_MS."""
        at_least, at_most = self._bounds_ms
        if at_most is None:
            return False
        ahead_ms = self._ahead_ms()
        return at_most + ahead_ms < -OFF_MS or (at_most if at_least is None else at_least) + ahead_ms > OFF_MS

    def _ahead_ms(self) -> int:
        return self._clock() - self._monotonic()

    def view(self, *, leads: bool) -> dict[str, Any]:
        """Return the lag and the skew as a JSON-serializable dictionary, with None for unknown values."""
        since_ms = None if self._read_ms is None else self._monotonic() - self._read_ms
        return {
            "lag_records": 0 if leads else self._lag_records,
            "lag_ms": 0 if leads else None if since_ms is None else self._age_ms + since_ms,
            "clock_skew_ms": self.skew_ms,
            "clock_is_off": self.is_clock_skewed,
        }
