"""Whose clock is off, this node's or the engine's? Nodes tell each other how theirs differ from the engine's.

    the leader      each BEAT has its clock, and the engine notes when it took it
    a follower      tells its skew beside its position (`followers`)

    this node's clock is off (`pace`), another's is alike    the engine's is off
    this node's clock is off, no other's is alike            this node's is off, or that is not known

The word of another counts for FRESH_MS. An engine whose clock is off changes nothing but that every node
counts as unfit: timers and leases go by the clock of the leader.

Weak spot: two nodes whose clocks are off alike, as by one wrong time server, blame the engine. A BEAT that
waited for its append makes the leader's clock look behind by as much.
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
    """How the clocks of this node and of others differ from the engine's; `monotonic` never goes back."""

    def __init__(self, pace: Pace, monotonic: Callable[[], int]) -> None:
        self._pace, self._monotonic = pace, monotonic
        self._told: dict[str, tuple[int, int]] = {}
        """By node: by how much its clock is ahead of the engine's, in ms, and when that was told."""

    def told(self, node: str, skew_ms: int) -> None:
        """Take in the skew of another node."""
        self._told[node] = skew_ms, self._monotonic()

    def led(self, stored: Stored, record: SharedRecord | None) -> None:
        """Take in what a record says of the leader's clock, if it does."""
        if record is not None and record.kind == Kind.BEAT and "clock_ms" in record.facts:
            self.told(LEADER, int(record.facts["clock_ms"]) - stored.appended_ms)

    async def watch(self, pause: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Log each change of whether the engine's clock is off, until cancelled."""
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
        """Return that the engine's clock is off, and by how much; empty where nothing proves that."""
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
