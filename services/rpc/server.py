"""The table of RPCs served by grpc.aio.

Options that matter:
- `grpc.so_reuseport` is 0: with gRPC's default a second broker binds the same port without an error, and
  the two share the traffic at random.
- Clients may ping every `PING_MS_MIN`: gRPC's default takes one that pings every 30 s for an attacker and
  hangs up. We ping too, so that the stream of a client that has lost its network ends, and others are asked
  instead.
- Calls that one connection holds open are bounded, and so are the bytes of a call's headers. What it costs to
  take them apart is not: so a connection on which nobody was let in is slowed down (`services.front.pacing`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import unquote

import grpc
from grpc import aio

from commitlog.errors import PortTaken
from commitlog.limits import (
    HEADERS_BYTES_MAX,
    REQUEST_BYTES_MAX,
    STREAMS_PER_CONNECTION_MAX,
)
from services.rpc.accepting import Accepting
from services.rpc.caller import Caller
from services.rpc.generated.definition_pb2 import Code
from services.rpc.service import (
    NAME,
    CallRefused,
    Observe,
    Prompt,
    Rpc,
    Streaming,
    Unary,
    is_let_in,
    reply_to,
    stream_to,
)
from services.rpc.standard import Standard
from services.rpc.turns import Call, Gathering, Turns

PING_MS, PING_MS_MIN, PONG_MS_MAX = 30_000, 10_000, 10_000
HANDSHAKE_MS_MAX = 10_000
OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", PONG_MS_MAX),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_MS_MIN),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    ("grpc.max_metadata_size", HEADERS_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", HEADERS_BYTES_MAX),
]

REFUSED = {
    Code.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    Code.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    Code.INTERNAL_SERVER_ERROR: grpc.StatusCode.INTERNAL,
}
"""What gRPC calls the refusals of a protocol whose replies have no status; others are INVALID_ARGUMENT."""

SECURITY = "transport_security_type"
UNAUTHORIZED = Code.Name(Code.UNAUTHORIZED)

Context = aio.ServicerContext[Any, Any]


class Connections(Protocol):
    """What the transport before gRPC knows of connections, each by gRPC's name for its peer."""

    def host_of(self, peer: str) -> str:
        """Return the address of the client."""

    def is_stranger(self, peer: str) -> bool:
        """Whether nobody has been let in on it yet."""

    def welcome(self, peer: str) -> None:
        """Take note that somebody has."""


class Direct:
    """Connections without a transport of ours before gRPC."""

    def host_of(self, peer: str) -> str:
        """Return the address in the peer's name."""
        return peer_host(peer)

    def is_stranger(self, peer: str) -> bool:
        """Nobody is slowed down."""
        return False

    def welcome(self, peer: str) -> None:
        """Nobody is a stranger."""


class GrpcServer:
    """A grpc.aio server on some addresses, each plaintext or TLS, behind `connections`."""

    def __init__(self, connections: Connections | None = None) -> None:
        self._server = aio.server(options=OPTIONS)
        self._connections = connections or Direct()
        self._standard = Standard(NAME)

    def bind(self, host: str, port: int) -> int:
        """Take the address and return its port (the one chosen, when `port` is 0); raises `PortTaken`."""
        bracketed = f"[{host}]" if ":" in host else host
        try:
            return self._server.add_insecure_port(f"{bracketed}:{port}")
        except RuntimeError as error:
            raise PortTaken(f"{host}:{port} cannot be listened on. Choose another with --listen.") from error

    def bind_tls(self, host: str, credentials: grpc.ServerCredentials) -> int:
        """Take a port of a host for TLS and return it."""
        return self._server.add_secure_port(f"{host}:0", credentials)

    async def start(self, rpcs: dict[str, Rpc], turns: Turns, observe: Observe) -> None:
        """Serve a table of RPCs on the addresses taken; calls of prompt ones go to `turns` in lists."""
        gathering = Gathering(turns)
        services: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for name, rpc in rpcs.items():
            service, _, own_name = name.rpartition("/")
            services[service or NAME][own_name] = method(name, rpc, gathering, observe, self._connections)
        for service, handlers in services.items():
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        crowded = services[NAME].items()
        accepting = Accepting(self._server, {f"/{NAME}/{name}": one for name, one in crowded})
        self._standard.add_to(self._server, services)
        await self._server.start()
        accepting.start()
        await self._standard.serves()

    async def tell_health(self, is_well: bool) -> None:
        """Tell probes whether the store's disk lets the server serve."""
        await self._standard.serves(is_well)

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls; those under way have `grace_seconds` to end."""
        await self._standard.leaves()
        await self._server.stop(grace_seconds)


def method(
    name: str, rpc: Rpc, gathering: Gathering, observe: Observe, connections: Connections
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return gRPC's handler for one RPC of the table."""
    codec = (rpc.request.FromString, in_bytes)
    match rpc:
        case Prompt():
            handler = prompt(name, rpc, gathering, observe, connections)
            return grpc.unary_unary_rpc_method_handler(handler, rpc.request.FromString)
        case Unary():
            return grpc.unary_unary_rpc_method_handler(unary(name, rpc, observe, connections), *codec)
        case Streaming(both_ways=True):
            return grpc.stream_stream_rpc_method_handler(streaming(name, rpc, observe, connections), *codec)
        case Streaming():
            return grpc.unary_stream_rpc_method_handler(streaming(name, rpc, observe, connections), *codec)


def in_bytes(reply: Any) -> bytes:
    """Return a reply in bytes."""
    return reply if isinstance(reply, bytes) else bytes(reply.SerializeToString())


def prompt(
    name: str, rpc: Prompt, gathering: Gathering, observe: Observe, connections: Connections
) -> Callable[[Any, Context], Awaitable[bytes]]:
    """Return the coroutine function that grpc.aio calls for an RPC that is decided at once."""

    async def call(request: Any, context: Context) -> bytes:
        peer = context.peer()
        told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def tell(reply: bytes, code: str) -> None:
            if code != UNAUTHORIZED and connections.is_stranger(peer):
                connections.welcome(peer)
            if not told.done():
                told.set_result(reply)

        caller = caller_of(context, connections.host_of(peer))
        gathering.add(Call(name, rpc, request, caller, tell, observe))
        return await told

    return call


def unary(
    name: str, rpc: Unary, observe: Observe, connections: Connections
) -> Callable[[Any, Context], Awaitable[Any]]:
    """Return the coroutine function that grpc.aio calls for a unary RPC."""

    async def call(request: Any, context: Context) -> Any:
        peer = context.peer()
        try:
            reply = await reply_to(name, rpc, request, caller_of(context, connections.host_of(peer)), observe)
        except CallRefused as refused:
            await refuse(context, refused)
        if connections.is_stranger(peer) and is_let_in(reply):
            connections.welcome(peer)
        return reply

    return call


def streaming(
    name: str, rpc: Streaming, observe: Observe, connections: Connections
) -> Callable[[Any, Context], AsyncIterator[Any]]:
    """Return the asynchronous generator that grpc.aio calls for a streaming RPC."""

    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        peer = context.peer()
        caller = caller_of(context, connections.host_of(peer))
        if rpc.both_ways:  # to ask costs more than a call may
            caller = replace(caller, is_encrypted=context.auth_context().get(SECURITY) == [b"ssl"])
        asked = until_ended(request) if rpc.both_ways else request
        try:
            async with aclosing(stream_to(name, rpc, asked, caller, observe)) as replies:
                async for reply in replies:
                    if connections.is_stranger(peer) and is_let_in(reply):
                        connections.welcome(peer)
                    yield reply
        except CallRefused as refused:
            await refuse(context, refused)

    return call


async def refuse(context: Context, refused: CallRefused) -> None:
    """End a call of a protocol whose replies have no status."""
    code = REFUSED.get(refused.status.code, grpc.StatusCode.INVALID_ARGUMENT)
    await context.abort(code, refused.status.message)


async def until_ended(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield what the caller says, until one of the two has ended the stream."""
    with suppress(aio.UsageError):  # the status has been sent: there is nothing more to read
        async for request in requests:
            yield request


def caller_of(context: Context, host: str) -> Caller:
    """Return who calls, from the call's metadata and the address of its connection."""
    said = dict(context.invocation_metadata() or ())
    return Caller(
        client_id=said.get("x-mq-client-id", ""),
        language=said.get("x-mq-language", ""),
        version=said.get("x-mq-client-version", ""),
        host=host,
        seconds_left=context.time_remaining(),
        authorization=text(said.get("authorization", "")),
        date=text(said.get("x-mq-date-time", "")),
        namespace=text(said.get("x-mq-namespace", "")),
    )


def text(value: str | bytes) -> str:
    """Return a header's value as text."""
    return value if isinstance(value, str) else value.decode("latin-1")


def peer_host(peer: str) -> str:
    """Return the address in gRPC's name for a peer: `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    host = unquote(peer).partition(":")[2].rpartition(":")[0]
    return host.strip("[]").removeprefix("::ffff:")
