"""Streams that end while something is written to them, of a real server and of one that plays each order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import grpc
import pytest
from grpc import StatusCode

from services.cluster.forwarding import leader_stream
from services.cluster.forwarding.leader_stream import NO_STATUS, LeaderStream

WAIT_SECONDS: Final = 30
OF_A_WRITE: Final = (StatusCode.INTERNAL, "Internal error from Core")
STEPS_DOWN: Final = (StatusCode.UNAVAILABLE, "This node does not lead.")
OVER: Final = (StatusCode.OK, "")


async def say(*messages: bytes) -> AsyncIterator[bytes]:
    """What a client says, which then stays."""
    for message in messages:
        yield message
    await asyncio.Event().wait()


async def end_of(stream: LeaderStream, messages: AsyncIterator[bytes]) -> tuple[list[bytes], Any, str]:
    """Return what a leader says, and how it ends the stream."""
    said = []
    try:
        async for reply in stream.replies(messages):
            said.append(reply)
    except grpc.aio.AioRpcError as error:
        return said, error.code(), error.details() or ""
    return said, *OVER


class Leader:
    """A server that hears one message, and ends the stream with a word of its own."""

    def __init__(self, code: StatusCode, details: str) -> None:
        self._code, self._details = code, details
        self.ended = threading.Event()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._answer)

    def _answer(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(self.ended.set)
        next(requests)
        if self._code is not StatusCode.OK:
            context.abort(self._code, self._details)
        yield from ()


@contextmanager
def served(leader: Leader) -> Iterator[str]:
    """Let a leader listen, and give its address."""
    with ThreadPoolExecutor(2) as workers:
        server = grpc.server(workers, handlers=(leader,))  # type: ignore[arg-type]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait()


@pytest.mark.parametrize("word", [STEPS_DOWN, (StatusCode.PERMISSION_DENIED, "no"), OVER])
def test_a_write_after_the_end_takes_nothing_from_the_leaders_word(
    word: tuple[StatusCode, str],
) -> None:
    leader = Leader(*word)

    async def messages() -> AsyncIterator[bytes]:
        yield b"first"
        leader.ended.wait(
            WAIT_SECONDS
        )  # the loop stands still, so nothing of the end is read before the write
        time.sleep(0.1)  # no condition tells when gRPC has it
        yield b"second"
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream("/a/b", None, None)(None)
            assert await end_of(LeaderStream(call), messages()) == ([], *word)

    with served(leader) as address:
        asyncio.run(asyncio.wait_for(scenario(), WAIT_SECONDS))


class Played:
    """A call whose statuses come in an order that is given, as gRPC gives them."""

    def __init__(self, *words: tuple[StatusCode, str], late: tuple[StatusCode, str] | None = None) -> None:
        self._words, self._late = words, late
        self._status: tuple[StatusCode, str] = OVER
        self._callback: Callable[[Any], None]
        self.is_cancelled = False

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    async def code(self) -> StatusCode:
        return self._status[0]

    async def details(self) -> str:
        return self._status[1]

    async def write(self, message: bytes) -> None:
        raise asyncio.InvalidStateError

    def cancel(self) -> None:
        self.is_cancelled = True

    def _end(self, word: tuple[StatusCode, str]) -> None:
        self._status = word
        self._callback(self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"said"
        for word in self._words:
            self._end(word)
        if self._late is not None:
            asyncio.get_running_loop().call_soon(self._end, self._late)
        code, details = self._status
        if code is not StatusCode.OK:
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize("word", [STEPS_DOWN, (StatusCode.INTERNAL, "another"), OVER])
@pytest.mark.parametrize("order", ["alone", "before", "after", "late"])
def test_the_word_of_a_leader_counts_whenever_it_comes(order: str, word: tuple[StatusCode, str]) -> None:
    async def scenario() -> None:
        call = {
            "alone": lambda: Played(word),
            "before": lambda: Played(word, OF_A_WRITE),
            "after": lambda: Played(OF_A_WRITE, word),
            "late": lambda: Played(OF_A_WRITE, late=word),
        }[order]()
        assert await end_of(LeaderStream(call), say(b"x")) == ([b"said"], *word)
        assert call.is_cancelled

    asyncio.run(asyncio.wait_for(scenario(), WAIT_SECONDS))


def test_a_leader_without_a_word_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_stream, "STATUS_SECONDS", 0.01)

    async def scenario() -> None:
        told = await end_of(LeaderStream(Played(OF_A_WRITE)), say(b"x"))
        assert told == ([b"said"], StatusCode.UNAVAILABLE, NO_STATUS)

    asyncio.run(asyncio.wait_for(scenario(), WAIT_SECONDS))
