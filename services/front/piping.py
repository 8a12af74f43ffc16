"""Two connections as one: what comes out of the one goes into the other, as it is.

    client <--> Incoming <--> Outgoing <--> gRPC

An `Incoming` first waits until it knows what the client speaks; then the front connects it to gRPC, or it
says good-bye. A side that reads slower than the other writes stops the other from reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from services.front.answers import is_whole
from services.front.first_bytes import Protocol, protocol_of
from services.front.handshake import CLIENT, Handshake

BUFFERED_BYTES_MAX: Final = 256 * 1024


class Side(asyncio.Protocol):
    """One of the two connections."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.other: Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(BUFFERED_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Pass on what comes."""
        assert self.other is not None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        """This side reads too slowly."""
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Where one ends the other does."""
        if self.other is not None:
            self.other.transport.close()


class Incoming(Side):
    """A client's connection: `told` is called with what it speaks and its first bytes.

    It is called once; or again with what has come since, when it goes on reading without another side.

    `has_spoken` is for whoever looks for idle clients, and takes it back; `handshake` is there until one of
    TLS is over; `was_hung_up` says that gRPC ended it, not the client or the front, `is_listed`
    that it is known why it will.
    """

    def __init__(
        self,
        made: Callable[[Incoming], None],
        told: Callable[[Incoming, Protocol, bytes], None],
        lost: Callable[[Incoming], None],
    ) -> None:
        super().__init__()
        self.host = ""
        self.has_spoken = False
        self.was_hung_up = self.is_listed = False
        self.handshake: Handshake | None = None
        self._made, self._told, self._lost = made, told, lost
        self._first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask whether it may stay."""
        super().connection_made(transport)
        peer: Any = transport.get_extra_info("peername")
        self.host = str(peer[0]).removeprefix("::ffff:") if peer else ""
        self._made(self)

    def data_received(self, data: bytes) -> None:
        """Pass on what comes, once it is known where to."""
        if self.other is not None:
            self.has_spoken = True
            if self.handshake is not None:
                self.shake(CLIENT, data)
            self.other.transport.write(data)
            return
        self._first += data
        protocol = protocol_of(self._first)
        if protocol is not None and is_whole(protocol, self._first):
            self.transport.pause_reading()
            self._told(self, protocol, self._first)

    def shake(self, side: str, data: bytes) -> None:
        """Watch the handshake, until there is nothing more to see."""
        assert self.handshake is not None
        self.handshake.said(side, data)
        if not self.handshake.is_going_on and not self.handshake.failure:
            self.handshake = None

    def join(self, other: Side) -> None:
        """Pass everything on to another connection from now on, the first bytes as well."""
        self.other, other.other = other, self
        if self.handshake is not None:
            self.shake(CLIENT, self._first)
        other.transport.write(self._first)
        self._first = b""
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Say so."""
        if self.handshake is not None:
            self.handshake.hung_up(CLIENT)
        super().connection_lost(error)
        self._lost(self)
