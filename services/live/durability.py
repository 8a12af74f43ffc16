"""Sends each answer when the log is durable up to the offset on which the answer depends.

Answers are queued in the order in which they were decided. A flush releases all answers whose records are
durable after the flush. If an answer depends on older records than its predecessor in the queue, both answers
are sent together.

A cluster leader may have been paused while another node took over. Answers of a paused leader about *past*
events remain true, because such an answer depends on a record that the cluster accepted. Answers about the
*current* state (not found, not leased, empty) need a proof of leadership, which is an accepted record whose
append began after the call. `prove` requests a proof, and `confirm_leadership` reports a proof and releases
the answers that waited for it. A refusal also needs a proof, because a refusal implies that no earlier call
has stored the message. If a node lacks resources (OWN_MEANS), proofs may fail for the same reason. A refusal
for lack of resources therefore waits at most OWN_MS, and then reports the cause and an unknown result.

A leader must not confirm any call while its shared log has lost a record that no other node has. `hold`
refuses all waiting answers, and later answers are refused whenever the log advances, until `release` is
called.

Each waiting answer costs one deque entry. An answer that depends only on durable records waits for a proof in
a cluster, and is sent immediately on a single node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from tidewheel.errors import Busy, RefusedByState, TidewheelError

OWN_MEANS: Final = -1
"""The offset of a refusal for lack of the node's own resources, which waits at most OWN_MS for a proof."""
_HELD: Final = OWN_MEANS - 1
"""The durable end while answers are held, which is below the offset of every answer."""
OWN_MS: Final = 1_000
"""The maximum wait, in ms, of a refusal for lack of the node's own resources; a proof takes a few ms."""


class AnswerReceiver(Protocol):
    """A receiver of an answer, such as a response stream or a waiting coroutine."""

    def answer(self, answer: Any) -> None:
        """Send the answer."""

    def refuse(self, error: TidewheelError) -> None:
        """Send an error instead of the answer."""


class LeadershipProofs(NamedTuple):
    """A clock in ms, and a function that requests a proof of leadership.

    The proof is reported to `Answers.confirm_leadership`.
    """

    clock: Callable[[], int]
    prove: Callable[[], None]


def ignore_own_refusal() -> None:
    """Do nothing, so that refusals for lack of the node's own resources wait without a limit."""


class Answers:
    """The durable end of the log, and the answers that wait for a later durable end or for a proof.

    `own_waits` is called when a refusal for lack of the node's own resources begins to wait, and schedules a
    call of `fail_own_refusals`.
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
        """The answers that wait for a proof, each with the time (ms) after which the proof must begin."""
        self._own: deque[tuple[int, AnswerReceiver, Any]] = deque()
        """The refusals for lack of own resources, each with the time (ms) after which a proof must begin."""
        self._no_proof_error: TidewheelError | None = None
        self._held: TidewheelError | None = None

    def send_when_durable(self, offset: int, receiver: AnswerReceiver, answer: Any) -> None:
        """Send an answer when the log is durable up to `offset`, after a leadership proof if needed."""
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
        """Wait until the log is durable up to `offset`. Raise the error if the answer is refused."""
        if offset > self.offset or self._proving is not None:
            sleeper = WaitingCoroutine()
            self.send_when_durable(offset, sleeper, None)
            await sleeper.future

    def confirm_leadership(self, began_ms: int) -> None:
        """Send the answers that were decided before `began_ms`, at which the append of a proof began."""
        for unproven in (self._unproven, self._own):
            while unproven and unproven[0][0] < began_ms:
                _, one, answer = unproven.popleft()
                one.answer(answer)
        if (self._unproven or self._own) and self._proving is not None:
            self._proving.prove()

    def fail_own_refusals(self, error: TidewheelError) -> bool:
        """Send `error` for refusals for lack of own resources that have waited OWN_MS.

        Return whether any such refusal still waits.
        """
        own, now_ms = self._own, self._proving.clock() if self._proving else 0
        while own and own[0][0] <= now_ms - OWN_MS:
            own.popleft()[1].refuse(error)
        return bool(own)

    def stop_proofs(self, error: TidewheelError) -> None:
        """Refuse all present and future answers that need a proof, because no further proof will arrive."""
        self._no_proof_error = error
        for _, one, _ in self._take_unproven():
            one.refuse(error)

    def advance(self, offset: int) -> None:
        """Advance the durable offset, and send all answers up to it, or refuse all answers during a hold."""
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
        """The error with which all answers are refused while answers are held, or None."""
        return self._held

    def hold(self, error: TidewheelError) -> None:
        """Refuse waiting answers with `error`; later calls of `hold` or `advance` refuse later answers."""
        self._held = error
        self.refuse(error, _HELD)

    def release(self, offset: int) -> None:
        """End a hold, and send the waiting answers up to the durable `offset`, after a proof if needed."""
        self._held, self.offset = None, offset
        waiting, self._waiting = self._waiting, deque()
        for durable_at, one, answer in waiting:
            self.send_when_durable(durable_at, one, answer)

    def _take_unproven(self) -> list[tuple[int, AnswerReceiver, Any]]:
        taken, self._unproven, self._own = [*self._unproven, *self._own], deque(), deque()
        return taken


def required_offset(error: Exception) -> int:
    """Return the log offset that must be durable before a refusal is sent."""
    if isinstance(error, RefusedByState):
        return error.durable_at
    return OWN_MEANS if isinstance(error, Busy) and error.is_own else 0


class WaitingCoroutine:
    """A coroutine that waits for an answer and may be cancelled while it waits."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(self, answer: Any) -> None:
        """Resume the coroutine."""
        if not self.future.done():
            self.future.set_result(answer)

    def refuse(self, error: TidewheelError) -> None:
        """Raise the error in the coroutine."""
        if not self.future.done():
            self.future.set_exception(error)
