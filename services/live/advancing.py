"""Advances a virtual clock from event to event, as if the time had elapsed.

    move to the next due time -> renew the leases of connected clients -> tick -> settle -> repeat

Rules:
- Events are processed in order of due time. The clock is set to the due time of each event. After a record is
  appended, the clock does not advance until the record is durable, because the record may create an earlier
  event.
- Each clock offset is written to disk before the records appended at that offset (`services.live.clock`).
- The clock does not advance while the next timers are being read from disk.
- After a transaction check-back, the clock waits up to `ANSWER_SECONDS` of real time for the producer's
  answer. Without this pause, all check-backs for a half message would be sent before the producer could
  answer the first one.
- A half message of a topic without a producer does not delay the advance. Its check-back is sent when a
  producer connects (`txn.checkback`).
- The leases of connected clients are renewed during the advance. All other leases expire as usual.
- Housekeeping is not an event and is postponed until the target time.
- Only one advance runs at a time. Concurrent calls are queued.
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
    """The owner of the broker core."""

    @property
    def core(self) -> Broker:
        """The current broker core."""

    def renew_present(self) -> None:
        """Renew the leases of connected clients, and end waiting calls with an expired token."""

    def tick(self) -> bool:
        """Run the due work of the core. Return whether the work had any effects."""

    async def wait_until_durable(self, offset: int) -> None:
        """Wait until the log is durable up to `offset`. Raise `ResultUnknown` if the disk fails."""

    async def wait_until_timers_ready(self) -> None:
        """Wait until the timers that are due next have been read from disk."""

    def reschedule_tick(self) -> None:
        """Reschedule the next tick. This method is called after an advance."""


class ClockAdvancer:
    """Advances a virtual clock, and runs the work that becomes due."""

    def __init__(self, owner: Owner, clock: Clock) -> None:
        self._owner, self._clock = owner, clock
        self._turn = asyncio.Lock()
        self._questions: dict[str, asyncio.Future[None]] = {}

    async def advance(self, by_ms: int) -> None:
        """Advance the clock by `by_ms` milliseconds.

        Raise `ClockIsReal` or `IllegalAdvance` if the advance is not permitted, or `ResultUnknown` if the
        disk fails.
        """
        check_advance(by_ms, self._clock)
        async with self._turn:
            target_ms = min(self._clock.offset_ms + by_ms, limits.CLOCK_OFFSET_MS_MAX)
            self._owner.core.postpone_housekeeping(self._clock.real_ms() + target_ms)
            try:
                await self._advance_to(target_ms)
            finally:
                self._questions.clear()
                self._owner.core.postpone_housekeeping(self._clock.now_ms())
                self._owner.reschedule_tick()

    def expect_answer(self, transaction_id: str) -> None:
        """Make the running advance wait for the answer to a transaction check-back."""
        if self._turn.locked():
            self._questions[transaction_id] = asyncio.get_running_loop().create_future()

    def end_wait_for_answer(self, transaction_id: str) -> None:
        """Stop waiting for the answer to a transaction check-back, because the producer has answered."""
        question = self._questions.pop(transaction_id, None)
        if question is not None and not question.done():
            question.set_result(None)

    async def _advance_to(self, target_ms: int) -> None:
        silent_steps = 0
        while (offset_ms := self._next_stop(target_ms)) is not None:
            before = self._owner.core.end_offset
            self._clock.move(offset_ms)
            self._owner.renew_present()
            is_silent = not self._owner.tick() and self._owner.core.end_offset == before
            is_silent = is_silent and not self._owner.core.is_checkpoint_due
            # A step that only cascades timers within the timing wheel appends no records. During such steps,
            # the advance yields to other tasks only once every `SILENT_STEPS_MAX` steps.
            silent_steps = silent_steps + 1 if is_silent else 0
            if not is_silent or silent_steps % SILENT_STEPS_MAX == 0:
                await self._make_step_durable()
        await self._make_step_durable()
        assert self._clock.offset_ms == target_ms, "time stops before it has arrived"

    def _next_stop(self, target_ms: int) -> int | None:
        """Return the clock offset of the next event, or the target offset if no earlier event is due.

        Return None if the target offset has been reached and no event is due.
        """
        offset_ms, real_ms = self._clock.offset_ms, self._clock.real_ms()
        due_ms = self._owner.core.next_due_ms()
        if due_ms is not None and due_ms <= real_ms + target_ms:
            return min(max(offset_ms, due_ms - real_ms), target_ms)
        return None if offset_ms == target_ms else target_ms

    async def _make_step_durable(self) -> None:
        """Make the last step durable, and wait for the answers to its transaction check-backs."""
        try:
            self._clock.keep()
        except OSError as error:
            raise ResultUnknown(
                f"Writing the clock failed ({error}). Advance again once it works."
            ) from error
        await self._owner.wait_until_durable(self._owner.core.end_offset)
        await self._owner.wait_until_timers_ready()
        await asyncio.sleep(0)
        if self._questions:
            await asyncio.wait(list(self._questions.values()), timeout=ANSWER_SECONDS)
            self._questions.clear()


def check_advance(by_ms: int, clock: Clock) -> None:
    """Raise `ClockIsReal` or `IllegalAdvance` if the clock cannot advance by `by_ms`."""
    if not clock.is_virtual:
        raise ClockIsReal("Start one on an empty store with --clock virtual.")
    if by_ms < 0:
        raise IllegalAdvance("Time does not go back.")
    if clock.offset_ms + by_ms > limits.CLOCK_OFFSET_MS_MAX:
        years = limits.CLOCK_OFFSET_MS_MAX // (366 * 86_400_000)
        raise IllegalAdvance(f"That is more than {years} years ahead of real time, all advances together.")
