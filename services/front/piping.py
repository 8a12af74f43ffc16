"""Two connections as one: what comes out of the one goes into the other, as it is.

    client <--> Incoming <--> Outgoing <--> gRPC

An `Incoming` first waits until it knows what the client speaks; then the front connects it to gRPC, or it
says good-bye. A side that reads slower than the other writes stops the other from reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from commitlog.limits import STRANGER_BYTES_PER_SECOND
from services.front.answers import is_whole
from services.front.first_bytes import Protocol, protocol_of
from services.front.handshake import CLIENT, Handshake
from services.front.pacing import PIECE_BYTES, Pace

BUFFERED_BYTES_MAX: Final = 256 * 1024


class Side(asyncio.Protocol):
    """One of the two connections."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.other: Side | None = None
        self._holds = 0
        self._is_behind = False

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
            self._is_behind = True
            self.other.hold()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self.other is not None and self._is_behind:
            self._is_behind = False
            self.other.let_go()

    def hold(self) -> None:
        """Stop reading, for one more reason."""
        self._holds += 1
        self.transport.pause_reading()

    def let_go(self) -> None:
        """Read again, unless there is another reason not to."""
        self._holds -= 1
        assert self._holds >= 0
        if not self._holds and not self.transport.is_closing():
            self.transport.resume_reading()

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
        pace: Pace | None = None,
    ) -> None:
        super().__init__()
        self._stranger = Stranger(self, pace) if pace is not None else None
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
            if self._stranger is None:
                self.other.transport.write(data)
            else:
                self._stranger.say(data)
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
        self.transport.resume_reading()
        first, self._first = self._first, b""
        if self._stranger is None:
            other.transport.write(first)
        else:
            self._stranger.say(first)

    @property
    def is_stranger(self) -> bool:
        """Whether nobody has been let in on it yet, where that is asked for."""
        return self._stranger is not None

    @property
    def is_greedy(self) -> bool:
        """Whether a stranger has said more than a client does that is let in with its first call."""
        return self._stranger is not None and self._stranger.is_greedy

    def welcome(self) -> None:
        """Pass on what comes as it comes, for somebody has been let in."""
        if self._stranger is not None:
            stranger, self._stranger = self._stranger, None
            stranger.end()

    def connection_lost(self, error: Exception | None) -> None:
        """Say so."""
        if self._stranger is not None:
            self._stranger.drop()
        if self.handshake is not None:
            self.handshake.hung_up(CLIENT)
        super().connection_lost(error)
        self._lost(self)


class Stranger:
    """What a client may say on whose connection nobody has been let in yet; it is not read while it waits."""

    def __init__(self, client: Incoming, pace: Pace) -> None:
        self._client, self._pace = client, pace
        self._free_bytes, self._counted_at = float(pace.free_bytes), pace.now()
        self.is_greedy = False
        """Whether it has said more than it may at once."""
        self._waiting = b""
        self._timer: asyncio.TimerHandle | None = None

    def say(self, data: bytes) -> None:
        """Pass on what may be said now; the rest waits."""
        if self._waiting:
            self._waiting += data
            return
        free_bytes = self._free()
        free, rest = data[:free_bytes], data[free_bytes:]
        self._free_bytes -= len(free)
        self._write(free)
        if rest:
            self.is_greedy = True
            self._waiting = rest
            self._client.hold()
            self._say_later()

    def end(self) -> None:
        """Pass on what waits: somebody has been let in."""
        waiting, self._waiting = self._waiting, b""
        self.drop()
        self._write(waiting)
        if waiting:
            self._client.let_go()

    def drop(self) -> None:
        """Forget what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _free(self) -> int:
        """How much may be said at once now: it comes back slowly, for probes that stay connected."""
        now, before = self._pace.now(), self._counted_at
        earned = self._free_bytes + (now - before) * STRANGER_BYTES_PER_SECOND
        self._free_bytes, self._counted_at = min(earned, self._pace.free_bytes), now
        return int(self._free_bytes)

    def _say_later(self) -> None:
        wait_seconds = self._pace.take(len(self._waiting[:PIECE_BYTES]))
        if wait_seconds > 0:
            self._timer = asyncio.get_running_loop().call_later(wait_seconds, self._say_piece)
        else:
            self._say_piece()

    def _say_piece(self) -> None:
        self._timer = None
        piece, self._waiting = self._waiting[:PIECE_BYTES], self._waiting[PIECE_BYTES:]
        self._write(piece)
        if self._waiting:
            self._say_later()
        else:
            self._client.let_go()

    def _write(self, data: bytes) -> None:
        assert self._client.other is not None
        if data:
            self._client.other.transport.write(data)
