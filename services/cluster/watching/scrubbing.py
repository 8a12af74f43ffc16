"""The leader's scrub task, which verifies a part of the shared log every POLL_SECONDS.

In each step, a worker thread verifies the number of rows and the CRCs of the records in a part of the log
(`sharedlog.scrub`). Each fault is logged once. A fault is also reported by `/readyz`, by `cluster status` and
by a metric until a later pass completes. If the engine does not respond, the failure is logged, and the next
step resumes at the same record.

Limitation: detecting a fault may require a full pass. The scrub does not repair faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog

from services.process.event_loop import watched
from sharedlog.errors import EngineRefused, EngineUnavailable, Halted
from sharedlog.scrub import DOCTOR, Scrub

POLL_SECONDS: Final = 60.0
FIRST_SECONDS: Final = 5.0
"""Delay in seconds before the first step after a takeover. Pending calls are served during this delay."""

log = structlog.get_logger()


class LogScrubber:
    """Scrubs a shared log. The function `begin` returns the state of a new scrub at each takeover."""

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
        """The faults of the shared log that this node has found as the leader."""
        return [] if self._scrub is None else self._scrub.faults

    def sentences(self) -> list[str]:
        """Return one sentence for each fault, for the response to `/readyz`."""
        return [f"the shared log is damaged: {one} {DOCTOR}" for one in self.faults]

    def view(self) -> dict[str, Any] | None:
        """Return the faults and the age of each pass as a JSON value, or None on a follower."""
        return None if self._scrub is None else {"faults": self.faults} | self._scrub.ages()

    @asynccontextmanager
    async def watching(self, broken: Callable[[BaseException], None]) -> AsyncIterator[None]:
        """Scrub the shared log within the block. This node must be the leader.

        Unexpected errors are passed to `broken`.
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
            except (EngineUnavailable, EngineRefused, Halted) as error:
                log.warning("the shared log's records were not looked at", reason=str(error))
            for one in scrub.faults:
                if one not in told:
                    log.error("the shared log is damaged", why=one, see=DOCTOR)
            if told and not scrub.faults:
                log.warning("the shared log has no fault any more")
            told = scrub.faults
            await self._pause(POLL_SECONDS)
