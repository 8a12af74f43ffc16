"""Advancing a virtual clock, event by event: as if the time had passed, only sooner.

    move to the next due time -> renew the leases of clients that are there -> tick -> settle -> again

Rules:
- Everything due on the way happens in due order, each at its own time: when something was appended, time
  stands until it is durable, since it may set what is due next.
- The offset is on disk before what was appended under it (`services.live.clock`).
- Time also stands while timers that are due next are read from the disk.
- A producer that is asked on the way how its transaction ended gets `ANSWER_SECONDS` of real time to say
  so; else ten checks would go by before its answer to the first.
- A half with no producer to ask waits for one (`txn.checkback`) and holds nothing up.
- Leases of clients that the broker hears from are renewed on the way, all others run out when they would.
- Housekeeping is no event: it is postponed to the arrival.
- One advance at a time; the next one waits.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from commitlog import limits
from services.broker.broker import Broker
from services.live.clock import Clock
from services.live.errors import ClockIsReal, IllegalAdvance, ResultUnknown

ANSWER_SECONDS = 2.0
SILENT_STEPS_MAX = 100


class Owner(Protocol):
    """Who owns the core, and moves it."""

    @property
    def core(self) -> Broker:
        """The core of this moment."""

    def renew_present(self) -> None:
        """Renew the leases of clients that are heard from; end what waits by a token that has expired."""

    def tick(self) -> bool:
        """Let the core do what is due now; False if nothing came of it."""

    async def durable(self, offset: int) -> None:
        """Return when the log is durable so far; raise `ResultUnknown`."""

    async def timers_ready(self) -> None:
        """Return when what will be due next has been read from the disk."""

    def time_has_moved(self) -> None:
        """Plan anew what was planned by the time before."""


class Advancing:
    """Moves `clock`, and `owner`'s core with it."""

    def __init__(self, owner: Owner, clock: Clock) -> None:
        self._owner, self._clock = owner, clock
        self._turn = asyncio.Lock()
        self._questions: dict[str, asyncio.Future[None]] = {}

    async def advance(self, by_ms: int) -> None:
        """Let `by_ms` pass; raise `ClockIsReal`, `IllegalAdvance`, or `ResultUnknown` if the disk fails."""
        check_advance(by_ms, self._clock)
        async with self._turn:
            target_ms = min(self._clock.offset_ms + by_ms, limits.CLOCK_OFFSET_MS_MAX)
            self._owner.core.postpone_housekeeping(self._clock.real_ms() + target_ms)
            try:
                await self._travel(target_ms)
            finally:
                self._questions.clear()
                self._owner.core.postpone_housekeeping(self._clock.now_ms())
                self._owner.time_has_moved()

    def asked(self, transaction_id: str) -> None:
        """Give a producer that was asked how a transaction ended time to answer, on the way."""
        if self._turn.locked():
            self._questions[transaction_id] = asyncio.get_running_loop().create_future()

    def answered(self, transaction_id: str) -> None:
        """Wait no longer for a producer that has answered, whatever the answer."""
        question = self._questions.pop(transaction_id, None)
        if question is not None and not question.done():
            question.set_result(None)

    async def _travel(self, target_ms: int) -> None:
        silent_steps = 0
        while (offset_ms := self._next_stop(target_ms)) is not None:
            before = self._owner.core.end_offset
            self._clock.move(offset_ms)
            self._owner.renew_present()
            is_silent = not self._owner.tick() and self._owner.core.end_offset == before
            is_silent = is_silent and not self._owner.core.is_checkpoint_due
            # A step in which a wheel only cascades need not settle; now and then, so that others are served.
            silent_steps = silent_steps + 1 if is_silent else 0
            if not is_silent or silent_steps % SILENT_STEPS_MAX == 0:
                await self._settle()
        await self._settle()
        assert self._clock.offset_ms == target_ms, "time stops before it has arrived"

    def _next_stop(self, target_ms: int) -> int | None:
        """Return the offset of the next event, or of the arrival; None after that, if nothing is due."""
        offset_ms, real_ms = self._clock.offset_ms, self._clock.real_ms()
        due_ms = self._owner.core.next_due_ms()
        if due_ms is not None and due_ms <= real_ms + target_ms:
            return min(max(offset_ms, due_ms - real_ms), target_ms)
        return None if offset_ms == target_ms else target_ms

    async def _settle(self) -> None:
        """Let what has just happened become durable, and be heard."""
        try:
            self._clock.keep()
        except OSError as error:
            raise ResultUnknown(
                f"Writing the clock failed ({error}). Advance again once it works."
            ) from error
        await self._owner.durable(self._owner.core.end_offset)
        await self._owner.timers_ready()
        await asyncio.sleep(0)
        if self._questions:
            await asyncio.wait(list(self._questions.values()), timeout=ANSWER_SECONDS)
            self._questions.clear()


def check_advance(by_ms: int, clock: Clock) -> None:
    """Raise the refusal that fits an advance, if it is refused."""
    if not clock.is_virtual:
        raise ClockIsReal("Start one on an empty store with --clock virtual.")
    if by_ms < 0:
        raise IllegalAdvance("Time does not go back.")
    if clock.offset_ms + by_ms > limits.CLOCK_OFFSET_MS_MAX:
        years = limits.CLOCK_OFFSET_MS_MAX // (366 * 86_400_000)
        raise IllegalAdvance(f"That is more than {years} years ahead of real time, all advances together.")
