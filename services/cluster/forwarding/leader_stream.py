"""A stream to the leader, which ends as the leader says, whatever became of what was written to it meanwhile.

    the leader ends the stream --> a write fails --> gRPC says INTERNAL of the call, over the leader's word
                                                 --> here the leader's word counts

A leader that steps down says UNAVAILABLE, and the client's stream goes on with the next one; INTERNAL would
end it, and all that is kept of the client would be forgotten with it. gRPC for asyncio says its own before or
after it was told the leader's (github.com/grpc/grpc/issues/36066), so each status is noted as it comes.

Weak spot: gRPC's own status is known by its text. Where no other comes, the leader is asked anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

import grpc

WORD_SECONDS: Final = 1.0
"""How long after a write failed the leader's word may take to come."""
NO_WORD: Final = "The leader has ended the stream, and its word why was lost. Call again."
_WRITE_FAILED: Final = "Internal error from Core"


class Word(NamedTuple):
    """How a call has ended."""

    code: grpc.StatusCode
    details: str


class LeaderStream:
    """A call both ways, of bytes."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._word: asyncio.Future[Word] = asyncio.get_running_loop().create_future()
        call.add_done_callback(self._ended)

    async def replies(self, messages: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Tell the leader `messages`, and yield what it says; raise `AioRpcError` unless its end is OK."""
        saying = asyncio.create_task(self._say(messages))
        try:
            async for reply in self._call:
                yield cast(bytes, reply)
        except grpc.aio.AioRpcError as error:
            if not is_of_a_write(Word(error.code(), error.details() or "")):
                raise
            word = await self._last_word()
            if word.code != grpc.StatusCode.OK:
                nothing = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(word.code, nothing, nothing, word.details, None) from None
        finally:
            saying.cancel()
            self._call.cancel()

    async def _say(self, messages: AsyncIterator[bytes]) -> None:
        """Tell the leader what there is to say, until it has ended the call; how, who reads is told."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async for message in messages:
                await self._call.write(message)
            await self._call.done_writing()

    def _ended(self, call: Any) -> None:
        """Note a status of the call: gRPC calls this with each, one after the other."""
        word = Word(at_once(call.code()), at_once(call.details()) or "")
        if not (self._word.done() or is_of_a_write(word)):
            self._word.set_result(word)

    async def _last_word(self) -> Word:
        try:
            async with asyncio.timeout(WORD_SECONDS):
                return await self._word
        except TimeoutError:
            return Word(grpc.StatusCode.UNAVAILABLE, NO_WORD)


def is_of_a_write(word: Word) -> bool:
    """Return whether gRPC says itself that a write failed."""
    return word == (grpc.StatusCode.INTERNAL, _WRITE_FAILED)


def at_once(asked: Any) -> Any:
    """Return what a coroutine returns that has nothing to wait for, as those of a call that has ended."""
    try:
        asked.send(None)
    except StopIteration as returned:
        return returned.value
    raise AssertionError("A call that has ended has a status.")
