"""Answers that wait for the log: each is given once the log is durable up to its offset.

They wait in the order in which they were decided, and all that a flush made durable are given together. An
answer that rests on older records than the one before it goes with that one, which the next flush ends.

A leader of a cluster may have been paused, and another lead since. What it says of what *has* happened, and
rests on a record that the cluster accepts, is true all the same; what *is* (not found, not leased, nothing
there) is said only after a record of its own was accepted whose append began behind the call: `proven` tells
of it, `prove` asks for one. One proof serves all that wait. A refusal is such an answer: of a send it says
that no earlier call has stored it. For want of the node's own means (OWN_MEANS) it may be just proofs that do
not come; so that one waits OWN_MS, and then its caller is told what is wrong, and that nobody knows.

A leader whose shared log has lost a record that no other node has may tell nobody that anything was accepted:
`hold` refuses all that waits and is going to, each time that the log moves, until `release`.

Cost: one entry of a deque for each answer that waits; one that rests on durable records does not wait but for
a proof, which only a cluster asks for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from tidewheel.errors import Busy, RefusedByState, TidewheelError

OWN_MEANS: Final = -1
"""What a refusal rests on that tells of the node's own means: a proof, if one comes within OWN_MS."""
_HELD: Final = OWN_MEANS - 1
"""The durable end while answers are held: below what any of them rests on."""
OWN_MS: Final = 1_000
"""How long it waits for that; proofs take some ms."""


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


def nothing_waits() -> None:
    """Let what is refused for want of own means wait for ever."""


class Answers:
    """The durable end of the log, and all that waits for it to move.

    `own_waits` is called when a refusal for want of own means begins to wait, to call `give_up_own` later.
    """

    def __init__(
        self, offset: int, proving: Proving | None = None, own_waits: Callable[[], None] = nothing_waits
    ) -> None:
        self.offset, self._own_waits = offset, own_waits
        self._waiting: deque[tuple[int, Waiting, Any]] = deque()
        self._proving = proving
        self._unproven: deque[tuple[int, Waiting, Any]] = deque()
        """Answers that need no record, with the times (ms) behind which a proof must begin."""
        self._own: deque[tuple[int, Waiting, Any]] = deque()
        """Likewise, refusals for want of own means."""
        self._unprovable: TidewheelError | None = None
        self._held: TidewheelError | None = None

    def give(self, offset: int, waiting: Waiting, answer: Any) -> None:
        """Give an answer once the log is durable up to `offset`."""
        if offset > self.offset:
            self._waiting.append((offset, waiting, answer))
        elif self._proving is None:
            waiting.answer(answer)
        elif self._unprovable is not None:
            waiting.refuse(self._unprovable)
        else:
            where = self._own if offset == OWN_MEANS else self._unproven
            where.append((self._proving.clock(), waiting, answer))
            if where is self._own:
                self._own_waits()
            self._proving.prove()

    async def reach(self, offset: int) -> None:
        """Return once the log is durable up to `offset`; raise what `refuse` was given."""
        if offset > self.offset or self._proving is not None:
            sleeper = Sleeper()
            self.give(offset, sleeper, None)
            await sleeper.future

    def proven(self, began_ms: int) -> None:
        """Give the answers that came before an append began which the cluster has accepted."""
        for unproven in (self._unproven, self._own):
            while unproven and unproven[0][0] < began_ms:
                _, one, answer = unproven.popleft()
                one.answer(answer)
        if (self._unproven or self._own) and self._proving is not None:
            self._proving.prove()

    def give_up_own(self, error: TidewheelError) -> bool:
        """Refuse with `error` what waits since OWN_MS for want of own means; return whether more waits."""
        own, now_ms = self._own, self._proving.clock() if self._proving else 0
        while own and own[0][0] <= now_ms - OWN_MS:
            own.popleft()[1].refuse(error)
        return bool(own)

    def prove_no_more(self, error: TidewheelError) -> None:
        """Refuse what waits for a proof, or is going to: nobody brings one any more."""
        self._unprovable = error
        for _, one, _ in self._taken_unproven():
            one.refuse(error)

    def advance(self, offset: int) -> None:
        """Move the durable offset and give all answers it has reached; while they are held, refuse them."""
        if self._held is not None:
            self.hold(self._held)
            return
        self.offset = offset
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            _, one, answer = waiting.popleft()
            one.answer(answer)

    def refuse(self, error: TidewheelError, offset: int) -> None:
        """Fail everybody who waits, and start again from `offset`."""
        self.offset = offset if self._held is None else _HELD
        refused, self._waiting = [*self._waiting, *self._taken_unproven()], deque()
        for _, one, _ in refused:
            one.refuse(error)

    @property
    def held(self) -> TidewheelError | None:
        """What all answers are refused with; None: none is."""
        return self._held

    def hold(self, error: TidewheelError) -> None:
        """Refuse with `error` what waits, and what is going to at each call of `hold` or `advance`."""
        self._held = error
        self.refuse(error, _HELD)

    def release(self, offset: int) -> None:
        """Give answers again, or let them wait for their proof: the log is durable up to `offset`."""
        self._held, self.offset = None, offset
        waiting, self._waiting = self._waiting, deque()
        for rests_on_offset, one, answer in waiting:
            self.give(rests_on_offset, one, answer)

    def _taken_unproven(self) -> list[tuple[int, Waiting, Any]]:
        taken, self._unproven, self._own = [*self._unproven, *self._own], deque(), deque()
        return taken


def rests_on(error: Exception) -> int:
    """Return the log offset that must be durable before a refusal is told."""
    if isinstance(error, RefusedByState):
        return error.durable_at
    return OWN_MEANS if isinstance(error, Busy) and error.is_own else 0


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
