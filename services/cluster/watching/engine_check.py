"""Checks the engine's settings on the leader, at each takeover and periodically thereafter.

The check runs every CHECK_SECONDS, or every UNSAFE_CHECK_SECONDS while a setting is unsafe. The check also
runs on each node that waits for a response from the engine (`services.cluster.watching.unanswered`). If a
setting is unsafe, the leader refuses new messages with `EngineTrouble` and serves all other calls. If the
engine does not respond, the check has no effect, because appends then fail anyway.

An unsafe setting causes no immediate loss, but records may be lost in the next power failure. The leader
therefore continues to serve clients but refuses new messages until the setting is corrected.

Limitation: after an unsafe change of a setting, messages are still acknowledged until the next check.
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
from sharedlog.errors import EngineRefused, EngineUnavailable, Halted

CHECK_SECONDS: Final = 60.0
UNSAFE_CHECK_SECONDS: Final = 5.0
"""Check interval in seconds while a setting is unsafe, so that a correction is detected quickly."""
DOCTOR: Final = "Nothing else is refused. To look again: tidewheel cluster doctor URL"

log = structlog.get_logger()

Stop = Callable[[EngineTrouble | None], None]
"""Refuse new messages with the given error, or accept new messages again if the argument is None."""


class EngineCheck:
    """Checks the engine's settings.

    The function `trouble` returns the unsafe settings, and runs in a worker thread.
    """

    def __init__(
        self,
        trouble: Callable[[], list[str]],
        executor: Executor,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._ask, self._executor, self._pause = trouble, executor, pause
        self.trouble: list[str] = []
        """The unsafe settings that this node has found as the leader, with one sentence for each setting."""
        self._stop: Stop | None = None
        """The function that refuses new messages, or None if this node is not the leader."""

    @asynccontextmanager
    async def watching(self, stop: Stop, broken: Callable[[BaseException], None]) -> AsyncIterator[None]:
        """Check the engine periodically within the block. This node must be the leader.

        Unexpected errors are passed to `broken`.
        """
        self._stop = stop
        try:
            async with watched(self._watch(), broken):
                yield
        finally:
            self.trouble, self._stop = [], None

    async def _watch(self) -> None:
        while True:
            try:
                await self.check_once()
            except (EngineUnavailable, EngineRefused, Halted) as error:
                log.warning("the settings of the shared log are not known", reason=str(error))
            await self._pause(UNSAFE_CHECK_SECONDS if self.trouble else CHECK_SECONDS)

    async def check_once(self) -> list[str]:
        """Check the engine's settings once, and return the unsafe settings.

        On a leader, also refuse new messages or accept them again. Raise `EngineUnavailable`, `EngineRefused`
        or `Halted` if the engine cannot be checked. In this case, nothing changes.
        """
        found = await asyncio.get_running_loop().run_in_executor(self._executor, self._ask)
        if (stop := self._stop) is not None:
            self._apply_result(found, stop)
        return found

    def _apply_result(self, found: list[str], stop: Stop) -> None:
        if found != self.trouble:
            for sentence in found:
                log.error("the shared log is not kept as it must be: new messages are refused", why=sentence)
            if not found:
                log.warning("the shared log is kept as it must be: new messages are taken again")
        self.trouble = found
        stop(EngineTrouble(f"{' '.join(found)} {DOCTOR}") if found else None)
