"""Would the engine let this node in again? A session is tried now and then, while those that stand go on.

    let in     tried again after TRY_SECONDS
    refused    told (log, `/readyz`, `cluster status`, a metric), tried again after AGAIN_SECONDS

A session that stands is never asked for its password again, so that a node with a password of before goes on,
and is out with the next restart of the engine, or cut of the network: all nodes at once. The same goes for a
rule of pg_hba.conf, a role without LOGIN, and a limit of connections.

Cost: one session of the engine in TRY_SECONDS a node, for a moment, and a thread for as long as that takes:
some 15 s at most. Weak spot: what is refused between two tries nobody knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final

import structlog

from sharedlog.errors import Halted, Refused, Unknown

TRY_SECONDS: Final = 30.0
AGAIN_SECONDS: Final = 5.0

log = structlog.get_logger()


class Sessions:
    """The tries of one node; `attempt` opens a session and ends it, in a worker thread."""

    def __init__(
        self,
        attempt: Callable[[], object],
        executor: Executor,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._attempt, self._executor, self._pause = attempt, executor, pause
        self.refused = ""
        """Why no session was opened when it was tried last; empty if one was."""

    def sentences(self) -> list[str]:
        """Return what `/readyz` says of that; nothing where sessions are opened."""
        if not self.refused:
            return []
        return [
            f"the engine opens no new session, so this node is out once those that stand end: {self.refused}"
        ]

    def view(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {"sessions_refused": self.refused}

    async def watch(self) -> None:
        """Try for ever."""
        while True:
            await self._pause(AGAIN_SECONDS if self.refused else TRY_SECONDS)
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, self._attempt)
            except (Unknown, Refused, Halted) as error:
                self._took(error.detail or str(error))
            else:
                self._took("")

    def _took(self, refused: str) -> None:
        if refused and refused != self.refused:
            log.error("the engine of the shared log opens no new session", why=refused)
        if self.refused and not refused:
            log.warning("the engine of the shared log opens sessions again")
        self.refused = refused
