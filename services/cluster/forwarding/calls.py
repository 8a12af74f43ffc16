"""Forwarding of client calls to the leader by a node that does not lead; each call is sent as bytes.

    client --call--> this node --the same bytes, once--> leader --reply--> this node --> client

    unary, receive    retried with the next leader while there is no answer, until the caller's deadline is
                      near (RETRY_MARGIN_SECONDS); only then UNAVAILABLE, also if a leader refuses a call that
                      an earlier leader may have carried out (WRITES)
    Telemetry         a stream to the leader for each stream of a client; after a change of leaders, a new
                      stream, which begins with the kept state of the client (`presence`)

Rules
1. The leader authorizes calls and decides their outcomes; this node parses messages only to keep the state of
   clients.
2. A forwarded call is never forwarded again (FORWARDED). If each of two nodes assumes that the other node
   leads, both answer UNAVAILABLE, and the node of the client retries.
3. Only a call without an answer is repeated, and a repeated message is stored once, by id and content
   (`services.broker.repeats`). A refusal by a leader only means that the refused attempt had no effect. An
   earlier attempt may still be queued at an earlier leader, and a leader searches for the results of earlier
   leaders only for sends. Therefore, the node reports to the client that the outcome is unknown.
4. Telemetry and SyncLiteSubscription calls of a node's own clients are handled by this module also while the
   node leads (`switch`), and are answered by the node's broker, `local`. Therefore, the stream of a client
   remains open when its node steps down.
5. The stream of a client ends when the leader ends the stream. A leader that steps down ends the streams of
   other nodes with UNAVAILABLE, and these streams continue with the next leader. The status from the leader
   takes precedence over the error of a write (`services.cluster.forwarding.leader_stream`).
6. A leader behind a network that drops packets silently counts as unresponsive. A connection is closed, and
   its calls are retried, if the peer sends no TCP acknowledgement or answer to keepalive pings for SILENT_MS.

Cost: one round trip and some 300 us of CPU time for each call (`benchmarks/cluster.py`). Weak spot: the
leader limits connections by the address of the node, but clients by the address of the client (`vouching`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, NamedTuple, cast

import grpc

from services.auth import signature
from services.cluster.election.reach import LeaderReachability
from services.cluster.forwarding.channels import is_certificate_error
from services.cluster.forwarding.leader_stream import LeaderStream
from services.cluster.forwarding.lines import ChannelPool
from services.cluster.forwarding.presence import (
    REPEAT_SECONDS,
    ClientMessages,
    ClientState,
    Presence,
    complete_subscription,
    is_accepted,
)
from services.cluster.forwarding.vouching import ORIGIN, VOUCHED, sign_arrival, sign_origin, verify_arrival_ms
from services.cluster.node import ClusterNode, monotonic_ms
from services.cluster.peers import certificate_mismatch_text
from services.front.connection import Connection
from services.front.grpc_calls import CallReceived, CallStarted, Method
from services.front.grpc_wire import Refused, Status, parse_timeout
from services.front.header_fields import CompressionError, Head
from services.rpc.generated import service_pb2
from services.rpc.generated.definition_pb2 import Code
from services.rpc.metrics.metrics_export import OPENCENSUS, OTLP
from services.rpc.serving.service import NAME
from services.rpc.serving.serving import Serving

FORWARDED: Final = "x-tidewheel-forwarded"
"""The header field that marks a forwarded call, with the epoch of the leader."""
RETRY_MARGIN_SECONDS: Final = 0.2
RETRY_PAUSE_SECONDS: Final = 0.05
RETRY_PAUSE_SECONDS_MAX: Final = 0.4
"""The first and the maximum delay after failed attempts; a new EPOCH ends the delay."""
CALL_SECONDS: Final = 30.0
"""The timeout of a call without a deadline."""
SECONDS_MAX: Final = 24 * 3_600.0
NO_LEADER: Final = "No node of the cluster leads now. Call again: tidewheel cluster status tells more."
NOT_LEADING: Final = "This node does not lead, and the call was forwarded to it. Call again."
NOBODY_KNOWS: Final = (
    "Nobody knows whether this was done: a leader that is gone may have done it, and the next one refuses. "
    "Call again, a send with the same message id."
)
_UNREACHED: Final = (
    *(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED),
    grpc.StatusCode.CANCELLED,
)
"""The statuses after which the leader may or may not have received the call."""
_PASSED_ON: Final = ("x-mq-", "authorization")
"""The prefixes of the header fields that are forwarded to the leader."""
WRITES: Final = frozenset(
    {
        *("SendMessage", "EndTransaction", "RecallMessage", "UpdateOffset"),
        *("AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"),
    }
)
"""The methods whose refusal means that the call had no effect; field 1 of their replies is the status."""
TELEMETRY: Final = "Telemetry"
SYNC_LITE: Final = "SyncLiteSubscription"


class Shape(NamedTuple):
    """A method: its path, and whether its request and its reply are streams."""

    path: str
    takes_stream: bool
    gives_stream: bool

    @property
    def name(self) -> str:
        """The name of the RPC in the broker's table."""
        return self.path.removeprefix(f"/{NAME}/")

    @property
    def method(self) -> str:
        """The name of the method within its service."""
        return self.path.rpartition("/")[2]


class LeaderChanged(Exception):
    """Another node leads than the one that was called."""


@dataclass
class Attempt:
    """A call to the leader of an epoch: its channel, header fields and timeout.

    `local` is the broker of this node if this node leads, or None otherwise.
    """

    channel: grpc.aio.Channel
    fields: tuple[tuple[str, str], ...]
    left_seconds: float
    epoch: int
    reachability: LeaderReachability
    began_ms: int
    local: Serving | None = None
    may_be_done: bool = False
    """Whether an earlier attempt may have carried out the call."""
    has_answered: bool = False
    """Whether the client has received a reply that another attempt would repeat."""
    not_its_own: str = ""
    """The reason why the peer could not be verified as the leader, or "" if it was verified."""

    @contextmanager
    def retry_on_failure(self) -> Iterator[None]:
        """Suppress failures of the block after which another attempt is allowed.

        If the client has already received a reply, raise the failure.
        """
        try:
            yield
        except LeaderChanged:
            if self.has_answered:
                raise Refused(Status.UNAVAILABLE, NOT_LEADING) from None
        except grpc.aio.AioRpcError as error:
            if error.code() in _UNREACHED and not is_certificate_error(error):
                self.reachability.record_failure(self.epoch, self.began_ms, monotonic_ms())
            else:  # a peer responds, perhaps with another certificate, and clients get its error
                self.reachability.record_answer(monotonic_ms())
            if self.has_answered or not _is_retryable(error):
                raise
            self.not_its_own = (error.details() or "") if is_certificate_error(error) else ""
        else:
            self.reachability.record_answer(monotonic_ms())


class ClientCall(NamedTuple):
    """A call of a client at this node, and its time of arrival, in ms since 1970."""

    connection: Connection
    stream_id: int
    shape: Shape
    head: Head
    came_ms: int


class Forwarding:
    """The service that answers the calls of all connections through the leader known to `node`.

    `key` is the cluster's key of users' secrets, and is empty without authentication. `clock` returns the
    wall time in ms.
    """

    def __init__(
        self, node: ClusterNode, key: bytes, clock: Callable[[], int], origin_key: bytes = b""
    ) -> None:
        self._node, self._key, self._clock = node, key, clock
        self._origin_key = origin_key or key
        self._methods = {one.path: Method(one, one.takes_stream) for one in _shapes()}
        self._channels = ChannelPool()
        self._talks: dict[tuple[Connection, int], asyncio.Task[Any]] = {}
        self.presence = Presence()
        self.local: Serving | None = None
        """The broker of this node, or None while this node does not lead."""

    def lead(self, serving: Serving) -> None:
        """Answer calls through the broker of this node, and close the channels to the previous leader."""
        self.local = serving
        self._channels.close_idle()

    def forward_again(self) -> None:
        """Answer calls through the node that leads."""
        self.local = None

    async def close(self) -> None:
        """Close the channels to other nodes."""
        await self._channels.close()

    def end_telemetry(self) -> None:
        """End all Telemetry streams, which clients keep open indefinitely."""
        for (connection, stream_id), task in list(self._talks.items()):
            task.cancel()
            connection.end(stream_id)

    def method_of(self, path: str) -> Method | None:
        """Return the method of a path, or None if the path is unknown."""
        return self._methods.get(path)

    def call_received(self, connection: Connection, call: CallReceived) -> None:
        """Forward a call whose request is one message."""
        shape = shape_of(call.method)
        asked = ClientCall(connection, call.stream_id, shape, call.head, self._clock())
        forward = self._forward_receive if shape.gives_stream else self._forward_unary
        if shape.name == SYNC_LITE:
            forward = self._answer_sync if call.head.has(FORWARDED) else self._forward_sync
        connection.start(call.stream_id, self._serve_call(asked, forward, call.message))

    def call_started(self, connection: Connection, call: CallStarted) -> None:
        """Forward a call whose request is a stream."""
        shape = shape_of(call.method)
        asked = ClientCall(connection, call.stream_id, shape, call.head, self._clock())
        talk = self._answer_telemetry if call.head.has(FORWARDED) else self._forward_telemetry
        if shape.name != TELEMETRY:
            talk = self._forward_metrics
        connection.start(call.stream_id, self._serve_call(asked, talk))

    async def _serve_call(
        self, asked: ClientCall, serve: Callable[..., Awaitable[None]], *given: bytes
    ) -> None:
        """Serve a call, and end it with a status if the service raises an error."""
        connection, stream_id = asked.connection, asked.stream_id
        try:
            await serve(asked, *given)
        except Refused as refused:
            connection.end(stream_id, refused.status, refused.text)
        except CompressionError as error:
            connection.end(stream_id, Status.INTERNAL, str(error))
        except TimeoutError:
            connection.end(stream_id, Status.UNAVAILABLE, NO_LEADER)
        except grpc.aio.AioRpcError as error:
            connection.end(stream_id, status_of(error), error.details() or "")

    # Calls of one message.

    async def _forward_unary(self, asked: ClientCall, message: bytes) -> None:
        async with aclosing(self._attempts(asked)) as attempts:
            async for attempt in attempts:
                with attempt.retry_on_failure():
                    reply = await self._while_leads(attempt, _call_leader(attempt, asked.shape, message))
                    if attempt.may_be_done and asked.shape.method in WRITES:
                        _require_done(reply)
                    asked.connection.is_let_in = True
                    asked.connection.reply(asked.stream_id, reply)
                    return

    async def _forward_receive(self, asked: ClientCall, message: bytes) -> None:
        async with aclosing(self._attempts(asked)) as attempts:
            async for attempt in attempts:
                call = attempt.channel.unary_stream(asked.shape.path, None, None)(
                    message, metadata=attempt.fields, timeout=attempt.left_seconds
                )
                with attempt.retry_on_failure():
                    await self._while_leads(attempt, _relay_replies(call, asked, attempt))
                    asked.connection.end(asked.stream_id)
                    return

    async def _answer_sync(self, asked: ClientCall, message: bytes) -> None:
        """Answer a SyncLiteSubscription from another node through the broker of this node."""
        if self.local is None:
            raise Refused(Status.UNAVAILABLE, NOT_LEADING)
        came_ms = verify_arrival_ms(self._key, asked.head.all(), self._clock())
        reply = await self.local.answered(asked.connection, asked.shape.path, asked.head, message, came_ms)
        asked.connection.reply(asked.stream_id, reply)

    # Presence of clients.

    async def _forward_sync(self, asked: ClientCall, message: bytes) -> None:
        """Forward the subscription of a client, and record the subscription if the leader accepts it."""
        client_id, head = _client_id_of(asked.head), asked.head
        kept = self.presence.find(client_id)
        if kept is None:
            asked.connection.reply(asked.stream_id, await self._synced(asked, message))
            return
        async with kept.lock:
            reply = await self._synced(asked, message)
            if is_accepted(reply):
                language = head.get("x-mq-language")
                self.presence.record_subscription(client_id, kept, _user_of(head), language, message)
        asked.connection.reply(asked.stream_id, reply)

    async def _synced(self, asked: ClientCall, message: bytes) -> bytes:
        async with aclosing(self._attempts(asked)) as attempts:
            async for attempt in attempts:
                with attempt.retry_on_failure():
                    return cast(
                        bytes, await self._while_leads(attempt, _sync_with_leader(attempt, asked, message))
                    )
        raise TimeoutError

    async def _forward_telemetry(self, asked: ClientCall) -> None:
        """Forward a stream in both directions, and continue the stream after a change of leaders."""
        connection, stream_id, client_id = asked.connection, asked.stream_id, _client_id_of(asked.head)
        kept = self.presence.add_stream(client_id)
        said = ClientMessages(kept)
        hearing = asyncio.create_task(said.receive(connection, stream_id))
        self._talks[connection, stream_id] = cast("asyncio.Task[Any]", asyncio.current_task())
        try:
            async with aclosing(self._attempts(asked, stands=True)) as attempts:
                async for attempt in attempts:
                    again = asyncio.create_task(self._subscribe_again(attempt, asked, kept))
                    try:
                        with attempt.retry_on_failure():
                            await self._while_leads(
                                attempt, self._exchange_messages(attempt, asked, said, kept)
                            )
                            if attempt.local is self.local or attempt.local is None:
                                connection.end(stream_id)
                                return
                    finally:
                        again.cancel()
        finally:
            hearing.cancel()
            self.presence.remove_stream(client_id)
            del self._talks[connection, stream_id]

    async def _exchange_messages(
        self, attempt: Attempt, asked: ClientCall, said: ClientMessages, kept: ClientState
    ) -> None:
        """Send the client's messages to the leader and the leader's replies to the client.

        Return when the leader has sent its last reply.
        """
        if attempt.local is not None:
            messages, path = said.messages(), asked.shape.path
            told = attempt.local.told(asked.connection, path, asked.head, messages, asked.came_ms)
            async with aclosing(told) as replies:
                async for reply in replies:
                    self.presence.record_revocation(kept, reply)
                    await asked.connection.send_message(asked.stream_id, reply)
            return
        call = attempt.channel.stream_stream(asked.shape.path, None, None)(None, metadata=attempt.fields)
        async with aclosing(LeaderStream(call).replies(said.messages())) as replies:
            async for reply in replies:
                asked.connection.is_let_in = True
                self.presence.record_revocation(kept, reply)
                await asked.connection.send_message(asked.stream_id, reply)

    async def _subscribe_again(self, attempt: Attempt, asked: ClientCall, kept: ClientState) -> None:
        """Send the subscriptions of a client to a leader until the leader has accepted all of them."""
        user, attempt = _user_of(asked.head), replace(attempt, left_seconds=CALL_SECONDS)
        sync = asked._replace(shape=asked.shape._replace(path=f"/{NAME}/{SYNC_LITE}"))
        left = [key for key in kept.lite if key[0] == user]
        while left:
            said, left = left, []
            for key in said:  # a refused subscription does not delay the others
                async with kept.lock:
                    message = complete_subscription(key, kept.lite[key]) if key in kept.lite else None
                    if message is not None and not await _try_to_sync(attempt, sync, message):
                        left.append(key)
            if left:
                await asyncio.sleep(REPEAT_SECONDS)

    async def _forward_metrics(self, asked: ClientCall) -> None:
        """Forward a stream of client metrics to one leader.

        After a change of leaders, the client opens a new stream.
        """
        said = ClientMessages(ClientState())
        hearing = asyncio.create_task(said.receive(asked.connection, asked.stream_id))
        try:
            async with aclosing(self._attempts(asked, stands=True)) as attempts:
                async for attempt in attempts:
                    await self._while_leads(
                        attempt, self._exchange_messages(attempt, asked, said, ClientState())
                    )
                    asked.connection.end(asked.stream_id)
                    return
        except LeaderChanged:
            raise Refused(Status.UNAVAILABLE, NOT_LEADING) from None
        finally:
            hearing.cancel()

    async def _answer_telemetry(self, asked: ClientCall) -> None:
        """Answer a stream from another node through the broker of this node.

        End the stream with UNAVAILABLE if this node steps down.
        """
        local, connection = self.local, asked.connection
        if local is None:
            raise Refused(Status.UNAVAILABLE, NOT_LEADING)
        came_ms = verify_arrival_ms(self._key, asked.head.all(), self._clock())
        messages = connection.messages(asked.stream_id)
        async with aclosing(
            local.told(connection, asked.shape.path, asked.head, messages, came_ms)
        ) as replies:
            async for reply in replies:
                await connection.send_message(asked.stream_id, reply)
        if self.local is not local:
            raise Refused(Status.UNAVAILABLE, NOT_LEADING)
        connection.end(asked.stream_id)

    # The leader.

    async def _while_leads(self, attempt: Attempt, call: Awaitable[Any]) -> Any:
        """Return the result of a call; raise `LeaderChanged` as soon as the called node no longer leads."""
        calling = asyncio.ensure_future(call)
        moving = asyncio.ensure_future(self._node.wait_for_other_epoch(attempt.epoch))
        try:
            await asyncio.wait({calling, moving}, return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                raise LeaderChanged
            return calling.result()
        finally:
            calling.cancel()
            moving.cancel()
            # An exception refers to this frame, the frame to the task, and the task to the exception and the
            # call. As long as the call exists, gRPC reconnects the closed channel of the call.
            del calling

    async def _attempts(self, asked: ClientCall, *, stands: bool = False) -> AsyncGenerator[Attempt, None]:
        """Yield attempts to call the leader until the deadline is near; then raise TimeoutError.

        With `stands`, the call continues with the next leader, so this node vouches for the client.
        """
        head = asked.head
        if head.has(FORWARDED):
            raise Refused(Status.UNAVAILABLE, NOT_LEADING)
        given = head.get("grpc-timeout")
        seconds = min(parse_timeout(given), SECONDS_MAX) if given else inf if stands else CALL_SECONDS
        loop, not_its_own, may_be_done = asyncio.get_running_loop(), "", False
        until, pause_seconds = loop.time() + seconds - RETRY_MARGIN_SECONDS, RETRY_PAUSE_SECONDS
        while (left_seconds := until - loop.time()) > 0:
            epoch, leader = await self._node.wait_for_leader(min(left_seconds, SECONDS_MAX))
            left_seconds = max(until - loop.time(), RETRY_PAUSE_SECONDS)
            fields = (*self._fields(asked, vouches=stands), (FORWARDED, str(epoch)))
            is_here = leader.node == self._node.me.node and asked.shape.name in (TELEMETRY, SYNC_LITE)
            local = self.local if is_here else None
            with self._channels.acquire(leader.listen, leader.certificate, self._node.acts.shown) as channel:
                attempt = Attempt(
                    *(channel, fields, left_seconds, epoch, self._node.election.reachability, monotonic_ms()),
                    *(local, may_be_done),
                )
                yield attempt
            may_be_done = True
            not_its_own = attempt.not_its_own and certificate_mismatch_text(
                leader.listen, attempt.not_its_own
            )
            moved = asyncio.ensure_future(self._node.wait_for_other_epoch(epoch))
            await asyncio.wait({moved}, timeout=max(0.0, min(pause_seconds, until - loop.time())))
            moved.cancel()
            pause_seconds = min(2 * pause_seconds, RETRY_PAUSE_SECONDS_MAX)
        if not_its_own:
            raise Refused(Status.UNAVAILABLE, not_its_own)
        raise TimeoutError

    def _fields(self, asked: ClientCall, *, vouches: bool) -> tuple[tuple[str, str], ...]:
        """Return the header fields of a call for the leader."""
        origin = self._node.me.node, asked.connection.host, asked.connection.number
        fields = (
            *((name, text) for name, text in asked.head.all().items() if name.startswith(_PASSED_ON)),
            (ORIGIN, sign_origin(self._origin_key, *origin)),
        )
        if not (vouches and self._key):
            return fields
        return (*fields, (VOUCHED, sign_arrival(self._key, fields, asked.came_ms, self._clock())))


async def _call_leader(attempt: Attempt, shape: Shape, message: bytes) -> bytes:
    call = attempt.channel.unary_unary(shape.path, None, None)
    return cast(bytes, await call(message, metadata=attempt.fields, timeout=attempt.left_seconds))


def _require_done(reply: bytes) -> None:
    """Raise `Refused` if the reply is a refusal, because an earlier attempt may have carried out the call."""
    status = service_pb2.EndTransactionResponse.FromString(reply).status
    if status.code != Code.OK:
        raise Refused(Status.UNAVAILABLE, f"{NOBODY_KNOWS} It says: {status.message}")


async def _sync_with_leader(attempt: Attempt, asked: ClientCall, message: bytes) -> bytes:
    """Return the answer of the leader, which may be this node, to a SyncLiteSubscription."""
    if attempt.local is None:
        return await _call_leader(attempt, asked.shape, message)
    connection, path = asked.connection, asked.shape.path
    return await attempt.local.answered(connection, path, asked.head, message, asked.came_ms)


async def _try_to_sync(attempt: Attempt, asked: ClientCall, message: bytes) -> bool:
    """Return whether a leader has accepted a client's subscription."""
    try:
        return is_accepted(await _sync_with_leader(attempt, asked, message))
    except (grpc.aio.AioRpcError, Refused):
        return False


def _client_id_of(head: Head) -> str:
    return head.get("x-mq-client-id")


def _user_of(head: Head) -> str:
    """Return the user name in the signature of a call, without verification, or "" without a signature."""
    try:
        return signature.parse(head.get("authorization"), head.get("x-mq-date-time")).access_key
    except signature.Refused:
        return ""


async def _relay_replies(call: Any, asked: ClientCall, attempt: Attempt) -> None:
    """Send the leader's replies to the client until the stream ends."""
    async for reply in call:
        asked.connection.is_let_in = attempt.has_answered = True
        attempt.reachability.record_answer(monotonic_ms())
        await asked.connection.send_message(asked.stream_id, cast(bytes, reply))


def _is_retryable(error: grpc.aio.AioRpcError) -> bool:
    """Return whether another attempt is allowed: the call has failed, but no leader has refused it."""
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def status_of(error: grpc.aio.AioRpcError) -> Status:
    """Convert the error of a leader to the status for the client."""
    code = error.code().value[0]
    return Status(code) if code in Status.__members__.values() else Status.UNKNOWN


def shape_of(method: Method) -> Shape:
    """Return the shape of a method that this node has looked up."""
    assert isinstance(method.target, Shape), "the switch looks up what a broker before it has looked up"
    return method.target


def _shapes() -> list[Shape]:
    """Return the methods of RocketMQ's service and the methods for client metrics."""
    return [
        Shape(f"/{NAME}/{method.name}", method.client_streaming, method.server_streaming)
        for method in service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods
    ] + [
        Shape(f"/{OTLP}", takes_stream=False, gives_stream=False),
        Shape(f"/{OPENCENSUS}", takes_stream=True, gives_stream=True),
    ]
