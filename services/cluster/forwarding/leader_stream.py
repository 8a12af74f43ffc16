"""A gRPC stream to the leader that reports the leader's status instead of a write error.

    leader ends the stream    --> write error   --> gRPC reports INTERNAL
    `LeaderStream`            --> reports the leader's status

A leader that steps down ends the stream with UNAVAILABLE, and the node reconnects the client stream to the
next leader. If the status were INTERNAL, the node would end the client stream and discard the client state.
The asyncio API of gRPC may report its own status before or after the leader's status
(github.com/grpc/grpc/issues/36066). The class `LeaderStream` therefore checks every reported status.

Limitation: a status that gRPC itself generates can be recognized only by its text. If no other status is
reported, the call is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

import grpc

STATUS_SECONDS: Final = 1.0
"""Maximum time in seconds to wait for the leader's status after a failed write."""
NO_STATUS: Final = "The leader has ended the stream, and its word why was lost. Call again."
_WRITE_FAILED: Final = "Internal error from Core"


class CallStatus(NamedTuple):
    """The status code and the details of a completed call."""

    code: grpc.StatusCode
    details: str


class LeaderStream:
    """A bidirectional gRPC stream to the leader. Messages are serialized bytes."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._status: asyncio.Future[CallStatus] = asyncio.get_running_loop().create_future()
        call.add_done_callback(self._record_status)

    async def replies(self, messages: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Send `messages` to the leader, and yield its replies.

        Raise `AioRpcError` if the leader ends the call with a status other than OK.
        """
        saying = asyncio.create_task(self._send_messages(messages))
        try:
            async for reply in self._call:
                yield cast(bytes, reply)
        except grpc.aio.AioRpcError as error:
            if not is_write_failure(CallStatus(error.code(), error.details() or "")):
                raise
            word = await self._final_status()
            if word.code != grpc.StatusCode.OK:
                nothing = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(word.code, nothing, nothing, word.details, None) from None
        finally:
            saying.cancel()
            self._call.cancel()

    async def _send_messages(self, messages: AsyncIterator[bytes]) -> None:
        """Send messages until the leader ends the call. The status of the call is handled in `replies`."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async for message in messages:
                await self._call.write(message)
            await self._call.done_writing()

    def _record_status(self, call: Any) -> None:
        """Record the first status that is not a write failure. This method is called for each status."""
        word = CallStatus(result_without_waiting(call.code()), result_without_waiting(call.details()) or "")
        if not (self._status.done() or is_write_failure(word)):
            self._status.set_result(word)

    async def _final_status(self) -> CallStatus:
        try:
            async with asyncio.timeout(STATUS_SECONDS):
                return await self._status
        except TimeoutError:
            return CallStatus(grpc.StatusCode.UNAVAILABLE, NO_STATUS)


def is_write_failure(word: CallStatus) -> bool:
    """Return whether gRPC generated this status because a write failed."""
    return word == (grpc.StatusCode.INTERNAL, _WRITE_FAILED)


def result_without_waiting(asked: Any) -> Any:
    """Return the result of a coroutine that never suspends, such as `code()` of a completed call."""
    try:
        asked.send(None)
    except StopIteration as returned:
        return returned.value
    raise AssertionError("A call that has ended has a status.")
