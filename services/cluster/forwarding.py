"""A node that does not lead answers clients all the same: each call goes on, as bytes, to the leader.

    client --call--> this node --the same bytes, once--> leader --reply--> this node --> client

    unary, receive    asked again of the next leader while nothing was answered, until the caller's deadline
                      is near (RETRY_MARGIN_SECONDS); only then UNAVAILABLE
    Telemetry         a stream to the leader for each stream of a client; when a leader is gone, a new one to
                      the next, that begins with what the client has said last

Rules
1. Nothing is read of a message but its gRPC frame, so who may do what, and every verdict, is the leader's.
2. A call that came by forwarding is never forwarded again (FORWARDED): two nodes that each take the other
   for the leader answer UNAVAILABLE, and the node that has the client asks anew.
3. A repeated call is one that was not answered: what it stores is stored once, by its id and content
   (`services.broker.repeats`).

Cost: a round trip and some 300 us of processor time a call (`benchmarks/cluster.py`). Weak spot: the leader
sees this node's address as the caller's, in its log and where connections are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

import grpc

from services.cluster.channels import channel_to, is_not_its_own
from services.cluster.node import ClusterNode, Member
from services.cluster.peers import Shown, other_certificate
from services.front.connection import Connection
from services.front.grpc_calls import CallReceived, CallStarted, Method
from services.front.grpc_wire import Refused, Status, seconds_of
from services.front.header_fields import CompressionError, Head
from services.rpc.generated import admin_pb2, service_pb2
from services.rpc.metrics_export import OPENCENSUS, OTLP
from services.rpc.service import ADMIN, NAME

FORWARDED: Final = "x-tidewheel-forwarded"
"""The header field of a forwarded call: the epoch for which it was sent."""
RETRY_MARGIN_SECONDS: Final = 0.2
RETRY_PAUSE_SECONDS: Final = 0.05
CALL_SECONDS: Final = 30.0
"""How long a call may take that names no deadline."""
SECONDS_MAX: Final = 24 * 3_600.0
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
NO_LEADER: Final = "No node of the cluster leads now. Call again: tidewheel cluster status tells more."
NOT_LEADING: Final = "This node does not lead, and the call was forwarded to it. Call again."
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
]
_KEPT: Final = ("x-mq-", "authorization")
"""How the names of header fields begin that go on to the leader."""


class Shape(NamedTuple):
    """What is known of a method: its path, and whether its request and its reply are streams."""

    path: str
    takes_stream: bool
    gives_stream: bool


class Moved(Exception):
    """Another node leads than the one that was called."""


@dataclass
class Attempt:
    """A call to the leader of an epoch: through which channel, with which header fields, within how long."""

    channel: grpc.aio.Channel
    fields: tuple[tuple[str, str], ...]
    left_seconds: float
    epoch: int
    has_answered: bool = False
    """Whether the client was told something that another attempt would tell anew."""
    not_its_own: str = ""
    """Why what answered is not known to be the leader."""

    @contextmanager
    def may_fail(self) -> Iterator[None]:
        """Let the block fail for want of this leader, unless the client was told something."""
        try:
            yield
        except Moved:
            if self.has_answered:
                raise Refused(Status.UNAVAILABLE, NOT_LEADING) from None
        except grpc.aio.AioRpcError as error:
            if self.has_answered or not _may_ask_again(error):
                raise
            self.not_its_own = (error.details() or "") if is_not_its_own(error) else ""


class Forwarding:
    """Answers the calls of all connections by the leader that `node` knows."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._methods = {one.path: Method(one, one.takes_stream) for one in _shapes()}
        self._channels: dict[tuple[str, str, Shown], grpc.aio.Channel] = {}
        """By address, its certificate and ours: one that was renewed gets a channel of its own.

        What goes on through the one before ends there; gRPC lets go of its connection when nothing does.
        """

    async def close(self) -> None:
        """Close the channels to other nodes."""
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()

    def method_of(self, path: str) -> Method | None:
        """Return the method of a path; None if there is none."""
        return self._methods.get(path)

    def call_received(self, connection: Connection, call: CallReceived) -> None:
        """Forward a call whose request is one message."""
        shape = shape_of(call.method, call.head)
        forward = self._receive if shape.gives_stream else self._unary
        serving = forward(connection, call.stream_id, shape, call.head, call.message)
        connection.start(call.stream_id, self._guarded(connection, call.stream_id, serving))

    def call_started(self, connection: Connection, call: CallStarted) -> None:
        """Forward a call whose request is a stream."""
        shape = shape_of(call.method, call.head)
        serving = self._talk(connection, call.stream_id, shape, call.head)
        connection.start(call.stream_id, self._guarded(connection, call.stream_id, serving))

    async def _guarded(self, connection: Connection, stream_id: int, serving: Any) -> None:
        try:
            await serving
        except Refused as refused:
            connection.end(stream_id, refused.status, refused.text)
        except CompressionError as error:
            connection.end(stream_id, Status.INTERNAL, str(error))
        except TimeoutError:
            connection.end(stream_id, Status.UNAVAILABLE, NO_LEADER)
        except grpc.aio.AioRpcError as error:
            connection.end(stream_id, status_of(error), error.details() or "")

    async def _unary(
        self, connection: Connection, stream_id: int, shape: Shape, head: Head, message: bytes
    ) -> None:
        async for attempt in self._attempts(head):
            call = attempt.channel.unary_unary(shape.path, None, None)
            with attempt.may_fail():
                reply = await self._while_leads(
                    attempt, call(message, metadata=attempt.fields, timeout=attempt.left_seconds)
                )
                connection.is_let_in = True
                connection.reply(stream_id, cast(bytes, reply))
                return

    async def _receive(
        self, connection: Connection, stream_id: int, shape: Shape, head: Head, message: bytes
    ) -> None:
        async for attempt in self._attempts(head):
            call = attempt.channel.unary_stream(shape.path, None, None)(
                message, metadata=attempt.fields, timeout=attempt.left_seconds
            )
            with attempt.may_fail():
                await self._while_leads(attempt, _pass_on(call, connection, stream_id, attempt))
                connection.end(stream_id)
                return

    async def _talk(self, connection: Connection, stream_id: int, shape: Shape, head: Head) -> None:
        """Forward both ways; a leader's end is not the client's, whose stream goes on with the next one."""
        said = Heard()
        hearing = asyncio.create_task(said.hear(connection, stream_id))
        try:
            async for attempt in self._attempts(head, seconds=SECONDS_MAX):
                call = attempt.channel.stream_stream(shape.path, None, None)(None, metadata=attempt.fields)
                saying = asyncio.create_task(said.pass_on(call))
                with attempt.may_fail():
                    try:
                        await self._while_leads(attempt, _pass_on(call, connection, stream_id))
                    finally:
                        saying.cancel()
                        call.cancel()
                    if said.is_over:
                        connection.end(stream_id)
                        return
        finally:
            hearing.cancel()

    async def _while_leads(self, attempt: Attempt, call: Awaitable[Any]) -> Any:
        """Return what a call returns; raise `Moved` once another node leads than the one that was called."""
        calling = asyncio.ensure_future(call)
        moving = asyncio.ensure_future(self._node.moved_from(attempt.epoch))
        try:
            await asyncio.wait({calling, moving}, return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                raise Moved
            return calling.result()
        finally:
            calling.cancel()
            moving.cancel()

    async def _attempts(self, head: Head, seconds: float | None = None) -> AsyncIterator[Attempt]:
        """Yield an attempt at the leader, and again until the deadline is near; raise TimeoutError then."""
        if head.has(FORWARDED):
            raise Refused(Status.UNAVAILABLE, NOT_LEADING)
        given = head.get("grpc-timeout")
        seconds = seconds or (min(seconds_of(given), SECONDS_MAX) if given else CALL_SECONDS)
        fields = tuple((name, value) for name, value in head.all().items() if name.startswith(_KEPT))
        loop, not_its_own = asyncio.get_running_loop(), ""
        until = loop.time() + seconds - RETRY_MARGIN_SECONDS
        while (left_seconds := until - loop.time()) > 0:
            epoch, leader = await self._node.led_by(left_seconds)
            left_seconds = max(until - loop.time(), RETRY_PAUSE_SECONDS)
            attempt = Attempt(self._channel(leader), (*fields, (FORWARDED, str(epoch))), left_seconds, epoch)
            yield attempt
            await asyncio.sleep(RETRY_PAUSE_SECONDS)
            not_its_own = attempt.not_its_own and other_certificate(leader.listen, attempt.not_its_own)
        if not_its_own:
            raise Refused(Status.UNAVAILABLE, not_its_own)
        raise TimeoutError

    def _channel(self, leader: Member) -> grpc.aio.Channel:
        key = leader.listen, leader.certificate, self._node.shown
        if key not in self._channels:
            self._channels[key] = channel_to(*key, _OPTIONS)
        return self._channels[key]


class Heard:
    """What a client says on a stream: the next leader is told the last of it first."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=16)
        self._last: bytes | None = None
        self.is_over = False
        """Whether the client has said all, and a leader was told so."""

    async def hear(self, connection: Connection, stream_id: int) -> None:
        """Keep what the client says, until it says no more."""
        async for message in connection.messages(stream_id):
            await self._said.put(message)
        await self._said.put(None)

    async def pass_on(self, call: Any) -> None:
        """Tell a leader what the client says."""
        if self._last is not None:
            await call.write(self._last)
        while (message := await self._said.get()) is not None:
            self._last = message
            await call.write(message)
        self.is_over = True
        await call.done_writing()


async def _pass_on(call: Any, connection: Connection, stream_id: int, attempt: Attempt | None = None) -> None:
    """Send the client what the leader says, until the leader's stream ends."""
    async for reply in call:
        connection.is_let_in = True
        if attempt is not None:
            attempt.has_answered = True
        await connection.send_message(stream_id, cast(bytes, reply))


def _may_ask_again(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call has met no leader, rather than a leader's refusal."""
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def status_of(error: grpc.aio.AioRpcError) -> Status:
    """Return the leader's status as this node tells it."""
    code = error.code().value[0]
    return Status(code) if code in Status.__members__.values() else Status.UNKNOWN


def shape_of(method: Method, head: Head) -> Shape:
    """Return the shape of a method that this node, or a broker before it, has looked up."""
    if isinstance(method.target, Shape):
        return method.target
    return next(one for one in _shapes() if one.path == head.get(":path"))


def _shapes() -> list[Shape]:
    """Return the methods of RocketMQ's services."""
    messaging, admin = (
        service_pb2.DESCRIPTOR.services_by_name["MessagingService"],
        admin_pb2.DESCRIPTOR.services_by_name["Admin"],
    )
    return [
        Shape(f"/{name}/{method.name}", method.client_streaming, method.server_streaming)
        for name, described in ((NAME, messaging), (ADMIN, admin))
        for method in described.methods
    ] + [
        Shape(f"/{OTLP}", takes_stream=False, gives_stream=False),
        Shape(f"/{OPENCENSUS}", takes_stream=True, gives_stream=True),
    ]
