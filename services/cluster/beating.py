"""When a leader writes a BEAT, and what it says: one BEAT is under way at a time.

    an answer waits for a proof of leadership   at once (`services.live.durability`)
    an operator's order waits                   at once, a BEAT for each order, which says it
    the leader has news of itself               at the next tick
    nothing was written for BEAT_MS             at the next tick: a sign of life

Pure state: times come as arguments, by a clock that never goes back, in ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from services.cluster.silence import BEAT_MS


class Beat(NamedTuple):
    """A BEAT to be written; `order` is the number of the order that it says, None for a sign of life."""

    facts: dict[str, Any]
    order: int | None = None


class Beating:
    """The BEATs of one lead, whose newest proven append began at `proven_ms`."""

    def __init__(self, proven_ms: int) -> None:
        self.began_ms = self.proven_ms = proven_ms
        self.is_proof_wanted = False
        self._is_under_way = False
        self._orders: deque[Beat] = deque()

    @property
    def is_proven(self) -> bool:
        """Whether an append of this lead was proven, beyond the EPOCH itself."""
        return self.proven_ms > self.began_ms

    def ordered(self, number: int, facts: dict[str, Any]) -> None:
        """Take in facts that an operator wants written."""
        self._orders.append(Beat(facts, number))

    def proven(self, proven_ms: int) -> None:
        """Take in when the newest proven append began."""
        self.proven_ms = max(self.proven_ms, proven_ms)

    def ended(self, proven_ms: int) -> None:
        """Take in that the BEAT under way was proven."""
        self._is_under_way = False
        self.proven(proven_ms)

    def take_next(self, now_ms: int, news: Mapping[str, Any]) -> Beat | None:
        """Return the BEAT to be written now, which is under way from then on; None if there is none."""
        is_silent = now_ms - self.proven_ms >= BEAT_MS
        if self._is_under_way or not (self._orders or self.is_proof_wanted or news or is_silent):
            return None
        self._is_under_way, self.is_proof_wanted = True, False
        return self._orders.popleft() if self._orders else Beat(dict(news))
