"""What takes the place of `services.rpc.server.GrpcServer` in the broker, for servers in its loop."""

from __future__ import annotations

import socket
import ssl
from abc import ABC, abstractmethod

from front_grpc import Route, routes_of

from services.front.certificates import TlsFiles
from services.rpc.server import Connections, Direct
from services.rpc.service import Observe, Rpc
from services.rpc.turns import Turns

BACKLOG = 1_024


class StandIn(ABC):
    """Serves the broker's table on some sockets, each plaintext or TLS."""

    serves_tls = True

    def __init__(self, connections: Connections | None = None) -> None:
        self.host_of = (connections or Direct()).host_of
        self.routes: dict[str, Route] = {}
        self._taken: list[tuple[socket.socket, TlsFiles | None]] = []

    def bind(self, host: str, port: int) -> int:
        """Take an address for plaintext and return its port."""
        return self._take(host, port, None)

    def bind_tls(self, host: str, files: TlsFiles) -> int:
        """Take a port of a host for TLS and return it."""
        return self._take(host, 0, files)

    async def start(self, rpcs: dict[str, Rpc], turns: Turns, observe: Observe) -> None:
        """Serve a table of RPCs on the addresses taken."""
        self.routes = routes_of(rpcs, turns, observe)
        for taken, files in self._taken:
            await self.serve(taken, files)

    @abstractmethod
    async def serve(self, taken: socket.socket, files: TlsFiles | None) -> None:
        """Serve on a socket from now on."""

    @abstractmethod
    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls; those under way have `grace_seconds` to end."""

    def _take(self, host: str, port: int, files: TlsFiles | None) -> int:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # for TCP_NODELAY by asyncio
        taken.bind((host, port))
        taken.listen(BACKLOG)
        taken.setblocking(False)
        self._taken.append((taken, files))
        return int(taken.getsockname()[1])


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return TLS for HTTP/2 with a certificate of files."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    if files.clients is not None:
        context.load_verify_locations(files.clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
