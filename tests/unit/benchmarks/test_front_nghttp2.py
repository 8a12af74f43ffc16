"""The front on nghttp2 answers a real gRPC client as grpcio does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.front.certificates import own_files
from services.rpc.caller import Caller
from services.rpc.generated import service_pb2 as wire
from services.rpc.generated.definition_pb2 import Code, Status
from services.rpc.service import NAME, Rpc, Streaming, Unary

WHO = (("x-mq-client-id", "somebody"),)
LARGE_BYTES = 3 * 1024 * 1024
REPLIES = 34
SCENARIO_SECONDS = 20
OK = Status(code=Code.OK)


@pytest.fixture(scope="module")
def nghttp2(benchmarks: Any) -> Any:
    if find_spec("cffi") is None:
        pytest.skip("cffi is not installed")
    if benchmarks("front_nghttp2_library").library() is None:
        pytest.skip("libnghttp2 is not installed (Debian: libnghttp2-14)")
    return benchmarks("front_nghttp2")


@dataclass
class Handlers:
    """One handler of each shape."""

    callers: list[Caller] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def heartbeat(self, request: wire.HeartbeatRequest, caller: Caller) -> wire.HeartbeatResponse:
        self.callers.append(caller)
        return wire.HeartbeatResponse(status=Status(code=Code.OK, message=request.group.name))

    async def receive(
        self, request: wire.ReceiveMessageRequest, _: Caller
    ) -> AsyncGenerator[wire.ReceiveMessageResponse, None]:
        if request.group.name == "waits":
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        for number in range(REPLIES):
            yield wire.ReceiveMessageResponse(status=Status(code=Code.OK, message=str(number)))

    async def telemetry(
        self, commands: AsyncIterator[wire.TelemetryCommand], _: Caller
    ) -> AsyncGenerator[wire.TelemetryCommand, None]:
        async for command in commands:
            yield command

    def table(self) -> dict[str, Rpc]:
        receive = Streaming(wire.ReceiveMessageRequest, wire.ReceiveMessageResponse, self.receive)
        both = Streaming(wire.TelemetryCommand, wire.TelemetryCommand, self.telemetry, both_ways=True)
        unary = Unary(wire.HeartbeatRequest, wire.HeartbeatResponse, self.heartbeat)
        return {"Heartbeat": unary, "ReceiveMessage": receive, "Telemetry": both}


@dataclass
class Served:
    """A front that serves, and a client of it."""

    handlers: Handlers
    server: Any
    channel: grpc.aio.Channel

    def call(self, shape: str, name: str, request: Any, reply: Any) -> Any:
        made = getattr(self.channel, shape)
        return made(f"/{NAME}/{name}", request.SerializeToString, reply.FromString)

    @property
    def heartbeat(self) -> Any:
        return self.call("unary_unary", "Heartbeat", wire.HeartbeatRequest, wire.HeartbeatResponse)

    @property
    def receive(self) -> Any:
        return self.call(
            "unary_stream", "ReceiveMessage", wire.ReceiveMessageRequest, wire.ReceiveMessageResponse
        )


@asynccontextmanager
async def serving(nghttp2: Any, tls: Path | None = None) -> AsyncIterator[Served]:
    handlers, server = Handlers(), nghttp2.Nghttp2Server()
    if tls is None:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.bind('127.0.0.1', 0)}")
    else:
        files = own_files(tls, ["127.0.0.1"])
        port = server.bind_tls("127.0.0.1", files)
        trusted = grpc.ssl_channel_credentials(files.certificate.read_bytes())
        channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted)
    await server.start(handlers.table(), None, lambda *_: None)
    try:
        yield Served(handlers, server, channel)
    finally:
        await channel.close()
        await server.stop(1.0)


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), SCENARIO_SECONDS)

    asyncio.run(bounded())


def named(name: str) -> Any:
    request = wire.HeartbeatRequest()
    request.group.name = name
    return request


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_call_is_answered_and_its_caller_known(nghttp2: Any, tmp_path: Path, is_tls: bool) -> None:
    async def scenario() -> None:
        async with serving(nghttp2, tmp_path if is_tls else None) as served:
            answer = await served.heartbeat(named("g"), metadata=WHO, timeout=10)
            assert (answer.status.code, answer.status.message) == (Code.OK, "g")
            (caller,) = served.handlers.callers
            assert (caller.client_id, caller.host) == ("somebody", "127.0.0.1")
            assert caller.seconds_left is not None
            assert 5 < caller.seconds_left <= 10

    play(scenario)


def test_a_stream_of_replies_comes_whole_and_in_order(nghttp2: Any) -> None:
    async def scenario() -> None:
        async with serving(nghttp2) as served:
            replies = served.receive(wire.ReceiveMessageRequest(), metadata=WHO)
            assert [one.status.message async for one in replies] == [str(number) for number in range(REPLIES)]

    play(scenario)


def test_messages_larger_than_the_windows_pass_both_ways(nghttp2: Any) -> None:
    async def scenario() -> None:
        async with serving(nghttp2) as served:
            answers = await asyncio.gather(
                *(served.heartbeat(named("x" * LARGE_BYTES), metadata=WHO) for _ in range(4))
            )
            assert {len(one.status.message) for one in answers} == {LARGE_BYTES}

    play(scenario)


def test_a_stream_is_answered_while_its_client_still_writes(nghttp2: Any) -> None:
    async def scenario() -> None:
        async with serving(nghttp2) as served:
            stream = served.call("stream_stream", "Telemetry", wire.TelemetryCommand, wire.TelemetryCommand)(
                metadata=WHO
            )
            for text in ("one", "two"):
                await stream.write(wire.TelemetryCommand(status=Status(message=text)))
                assert (await stream.read()).status.message == text
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK

    play(scenario)


def test_an_unknown_rpc_is_unimplemented_and_others_do_not_notice(nghttp2: Any) -> None:
    async def scenario() -> None:
        async with serving(nghttp2) as served:
            unknown = served.call("unary_unary", "Nothing", wire.HeartbeatRequest, wire.HeartbeatResponse)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await unknown(named("g"), metadata=WHO)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert (await served.heartbeat(named("g"), metadata=WHO)).status.code == Code.OK

    play(scenario)


def test_a_request_that_is_no_message_ends_with_a_status(nghttp2: Any) -> None:
    async def scenario() -> None:
        async with serving(nghttp2) as served:
            broken = served.channel.unary_unary(f"/{NAME}/Heartbeat")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await broken(b"\xff\xff", metadata=WHO)
            assert refused.value.code() is grpc.StatusCode.INTERNAL

    play(scenario)


@pytest.mark.parametrize("way", ["deadline", "cancel"])
def test_who_waits_no_longer_ends_the_handler(nghttp2: Any, way: str) -> None:
    async def scenario() -> None:
        async with serving(nghttp2) as served:
            request = wire.ReceiveMessageRequest()
            request.group.name = "waits"
            replies = served.receive(request, metadata=WHO, timeout=0.3 if way == "deadline" else None)
            await served.handlers.waiting.wait()
            if way == "cancel":
                replies.cancel()
            else:
                with pytest.raises(grpc.aio.AioRpcError) as late:
                    await replies.read()
                assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await served.handlers.cancelled.wait()

    play(scenario)
