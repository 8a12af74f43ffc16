"""Forwarding of client calls from a follower to the leader, byte for byte.

    client --call-->   this node   --the same bytes, once--> leader
    client <--reply--  this node   <--the same bytes--       leader

A unary call or a receive is retried with each new leader until a leader answers. If the caller's deadline is
near (RETRY_MARGIN_SECONDS), the call fails with UNAVAILABLE. A write also fails with UNAVAILABLE if a leader
refuses it after a previous leader may have executed it (WRITES). For each Telemetry stream of a client, the
node opens a separate stream to the leader. After a leader change, the node opens a new stream to the next
leader, and begins it with the stored client state (`presence`).

Rules
1. The leader authorizes calls and determines their results. The forwarding node parses messages only to track
   client state.
2. A node never forwards a call that has already been forwarded (FORWARDED). If two nodes each consider the
   other to be the leader, the node that receives a forwarded call returns UNAVAILABLE, and the forwarding
   node retries the call.
3. A call is retried only if no leader has answered it. The broker recognizes a duplicate message by its id
   and content, and stores the message only once (`services.broker.repeats`). A refusal by a leader implies
   only that the refused attempt had no effect. An earlier attempt may still be queued at a previous leader,
   and a leader looks up the results of previous leaders only for sends. If a leader refuses a retried write,
   the node reports to the client that the outcome is unknown.
4. Even on the leader, Telemetry and SyncLiteSubscription calls from the node's own clients are handled by
   this module (`switch`), which passes them to the node's broker, `local`. Client streams therefore remain
   open when the node steps down.
5. When the leader ends a stream, the node ends the corresponding client stream. A leader that steps down ends
   the streams from other nodes with UNAVAILABLE, and those nodes reconnect their client streams to the next
   leader. The status that the leader returns takes precedence over a write error
   (`services.cluster.forwarding.leader_stream`).
6. A leader behind a network that silently drops packets is treated as unresponsive. If a peer sends neither
   TCP acknowledgements nor replies to keepalive pings for SILENT_MS, the node closes the connection and
   retries the affected calls.

Cost: each call requires one additional round trip and about 300 us of CPU time (`benchmarks/cluster.py`).
Weak spot: the leader applies connection limits to the address of the forwarding node, but per-client limits
to the address of the client (`origin_signatures`).
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
from services.cluster.forwarding.channel_pool import ChannelPool
from services.cluster.forwarding.channels import is_certificate_error
from services.cluster.forwarding.leader_stream import LeaderStream
from services.cluster.forwarding.origin_signatures import (
    ORIGIN,
    VOUCHED,
    sign_arrival,
    sign_origin,
    verify_arrival_ms,
)
from services.cluster.forwarding.presence import (
    REPEAT_SECONDS,
    ClientMessages,
    ClientState,
    Presence,
    complete_subscription,
    is_accepted,
)
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
"""The header field that marks a call as forwarded and contains the epoch of the called leader."""
RETRY_MARGIN_SECONDS: Final = 0.2
RETRY_PAUSE_SECONDS: Final = 0.05
RETRY_PAUSE_SECONDS_MAX: Final = 0.4
"""The maximum delay, in seconds, after a failed attempt. A new EPOCH record ends the delay early."""
CALL_SECONDS: Final = 30.0
"""The timeout, in seconds, for calls that have no deadline."""
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
"""The status codes that leave it unknown whether the leader received the call."""
_PASSED_ON: Final = ("x-mq-", "authorization")
"""The name prefixes of the header fields that are forwarded."""
WRITES: Final = frozenset(
    {
        *("SendMessage", "EndTransaction", "RecallMessage", "UpdateOffset"),
        *("AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"),
    }
)
"""The methods that have no effect if they are refused. In their replies, field 1 is the status."""
TELEMETRY: Final = "Telemetry"
SYNC_LITE: Final = "SyncLiteSubscription"


class Shape(NamedTuple):
    """The path of an RPC method, and whether its requests and responses are streamed."""

    path: str
    takes_stream: bool
    gives_stream: bool

    @property
    def name(self) -> str:
        """The name of the method in the broker's method table."""
        return self.path.removeprefix(f"/{NAME}/")

    @property
    def method(self) -> str:
        """The name of the method, without the service name."""
        return self.path.rpartition("/")[2]


class LeaderChanged(Exception):
    """The called node is no longer the leader."""


@dataclass
class Attempt:
    """An attempt to forward a call to the leader of an epoch.

    `local` is the broker of this node, or None if the call is forwarded to another node.
    """

    channel: grpc.aio.Channel
    fields: tuple[tuple[str, str], ...]
    left_seconds: float
    epoch: int
    reachability: LeaderReachability
    began_ms: int
    local: Serving | None = None
    may_be_done: bool = False
    """Whether an earlier attempt may already have executed the call."""
    has_answered: bool = False
    """Whether the client has already received a reply, which another attempt would duplicate."""
    not_its_own: str = ""
    """The reason why the peer could not be verified as the leader, or "" if verification succeeded."""

    @contextmanager
    def retry_on_failure(self) -> Iterator[None]:
        """Suppress an error that is raised by the block, provided that the call may be attempted again.

        Errors are no longer suppressed once the client has received a reply.
        """
        try:
            yield
        except LeaderChanged:
            if self.has_answered:
                raise Refused(Status.UNAVAILABLE, NOT_LEADING) from None
        except grpc.aio.AioRpcError as error:
            if error.code() in _UNREACHED and not is_certificate_error(error):
                self.reachability.record_failure(self.epoch, self.began_ms, monotonic_ms())
            else:  # a peer responded, possibly with a different certificate
                self.reachability.record_answer(monotonic_ms())
            if self.has_answered or not _is_retryable(error):
                raise
            self.not_its_own = (error.details() or "") if is_certificate_error(error) else ""
        else:
            self.reachability.record_answer(monotonic_ms())


class ClientCall(NamedTuple):
    """A client call that this node received, with its arrival time in ms since the Unix epoch."""

    connection: Connection
    stream_id: int
    shape: Shape
    head: Head
    came_ms: int


class CallForwarder:
    """The gRPC service of a node that forwards client calls to the leader known to `node`.

    `key` is the cluster key that protects user secrets, or an empty value if authentication is disabled.
    `clock` returns the wall-clock time in ms. `origin_key` signs the origin of calls, and defaults to `key`.
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
        """The broker of this node, or None if this node is not the leader."""

    def lead(self, serving: Serving) -> None:
        """Start passing calls to this node's broker, and close idle channels to other nodes."""
        self.local = serving
        self._channels.close_idle()

    def forward_again(self) -> None:
        """Resume forwarding calls to the leader."""
        self.local = None

    async def close(self) -> None:
        """Close the channels to other nodes."""
        await self._channels.close()

    def end_telemetry(self) -> None:
        """End all Telemetry streams, which clients would otherwise keep open indefinitely."""
        for (connection, stream_id), task in list(self._talks.items()):
            task.cancel()
            connection.end(stream_id)

    def method_of(self, path: str) -> Method | None:
        """Return the RPC method with the given path, or None if the path is unknown."""
        return self._methods.get(path)

    def call_received(self, connection: Connection, call: CallReceived) -> None:
        """Forward a call with a single request message."""
        shape = shape_of(call.method)
        asked = ClientCall(connection, call.stream_id, shape, call.head, self._clock())
        forward = self._forward_receive if shape.gives_stream else self._forward_unary
        if shape.name == SYNC_LITE:
            forward = self._answer_sync if call.head.has(FORWARDED) else self._forward_sync
        connection.start(call.stream_id, self._serve_call(asked, forward, call.message))

    def call_started(self, connection: Connection, call: CallStarted) -> None:
        """Forward a call with a stream of request messages."""
        shape = shape_of(call.method)
        asked = ClientCall(connection, call.stream_id, shape, call.head, self._clock())
        talk = self._answer_telemetry if call.head.has(FORWARDED) else self._forward_telemetry
        if shape.name != TELEMETRY:
            talk = self._forward_metrics
        connection.start(call.stream_id, self._serve_call(asked, talk))

    async def _serve_call(
        self, asked: ClientCall, serve: Callable[..., Awaitable[None]], *given: bytes
    ) -> None:
        """Serve a call. If `serve` raises an error, end the call with the corresponding status."""
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

    # Calls with a single request message.

    async def _forward_unary(self, asked: ClientCall, message: bytes) -> None:
        async with aclosing(self._attempts(asked)) as attempts:
            async for attempt in attempts:
                with attempt.retry_on_failure():
                    reply = await self._while_leads(attempt, _call_leader(attempt, asked.shape, message))
                    if attempt.may_be_done and asked.shape.method in WRITES:
                        _require_done(reply)
                    asked.connection.is_authenticated = True
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
        """Pass a forwarded SyncLiteSubscription call to this node's broker, and return its reply."""
        if self.local is None:
            raise Refused(Status.UNAVAILABLE, NOT_LEADING)
        came_ms = verify_arrival_ms(self._key, asked.head.all(), self._clock())
        reply = await self.local.answered(asked.connection, asked.shape.path, asked.head, message, came_ms)
        asked.connection.reply(asked.stream_id, reply)

    # Calls that change the stored client state.

    async def _forward_sync(self, asked: ClientCall, message: bytes) -> None:
        """Forward a subscription request, and record the subscription if the leader accepts it."""
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
        """Relay a Telemetry stream in both directions, and reconnect it to each new leader."""
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
        """Relay the client's messages to the leader and the leader's replies to the client.

        The method returns after relaying the leader's last reply.
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
                asked.connection.is_authenticated = True
                self.presence.record_revocation(kept, reply)
                await asked.connection.send_message(asked.stream_id, reply)

    async def _subscribe_again(self, attempt: Attempt, asked: ClientCall, kept: ClientState) -> None:
        """Resend a client's subscriptions until the leader has accepted all of them."""
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
        """Relay a stream of client metrics to the current leader.

        If the leader changes, the client must open a new stream.
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
        """Answer a forwarded Telemetry stream through this node's broker.

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
        """Return the result of a call, or raise `LeaderChanged` if a new epoch begins first."""
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
            # Break the reference cycle of the exception, the frame and the task, because the cycle keeps the
            # call alive. As long as a call exists, gRPC reconnects the closed channel of the call.
            del calling

    async def _attempts(self, asked: ClientCall, *, stands: bool = False) -> AsyncGenerator[Attempt, None]:
        """Yield attempts to call the leader until the deadline is near, and then raise TimeoutError.

        If `stands` is true, the call outlives a leader change, so this node signs the arrival time of the
        call.
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
        """Return the header fields of the forwarded call.

        If `vouches` is true, the header fields include a signed arrival time.
        """
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
    """If the reply is a refusal, raise `Refused` to report that the outcome is unknown."""
    status = service_pb2.EndTransactionResponse.FromString(reply).status
    if status.code != Code.OK:
        raise Refused(Status.UNAVAILABLE, f"{NOBODY_KNOWS} It says: {status.message}")


async def _sync_with_leader(attempt: Attempt, asked: ClientCall, message: bytes) -> bytes:
    """Return the reply of the leader, which may be this node, to a SyncLiteSubscription call."""
    if attempt.local is None:
        return await _call_leader(attempt, asked.shape, message)
    connection, path = asked.connection, asked.shape.path
    return await attempt.local.answered(connection, path, asked.head, message, asked.came_ms)


async def _try_to_sync(attempt: Attempt, asked: ClientCall, message: bytes) -> bool:
    """Send a client's subscription to the leader, and return whether the leader accepted it."""
    try:
        return is_accepted(await _sync_with_leader(attempt, asked, message))
    except (grpc.aio.AioRpcError, Refused):
        return False


def _client_id_of(head: Head) -> str:
    return head.get("x-mq-client-id")


def _user_of(head: Head) -> str:
    """Return the unverified user name from the call signature, or "" if the call is not signed."""
    try:
        return signature.parse(head.get("authorization"), head.get("x-mq-date-time")).access_key
    except signature.Refused:
        return ""


async def _relay_replies(call: Any, asked: ClientCall, attempt: Attempt) -> None:
    """Send the leader's replies to the client until the stream ends."""
    async for reply in call:
        asked.connection.is_authenticated = attempt.has_answered = True
        attempt.reachability.record_answer(monotonic_ms())
        await asked.connection.send_message(asked.stream_id, cast(bytes, reply))


def _is_retryable(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a failed call may be retried. A call that a leader has refused must not be retried."""
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def status_of(error: grpc.aio.AioRpcError) -> Status:
    """Return the status to send to the client for an error from the leader."""
    code = error.code().value[0]
    return Status(code) if code in Status.__members__.values() else Status.UNKNOWN


def shape_of(method: Method) -> Shape:
    """Return the `Shape` of a method that `Forwarding.method_of` returned."""
    assert isinstance(method.target, Shape), "the switch looks up what a broker before it has looked up"
    return method.target


def _shapes() -> list[Shape]:
    """Return the methods of RocketMQ's messaging service and the methods for client metrics."""
    return [
        Shape(f"/{NAME}/{method.name}", method.client_streaming, method.server_streaming)
        for method in service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods
    ] + [
        Shape(f"/{OTLP}", takes_stream=False, gives_stream=False),
        Shape(f"/{OPENCENSUS}", takes_stream=True, gives_stream=True),
    ]
