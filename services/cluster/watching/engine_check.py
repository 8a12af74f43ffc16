"""Is the engine of the shared log set as it must be? A leader asks when it takes over, and then for ever.

    asked      at each takeover, then every CHECK_SECONDS; every TROUBLED_SECONDS while there is trouble; and
               by any node to which the engine owes an answer (`services.cluster.watching.unanswered`)
    trouble    new messages are refused with it (`EngineTrouble`); what ends messages goes on
    none       new messages are taken
    no answer  changes nothing: that the engine is away, the appends tell

A setting that turned bad takes nothing away from what lies there, and may cost it with the next power cut:
so the leader goes on, and promises nothing more.

Weak spot: what was sent between the moment when a setting turned bad and the next check was promised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Final

import structlog

from services.cluster.errors import EngineTrouble
from services.process.event_loop import watched
from sharedlog.errors import Halted, Refused, Unknown

CHECK_SECONDS: Final = 60.0
TROUBLED_SECONDS: Final = 5.0
"""How long a check waits for the next one while there is trouble: who has mended it wants to go on."""
DOCTOR: Final = "Nothing else is refused. To look again: tidewheel cluster doctor URL"

log = structlog.get_logger()

Stop = Callable[[EngineTrouble | None], None]
"""Refuse new messages with an error; None: take them again."""


class EngineCheck:
    """The watch over one engine; `trouble` asks it, in a worker thread."""

    def __init__(
        self,
        trouble: Callable[[], list[str]],
        executor: Executor,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._ask, self._executor, self._pause = trouble, executor, pause
        self.trouble: list[str] = []
        """What is wrong with it, as far as this node has asked while it leads."""
        self._stop: Stop | None = None
        """To refuse new messages, while this node leads."""

    @asynccontextmanager
    async def watching(self, stop: Stop, broken: Callable[[BaseException], None]) -> AsyncIterator[None]:
        """Watch during the block, in which this node leads; `broken` receives a bug."""
        self._stop = stop
        try:
            async with watched(self._watch(), broken):
                yield
        finally:
            self.trouble, self._stop = [], None

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except (Unknown, Refused, Halted) as error:
                log.warning("the settings of the shared log are not known", reason=str(error))
            await self._pause(TROUBLED_SECONDS if self.trouble else CHECK_SECONDS)

    async def look(self) -> list[str]:
        """Ask once; while this node leads, stop new messages or take them again. Return what is wrong.

        Raise `Unknown`, `Refused` or `Halted`, which change nothing.
        """
        found = await asyncio.get_running_loop().run_in_executor(self._executor, self._ask)
        if (stop := self._stop) is not None:
            self._take(found, stop)
        return found

    def _take(self, found: list[str], stop: Stop) -> None:
        if found != self.trouble:
            for sentence in found:
                log.error("the shared log is not kept as it must be: new messages are refused", why=sentence)
            if not found:
                log.warning("the shared log is kept as it must be: new messages are taken again")
        self.trouble = found
        stop(EngineTrouble(f"{' '.join(found)} {DOCTOR}") if found else None)
