"""gRPC's TestService over our front, for the interoperability cases of other libraries' clients.

(grpc/grpc, doc/interop-test-descriptions.md.) Fields of the messages, by their numbers there:

| message                    | fields                                                                       |
|----------------------------|------------------------------------------------------------------------------|
| Payload                    | body 2                                                                       |
| EchoStatus                 | code 1, message 2                                                            |
| SimpleRequest              | response_size 2, payload 3, response_status 7                                |
| SimpleResponse             | payload 1                                                                    |
| StreamingInputCallRequest  | payload 1                                                                    |
| StreamingInputCallResponse | aggregated_payload_size 1                                                    |
| ResponseParameters         | size 1, interval_us 2                                                        |
| StreamingOutputCallRequest | response_parameters 2, payload 3, response_status 7                          |
| StreamingOutputCallResponse| payload 1                                                                    |

Run alone it serves one port until it is killed: python -m tests.interop.service PORT
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from services.front.admission import Limits
from services.front.connection import Connection, ServerState
from services.front.grpc_calls import CallReceived, CallStarted, Method
from services.front.grpc_wire import Status, encode_field, parse_timeout
from services.front.header_fields import Head
from services.front.port import Port
from services.process.event_loop import new_event_loop

INITIAL, TRAILING = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
_NUMBER, _TEXT, _BYTES, _MESSAGE = 5, 9, 12, 11
_FIELDS: dict[str, list[tuple[str, int, int, str, bool]]] = {
    "Payload": [("body", 2, _BYTES, "", False)],
    "EchoStatus": [("code", 1, _NUMBER, "", False), ("message", 2, _TEXT, "", False)],
    "SimpleRequest": [
        ("response_size", 2, _NUMBER, "", False),
        ("payload", 3, _MESSAGE, "Payload", False),
        ("response_status", 7, _MESSAGE, "EchoStatus", False),
    ],
    "SimpleResponse": [("payload", 1, _MESSAGE, "Payload", False)],
    "StreamingInputCallRequest": [("payload", 1, _MESSAGE, "Payload", False)],
    "StreamingInputCallResponse": [("aggregated_payload_size", 1, _NUMBER, "", False)],
    "ResponseParameters": [("size", 1, _NUMBER, "", False), ("interval_us", 2, _NUMBER, "", False)],
    "StreamingOutputCallRequest": [
        ("response_parameters", 2, _MESSAGE, "ResponseParameters", True),
        ("payload", 3, _MESSAGE, "Payload", False),
        ("response_status", 7, _MESSAGE, "EchoStatus", False),
    ],
    "StreamingOutputCallResponse": [("payload", 1, _MESSAGE, "Payload", False)],
}


def _made() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="interop.proto", package="interop", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of, is_repeated in fields:
            added = message.field.add(name=field, number=number, type=kind, label=3 if is_repeated else 1)
            if of:
                added.type_name = f".interop.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"interop.{name}"))
        for name in _FIELDS
    }


MESSAGES = _made()
Serve = Callable[[Connection, int, Head, AsyncIterator[bytes]], Awaitable[None]]


async def one(message: bytes) -> AsyncIterator[bytes]:
    yield message


class TestService:
    """Serves the calls of `grpc.testing.TestService`."""

    __test__ = False

    def __init__(self) -> None:
        serves: dict[str, tuple[Serve, bool]] = {
            "EmptyCall": (self._empty, False),
            "UnaryCall": (self._unary, False),
            "StreamingInputCall": (self._input, True),
            "StreamingOutputCall": (self._output, False),
            "FullDuplexCall": (self._duplex, True),
            "HalfDuplexCall": (self._duplex, True),
        }
        self._methods = {
            f"/grpc.testing.TestService/{name}": Method(serve, takes_stream)
            for name, (serve, takes_stream) in serves.items()
        }

    def method_of(self, path: str) -> Method | None:
        return self._methods.get(path)

    def call_received(self, connection: Connection, call: CallReceived) -> None:
        serving = self._serve(connection, call.stream_id, call.method, call.head, one(call.message))
        connection.start(call.stream_id, serving)

    def call_started(self, connection: Connection, call: CallStarted) -> None:
        messages = connection.messages(call.stream_id)
        serving = self._serve(connection, call.stream_id, call.method, call.head, messages)
        connection.start(call.stream_id, serving)

    async def _serve(
        self, connection: Connection, stream_id: int, method: Method, head: Head, said: AsyncIterator[bytes]
    ) -> None:
        fields = head.all()
        if INITIAL in fields:
            connection.calls.begin(stream_id, {INITIAL: fields[INITIAL]})
        timeout = fields.get("grpc-timeout")
        try:
            async with asyncio.timeout(parse_timeout(timeout) if timeout else None):
                await method.target(connection, stream_id, head, said)
        except TimeoutError:
            connection.end(stream_id, Status.DEADLINE_EXCEEDED)
        more = encode_field(TRAILING, fields[TRAILING]) if TRAILING in fields else b""
        connection.calls.end(stream_id, more=more)
        connection.schedule_write()

    async def _empty(
        self, connection: Connection, stream_id: int, head: Head, said: AsyncIterator[bytes]
    ) -> None:
        async for _ in said:
            await connection.send_message(stream_id, b"")

    async def _unary(
        self, connection: Connection, stream_id: int, head: Head, said: AsyncIterator[bytes]
    ) -> None:
        async for message in said:
            asked = MESSAGES["SimpleRequest"].FromString(message)
            if asked.response_status.code:
                connection.end(stream_id, asked.response_status.code, asked.response_status.message)
                return
            reply = MESSAGES["SimpleResponse"]()
            reply.payload.body = bytes(asked.response_size)
            await connection.send_message(stream_id, reply.SerializeToString())

    async def _input(
        self, connection: Connection, stream_id: int, head: Head, said: AsyncIterator[bytes]
    ) -> None:
        total = 0
        async for message in said:
            total += len(MESSAGES["StreamingInputCallRequest"].FromString(message).payload.body)
        reply = MESSAGES["StreamingInputCallResponse"](aggregated_payload_size=total)
        await connection.send_message(stream_id, reply.SerializeToString())

    async def _output(
        self, connection: Connection, stream_id: int, head: Head, said: AsyncIterator[bytes]
    ) -> None:
        async for message in said:
            if not await self._told(connection, stream_id, message):
                return

    async def _duplex(
        self, connection: Connection, stream_id: int, head: Head, said: AsyncIterator[bytes]
    ) -> None:
        await self._output(connection, stream_id, head, said)

    async def _told(self, connection: Connection, stream_id: int, message: bytes) -> bool:
        asked = MESSAGES["StreamingOutputCallRequest"].FromString(message)
        if asked.response_status.code:
            connection.end(stream_id, asked.response_status.code, asked.response_status.message)
            return False
        for wanted in asked.response_parameters:
            await asyncio.sleep(wanted.interval_us / 1e6)
            reply = MESSAGES["StreamingOutputCallResponse"]()
            reply.payload.body = bytes(wanted.size)
            await connection.send_message(stream_id, reply.SerializeToString())
        return True


async def serve(port: int) -> None:
    """Serve until this is cancelled."""
    listening = socket.create_server(("127.0.0.1", port))
    served = Port(ServerState(TestService()), Limits(), "", lambda *told: print(*told), None)
    served.start(listening)
    print("serving", listening.getsockname()[1], flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await served.shut_down(1.0)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
