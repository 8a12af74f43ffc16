"""Compares the clock skews of several nodes to detect a wrong clock on this node or on the engine.

    leader      writes its clock time to BEAT records; the engine records the time of the append
    follower    reports its clock skew with its position (`followers`)

    this node's clock is off (`lag_and_skew`)       conclusion
    and the clock of another node agrees            the engine's clock is wrong
    but no other clock agrees                       this node's clock may be wrong

A reported skew is valid for FRESH_MS after its arrival. If the engine's clock is off, every node appears
unfit to lead. There is no other effect, because timers and leases use the leader's clock.

Limitation: if two nodes' clocks are wrong by the same amount, for example because of a faulty time server,
the engine's clock is reported as wrong. If a BEAT append is delayed, the leader's clock appears to be slow by
the duration of the delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from services.cluster.election.lag_and_skew import OFF_MS, LagAndSkew
from sharedlog.engine import Stored
from sharedlog.record import Kind, SharedRecord

FRESH_MS: Final = 10_000
POLL_SECONDS: Final = 5.0
LEADER: Final = "the leader"

log = structlog.get_logger()


class ClockComparison:
    """The clock skew of each node relative to the engine. The function `monotonic` returns milliseconds."""

    def __init__(self, pace: LagAndSkew, monotonic: Callable[[], int]) -> None:
        self._lag_and_skew, self._monotonic = pace, monotonic
        self._told: dict[str, tuple[int, int]] = {}
        """The last reported clock skew and its arrival time in milliseconds, by node name."""

    def record_skew(self, node: str, skew_ms: int) -> None:
        """Record another node's clock skew in milliseconds."""
        self._told[node] = skew_ms, self._monotonic()

    def record_leader_clock(self, stored: Stored, record: SharedRecord | None) -> None:
        """Record the leader's clock skew if `record` is a BEAT record with a clock time."""
        if record is not None and record.kind == Kind.BEAT and "clock_ms" in record.facts:
            self.record_skew(LEADER, int(record.facts["clock_ms"]) - stored.appended_ms)

    async def watch(self, pause: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Log a message when the engine's clock goes wrong or is right again, until the task is cancelled."""
        was_off = False
        while True:
            await pause(POLL_SECONDS)
            said = self.engine_clock_warning()
            if said and not was_off:
                log.error("the clock of the shared log's engine is off", why=said)
            if was_off and not said:
                log.warning("the clock of the shared log's engine is right again")
            was_off = bool(said)

    def engine_clock_warning(self) -> str:
        """Return a warning if other nodes' clocks show that the engine's clock is wrong, or "" otherwise."""
        skew_ms = self._lag_and_skew.skew_ms
        if skew_ms is None or not self._lag_and_skew.is_clock_skewed:
            return ""
        since_ms = self._monotonic() - FRESH_MS
        alike = [
            node
            for node, (skew, told_ms) in sorted(self._told.items())
            if told_ms >= since_ms and abs(skew - skew_ms) < OFF_MS and skew * skew_ms > 0
        ]
        if not alike:
            return ""
        which = "behind" if skew_ms > 0 else "ahead of"
        return (
            f"the engine's clock is {abs(skew_ms) / 1000:.1f} s {which} those of this node and of "
            f"{' and '.join(alike)}, which agree: set the engine's right"
        )
