"""A periodic check that the engine still accepts new sessions of this node.

    accepted   tried again after TRY_SECONDS
    refused    reported (log, `/readyz`, `cluster status`, a metric), tried again after AGAIN_SECONDS

The engine checks the password of a session only when the session is opened. Therefore, nodes with an outdated
password continue until the engine restarts or the network fails, and then all nodes fail at once. A changed
rule of pg_hba.conf, a role without LOGIN, or a connection limit has the same effect.

Cost: one short session of the engine for each node in TRY_SECONDS, which occupies a thread for at most some
15 s. Weak spot: refusals between two trials are not detected.
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


class SessionTrials:
    """The trials of one node; a worker thread calls `attempt`, which opens and closes a session."""

    def __init__(
        self,
        attempt: Callable[[], object],
        executor: Executor,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._attempt, self._executor, self._pause = attempt, executor, pause
        self.refused = ""
        """The reason why the last trial was refused, or "" if the trial succeeded."""

    def sentences(self) -> list[str]:
        """Return a list with a sentence for `/readyz` if the last trial was refused."""
        if not self.refused:
            return []
        return [
            f"the engine opens no new session, so this node is out once those that stand end: {self.refused}"
        ]

    def view(self) -> dict[str, Any]:
        """Return the result of the last trial for JSON."""
        return {"sessions_refused": self.refused}

    async def watch(self) -> None:
        """Repeat the trials until the task is cancelled."""
        while True:
            await self._pause(AGAIN_SECONDS if self.refused else TRY_SECONDS)
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, self._attempt)
            except (Unknown, Refused, Halted) as error:
                self._record_result(error.detail or str(error))
            else:
                self._record_result("")

    def _record_result(self, refused: str) -> None:
        if refused and refused != self.refused:
            log.error("the engine of the shared log opens no new session", why=refused)
        if self.refused and not refused:
            log.warning("the engine of the shared log opens sessions again")
        self.refused = refused
