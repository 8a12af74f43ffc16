"""The listening socket: each connection to gRPC's plaintext or TLS socket, or away with a sentence.

gRPC sees the front's connections; whose they are it is told by their number (`Peers`).
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from services.front.admission import IDLE, SILENT, STRANGER, TOO_MANY, Admission, Limits
from services.front.answers import (
    NO_HTTP2_ALERT,
    PLAINTEXT_FAREWELL,
    TOO_MANY_FAREWELL,
    Farewell,
    answer,
    can_be_told,
    farewell,
)
from services.front.client_hello import H2, offered
from services.front.first_bytes import Protocol
from services.front.grpc_refusal import SETTINGS
from services.front.handshake import BROKER, Handshake
from services.front.pacing import Pace
from services.front.piping import Incoming, Side

BACKLOG: Final = 1_024
FAREWELLS_MAX: Final = 64
FAREWELL_SECONDS: Final = 2.0
"""How many that are too many may say at once what they speak, and for how long, to be told why they go."""
LOOPBACK: Final = "127.0.0.1"

NO_HTTP2: Final = "TLS without HTTP/2"
PLAINTEXT: Final = "plaintext"
HUNG_UP: Final = "gRPC hangs up"
"""What came is no HTTP/2, no TLS any more, or nothing, not even an answer to gRPC's pings."""

Refuse = Callable[[str, str], None]
"""Told of everyone sent away: why, and from which address."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The ports on this machine's loopback at which gRPC listens; None: it does not for that."""

    plaintext: int | None
    tls: int | None = None

    def port_for(self, protocol: Protocol) -> int | None:
        """Return where a protocol is served; None if it is not."""
        return {Protocol.HTTP2: self.plaintext, Protocol.TLS: self.tls}.get(protocol)


@dataclass(slots=True)
class Peers:
    """Whose connections gRPC sees: the client's address by the port from which the front has connected.

    `strangers` are those on which nobody has been let in yet (`services.front.pacing`).
    """

    hosts: dict[int, str] = field(default_factory=dict)
    strangers: dict[int, Incoming] = field(default_factory=dict)
    stranger_counts: Counter[str] = field(default_factory=Counter)

    def host_of(self, peer: str) -> str:
        """Return a client's address from gRPC's name for its peer, `ipv4:127.0.0.1:5000`.

        Whoever is not known has come from this machine, past the front.
        """
        return self.hosts.get(port_of(peer), LOOPBACK)

    def is_stranger(self, peer: str) -> bool:
        """Whether nobody has been let in on a connection yet."""
        return bool(self.strangers) and port_of(peer) in self.strangers

    def welcome(self, peer: str) -> None:
        """Slow a connection down no longer."""
        stranger = self.stranger_at(port_of(peer))
        if stranger is not None:
            stranger.welcome()

    def join(self, port: int, client: Incoming) -> None:
        """Know whose a connection is from now on."""
        self.hosts[port] = client.host
        if client.is_stranger:
            self.strangers[port] = client
            self.stranger_counts[client.host] += 1

    def leave(self, port: int) -> None:
        """Forget a connection."""
        self.hosts.pop(port, None)
        self.stranger_at(port)

    def stranger_at(self, port: int) -> Incoming | None:
        """Take a connection out of the strangers; None if it was none."""
        stranger = self.strangers.pop(port, None)
        if stranger is not None:
            self.stranger_counts[stranger.host] -= 1
            if not self.stranger_counts[stranger.host]:
                del self.stranger_counts[stranger.host]
        return stranger


def port_of(peer: str) -> int:
    """Return the port in gRPC's name for a peer."""
    return int(peer.rpartition(":")[2])


class Front:
    """The protocol port of a broker; make it in the loop that serves it.

    With a `pace` clients are strangers until somebody has been let in (`services.front.pacing`).
    """

    def __init__(
        self,
        behind: Behind,
        limits: Limits,
        http: str,
        peers: Peers,
        refuse: Refuse,
        pace: Pace | None = None,
    ) -> None:
        self._behind, self._http, self._peers, self._refuse = behind, http, peers, refuse
        self._admission = Admission(limits)
        self._loop = asyncio.get_running_loop()
        self._pace = pace
        self._connections: set[Incoming] = set()
        self._leaving: dict[Incoming, Farewell] = {}
        self._greeted: set[Incoming] = set()
        self._joining: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._winds_down = False

    async def start(self, listening: socket.socket) -> None:
        """Take connections of a socket that listens already."""
        self._server = await self._loop.create_server(self._incoming, sock=listening, backlog=BACKLOG)
        self._sweep_later()

    def wind_down(self) -> None:
        """From now on gRPC hangs up because it stops."""
        self._winds_down = True

    async def stop(self) -> None:
        """Take no more connections, and end those there are."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._server is not None:
            self._server.close()
        for one in [*self._connections, *self._leaving]:
            one.transport.close()
        for task in list(self._joining):
            task.cancel()

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return self._admission.connection_count

    def _incoming(self) -> Incoming:
        return Incoming(self._made, self._told, self._lost, self._pace)

    def _made(self, one: Incoming) -> None:
        has_strangers = self._peers.stranger_counts[one.host] >= self._admission.limits.strangers_per_address
        if has_strangers or not self._admission.admit(one.host):
            self._refuse(TOO_MANY, one.host)
            self._hear_out(one, TOO_MANY_FAREWELL)
            return
        self._connections.add(one)
        self._loop.call_later(self._admission.limits.hello_seconds, self._hurry, one)

    def _hear_out(self, one: Incoming, why: Farewell) -> None:
        """Read the first bytes of one that must go, to refuse it in its protocol; at most 64 at once."""
        if len(self._leaving) >= FAREWELLS_MAX:
            one.transport.abort()
            return
        self._leaving[one] = why
        self._loop.call_later(FAREWELL_SECONDS, one.transport.abort)

    def _say_farewell(self, one: Incoming, protocol: Protocol, first: bytes) -> None:
        if can_be_told(protocol, first):
            one.transport.write(farewell(protocol, first, self._leaving[one]))
            one.transport.close()
            return
        if one not in self._greeted:
            self._greeted.add(one)
            one.transport.write(SETTINGS)
        one.transport.resume_reading()

    def _lost(self, one: Incoming) -> None:
        self._leaving.pop(one, None)
        self._greeted.discard(one)
        if one in self._connections:
            self._connections.remove(one)
            self._admission.leave(one.host)
            if why := self._failure(one):
                self._refuse(why, one.host)

    def _failure(self, one: Incoming) -> str:
        """Why a connection has ended otherwise than its client wanted, if nobody has said so yet."""
        if one.handshake is not None:
            return one.handshake.failure
        is_new = one.was_hung_up and not one.is_listed and not self._winds_down
        return HUNG_UP if is_new else ""

    def _hurry(self, one: Incoming) -> None:
        if one.other is None and one in self._connections and one not in self._leaving:
            self._send_away(one, SILENT)

    def _told(self, one: Incoming, protocol: Protocol, first: bytes) -> None:
        if one in self._leaving:
            self._say_farewell(one, protocol, first)
            return
        port = self._behind.port_for(protocol)
        if port is None and protocol is Protocol.HTTP2:
            self._refuse(PLAINTEXT, one.host)
            self._hear_out(one, PLAINTEXT_FAREWELL)
            if one in self._leaving:
                self._say_farewell(one, protocol, first)
            return
        if port is None:
            one.transport.write(answer(protocol, first, self._http))
            self._send_away(one, protocol.value)
            return
        if protocol is Protocol.TLS and not self._may_shake(one, offered(first)):
            return
        task = self._loop.create_task(self._join(one, port))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    def _may_shake(self, one: Incoming, protocols: list[bytes] | None) -> bool:
        """Watch the handshake of one that offers HTTP/2; one that offers others only is told so.

        To one that offers none gRPC shows its certificate, as tools want that look at those, and hangs up.
        """
        if protocols and H2 not in protocols:
            one.transport.write(NO_HTTP2_ALERT)
            self._send_away(one, NO_HTTP2)
            return False
        if protocols == []:
            self._refuse(NO_HTTP2, one.host)
            one.is_listed = True
        else:
            one.handshake = Handshake()
        return True

    def _send_away(self, one: Incoming, why: str) -> None:
        self._refuse(why, one.host)
        one.transport.close()

    async def _join(self, one: Incoming, port: int) -> None:
        try:
            await self._loop.create_connection(lambda: Outgoing(self._peers, one), LOOPBACK, port)
            if one.is_stranger:
                self._loop.call_later(self._admission.limits.stranger_seconds, self._hurry_stranger, one)
        except OSError:
            one.transport.close()  # gRPC has stopped

    def _hurry_stranger(self, one: Incoming) -> None:
        if not one.is_stranger or one not in self._connections:
            return
        if not one.is_greedy:  # such as a probe of health, which is let in nowhere
            self._loop.call_later(self._admission.limits.stranger_seconds, self._hurry_stranger, one)
            return
        self._refuse(STRANGER, one.host)
        one.is_listed = True
        one.transport.abort()

    def _sweep_later(self) -> None:
        self._sweep = self._loop.call_later(self._admission.limits.idle_seconds, self._sweep_idle)

    def _sweep_idle(self) -> None:
        """End connections on which nothing has come since the last time."""
        for one in list(self._connections):
            if one.other is not None and not one.has_spoken:
                self._refuse(IDLE, one.host)
                one.transport.abort()  # to close would wait for somebody who may be dead to read
            one.has_spoken = False
        self._sweep_later()


class Outgoing(Side):
    """The front's connection to gRPC for a client, known to `peers` while it lasts.

    gRPC speaks first, at once: so the two are one before a byte of it is read.
    """

    def __init__(self, peers: Peers, client: Incoming) -> None:
        super().__init__()
        self._peers, self._client, self._port = peers, client, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell whose it is, and pass on what the client has said."""
        super().connection_made(transport)
        self._port = transport.get_extra_info("sockname")[1]
        self._peers.join(self._port, self._client)
        if self._client.transport.is_closing():
            self.transport.close()
        else:
            self._client.join(self)

    def data_received(self, data: bytes) -> None:
        """Pass on what gRPC says."""
        if self._client.handshake is not None:
            self._client.shake(BROKER, data)
        self._client.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget it."""
        if self._client.handshake is not None:
            self._client.handshake.hung_up(BROKER)
        self._client.was_hung_up = not self._client.transport.is_closing()
        super().connection_lost(error)
        self._peers.leave(self._port)
