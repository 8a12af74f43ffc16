"""Serves the table of RPCs through `services.front`.

    CallReceived --parse--> Prompt:    a call in the list of this iteration (`turns.py`)
                            Unary:     a task, one reply
                            Streaming: a task, which sends a reply when flow control permits it

The caller consists of the header fields that are the same for all its calls. They are parsed once per
connection. The signature and the deadline, which differ per call, are parsed when they are needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from commitlog.limits import QUESTION_BYTES_MAX, REQUEST_BYTES_MAX
from services.front.connection import Connection
from services.front.grpc_calls import CallReceived, CallStarted, Method
from services.front.grpc_wire import Refused, Status, parse_timeout
from services.front.header_fields import CompressionError, Head
from services.rpc.generated.definition_pb2 import Code
from services.rpc.serving.gathering import CallGatherer
from services.rpc.serving.service import (
    NAME,
    CallRefused,
    Observe,
    Prompt,
    Rpc,
    Streaming,
    Unary,
    is_authorized,
    reply_to,
    stream_to,
)
from services.rpc.serving.turns import Call, CallScheduler
from services.rpc.wire.caller import Caller, Origin
from services.rpc.wire.request_shape import TOO_MANY, has_too_many_fields

REFUSED = {
    Code.UNAUTHORIZED: Status.UNAUTHENTICATED,
    Code.FORBIDDEN: Status.PERMISSION_DENIED,
    Code.INTERNAL_SERVER_ERROR: Status.INTERNAL,
}
"""gRPC status codes for refusals of protocols without a status in the reply.

All other refusals are INVALID_ARGUMENT.
"""
UNAUTHORIZED = Code.Name(Code.UNAUTHORIZED)
CALLERS_KEPT_MAX = 8


OriginOf = Callable[[Mapping[str, str]], Origin | None]
"""Returns the origin of a call that a cluster node has forwarded, from its header fields, or None."""


def not_forwarded(fields: Mapping[str, str]) -> None:
    """Return None for all calls, for a broker that is not part of a cluster."""


class Target(NamedTuple):
    """An RPC of the table, and the name used in its metrics."""

    name: str
    rpc: Rpc


class Serving:
    """Answers the calls of all connections."""

    def __init__(
        self,
        rpcs: Mapping[str, Rpc],
        turns: CallScheduler,
        observe: Observe,
        origin_of: OriginOf = not_forwarded,
    ) -> None:
        self._origin_of = origin_of
        self._gathering, self._observe = CallGatherer(turns), observe
        self._methods: dict[str, Method] = {}
        for name, rpc in rpcs.items():
            takes_stream = isinstance(rpc, Streaming) and rpc.both_ways
            is_kept = isinstance(rpc, Streaming) and not rpc.both_ways
            path = f"/{name}" if "/" in name else f"/{NAME}/{name}"
            bytes_max = QUESTION_BYTES_MAX if is_kept else REQUEST_BYTES_MAX
            self._methods[path] = Method(Target(name, rpc), takes_stream, bytes_max)

    def method_of(self, path: str) -> Method | None:
        """Return the method for a path."""
        return self._methods.get(path)

    def call_received(self, connection: Connection, call: CallReceived) -> None:
        """Answer a call, either immediately or later."""
        stream_id, method, head, message = call
        name, rpc = method.target
        try:
            request = request_of(rpc, message)
            caller = self._caller_of(connection, head) if isinstance(rpc, Prompt) else None
        except Refused as refused:
            connection.end(stream_id, refused.status, refused.text)
            return
        if caller is not None:
            tell = partial(self._tell, connection, stream_id)
            self._gathering.add(Call(name, rpc, request, len(message), caller, tell, self._observe))
        else:
            connection.start(stream_id, self._serve(connection, stream_id, head, name, rpc, request))

    def call_started(self, connection: Connection, call: CallStarted) -> None:
        """Answer a call whose request is a stream."""
        stream_id, method, head = call
        name, rpc = method.target
        requests = parsed(rpc, connection.messages(stream_id))
        connection.start(stream_id, self._serve(connection, stream_id, head, name, rpc, requests))

    async def answered(
        self, connection: Connection, path: str, head: Head, message: bytes, came_ms: int | None
    ) -> bytes:
        """Return the answer to a unary call. `came_ms` is described in `Caller`. Raises `Refused`.

        Used by a cluster node that forwards calls of its clients. The path must be that of an RPC that is not
        prompt.
        """
        name, rpc = self._methods[path].target
        caller = replace(self._caller_of(connection, head), came_ms=came_ms)
        request = request_of(rpc, message)
        reply = await reply_to(name, rpc, request, caller, self._observe)
        connection.is_authenticated |= is_authorized(reply)
        return bytes(reply.SerializeToString())

    async def told(
        self,
        connection: Connection,
        path: str,
        head: Head,
        messages: AsyncIterator[bytes],
        came_ms: int | None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the answers to a stream of messages. The rules of `answered` apply."""
        name, rpc = self._methods[path].target
        caller = replace(self._caller_of(connection, head), came_ms=came_ms)
        async with aclosing(stream_to(name, rpc, parsed(rpc, messages), caller, self._observe)) as replies:
            async for reply in replies:
                connection.is_authenticated |= is_authorized(reply)
                yield reply.SerializeToString()

    def _caller_of(self, connection: Connection, head: Head) -> Caller:
        """Return the caller from the header fields and the connection. Raises `Refused`."""
        kept = connection.callers.get(id(head.fields))
        if kept is not None and kept[0] is head.fields:
            caller: Caller = kept[1]
        else:
            caller = constant_caller(connection, head.fields, self._origin_of(head.fields))
            if len(connection.callers) >= CALLERS_KEPT_MAX:
                connection.callers.clear()
            connection.callers[id(head.fields)] = head.fields, caller
        if not head.has("authorization"):
            return caller
        try:
            return replace(caller, authorization=head.get("authorization"), date=head.get("x-mq-date-time"))
        except CompressionError as error:
            raise Refused(Status.INTERNAL, str(error)) from error

    def _tell(self, connection: Connection, stream_id: int, reply: bytes, code: str) -> None:
        if code != UNAUTHORIZED:
            connection.is_authenticated = True
        connection.reply(stream_id, reply)

    async def _serve(
        self, connection: Connection, stream_id: int, head: Head, name: str, rpc: Any, request: Any
    ) -> None:
        try:
            caller = with_deadline(self._caller_of(connection, head), head)
            del head  # the header may be large, and the call may be long
            if caller.seconds_left == 0:
                raise TimeoutError
            answer = self._unary if isinstance(rpc, Unary) else self._stream
            async with asyncio.timeout(caller.seconds_left):
                await answer(connection, stream_id, name, rpc, request, caller)
        except TimeoutError:
            connection.end(stream_id, Status.DEADLINE_EXCEEDED, "The call's time is over.")
        except CompressionError as error:
            connection.end(stream_id, Status.INTERNAL, str(error))
        except Refused as refused:
            connection.end(stream_id, refused.status, refused.text)
        except CallRefused as refused:
            status = REFUSED.get(refused.status.code, Status.INVALID_ARGUMENT)
            connection.end(stream_id, status, refused.status.message)

    async def _unary(
        self, connection: Connection, stream_id: int, name: str, rpc: Unary, request: Any, caller: Caller
    ) -> None:
        reply = await reply_to(name, rpc, request, caller, self._observe)
        connection.is_authenticated |= rpc.has_status and is_authorized(reply)
        connection.reply(stream_id, reply.SerializeToString())

    async def _stream(
        self, connection: Connection, stream_id: int, name: str, rpc: Streaming, request: Any, caller: Caller
    ) -> None:
        async with aclosing(stream_to(name, rpc, request, caller, self._observe)) as replies:
            async for reply in replies:
                connection.is_authenticated |= rpc.has_status and is_authorized(reply)
                await connection.send_message(
                    stream_id, reply if isinstance(reply, bytes) else reply.SerializeToString()
                )
        connection.end(stream_id)


async def parsed(rpc: Streaming, messages: AsyncIterator[bytes]) -> AsyncGenerator[Any, None]:
    """Yield the requests of a stream."""
    async for message in messages:
        yield request_of(rpc, message)


def request_of(rpc: Rpc, message: bytes) -> Any:
    """Parse a request. Raises `Refused` if it is malformed or has too many fields."""
    if has_too_many_fields(message, rpc.request.DESCRIPTOR):
        raise Refused(Status.RESOURCE_EXHAUSTED, TOO_MANY)
    try:
        return rpc.request.FromString(message)
    except DecodeError as error:
        raise Refused(Status.INTERNAL, f"The request is none: {error}.") from error


def constant_caller(connection: Connection, fields: Mapping[str, str], origin: Origin | None) -> Caller:
    """Return the part of the caller that is the same for all its calls."""
    host, number = origin or (connection.host, connection.number)
    return Caller(
        client_id=fields.get("x-mq-client-id", ""),
        language=fields.get("x-mq-language", ""),
        version=fields.get("x-mq-client-version", ""),
        host=host,
        date=fields.get("x-mq-date-time", ""),
        namespace=fields.get("x-mq-namespace", ""),
        is_encrypted=connection.is_encrypted,
        connection=number,
    )


def with_deadline(caller: Caller, head: Head) -> Caller:
    """Return the caller with the remaining time of its call. Raises `Refused`."""
    timeout = head.get("grpc-timeout")
    return replace(caller, seconds_left=parse_timeout(timeout)) if timeout else caller
