"""Whom the broker has sent away, and why: counted by reason, the last ones kept for people to look at.

`add` is called by whatever refuses: a connection, a call, a request over HTTP. Reasons are few and fixed, for
they become labels of a metric; what the other side wrote belongs into `detail`, which is cut. Nobody can fill
the memory with it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from commitlog.limits import REFUSALS_KEPT

DETAIL_CHARACTERS_MAX: Final = 300
WHO_CHARACTERS_MAX: Final = 100


class Refusal(NamedTuple):
    """Somebody who was sent away: when (real time), why, who it said it was, and what it wanted."""

    at_ms: int
    reason: str
    host: str
    who: str
    detail: str


class Refusals:
    """The refusals since the start; `clock` is real time in milliseconds."""

    def __init__(self, clock: Callable[[], int], kept_max: int = REFUSALS_KEPT) -> None:
        self._clock = clock
        self._kept: deque[Refusal] = deque(maxlen=kept_max)
        self.counts: Counter[str] = Counter()

    def add(self, reason: str, host: str, detail: str, who: str = "") -> None:
        """Note one."""
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
        """Return the last ones, or the last ones for a reason, the newest first."""
        found = [one for one in reversed(self._kept) if reason in ("", one.reason)]
        return found[:count_max]


def printable(text: str, characters_max: int) -> str:
    """Return a text that a terminal can be shown, cut where it is long."""
    cut = text[:characters_max]
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in cut)
