"""The scrub task of a leader, which verifies part of the shared log every LOOK_SECONDS seconds.

In each step, a worker thread checks the row counts and the record CRCs of a part of the log
(`sharedlog.scrub`). Each fault is logged once, and is reported by `/readyz`, `cluster status`, and a metric
until a later pass is complete. If the engine does not respond, the failure is logged, and the next step
resumes at the same record.

Weak spot: a fault may be detected as late as one full pass after it occurs. The scrub reports faults but does
not repair them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog

from services.process.event_loop import watched
from sharedlog.errors import Halted, Refused, Unknown
from sharedlog.scrub import DOCTOR, Scrub

LOOK_SECONDS: Final = 60.0
FIRST_SECONDS: Final = 5.0
"""The delay, in seconds, of the first step after a takeover, so that pending calls are served first."""

log = structlog.get_logger()


class LogScrubber:
    """The scrub of a shared log. At each takeover, `begin` returns the initial state of a new scrub."""

    def __init__(
        self,
        begin: Callable[[], Scrub],
        executor: Executor,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._begin, self._executor, self._pause = begin, executor, pause
        self._scrub: Scrub | None = None
        """The state of the scrub, or None if this node is not the leader."""

    @property
    def faults(self) -> list[str]:
        """Descriptions of the shared log faults that this node has found as leader."""
        return [] if self._scrub is None else self._scrub.faults

    def sentences(self) -> list[str]:
        """Return one sentence per shared log fault, for the response of `/readyz`."""
        return [f"the shared log is damaged: {one} {DOCTOR}" for one in self.faults]

    def view(self) -> dict[str, Any] | None:
        """Return the faults and the ages of the passes as a JSON value, or None on a follower."""
        return None if self._scrub is None else {"faults": self.faults} | self._scrub.ages()

    @asynccontextmanager
    async def watching(self, broken: Callable[[BaseException], None]) -> AsyncIterator[None]:
        """Scrub the log for the duration of the block.

        This node must be the leader within the block. An unexpected error is passed to `broken`.
        """
        self._scrub = scrub = self._begin()
        try:
            async with watched(self._watch(scrub), broken):
                yield
        finally:
            self._scrub = None

    async def _watch(self, scrub: Scrub) -> None:
        told: list[str] = []
        await self._pause(FIRST_SECONDS)
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, scrub.check_next_ranges)
            except (Unknown, Refused, Halted) as error:
                log.warning("the shared log's records were not looked at", reason=str(error))
            for one in scrub.faults:
                if one not in told:
                    log.error("the shared log is damaged", why=one, see=DOCTOR)
            if told and not scrub.faults:
                log.warning("the shared log has no fault any more")
            told = scrub.faults
            await self._pause(LOOK_SECONDS)
