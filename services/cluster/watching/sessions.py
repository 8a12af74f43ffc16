"""Trial sessions: a periodic check that the engine still accepts new sessions of this node.

    accepted   tried again after TRY_SECONDS
    refused    reported (log, `/readyz`, `cluster status`, a metric), tried again after AGAIN_SECONDS

The engine never checks the password of an open session again. So a node with an outdated password continues
until the engine restarts or the network fails, and then all nodes fail at once. The same holds for a rule of
pg_hba.conf, a role without LOGIN, and a limit of connections.

Cost: a short session of the engine in TRY_SECONDS a node, and a thread meanwhile: for some 15 s at most. Weak
spot: refusals between two trials are not detected.
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
    """The trials of one node; `attempt` opens and closes a session, in a worker thread."""

    def __init__(
        self,
        attempt: Callable[[], object],
        executor: Executor,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._attempt, self._executor, self._pause = attempt, executor, pause
        self.refused = ""
        """Why the last trial was refused; "" if it succeeded."""

    def sentences(self) -> list[str]:
        """Return the sentences for `/readyz`; none while sessions are accepted."""
        if not self.refused:
            return []
        return [
            f"the engine opens no new session, so this node is out once those that stand end: {self.refused}"
        ]

    def view(self) -> dict[str, Any]:
        """Return the state, for JSON."""
        return {"sessions_refused": self.refused}

    async def watch(self) -> None:
        """Repeat the trials until cancelled."""
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
