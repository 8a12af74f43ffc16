"""Diagnoses an unresponsive shared log by checking the engine's settings while a call waits.

When a call to the engine has waited for ANSWER_MS, the node calls the engine's `check_settings` method every
REPEAT_SECONDS. If the waiting call fails, the report persists until a call to the same method is answered or
a new record is read.

If a synchronous standby of PostgreSQL is disconnected, appends of leaders and candidates wait until the
standby is connected. A waiting candidate does not run the leader's check (`engine_check`). The method
`check_settings` does not wait for the standby, and can therefore identify it. The diagnosis does not affect
the waiting call.

Limitation: a call that fails immediately is logged and retried, but not diagnosed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import Final

import structlog

from sharedlog.engine import Engine, Head, Stored
from sharedlog.errors import EngineRefused, EngineUnavailable, Halted

ANSWER_MS: Final = 3_000
"""Time in milliseconds after which a waiting call is diagnosed and reported."""
POLL_SECONDS: Final = 1.0
REPEAT_SECONDS: Final = 5.0
SETTINGS_OK: Final = (
    "Its settings are as they must be, so it is slow, full or out of reach. To look: tidewheel cluster "
    "doctor URL"
)

log = structlog.get_logger()


class TimedEngine:
    """An engine wrapper that measures the wait time of calls.

    The function `clock` returns monotonic milliseconds.
    """

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine, self._clock = engine, clock
        self._lock, self._numbers = Lock(), count()
        self._began_ms: dict[int, int] = {}
        self._failed: set[str] = set()
        """The methods for which the last call was not answered. A read of a new record clears this set."""
        self._newest = -1

    @property
    def is_dense(self) -> bool:
        """See `Engine`."""
        return self._engine.is_dense

    def answers(self) -> bool:
        """Return whether the last completed call of each method was answered, possibly with a refusal."""
        return not self._failed

    def waiting_ms(self) -> int:
        """Return the wait time of the oldest pending call in milliseconds, or 0 if no call is pending."""
        with self._lock:
            return self._clock() - min(self._began_ms.values()) if self._began_ms else 0

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        """See `Engine`."""
        with self._measure_wait("append_if"):
            return self._engine.append_if(head, stored, following)

    def append_unchecked(self, stored: bytes) -> None:
        """See `Engine`."""
        with self._measure_wait("append_unchecked"):
            self._engine.append_unchecked(stored)

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """See `Engine`."""
        with self._measure_wait("read"):
            found = self._engine.read(offset, bytes_max)
        if found and found[-1].offset > self._newest:
            self._newest = found[-1].offset
            self._failed.clear()  # a new record shows that the engine accepts appends
        return found

    def bounds(self) -> tuple[int, int]:
        """See `Engine`."""
        with self._measure_wait("bounds"):
            return self._engine.bounds()

    def trim(self, offset: int) -> None:
        """See `Engine`. Trim calls are not timed, because no client waits for a trim."""
        self._engine.trim(offset)

    def check_settings(self) -> list[str]:
        """See `Engine`."""
        return self._engine.check_settings()

    @contextmanager
    def _measure_wait(self, kind: str) -> Iterator[None]:
        number = next(self._numbers)
        with self._lock:
            self._began_ms[number] = self._clock()
        try:
            yield
        except EngineUnavailable:
            self._failed.add(kind)
            raise
        else:
            self._failed.discard(kind)
        finally:
            with self._lock:
                del self._began_ms[number]


class EngineDiagnosis:
    """Diagnoses the waiting calls of a node. The function `look` returns the unsafe engine settings."""

    def __init__(
        self,
        waiting_ms: Callable[[], int],
        answers: Callable[[], bool],
        look: Callable[[], Awaitable[list[str]]],
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._waiting_ms, self._answers, self._ask, self._pause = waiting_ms, answers, look, pause
        self._why = ""

    @property
    def seconds(self) -> float:
        """The wait time of the oldest pending call in seconds, or 0 if the time is less than ANSWER_MS."""
        waiting_ms = self._waiting_ms()
        return waiting_ms / 1000 if waiting_ms >= ANSWER_MS else 0.0

    @property
    def sentence(self) -> str:
        """The report for the operator, or "" if no call has waited for ANSWER_MS."""
        if not self.seconds:
            return ""
        return f"The shared log has not answered for {self.seconds:.0f} s. {self._why}".rstrip()

    async def watch(self) -> None:
        """Check periodically for waiting calls until the task is cancelled."""
        while True:
            await self._pause(POLL_SECONDS)
            while self.seconds:
                await self._diagnose()
                await self._pause(REPEAT_SECONDS)
            if self._why and self._answers():
                self._why = ""
                log.warning("the shared log answers again")
                await self._query_settings()  # a successful check lets a leader accept messages again

    async def _diagnose(self) -> None:
        found = await self._query_settings()
        why = " ".join(found) or SETTINGS_OK
        if why != self._why:
            log.error("the shared log does not answer", seconds=round(self.seconds), why=why)
        self._why = why

    async def _query_settings(self) -> list[str]:
        try:
            return await self._ask()
        except (EngineUnavailable, EngineRefused, Halted) as error:
            return [str(error)]
