"""A periodic check that the engine still accepts new sessions from this node.

    accepted   the check is repeated after TRY_SECONDS
    refused    the refusal is reported (log, `/readyz`, `cluster status`, a metric), and the check is repeated
               after AGAIN_SECONDS

The engine checks the password of a session only when the session is opened. Nodes with an outdated password
continue to run until the engine restarts or the network fails, and then all nodes with this password fail at
once. A changed rule in pg_hba.conf, a role without LOGIN, or a connection limit can prevent new sessions in
the same way.

Cost: one short session of the engine per node every TRY_SECONDS. Each session occupies a worker thread for at
most about 15 s. Weak spot: a refusal between two checks is not detected.
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
    """The session checks of one node; a worker thread calls `attempt`, which opens and closes a session."""

    def __init__(
        self,
        attempt: Callable[[], object],
        executor: Executor,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._attempt, self._executor, self._pause = attempt, executor, pause
        self.refused = ""
        """The reason why the engine refused the last session, or "" if the engine accepted it."""

    def sentences(self) -> list[str]:
        """Return a list with a sentence for `/readyz` if the last session was refused, or an empty list."""
        if not self.refused:
            return []
        return [
            f"the engine opens no new session, so this node is out once those that stand end: {self.refused}"
        ]

    def view(self) -> dict[str, Any]:
        """Return the result of the last session check as a dictionary for JSON."""
        return {"sessions_refused": self.refused}

    async def watch(self) -> None:
        """Repeat the session check until the task is cancelled."""
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
