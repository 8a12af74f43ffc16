"""How far behind the shared log a node reads, and how its clock differs from the engine's.

    lag in records    what the engine has, less what this node has read; asked for once in ASK_MS at most
    lag in ms         the age of the newest record that was read, none once a read has found no more; and
                      the time since that read
    skew              this node's clock less the engine's time of a record, the least of the newest SAMPLES
                      that were read as they came: too large by what a read takes, at most

Records that lay there before the node read on are no measure of its clock, so they count for the lag alone. A
leader reads nothing but at its takeover: its skew is of then, its lag none.

Weak spot: a lag in bytes no record tells: what a node has not read, it does not know the length of.
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


class Pace:
    """What the reads of one node have told; `clock` is wall time, `monotonic` never goes back, both in ms."""

    def __init__(self, clock: Callable[[], int], monotonic: Callable[[], int]) -> None:
        self._clock, self._monotonic = clock, monotonic
        self._read_ms: int | None = None
        self._asked_ms: int | None = None
        self._age_ms = 0
        self._lag_records = 0
        self._has_all = False
        self._skew_ms: int | None = None
        self._samples: deque[int] = deque(maxlen=SAMPLES)

    def read(self, found: list[Stored], end: Callable[[], int]) -> None:
        """Take in what a read has found; `end` asks for the offset behind the last record."""
        self._read_ms = now_ms = self._monotonic()
        if not found:
            self._has_all, self._age_ms, self._lag_records = True, 0, 0
            return
        newest, had_all = found[-1], self._has_all
        differs_ms = self._clock() - newest.appended_ms
        self._age_ms, self._has_all = max(0, differs_ms), False
        if had_all:
            self._samples.append(differs_ms)
            self._skew_ms = min(self._samples)  # here: another thread looks
        if self._asked_ms is None or now_ms - self._asked_ms >= ASK_MS:
            self._asked_ms = now_ms
            with suppress(Unknown):
                self._lag_records = max(0, end() - newest.offset - 1)

    def view(self, *, leads: bool) -> dict[str, Any]:
        """Return what is known, as JSON can hold it; None for what is not."""
        since_ms = None if self._read_ms is None else self._monotonic() - self._read_ms
        return {
            "lag_records": 0 if leads else self._lag_records,
            "lag_ms": 0 if leads else None if since_ms is None else self._age_ms + since_ms,
            "clock_skew_ms": self._skew_ms,
        }
