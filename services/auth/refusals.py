"""Refused callers and reasons: counts per reason, and the latest refusals for operators.

`add` is called for each refused connection, call, or HTTP request. There are only a few fixed reasons,
because they are labels of a metric. Text from the caller belongs in `detail`, which is truncated. The memory
usage is bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from commitlog.limits import REFUSALS_KEPT

DETAIL_CHARACTERS_MAX: Final = 300
WHO_CHARACTERS_MAX: Final = 100


class Refusal(NamedTuple):
    """A refused caller: time (real time), reason, host, claimed user, and request."""

    at_ms: int
    reason: str
    host: str
    who: str
    detail: str


class Refusals:
    """The refusals since the start. `clock` returns real time in milliseconds."""

    def __init__(self, clock: Callable[[], int], kept_max: int = REFUSALS_KEPT) -> None:
        self._clock = clock
        self._kept: deque[Refusal] = deque(maxlen=kept_max)
        self.counts: Counter[str] = Counter()

    def add(self, reason: str, host: str, detail: str, who: str = "") -> None:
        """Record a refusal."""
        self.counts[reason] += 1
        one = Refusal(
            self._clock(),
            reason,
            host,
            printable(who, WHO_CHARACTERS_MAX),
            printable(detail, DETAIL_CHARACTERS_MAX),
        )
        self._kept.append(one)

    def latest(self, count_max: int = REFUSALS_KEPT, reason: str = "") -> list[Refusal]:
        """Return the latest refusals, optionally for one reason, newest first."""
        found = [one for one in reversed(self._kept) if reason in ("", one.reason)]
        return found[:count_max]


def printable(text: str, characters_max: int) -> str:
    """Return a truncated text without control characters."""
    cut = text[:characters_max]
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in cut)
