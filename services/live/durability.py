"""Sends each answer once the log is durable up to the offset of the answer.

Answers are queued in the order in which the core produces them. After each flush, all answers with durable
records are sent. An answer with a lower offset than the preceding answer is sent together with it.

While the process of a cluster leader is suspended, another node may become leader. The old leader's answers
about *past* events remain correct, because they are based on accepted records. Answers about the *current*
state (not found, not leased, empty) require a proof of leadership. A proof is a record that was accepted by
the cluster and whose append began after the call. `prove` requests a proof, and `confirm_leadership` sends
the answers that require it. A refusal also requires a proof, because it implies that no earlier call has
stored the message. If a node lacks local resources, proofs may fail for the same reason. A refusal for lack
of local resources therefore waits for a proof for at most `OWN_MS` milliseconds. The call then fails with
`ResultUnknown`, and the error message states the cause.

A leader must not confirm any call while a record of the shared log is damaged and no other node has the
records after the damage. `hold` refuses all waiting answers. Until `release` is called, the answers added
after `hold` are refused whenever the durable offset advances.

Memory usage is one deque entry per waiting answer. A single node sends an answer immediately if the answer's
records are durable. In a cluster, an answer with durable records is sent after the next proof.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from tidewheel.errors import Busy, RefusedByState, TidewheelError

LOCAL_RESOURCE_ERRORS: Final = -1
"""The offset that marks a refusal for lack of local resources.

A refusal with this offset waits for a proof for at most `OWN_MS` milliseconds.
"""
_HELD: Final = LOCAL_RESOURCE_ERRORS - 1
"""The durable offset during a hold, which is lower than the offset of any answer."""
OWN_MS: Final = 1_000
"""Maximum time in milliseconds for which a refusal for lack of local resources waits for a proof.

A proof of leadership normally takes a few milliseconds.
"""


class AnswerReceiver(Protocol):
    """The recipient of an answer, such as a response stream or a coroutine."""

    def answer(self, answer: Any) -> None:
        """Deliver the answer."""

    def refuse(self, error: TidewheelError) -> None:
        """Deliver an error in place of the answer."""


class LeadershipProofs(NamedTuple):
    """A clock in milliseconds and a function that requests a proof of leadership.

    After each proof, `Answers.confirm_leadership` must be called.
    """

    clock: Callable[[], int]
    prove: Callable[[], None]


def ignore_local_refusal() -> None:
    """Do nothing. Refusals for lack of local resources then wait for a proof without a time limit."""


class Answers:
    """The durable offset of the log, and the answers that wait for a higher offset or a proof of leadership.

    `own_waits` is called when a refusal for lack of local resources is queued, and must schedule a call to
    `fail_local_refusals`.
    """

    def __init__(
        self,
        offset: int,
        proving: LeadershipProofs | None = None,
        own_waits: Callable[[], None] = ignore_local_refusal,
    ) -> None:
        self.offset, self._own_refusal_callback = offset, own_waits
        self._waiting: deque[tuple[int, AnswerReceiver, Any]] = deque()
        self._proving = proving
        self._unproven: deque[tuple[int, AnswerReceiver, Any]] = deque()
        """Answers that require a proof, each with the time (ms) after which the proof's append must begin."""
        self._own: deque[tuple[int, AnswerReceiver, Any]] = deque()
        """Refusals for lack of local resources, in the same form as `_unproven`."""
        self._no_proof_error: TidewheelError | None = None
        self._held: TidewheelError | None = None

    def send_when_durable(self, offset: int, receiver: AnswerReceiver, answer: Any) -> None:
        """Send an answer once the log is durable up to `offset` and, if required, leadership is proven."""
        if offset > self.offset:
            self._waiting.append((offset, receiver, answer))
        elif self._proving is None:
            receiver.answer(answer)
        elif self._no_proof_error is not None:
            receiver.refuse(self._no_proof_error)
        else:
            where = self._own if offset == LOCAL_RESOURCE_ERRORS else self._unproven
            where.append((self._proving.clock(), receiver, answer))
            if where is self._own:
                self._own_refusal_callback()
            self._proving.prove()

    async def wait_until_durable(self, offset: int) -> None:
        """Wait until the log is durable up to `offset` and, in a cluster, until leadership is proven.

        If the answer is refused, raise the error of the refusal.
        """
        if offset > self.offset or self._proving is not None:
            sleeper = WaitingCoroutine()
            self.send_when_durable(offset, sleeper, None)
            await sleeper.future

    def confirm_leadership(self, began_ms: int) -> None:
        """Send the answers that were queued before the append of a proof began at `began_ms`."""
        for unproven in (self._unproven, self._own):
            while unproven and unproven[0][0] < began_ms:
                _, one, answer = unproven.popleft()
                one.answer(answer)
        if (self._unproven or self._own) and self._proving is not None:
            self._proving.prove()

    def fail_local_refusals(self, error: TidewheelError) -> bool:
        """Replace each local refusal that has waited for at least `OWN_MS` milliseconds with `error`.

        Return whether any local refusals are still waiting.
        """
        own, now_ms = self._own, self._proving.clock() if self._proving else 0
        while own and own[0][0] <= now_ms - OWN_MS:
            own.popleft()[1].refuse(error)
        return bool(own)

    def stop_proofs(self, error: TidewheelError) -> None:
        """Refuse all current and future answers that require a proof. No more proofs will be available."""
        self._no_proof_error = error
        for _, one, _ in self._take_unproven():
            one.refuse(error)

    def advance(self, offset: int) -> None:
        """Advance the durable offset to `offset`, and send all answers up to that offset.

        During a hold, refuse all waiting answers, and do not advance the durable offset.
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
        """Return the error with which answers are refused during a hold, or None if there is no hold."""
        return self._held

    def hold(self, error: TidewheelError) -> None:
        """Begin a hold, and refuse all waiting answers with `error`.

        During the hold, each call to `hold` or `advance` refuses the answers added since the previous call.
        """
        self._held = error
        self.refuse(error, _HELD)

    def release(self, offset: int) -> None:
        """End a hold, set the durable offset to `offset`, and send the waiting answers up to that offset.

        If a proof of leadership is required, the answers are sent after the next proof.
        """
        self._held, self.offset = None, offset
        waiting, self._waiting = self._waiting, deque()
        for durable_at, one, answer in waiting:
            self.send_when_durable(durable_at, one, answer)

    def _take_unproven(self) -> list[tuple[int, AnswerReceiver, Any]]:
        taken, self._unproven, self._own = [*self._unproven, *self._own], deque(), deque()
        return taken


def required_offset(error: Exception) -> int:
    """Return the log offset that must be durable before an error is sent to the caller."""
    if isinstance(error, RefusedByState):
        return error.durable_at
    return LOCAL_RESOURCE_ERRORS if isinstance(error, Busy) and error.is_own else 0


class WaitingCoroutine:
    """Delivers an answer to a waiting coroutine, which may be cancelled while it waits."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(self, answer: Any) -> None:
        """Resume the coroutine with the answer, unless the coroutine was cancelled."""
        if not self.future.done():
            self.future.set_result(answer)

    def refuse(self, error: TidewheelError) -> None:
        """Raise the error in the coroutine, unless the coroutine was cancelled."""
        if not self.future.done():
            self.future.set_exception(error)
