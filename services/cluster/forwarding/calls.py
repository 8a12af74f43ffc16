"""Forwards gRPC calls of clients from a follower to the leader, byte for byte.

    client --call-->   this node   --the same bytes, once--> leader
    client <--reply--  this node   <--the same bytes--       leader

A unary call or a receive is retried with each new leader until one answers. The call fails with UNAVAILABLE
if RETRY_MARGIN_SECONDS or less remain before the caller's deadline. A retried write (WRITES) also fails with
UNAVAILABLE if a leader refuses it, because a previous leader may have executed it. For each Telemetry stream
of a client, the node opens one stream to the leader. After a leader change, the node opens a new stream to
the next leader and first sends the stored client state (`connected_clients`).

Rules
1. The leader authorizes and executes calls. The forwarding node parses messages only to track the client
   state.
2. A forwarded call is never forwarded again (FORWARDED). A follower that receives a forwarded call returns
   UNAVAILABLE, and the forwarding node retries the call.
3. A call is retried only if no leader has answered it. The broker detects duplicate messages by id and
   content, and stores each message only once (`services.broker.repeats`). Only sends are checked for
   duplicates. A refusal does not prove that the call was never executed, because a previous leader may have
   executed an earlier attempt. If a leader refuses a retried write, the node therefore reports an unknown
   outcome to the client.
4. On the leader, this module also handles the Telemetry and SyncLiteSubscription calls of clients that are
   connected to the leader (`switch`). They are passed to this node's broker, `local`. Client streams
   therefore stay open when the leader steps down.
5. When the leader ends a stream, the node ends the client stream. A leader that steps down ends its streams
   with UNAVAILABLE, and the other nodes reconnect their client streams to the next leader. The leader's
   status takes precedence over a write error (`services.cluster.forwarding.leader_stream`).
6. If the network silently drops packets, a peer sends neither TCP acknowledgements nor ping replies. After
   SILENT_MS, the node closes the connection to that peer and retries the affected calls.

Cost: one additional round trip and about 300 us of CPU time per call (`benchmarks/cluster.py`). Limitation:
connection limits apply to the address of the forwarding node, but client limits apply to the address of the
client (`origin_signatures`).
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
from services.cluster.forwarding.connected_clients import (
    REPEAT_SECONDS,
    ClientMessages,
    ClientState,
    ConnectedClients,
    complete_subscription,
    is_accepted,
)
from services.cluster.forwarding.leader_stream import LeaderStream
from services.cluster.forwarding.origin_signatures import (
    ARRIVAL,
    ORIGIN,
    sign_arrival,
    sign_origin,
    verify_arrival_ms,
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
"""The header field that marks forwarded calls. The value is the epoch of the called leader."""
RETRY_MARGIN_SECONDS: Final = 0.2
RETRY_PAUSE_SECONDS: Final = 0.05
RETRY_PAUSE_SECONDS_MAX: Final = 0.4
"""Maximum delay in seconds after a failed attempt. A new EPOCH record ends the delay early."""
CALL_SECONDS: Final = 30.0
"""Timeout in seconds of calls without a deadline."""
SECONDS_MAX: Final = 24 * 3_600.0
NO_LEADER: Final = "No node of the cluster leads now. Call again: tidewheel cluster status tells more."
NOT_LEADING: Final = "This node does not lead, and the call was forwarded to it. Call again."
OUTCOME_UNKNOWN: Final = (
    "Nobody knows whether this was done: a leader that is gone may have done it, and the next one refuses. "
    "Call again, a send with the same message id."
)
_UNREACHED: Final = (
    *(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED),
    grpc.StatusCode.CANCELLED,
)
"""The status codes that do not show whether the call has reached the leader."""
_FORWARDED_PREFIXES: Final = ("x-mq-", "authorization")
"""The name prefixes of the header fields that are forwarded."""
WRITES: Final = frozenset(
    {
        *("SendMessage", "EndTransaction", "RecallMessage", "UpdateOffset"),
        *("AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"),
    }
)
"""Methods that have no effect if the leader refuses the call. Field 1 of the reply is the status."""
TELEMETRY: Final = "Telemetry"
SYNC_LITE: Final = "SyncLiteSubscription"


class RpcMethod(NamedTuple):
    """The path of an RPC method, and whether its requests and responses are streamed."""

    path: str
    has_request_stream: bool
    has_response_stream: bool

    @property
    def name(self) -> str:
        """Return the method name in the broker's method table."""
        return self.path.removeprefix(f"/{NAME}/")

    @property
    def method(self) -> str:
        """Return the method name without the service name."""
        return self.path.rpartition("/")[2]


class LeaderChanged(Exception):
    """Another epoch has begun, and the called node may no longer be the leader."""


@dataclass
class ForwardAttempt:
    """An attempt to forward a call to the leader of an epoch.

    `local` is this node's broker if this node is the leader and handles the call itself, and None otherwise.
    """

    channel: grpc.aio.Channel
    fields: tuple[tuple[str, str], ...]
    remaining_seconds: float
    epoch: int
    reachability: LeaderReachability
    began_ms: int
    local: Serving | None = None
    may_have_executed: bool = False
    """Whether an earlier attempt may have executed the call."""
    has_answered: bool = False
    """Whether the client has received a reply. Another attempt would duplicate that reply."""
    certificate_error: str = ""
    """The reason why the leader's certificate was rejected, or "" if it was not rejected."""

    @contextmanager
    def retry_on_failure(self) -> Iterator[None]:
        """Suppress an error from the block if the call can be retried.

        No error is suppressed after the client has received a reply.
        """
        try:
            yield
        except LeaderChanged:
            if self.has_answered:
                raise Refused(Status.UNAVAILABLE, NOT_LEADING) from None
        except grpc.aio.AioRpcError as error:
            if error.code() in _UNREACHED and not is_certificate_error(error):
                self.reachability.record_failure(self.epoch, self.began_ms, monotonic_ms())
            else:  # a peer has responded, possibly with a different certificate
                self.reachability.record_answer(monotonic_ms())
            if self.has_answered or not _is_retryable(error):
                raise
            self.certificate_error = (error.details() or "") if is_certificate_error(error) else ""
        else:
            self.reachability.record_answer(monotonic_ms())


class ClientCall(NamedTuple):
    """A call from a client.

    `arrived_ms` is the arrival time in milliseconds since the Unix epoch.
    """

    connection: Connection
    stream_id: int
    rpc_method: RpcMethod
    head: Head
    arrived_ms: int


class CallForwarder:
    """A gRPC service that forwards the calls of clients to the leader.

    `key` is the cluster key for user secrets, or empty if authentication is disabled. `clock` returns the
    wall-clock time in milliseconds. `origin_key` is the key that signs the origin of calls, by default `key`.
    """

    def __init__(
        self, node: ClusterNode, key: bytes, clock: Callable[[], int], origin_key: bytes = b""
    ) -> None:
        self._node, self._key, self._clock = node, key, clock
        self._origin_key = origin_key or key
        self._methods = {one.path: Method(one, one.has_request_stream) for one in _rpc_methods()}
        self._channels = ChannelPool()
        self._telemetry_tasks: dict[tuple[Connection, int], asyncio.Task[Any]] = {}
        self.connected_clients = ConnectedClients()
        self.local: Serving | None = None
        """This node's broker, or None if this node is not the leader."""

    def serve_locally(self, serving: Serving) -> None:
        """Start passing calls to this node's broker, and close idle channels to other nodes."""
        self.local = serving
        self._channels.close_idle()

    def resume_forwarding(self) -> None:
        """Resume forwarding calls to the leader."""
        self.local = None

    async def close(self) -> None:
        """Close all channels to other nodes."""
        await self._channels.close()

    def end_telemetry(self) -> None:
        """End all Telemetry streams, because clients keep them open indefinitely."""
        for (connection, stream_id), task in list(self._telemetry_tasks.items()):
            task.cancel()
            connection.end(stream_id)

    def method_of(self, path: str) -> Method | None:
        """Return the RPC method for `path`, or None if the path is unknown."""
        return self._methods.get(path)

    def call_received(self, connection: Connection, call: CallReceived) -> None:
        """Forward a call that has a single request message."""
        rpc_method = rpc_method_of(call.method)
        asked = ClientCall(connection, call.stream_id, rpc_method, call.head, self._clock())
        forward = self._forward_receive if rpc_method.has_response_stream else self._forward_unary
        if rpc_method.name == SYNC_LITE:
            forward = self._serve_sync if call.head.has(FORWARDED) else self._forward_sync
        connection.start(call.stream_id, self._serve_call(asked, forward, call.message))

    def call_started(self, connection: Connection, call: CallStarted) -> None:
        """Forward a call that has a stream of request messages."""
        rpc_method = rpc_method_of(call.method)
        asked = ClientCall(connection, call.stream_id, rpc_method, call.head, self._clock())
        talk = self._serve_telemetry if call.head.has(FORWARDED) else self._forward_telemetry
        if rpc_method.name != TELEMETRY:
            talk = self._forward_metrics
        connection.start(call.stream_id, self._serve_call(asked, talk))

    async def _serve_call(
        self, asked: ClientCall, serve: Callable[..., Awaitable[None]], *given: bytes
    ) -> None:
        """Serve a call. If an error occurs, end the call with the corresponding status."""
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
                    reply = await self._run_while_leader(
                        attempt, _call_leader(attempt, asked.rpc_method, message)
                    )
                    if attempt.may_have_executed and asked.rpc_method.method in WRITES:
                        _raise_if_refused(reply)
                    asked.connection.is_authenticated = True
                    asked.connection.reply(asked.stream_id, reply)
                    return

    async def _forward_receive(self, asked: ClientCall, message: bytes) -> None:
        async with aclosing(self._attempts(asked)) as attempts:
            async for attempt in attempts:
                call = attempt.channel.unary_stream(asked.rpc_method.path, None, None)(
                    message, metadata=attempt.fields, timeout=attempt.remaining_seconds
                )
                with attempt.retry_on_failure():
                    await self._run_while_leader(attempt, _relay_replies(call, asked, attempt))
                    asked.connection.end(asked.stream_id)
                    return

    async def _serve_sync(self, asked: ClientCall, message: bytes) -> None:
        """Answer a forwarded SyncLiteSubscription call with this node's broker."""
        if self.local is None:
            raise Refused(Status.UNAVAILABLE, NOT_LEADING)
        arrived_ms = verify_arrival_ms(self._key, asked.head.all(), self._clock())
        reply = await self.local.answered(
            asked.connection, asked.rpc_method.path, asked.head, message, arrived_ms
        )
        asked.connection.reply(asked.stream_id, reply)

    # Calls that change the stored client state.

    async def _forward_sync(self, asked: ClientCall, message: bytes) -> None:
        """Forward a subscription request, and record the subscription if the leader accepts it."""
        client_id, head = _client_id_of(asked.head), asked.head
        kept = self.connected_clients.find(client_id)
        if kept is None:
            asked.connection.reply(asked.stream_id, await self._record_sync(asked, message))
            return
        async with kept.lock:
            reply = await self._record_sync(asked, message)
            if is_accepted(reply):
                language = head.get("x-mq-language")
                self.connected_clients.record_subscription(client_id, kept, _user_of(head), language, message)
        asked.connection.reply(asked.stream_id, reply)

    async def _record_sync(self, asked: ClientCall, message: bytes) -> bytes:
        async with aclosing(self._attempts(asked)) as attempts:
            async for attempt in attempts:
                with attempt.retry_on_failure():
                    return cast(
                        bytes,
                        await self._run_while_leader(attempt, _sync_with_leader(attempt, asked, message)),
                    )
        raise TimeoutError

    async def _forward_telemetry(self, asked: ClientCall) -> None:
        """Relay a Telemetry stream in both directions, and reconnect to each new leader."""
        connection, stream_id, client_id = asked.connection, asked.stream_id, _client_id_of(asked.head)
        kept = self.connected_clients.add_stream(client_id)
        said = ClientMessages(kept)
        hearing = asyncio.create_task(said.receive(connection, stream_id))
        self._telemetry_tasks[connection, stream_id] = cast("asyncio.Task[Any]", asyncio.current_task())
        try:
            async with aclosing(self._attempts(asked, stands=True)) as attempts:
                async for attempt in attempts:
                    again = asyncio.create_task(self._resubscribe(attempt, asked, kept))
                    try:
                        with attempt.retry_on_failure():
                            await self._run_while_leader(
                                attempt, self._exchange_messages(attempt, asked, said, kept)
                            )
                            if attempt.local is self.local or attempt.local is None:
                                connection.end(stream_id)
                                return
                    finally:
                        again.cancel()
        finally:
            hearing.cancel()
            self.connected_clients.remove_stream(client_id)
            del self._telemetry_tasks[connection, stream_id]

    async def _exchange_messages(
        self, attempt: ForwardAttempt, asked: ClientCall, said: ClientMessages, kept: ClientState
    ) -> None:
        """Relay the client's messages to the leader, and the leader's replies to the client.

        Return when the leader has ended the stream.
        """
        if attempt.local is not None:
            messages, path = said.messages(), asked.rpc_method.path
            told = attempt.local.told(asked.connection, path, asked.head, messages, asked.arrived_ms)
            async with aclosing(told) as replies:
                async for reply in replies:
                    self.connected_clients.record_revocation(kept, reply)
                    await asked.connection.send_message(asked.stream_id, reply)
            return
        call = attempt.channel.stream_stream(asked.rpc_method.path, None, None)(None, metadata=attempt.fields)
        async with aclosing(LeaderStream(call).replies(said.messages())) as replies:
            async for reply in replies:
                asked.connection.is_authenticated = True
                self.connected_clients.record_revocation(kept, reply)
                await asked.connection.send_message(asked.stream_id, reply)

    async def _resubscribe(self, attempt: ForwardAttempt, asked: ClientCall, kept: ClientState) -> None:
        """Resend the subscriptions of a client until the leader has accepted all of them."""
        user, attempt = _user_of(asked.head), replace(attempt, remaining_seconds=CALL_SECONDS)
        sync = asked._replace(rpc_method=asked.rpc_method._replace(path=f"/{NAME}/{SYNC_LITE}"))
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
        """Relay a stream of client metrics to the leader.

        The client must open a new stream after a leader change.
        """
        said = ClientMessages(ClientState())
        hearing = asyncio.create_task(said.receive(asked.connection, asked.stream_id))
        try:
            async with aclosing(self._attempts(asked, stands=True)) as attempts:
                async for attempt in attempts:
                    await self._run_while_leader(
                        attempt, self._exchange_messages(attempt, asked, said, ClientState())
                    )
                    asked.connection.end(asked.stream_id)
                    return
        except LeaderChanged:
            raise Refused(Status.UNAVAILABLE, NOT_LEADING) from None
        finally:
            hearing.cancel()

    async def _serve_telemetry(self, asked: ClientCall) -> None:
        """Answer a forwarded Telemetry stream with this node's broker.

        If this node steps down, end the stream with UNAVAILABLE.
        """
        local, connection = self.local, asked.connection
        if local is None:
            raise Refused(Status.UNAVAILABLE, NOT_LEADING)
        arrived_ms = verify_arrival_ms(self._key, asked.head.all(), self._clock())
        messages = connection.messages(asked.stream_id)
        async with aclosing(
            local.told(connection, asked.rpc_method.path, asked.head, messages, arrived_ms)
        ) as replies:
            async for reply in replies:
                await connection.send_message(asked.stream_id, reply)
        if self.local is not local:
            raise Refused(Status.UNAVAILABLE, NOT_LEADING)
        connection.end(asked.stream_id)

    # The leader.

    async def _run_while_leader(self, attempt: ForwardAttempt, call: Awaitable[Any]) -> Any:
        """Return the result of a call. Raise `LeaderChanged` if a new epoch begins during the call."""
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
            # Break the reference cycle of the exception, the frame and the task, because this cycle keeps the
            # call alive. While a call exists, gRPC reconnects its closed channel.
            del calling

    async def _attempts(
        self, asked: ClientCall, *, stands: bool = False
    ) -> AsyncGenerator[ForwardAttempt, None]:
        """Yield attempts to call the leader. Raise TimeoutError shortly before the deadline.

        If `stands` is true, the call may outlive a leader change, and the node signs the arrival time. Raise
        `Refused` if the call has been forwarded before, or if the leader's certificate was rejected.
        """
        head = asked.head
        if head.has(FORWARDED):
            raise Refused(Status.UNAVAILABLE, NOT_LEADING)
        given = head.get("grpc-timeout")
        seconds = min(parse_timeout(given), SECONDS_MAX) if given else inf if stands else CALL_SECONDS
        loop, certificate_error, may_have_executed = asyncio.get_running_loop(), "", False
        until, pause_seconds = loop.time() + seconds - RETRY_MARGIN_SECONDS, RETRY_PAUSE_SECONDS
        while (remaining_seconds := until - loop.time()) > 0:
            epoch, leader = await self._node.wait_for_leader(min(remaining_seconds, SECONDS_MAX))
            remaining_seconds = max(until - loop.time(), RETRY_PAUSE_SECONDS)
            fields = (*self._fields(asked, vouches=stands), (FORWARDED, str(epoch)))
            is_here = leader.node == self._node.me.node and asked.rpc_method.name in (TELEMETRY, SYNC_LITE)
            local = self.local if is_here else None
            with self._channels.acquire(
                leader.listen, leader.certificate, self._node.actions.identity
            ) as channel:
                attempt = ForwardAttempt(
                    *(
                        channel,
                        fields,
                        remaining_seconds,
                        epoch,
                        self._node.election.reachability,
                        monotonic_ms(),
                    ),
                    *(local, may_have_executed),
                )
                yield attempt
            may_have_executed = True
            certificate_error = attempt.certificate_error and certificate_mismatch_text(
                leader.listen, attempt.certificate_error
            )
            moved = asyncio.ensure_future(self._node.wait_for_other_epoch(epoch))
            await asyncio.wait({moved}, timeout=max(0.0, min(pause_seconds, until - loop.time())))
            moved.cancel()
            pause_seconds = min(2 * pause_seconds, RETRY_PAUSE_SECONDS_MAX)
        if certificate_error:
            raise Refused(Status.UNAVAILABLE, certificate_error)
        raise TimeoutError

    def _fields(self, asked: ClientCall, *, vouches: bool) -> tuple[tuple[str, str], ...]:
        """Return the header fields of the forwarded call.

        If `vouches` is true, the fields include a signed arrival time.
        """
        origin = self._node.me.node, asked.connection.host, asked.connection.number
        fields = (
            *(
                (name, text)
                for name, text in asked.head.all().items()
                if name.startswith(_FORWARDED_PREFIXES)
            ),
            (ORIGIN, sign_origin(self._origin_key, *origin)),
        )
        if not (vouches and self._key):
            return fields
        return (*fields, (ARRIVAL, sign_arrival(self._key, fields, asked.arrived_ms, self._clock())))


async def _call_leader(attempt: ForwardAttempt, rpc_method: RpcMethod, message: bytes) -> bytes:
    call = attempt.channel.unary_unary(rpc_method.path, None, None)
    return cast(bytes, await call(message, metadata=attempt.fields, timeout=attempt.remaining_seconds))


def _raise_if_refused(reply: bytes) -> None:
    """Raise `Refused` with a message about the unknown outcome if the reply is a refusal."""
    status = service_pb2.EndTransactionResponse.FromString(reply).status
    if status.code != Code.OK:
        raise Refused(Status.UNAVAILABLE, f"{OUTCOME_UNKNOWN} It says: {status.message}")


async def _sync_with_leader(attempt: ForwardAttempt, asked: ClientCall, message: bytes) -> bytes:
    """Send a SyncLiteSubscription call to the leader, which may be this node, and return the reply."""
    if attempt.local is None:
        return await _call_leader(attempt, asked.rpc_method, message)
    connection, path = asked.connection, asked.rpc_method.path
    return await attempt.local.answered(connection, path, asked.head, message, asked.arrived_ms)


async def _try_to_sync(attempt: ForwardAttempt, asked: ClientCall, message: bytes) -> bool:
    """Send a subscription to the leader, and return whether the leader has accepted it."""
    try:
        return is_accepted(await _sync_with_leader(attempt, asked, message))
    except (grpc.aio.AioRpcError, Refused):
        return False


def _client_id_of(head: Head) -> str:
    return head.get("x-mq-client-id")


def _user_of(head: Head) -> str:
    """Return the unverified user name from the call signature, or "" if the call is unsigned."""
    try:
        return signature.parse(head.get("authorization"), head.get("x-mq-date-time")).access_key
    except signature.Refused:
        return ""


async def _relay_replies(call: Any, asked: ClientCall, attempt: ForwardAttempt) -> None:
    """Send the leader's replies to the client until the stream ends."""
    async for reply in call:
        asked.connection.is_authenticated = attempt.has_answered = True
        attempt.reachability.record_answer(monotonic_ms())
        await asked.connection.send_message(asked.stream_id, cast(bytes, reply))


def _is_retryable(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a failed call may be retried. A refused call must not be retried."""
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def status_of(error: grpc.aio.AioRpcError) -> Status:
    """Return the status to send to the client for an error from the leader."""
    code = error.code().value[0]
    return Status(code) if code in Status.__members__.values() else Status.UNKNOWN


def rpc_method_of(method: Method) -> RpcMethod:
    """Return the `RpcMethod` of a method that `CallForwarder.method_of` has returned."""
    assert isinstance(method.target, RpcMethod), "the switch looks up what a broker before it has looked up"
    return method.target


def _rpc_methods() -> list[RpcMethod]:
    """Return the methods of the RocketMQ messaging service and of the client metrics services."""
    return [
        RpcMethod(f"/{NAME}/{method.name}", method.client_streaming, method.server_streaming)
        for method in service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods
    ] + [
        RpcMethod(f"/{OTLP}", has_request_stream=False, has_response_stream=False),
        RpcMethod(f"/{OPENCENSUS}", has_request_stream=True, has_response_stream=True),
    ]
