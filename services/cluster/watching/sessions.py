"""Checks periodically whether the engine accepts new sessions from this node.

If the engine accepts a session, the next check starts after TRIAL_SECONDS. If the engine refuses a session,
the refusal is logged, and is reported by `/readyz`, by `cluster status` and by a metric. The next check then
starts after REPEAT_SECONDS.

The engine verifies a password only when a session is opened. Nodes with an outdated password continue to run
until the engine restarts or the network fails, and then fail at the same time. A changed rule in pg_hba.conf,
a role without LOGIN, or an exhausted connection limit has the same effect.

Cost: one short engine session per node every TRIAL_SECONDS. Opening a session occupies a worker thread for at
most about 15 s. Limitation: refusals between two checks are not detected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final

import structlog

from sharedlog.errors import EngineRefused, EngineUnavailable, Halted

TRIAL_SECONDS: Final = 30.0
REPEAT_SECONDS: Final = 5.0

log = structlog.get_logger()


class SessionTrials:
    """Periodic session checks. The function `attempt` opens and closes a session in a worker thread."""

    def __init__(
        self,
        attempt: Callable[[], object],
        executor: Executor,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._attempt, self._executor, self._pause = attempt, executor, pause
        self.refused = ""
        """The reason why the engine refused the last session, or "" if the session was accepted."""

    def sentences(self) -> list[str]:
        """Return a list with the `/readyz` message about a refused session, or []."""
        if not self.refused:
            return []
        return [
            f"the engine opens no new session, so this node is out once those that stand end: {self.refused}"
        ]

    def view(self) -> dict[str, Any]:
        """Return the result of the last check as a JSON-serializable dictionary."""
        return {"sessions_refused": self.refused}

    async def watch(self) -> None:
        """Repeat the session check until the task is cancelled."""
        while True:
            await self._pause(REPEAT_SECONDS if self.refused else TRIAL_SECONDS)
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, self._attempt)
            except (EngineUnavailable, EngineRefused, Halted) as error:
                self._record_result(error.detail or str(error))
            else:
                self._record_result("")

    def _record_result(self, refused: str) -> None:
        if refused and refused != self.refused:
            log.error("the engine of the shared log opens no new session", why=refused)
        if self.refused and not refused:
            log.warning("the engine of the shared log opens sessions again")
        self.refused = refused
