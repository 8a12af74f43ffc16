"""Detection of a wrong clock, this node's or the engine's, by comparing the skews of several nodes.

    the leader      each BEAT has its clock, and the engine records the time of the append
    a follower      reports its skew with its position (`followers`)

    this node's clock is off (`pace`), another's agrees      the engine's is off
    this node's clock is off, no other's agrees              this node's is off, or that is not known

The skew of another node counts for FRESH_MS. A wrong clock of the engine makes every node count as unfit, and
has no other effect: timers and leases use the clock of the leader.

Weak spot: two nodes whose clocks are off alike, as by one wrong time server, blame the engine. A BEAT that
waited for its append makes the leader's clock look slow by as much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from services.cluster.election.pace import OFF_MS, Pace
from sharedlog.engine import Stored
from sharedlog.record import Kind, SharedRecord

FRESH_MS: Final = 10_000
LOOK_SECONDS: Final = 5.0
LEADER: Final = "the leader"

log = structlog.get_logger()


class Clocks:
    """The skews of the clocks of this node and others against the engine's; `monotonic` in ms."""

    def __init__(self, pace: Pace, monotonic: Callable[[], int]) -> None:
        self._pace, self._monotonic = pace, monotonic
        self._told: dict[str, tuple[int, int]] = {}
        """By node: how far its clock is ahead of the engine's, in ms, and when that was reported."""

    def told(self, node: str, skew_ms: int) -> None:
        """Record the skew of another node."""
        self._told[node] = skew_ms, self._monotonic()

    def led(self, stored: Stored, record: SharedRecord | None) -> None:
        """Record the leader's clock from a BEAT that has it."""
        if record is not None and record.kind == Kind.BEAT and "clock_ms" in record.facts:
            self.told(LEADER, int(record.facts["clock_ms"]) - stored.appended_ms)

    async def watch(self, pause: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Log whenever the engine's clock becomes wrong or right, until cancelled."""
        was_off = False
        while True:
            await pause(LOOK_SECONDS)
            said = self.engine_is_off()
            if said and not was_off:
                log.error("the clock of the shared log's engine is off", why=said)
            if was_off and not said:
                log.warning("the clock of the shared log's engine is right again")
            was_off = bool(said)

    def engine_is_off(self) -> str:
        """Return the sentence that the engine's clock is off, and by how much; "" without proof."""
        skew_ms = self._pace.skew_ms
        if skew_ms is None or not self._pace.is_off:
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
