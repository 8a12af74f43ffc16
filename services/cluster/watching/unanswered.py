"""Why does the shared log not answer? A node whose call hangs asks the engine how it is set, and says that.

    call to the engine --unanswered for ANSWER_MS--> the engine's `trouble`, again every AGAIN_SECONDS
    failed             --> it is not over until a call of that kind is answered, or a new record is read
    answered           --> nothing is said any more

A PostgreSQL that waits for a standby which is gone answers no append, whoever leads or stands, and a
candidate that waits is no leader that would ask (`engine_check`). `trouble` waits for no
append, so it tells which standby is missed. It changes nothing: the call waits on, and what comes of it
counts.

Weak spot: a call that fails at once is not one that hangs; why it failed is in the log, and tried again.
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
from sharedlog.errors import Halted, Refused, Unknown

ANSWER_MS: Final = 3_000
"""How long a call may take that is not worth a word."""
LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 5.0
NOTHING_WRONG: Final = (
    "Its settings are as they must be, so it is slow, full or out of reach. To look: tidewheel cluster "
    "doctor URL"
)

log = structlog.get_logger()


class WatchedEngine:
    """An engine that can tell for how long a call has waited; `clock` never goes back, in ms."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine, self._clock = engine, clock
        self._lock, self._numbers = Lock(), count()
        self._began_ms: dict[int, int] = {}
        self._failed: set[str] = set()
        """The kinds of calls of which the last that ended was not answered, since a new record was read."""
        self._newest = -1

    @property
    def is_dense(self) -> bool:
        """See `Engine`."""
        return self._engine.is_dense

    def answers(self) -> bool:
        """Return whether calls are answered, if with a no, as far as those that have ended tell."""
        return not self._failed

    def waiting_ms(self) -> int:
        """Return for how long the oldest call has waited; 0 if there is none."""
        with self._lock:
            return self._clock() - min(self._began_ms.values()) if self._began_ms else 0

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        """See `Engine`."""
        with self._waiting("append_if"):
            return self._engine.append_if(head, stored, following)

    def note(self, stored: bytes) -> None:
        """See `Engine`."""
        with self._waiting("note"):
            self._engine.note(stored)

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """See `Engine`."""
        with self._waiting("read"):
            found = self._engine.read(offset, bytes_max)
        if found and found[-1].offset > self._newest:
            self._newest = found[-1].offset
            self._failed.clear()  # somebody's append was taken
        return found

    def bounds(self) -> tuple[int, int]:
        """See `Engine`."""
        with self._waiting("bounds"):
            return self._engine.bounds()

    def trim(self, offset: int) -> None:
        """See `Engine`: nobody waits for that."""
        self._engine.trim(offset)

    def trouble(self) -> list[str]:
        """See `Engine`."""
        return self._engine.trouble()

    @contextmanager
    def _waiting(self, kind: str) -> Iterator[None]:
        number = next(self._numbers)
        with self._lock:
            self._began_ms[number] = self._clock()
        try:
            yield
        except Unknown:
            self._failed.add(kind)
            raise
        else:
            self._failed.discard(kind)
        finally:
            with self._lock:
                del self._began_ms[number]


class Unanswered:
    """The watch over a node's calls; `look` asks the engine what is wrong with its settings."""

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
        """For how long the engine owes an answer; 0 as long as that is not worth a word."""
        waiting_ms = self._waiting_ms()
        return waiting_ms / 1000 if waiting_ms >= ANSWER_MS else 0.0

    @property
    def sentence(self) -> str:
        """What is to be said; empty if it answers."""
        if not self.seconds:
            return ""
        return f"The shared log has not answered for {self.seconds:.0f} s. {self._why}".rstrip()

    async def watch(self) -> None:
        """Watch for ever."""
        while True:
            await self._pause(LOOK_SECONDS)
            while self.seconds:
                await self._find_out()
                await self._pause(AGAIN_SECONDS)
            if self._why and self._answers():
                self._why = ""
                log.warning("the shared log answers again")
                await self._look()  # what a leader refused meanwhile it takes again

    async def _find_out(self) -> None:
        found = await self._look()
        why = " ".join(found) or NOTHING_WRONG
        if why != self._why:
            log.error("the shared log does not answer", seconds=round(self.seconds), why=why)
        self._why = why

    async def _look(self) -> list[str]:
        try:
            return await self._ask()
        except (Unknown, Refused, Halted) as error:
            return [str(error)]
