"""Answers that wait for the log: each is given once the log is durable up to its offset.

They wait in the order in which they were decided, and all that a flush made durable are given together. An
answer that rests on older records than the one before it goes with that one, which the next flush ends.

A leader of a cluster may have been paused, and another lead since. What it says of what *has* happened, and
rests on a record that the cluster accepts, is true all the same; what *is* (not found, not leased, nothing
there) is said only after a record of its own was accepted whose append began behind the call: `proven` tells
of it, `prove` asks for one. One proof serves all that wait. A refusal for want of the node's own means says
nothing of what is, and waits for nothing: it may be just proofs that do not come.

Cost: one entry of a deque for each answer that waits; one that rests on durable records does not wait but for
a proof, which only a cluster asks for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from tidewheel.errors import Busy, RefusedByState, TidewheelError

NOTHING: Final = -1
"""What an answer rests on that is true whatever the log has, and whoever leads."""


class Waiting(Protocol):
    """Who waits for an answer."""

    def answer(self, answer: Any) -> None:
        """Take the answer, which may be told now."""

    def refuse(self, error: TidewheelError) -> None:
        """Learn that nobody knows whether the record will be durable."""


class Proving(NamedTuple):
    """How a leader proves that it leads: a clock (ms), and what asks for a proof, which `proven` is told."""

    clock: Callable[[], int]
    prove: Callable[[], None]


class Answers:
    """The durable end of the log, and all that waits for it to move."""

    def __init__(self, offset: int, proving: Proving | None = None) -> None:
        self.offset = offset
        self._waiting: deque[tuple[int, Waiting, Any]] = deque()
        self._proving = proving
        self._unproven: deque[tuple[int, Waiting, Any]] = deque()
        """Answers that need no record, with the times (ms) behind which a proof must begin."""
        self._unprovable: TidewheelError | None = None

    def give(self, offset: int, waiting: Waiting, answer: Any) -> None:
        """Give an answer once the log is durable up to `offset`."""
        if offset > self.offset:
            self._waiting.append((offset, waiting, answer))
        elif self._proving is None or offset == NOTHING:
            waiting.answer(answer)
        elif self._unprovable is not None:
            waiting.refuse(self._unprovable)
        else:
            self._unproven.append((self._proving.clock(), waiting, answer))
            self._proving.prove()

    async def reach(self, offset: int) -> None:
        """Return once the log is durable up to `offset`; raise what `refuse` was given."""
        if offset > self.offset or (self._proving is not None and offset != NOTHING):
            sleeper = Sleeper()
            self.give(offset, sleeper, None)
            await sleeper.future

    def proven(self, began_ms: int) -> None:
        """Give the answers that came before an append began which the cluster has accepted."""
        unproven = self._unproven
        while unproven and unproven[0][0] < began_ms:
            _, one, answer = unproven.popleft()
            one.answer(answer)
        if unproven and self._proving is not None:
            self._proving.prove()

    def prove_no_more(self, error: TidewheelError) -> None:
        """Refuse what waits for a proof, or is going to: nobody brings one any more."""
        self._unprovable = error
        refused, self._unproven = self._unproven, deque()
        for _, one, _ in refused:
            one.refuse(error)

    def advance(self, offset: int) -> None:
        """Move the durable offset and give all answers it has reached."""
        self.offset = offset
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            _, one, answer = waiting.popleft()
            one.answer(answer)

    def refuse(self, error: TidewheelError, offset: int) -> None:
        """Fail everybody who waits, and start again from `offset`."""
        refused, self._waiting, self.offset = [*self._waiting, *self._unproven], deque(), offset
        self._unproven = deque()
        for _, one, _ in refused:
            one.refuse(error)


def rests_on(error: Exception) -> int:
    """Return the log offset that must be durable before a refusal is told."""
    if isinstance(error, RefusedByState):
        return error.durable_at
    return NOTHING if isinstance(error, Busy) and error.is_own else 0


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
