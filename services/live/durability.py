"""Sends each answer as soon as the log is durable up to the offset on which the answer depends.

Answers are queued in the order in which they were decided. After each flush, all answers whose records are
now durable are sent. An answer that depends on older records than the preceding answer in the queue is sent
together with the preceding answer.

A cluster leader may be paused while another node takes over. The paused leader's answers about *past* events
remain correct, because each answer depends on a record that the cluster has accepted. Answers about the
*current* state (not found, not leased, empty) require a proof of leadership. A proof is an accepted record
whose append began after the call. A proof is requested with `prove` and reported with `confirm_leadership`,
which sends the answers waiting for the proof. A refusal also requires a proof, because a refusal implies that
no earlier call has stored the message. If a node lacks local resources (OWN_MEANS), proofs may fail for the
same reason. A refusal for lack of local resources therefore waits for at most `OWN_MS` milliseconds. After
this time, the call fails with an unknown result, and the error states the cause.

A leader must not confirm any call as long as its shared log lacks a record that no other node has. The method
`hold` refuses all waiting answers. Until `release` is called, later answers are refused whenever the log
advances.

Memory usage is one deque entry per waiting answer. An answer that depends only on durable records is sent
immediately by a single node, but waits for a proof in a cluster.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from tidewheel.errors import Busy, RefusedByState, TidewheelError

OWN_MEANS: Final = -1
"""The offset assigned to refusals for lack of local resources.

These refusals wait at most `OWN_MS` milliseconds for a proof.
"""
_HELD: Final = OWN_MEANS - 1
"""The durable offset during a hold, which is below the offset of every answer."""
OWN_MS: Final = 1_000
"""The maximum time, in ms, for which a refusal for lack of local resources waits for a proof.

A proof normally takes a few ms.
"""


class AnswerReceiver(Protocol):
    """The recipient of an answer, such as a response stream or a waiting coroutine."""

    def answer(self, answer: Any) -> None:
        """Deliver the answer to the recipient."""

    def refuse(self, error: TidewheelError) -> None:
        """Deliver an error instead of the answer."""


class LeadershipProofs(NamedTuple):
    """A clock that returns times in ms, and a function that requests a proof of leadership.

    Each proof is reported to `Answers.confirm_leadership`.
    """

    clock: Callable[[], int]
    prove: Callable[[], None]


def ignore_own_refusal() -> None:
    """Do nothing, so that refusals for lack of local resources wait indefinitely."""


class Answers:
    """The durable offset of the log, and the answers that are waiting for a higher offset or for a proof.

    When a refusal for lack of local resources begins to wait, the function `own_waits` is called to schedule
    a call to `fail_own_refusals`.
    """

    def __init__(
        self,
        offset: int,
        proving: LeadershipProofs | None = None,
        own_waits: Callable[[], None] = ignore_own_refusal,
    ) -> None:
        self.offset, self._own_refusal_callback = offset, own_waits
        self._waiting: deque[tuple[int, AnswerReceiver, Any]] = deque()
        self._proving = proving
        self._unproven: deque[tuple[int, AnswerReceiver, Any]] = deque()
        """The answers waiting for a proof, each with the time (ms) after which the proof must begin."""
        self._own: deque[tuple[int, AnswerReceiver, Any]] = deque()
        """The refusals for lack of local resources, each with the time after which a proof must begin."""
        self._no_proof_error: TidewheelError | None = None
        self._held: TidewheelError | None = None

    def send_when_durable(self, offset: int, receiver: AnswerReceiver, answer: Any) -> None:
        """Send an answer once the log is durable up to `offset`, and after a leadership proof if required."""
        if offset > self.offset:
            self._waiting.append((offset, receiver, answer))
        elif self._proving is None:
            receiver.answer(answer)
        elif self._no_proof_error is not None:
            receiver.refuse(self._no_proof_error)
        else:
            where = self._own if offset == OWN_MEANS else self._unproven
            where.append((self._proving.clock(), receiver, answer))
            if where is self._own:
                self._own_refusal_callback()
            self._proving.prove()

    async def wait_until_durable(self, offset: int) -> None:
        """Wait until the log is durable up to `offset`, and for a leadership proof in a cluster.

        If the answer is refused, raise the error.
        """
        if offset > self.offset or self._proving is not None:
            sleeper = WaitingCoroutine()
            self.send_when_durable(offset, sleeper, None)
            await sleeper.future

    def confirm_leadership(self, began_ms: int) -> None:
        """Send the answers decided before `began_ms`, the time at which the append of a proof began."""
        for unproven in (self._unproven, self._own):
            while unproven and unproven[0][0] < began_ms:
                _, one, answer = unproven.popleft()
                one.answer(answer)
        if (self._unproven or self._own) and self._proving is not None:
            self._proving.prove()

    def fail_own_refusals(self, error: TidewheelError) -> bool:
        """Fail each refusal for lack of local resources that has waited for a proof for at least `OWN_MS` ms.

        Such a refusal is replaced with `error`. Return whether any such refusals are still waiting.
        """
        own, now_ms = self._own, self._proving.clock() if self._proving else 0
        while own and own[0][0] <= now_ms - OWN_MS:
            own.popleft()[1].refuse(error)
        return bool(own)

    def stop_proofs(self, error: TidewheelError) -> None:
        """Refuse all current and future answers that require a proof.

        This method is called when no further proofs will arrive.
        """
        self._no_proof_error = error
        for _, one, _ in self._take_unproven():
            one.refuse(error)

    def advance(self, offset: int) -> None:
        """Advance the durable offset, and send all answers up to the new offset.

        During a hold, all waiting answers are refused instead.
        """
        if self._held is not None:
            self.hold(self._held)
            return
        self.offset = offset
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            _, one, answer = waiting.popleft()
            one.answer(answer)

    def refuse(self, error: TidewheelError, offset: int) -> None:
        """Refuse all waiting answers, and set the durable offset to `offset`."""
        self.offset = offset if self._held is None else _HELD
        refused, self._waiting = [*self._waiting, *self._take_unproven()], deque()
        for _, one, _ in refused:
            one.refuse(error)

    @property
    def held(self) -> TidewheelError | None:
        """The error with which answers are refused during a hold, or None if no hold is in effect."""
        return self._held

    def hold(self, error: TidewheelError) -> None:
        """Begin a hold, and refuse all waiting answers with `error`.

        Later answers are refused by subsequent calls to `hold` or `advance`.
        """
        self._held = error
        self.refuse(error, _HELD)

    def release(self, offset: int) -> None:
        """End a hold, and send the waiting answers up to `offset`, which is durable.

        Answers that require a proof are sent after the proof.
        """
        self._held, self.offset = None, offset
        waiting, self._waiting = self._waiting, deque()
        for durable_at, one, answer in waiting:
            self.send_when_durable(durable_at, one, answer)

    def _take_unproven(self) -> list[tuple[int, AnswerReceiver, Any]]:
        taken, self._unproven, self._own = [*self._unproven, *self._own], deque(), deque()
        return taken


def required_offset(error: Exception) -> int:
    """Return the offset up to which the log must be durable before an error is sent."""
    if isinstance(error, RefusedByState):
        return error.durable_at
    return OWN_MEANS if isinstance(error, Busy) and error.is_own else 0


class WaitingCoroutine:
    """A coroutine that is waiting for an answer. The coroutine may be cancelled while it is waiting."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(self, answer: Any) -> None:
        """Resume the coroutine, unless it was cancelled."""
        if not self.future.done():
            self.future.set_result(answer)

    def refuse(self, error: TidewheelError) -> None:
        """Raise the error in the coroutine, unless it was cancelled."""
        if not self.future.done():
            self.future.set_exception(error)
