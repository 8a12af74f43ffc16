"""A leader looks at the shared log's records, a little each LOOK_SECONDS, and tells what is wrong with them.

    look       `sharedlog.scrub`, in a worker thread: rows by their numbers, records by their CRC
    a fault    is logged once; `/readyz`, `cluster status` and a metric have it until a later pass is whole
    no answer  is logged; the next look goes on where that one began

Weak spot: a fault is up to one pass old when it is told, and stops nothing.
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
"""How long a leader leads before it looks: what waited for a leader comes first."""

log = structlog.get_logger()


class Scrubbing:
    """The looks at one log; `begin` gives the state of those that a leader begins with."""

    def __init__(
        self,
        begin: Callable[[], Scrub],
        executor: Executor,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._begin, self._executor, self._pause = begin, executor, pause
        self._scrub: Scrub | None = None
        """The state of the looks; None while this node does not lead."""

    @property
    def faults(self) -> list[str]:
        """A sentence for each fault of the log, as far as this node has looked while it leads."""
        return [] if self._scrub is None else self._scrub.faults

    def sentences(self) -> list[str]:
        """Return what `/readyz` says of the log; nothing of one without a fault."""
        return [f"the shared log is damaged: {one} {DOCTOR}" for one in self.faults]

    def view(self) -> dict[str, Any] | None:
        """Return the faults and the looks' ages, as JSON can hold it; None while this node does not lead."""
        return None if self._scrub is None else {"faults": self.faults} | self._scrub.ages()

    @asynccontextmanager
    async def watching(self, broken: Callable[[BaseException], None]) -> AsyncIterator[None]:
        """Look during the block, in which this node leads; `broken` receives a bug."""
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
                await asyncio.get_running_loop().run_in_executor(self._executor, scrub.look)
            except (Unknown, Refused, Halted) as error:
                log.warning("the shared log's records were not looked at", reason=str(error))
            for one in scrub.faults:
                if one not in told:
                    log.error("the shared log is damaged", why=one, see=DOCTOR)
            if told and not scrub.faults:
                log.warning("the shared log has no fault any more")
            told = scrub.faults
            await self._pause(LOOK_SECONDS)
