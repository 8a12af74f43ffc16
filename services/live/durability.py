"""Answers that wait for the log: each is given once the log is durable up to its offset.

They wait in the order in which they were decided, and all that a flush made durable are given together. An
answer that rests on older records than the one before it goes with that one, which the next flush ends.

Cost: one entry of a deque for each answer that waits; one that rests on durable records never does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

from tidewheel.errors import TidewheelError


class Waiting(Protocol):
    """Who waits for an answer."""

    def answer(self, answer: Any) -> None:
        """Take the answer, which may be told now."""

    def refuse(self, error: TidewheelError) -> None:
        """Learn that nobody knows whether the record will be durable."""


class Answers:
    """The durable end of the log, and everybody who waits for it to move."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._waiting: deque[tuple[int, Waiting, Any]] = deque()

    def give(self, offset: int, waiting: Waiting, answer: Any) -> None:
        """Give an answer once the log is durable up to `offset`."""
        if offset <= self.offset:
            waiting.answer(answer)
        else:
            self._waiting.append((offset, waiting, answer))

    async def reach(self, offset: int) -> None:
        """Return once the log is durable up to `offset`; raise what `refuse` was given."""
        if offset > self.offset:
            sleeper = Sleeper()
            self._waiting.append((offset, sleeper, None))
            await sleeper.future

    def advance(self, offset: int) -> None:
        """Move the durable offset and give all answers it has reached."""
        self.offset = offset
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            _, one, answer = waiting.popleft()
            one.answer(answer)

    def refuse(self, error: TidewheelError, offset: int) -> None:
        """Fail everybody who waits, and start again from `offset`."""
        refused, self._waiting, self.offset = self._waiting, deque(), offset
        for _, one, _ in refused:
            one.refuse(error)


class Sleeper:
    """A coroutine that waits; it may have been cancelled meanwhile."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(self, answer: Any) -> None:
        """Let it go on."""
        if not self.future.done():
            self.future.set_result(answer)

    def refuse(self, error: TidewheelError) -> None:
        """Let it fail."""
        if not self.future.done():
            self.future.set_exception(error)
