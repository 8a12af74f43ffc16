"""The table as an ASGI application: what a server gets to send for a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from services.rpc.caller import Caller
from services.rpc.generated import service_pb2 as wire
from services.rpc.generated.definition_pb2 import Code, Status
from services.rpc.service import NAME, Streaming, Unary

HEADERS = [(b"x-mq-client-id", b"one"), (b"te", b"trailers")]
REPLIES = 3


async def heartbeat(_: wire.HeartbeatRequest, caller: Caller) -> wire.HeartbeatResponse:
    return wire.HeartbeatResponse(status=Status(code=Code.OK, message=f"{caller.client_id} at {caller.host}"))


async def receive(
    request: wire.ReceiveMessageRequest, _: Caller
) -> AsyncGenerator[wire.ReceiveMessageResponse, None]:
    if request.batch_size == 0:
        await asyncio.Event().wait()
    for number in range(REPLIES):
        yield wire.ReceiveMessageResponse(status=Status(message=str(number)))


class Server:
    """What a call is given, and what it sends."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._events, self.sent = list(events), list[dict[str, Any]]()

    async def receive(self) -> dict[str, Any]:
        if not self._events:
            await asyncio.Event().wait()
        return self._events.pop(0)

    async def send(self, event: dict[str, Any]) -> None:
        self.sent.append(event)

    @property
    def body(self) -> bytes:
        return b"".join(event["body"] for event in self.sent if event["type"] == "http.response.body")

    @property
    def trailers(self) -> dict[bytes, bytes]:
        return dict(self.sent[-1]["headers"])


@pytest.fixture
def application(benchmarks: Any) -> Any:
    made = benchmarks("front_asgi").Application()
    unary = Unary(wire.HeartbeatRequest, wire.HeartbeatResponse, heartbeat)
    streaming = Streaming(wire.ReceiveMessageRequest, wire.ReceiveMessageResponse, receive)
    table = {"Heartbeat": unary, "ReceiveMessage": streaming}
    made.routes = benchmarks("front_grpc").routes_of(table, None, lambda *_: None)
    return made


def call(application: Any, name: str, *events: dict[str, Any]) -> Server:
    scope = {"type": "http", "path": f"/{NAME}/{name}", "headers": HEADERS, "client": ("10.0.0.7", 5000)}
    server = Server(*events)

    async def bounded() -> None:
        await asyncio.wait_for(application(scope, server.receive, server.send), 10)

    asyncio.run(bounded())
    return server


def requested(benchmarks: Any, message: Any) -> dict[str, Any]:
    framed = benchmarks("front_grpc").framed(message.SerializeToString())
    return {"type": "http.request", "body": framed, "more_body": False}


def test_a_call_is_answered_with_a_body_and_a_status_in_the_trailers(
    benchmarks: Any, application: Any
) -> None:
    server = call(application, "Heartbeat", requested(benchmarks, wire.HeartbeatRequest()))
    reply = wire.HeartbeatResponse.FromString(server.body[5:])
    assert reply.status.message == "one at 10.0.0.7"
    assert server.trailers == {b"grpc-status": b"0"}


def test_all_replies_of_a_request_leave_in_one_body(benchmarks: Any, application: Any) -> None:
    server = call(
        application, "ReceiveMessage", requested(benchmarks, wire.ReceiveMessageRequest(batch_size=3))
    )
    assert [event["type"] for event in server.sent].count("http.response.body") == 1
    assert len(benchmarks("front_grpc").Frames().feed(server.body)) == REPLIES


def test_a_client_that_goes_away_ends_the_wait(benchmarks: Any, application: Any) -> None:
    asked = requested(benchmarks, wire.ReceiveMessageRequest())
    server = call(application, "ReceiveMessage", asked, {"type": "http.disconnect"})
    assert server.body == b""


def test_an_unknown_rpc_and_half_a_message_end_with_a_status(benchmarks: Any, application: Any) -> None:
    grpc = benchmarks("front_grpc")
    unknown = call(application, "Nothing")
    half = call(application, "Heartbeat", {"type": "http.request", "body": b"\0\0", "more_body": False})
    statuses = [int(server.trailers[b"grpc-status"]) for server in (unknown, half)]
    assert statuses == [grpc.UNIMPLEMENTED, grpc.INTERNAL]
