"""The protocol port: connections are told apart by their first bytes, and served or sent away with a reason.

    accept -> look at the first bytes, which stay in the socket -> HTTP/2            Connection
                                                                   TLS with HTTP/2   the same, behind TLS
                                                                   anything else     an answer, and good-bye

Bounds: connections of an address; of those, the ones on which nobody has been let in yet; how long one may
say nothing (`services.front.admission`); handshakes of TLS at once, and the seconds of each. What one
connection may hold is `services.front.http2.Bounds`. All are looked at every `LOOK_SECONDS`.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from commitlog import limits as limits_of_all
from services.front.admission import IDLE, SILENT, STRANGER, TOO_MANY, Admission, Limits
from services.front.answers import (
    NO_HTTP2_ALERT,
    PLAINTEXT_FAREWELL,
    TOO_MANY_FAREWELL,
    Farewell,
    answer,
    farewell,
    is_whole,
)
from services.front.client_hello import H2, offered
from services.front.connection import Connection, Shared, why_broken
from services.front.first_bytes import Protocol, protocol_of
from services.front.http2_frames import Code, goaway
from services.front.refusing import Refusing
from services.front.sweep import Sweep

BACKLOG: Final = 1_024
ACCEPTED_AT_ONCE: Final = 64
PEEKED_BYTES: Final = 4 * 1024
PEEK_AGAIN_SECONDS, PEEK_SELDOM_SECONDS = 0.02, 1.0
"""How soon more of the first bytes is looked for, and how seldom, as none comes."""
LOOK_SECONDS: Final = 5.0
ASK_AGAIN_SECONDS: Final = 0.05
"""How often it is looked whether a client has answered."""
FAREWELLS_MAX: Final = 64
FAREWELL_SECONDS: Final = 2.0
"""How many that are sent away may say at once what they speak, and for how long, to be told why they go."""

UNKNOWN: Final = Protocol.UNKNOWN
"""It may be a broken preface: what answers that is a sentence for people, too (RFC 9113, 3.4)."""
NO_HTTP2: Final = "TLS without HTTP/2"
PLAINTEXT: Final = "plaintext"
LEFT: Final = "TLS: the client hangs up in the handshake"
SLOW: Final = "TLS: the handshake is not finished in time"

Refuse = Callable[[str, str, str], None]
"""Told of everyone sent away: why, in few words; from which address; and what there is to say of it."""
log = structlog.get_logger()


class Port:
    """The protocol port of a broker; make it in the loop that serves it.

    `tls` gives the context of a handshake; None: TLS is not served. Where `asks_callers`, who is not let in
    is a stranger.
    """

    def __init__(
        self,
        shared: Shared,
        limits: Limits,
        http: str,
        refuse: Refuse,
        tls: Callable[[], ssl.SSLContext] | None,
        *,
        has_plaintext: bool = True,
        asks_callers: bool = False,
    ) -> None:
        self._shared, self._limits, self._http, self._refuse = shared, limits, http, refuse
        self._tls, self._has_plaintext, self._asks_callers = tls, has_plaintext, asks_callers
        self._loop = shared.loop
        self._admission = Admission(limits)
        self._strangers: Counter[str] = Counter()
        self._arriving: set[asyncio.Task[None]] = set()
        self._farewell_count = 0
        self._handshakes = asyncio.Semaphore(limits_of_all.HANDSHAKES_MAX)
        self._listening: socket.socket | None = None
        self._sweep = Sweep(min(LOOK_SECONDS, limits.idle_seconds), shared.connections, self._look)
        self._is_leaving = False
        self._ended: asyncio.Future[None] | None = None
        """Awaited until the last connection is gone."""

    @property
    def connection_count(self) -> int:
        """The number of connections."""
        return self._admission.connection_count

    @property
    def table_count(self) -> int:
        """The number of connections whose clients use a table of header fields."""
        return sum(one.calls.http2.uses_table for one in self._shared.connections)

    def start(self, listening: socket.socket) -> None:
        """Take connections of a socket that listens."""
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._listening = listening
        self._loop.add_reader(listening.fileno(), self._accept)
        self._sweep.start()

    async def leave(self, grace_seconds: float) -> None:
        """Take no more connections, let calls under way end, and hang up."""
        self._is_leaving = True
        self._stop_listening()
        for task in list(self._arriving):
            task.cancel()
        for one in list(self._shared.connections):
            one.leave()
        self._ended = self._loop.create_future()
        if self._shared.connections:
            await asyncio.wait((self._ended,), timeout=grace_seconds)
        for one in list(self._shared.connections):
            one.transport.abort()
        if self._shared.connections:
            await self._ended
        self._sweep.stop()

    async def reaches_anybody(self, seconds: float) -> bool:
        """Ask all clients that have a connection; return whether one answers within so many seconds.

        Who comes from an address of this machine's own that others use, is this broker itself, or as near: no
        network lies between.
        """
        asked_at = self._loop.time()
        asked = [one for one in self._shared.connections if not one.is_from_own_address]
        for one in asked:
            one.ask()
        while self._loop.time() < asked_at + seconds:
            if any(one.calls.http2.reached_at >= asked_at for one in asked):
                return True
            await asyncio.sleep(ASK_AGAIN_SECONDS)
        return False

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()
            self._listening = None

    def _accept(self) -> None:
        assert self._listening is not None
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                one, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            host = str(address[0]).removeprefix("::ffff:")
            task = self._loop.create_task(self._arrive(one, host))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    def _pause(self, error: OSError) -> None:
        """Wait while the system has no descriptors left: try again in a second, as asyncio does."""
        assert self._listening is not None
        log.error("no connection can be taken", reason=str(error))
        self._loop.remove_reader(self._listening.fileno())
        self._loop.call_later(1, self._resume)

    def _resume(self) -> None:
        if self._listening is not None:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    async def _arrive(self, one: socket.socket, host: str) -> None:
        """See what a new connection speaks, and serve it or send it away."""
        has_strangers = self._strangers[host] >= self._limits.strangers_per_address
        if has_strangers or not self._admission.admit(host):
            self._refuse(TOO_MANY, host, "")
            await self._hear_out(one, TOO_MANY_FAREWELL)
            return
        is_served = False
        try:
            is_served = await self._serve(one, host)
        finally:
            if not is_served:
                self._admission.leave(host)
                _close(one)

    async def _serve(self, one: socket.socket, host: str) -> bool:
        """Serve a connection; False if it is over instead."""
        protocol, first = await self._hello(one, self._limits.hello_seconds)
        if protocol is None:
            if first is not None:
                self._refuse(SILENT, host, "")
            return False
        if protocol is Protocol.TLS and self._tls is not None:
            return await self._shake_hands(one, host, first or b"")
        if protocol is Protocol.HTTP2 and self._has_plaintext:
            await self._connect(one, host, None)
            return True
        if protocol is Protocol.HTTP2:
            self._refuse(PLAINTEXT, host, "")
            await self._hear_out(one, PLAINTEXT_FAREWELL)
            return False
        self._refuse(protocol.value, host, "")
        told = answer(protocol, first or b"", self._http)
        await self._say(one, goaway(0, Code.PROTOCOL_ERROR, told.decode()) if protocol is UNKNOWN else told)
        return False

    async def _hello(self, one: socket.socket, seconds: float) -> tuple[Protocol | None, bytes | None]:
        """Return what the first bytes say, which are left in the socket; None, None if it was hung up."""
        first = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    seen = await self._peek(one, len(first))
                    if not seen:
                        return None, None
                    first = seen
                    protocol = protocol_of(first)
                    if protocol is not None and self._is_enough(protocol, first):
                        return protocol, first
        return None, first

    def _is_enough(self, protocol: Protocol, first: bytes) -> bool:
        if protocol is Protocol.HTTP2:
            return True
        return is_whole(protocol, first) or len(first) >= PEEKED_BYTES

    async def _peek(self, one: socket.socket, known_bytes: int) -> bytes:
        """Return the first bytes, once there are more than are known; empty if the client has hung up."""
        pause_seconds = PEEK_AGAIN_SECONDS
        while True:
            try:
                seen = one.recv(PEEKED_BYTES, socket.MSG_PEEK)
            except BlockingIOError:
                await self._readable(one)
                continue
            except OSError:
                return b""
            if len(seen) > known_bytes or not seen:
                return seen
            if _has_hung_up(one):
                return b""
            await asyncio.sleep(pause_seconds)  # it stays readable: what is known is still in it
            pause_seconds = min(2 * pause_seconds, PEEK_SELDOM_SECONDS)

    async def _readable(self, one: socket.socket) -> None:
        ready = self._loop.create_future()
        self._loop.add_reader(one.fileno(), _release, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(one.fileno())

    async def _shake_hands(self, one: socket.socket, host: str, first: bytes) -> bool:
        protocols = offered(first)
        if protocols and H2 not in protocols:
            self._refuse(NO_HTTP2, host, "")
            await self._say(one, NO_HTTP2_ALERT)
            return False
        await self._handshakes.acquire()
        slot = Slot(self._handshakes, self._loop)
        try:
            assert self._tls is not None
            connection = await self._connect(one, host, self._tls())
        except (OSError, ssl.SSLError) as error:
            if not self._is_leaving:
                self._refuse(why(error), host, str(error))
            return False
        finally:
            slot.give_back()
        if connection.protocol != H2.decode():
            self.refused(connection, NO_HTTP2, "")
            connection.transport.close()
        return True

    async def _connect(self, one: socket.socket, host: str, tls: ssl.SSLContext | None) -> Connection:
        connection = Connection(self._shared, host, self, is_encrypted=tls is not None)
        seconds = limits_of_all.HANDSHAKE_MS_MAX / 1000 if tls is not None else None
        await self._loop.connect_accepted_socket(
            lambda: connection, one, ssl=tls, ssl_handshake_timeout=seconds
        )
        if self._asks_callers:
            connection.is_stranger = True
            self._strangers[host] += 1
            self._loop.call_later(self._limits.stranger_seconds, self._hurry_stranger, connection)
        else:
            connection.is_let_in = True
        return connection

    def refused(self, connection: Connection, why: str, detail: str) -> None:
        """Count a connection that the server ends; once, and not while the port leaves."""
        if not self._is_leaving and not connection.is_listed:
            connection.is_listed = True
            self._refuse(why, connection.host, detail)

    def lost(self, connection: Connection) -> None:
        """Take in that a connection is gone."""
        self._admission.leave(connection.host)
        self._forget_stranger(connection)
        if not self._shared.connections and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _forget_stranger(self, connection: Connection) -> None:
        if connection.is_stranger:
            connection.is_stranger = False
            self._strangers[connection.host] -= 1
            if not self._strangers[connection.host]:
                del self._strangers[connection.host]

    def _hurry_stranger(self, connection: Connection) -> None:
        if connection.is_let_in or connection not in self._shared.connections:
            self._forget_stranger(connection)
        elif connection.calls.http2.stream_count:
            self.refused(connection, STRANGER, "")
            connection.transport.abort()
        else:  # such as a probe of health, which is let in nowhere
            self._loop.call_later(self._limits.stranger_seconds, self._hurry_stranger, connection)

    async def _hear_out(self, one: socket.socket, reason: Farewell) -> None:
        """Tell one why it must go, in its protocol; at most so many at once."""
        if self._farewell_count >= FAREWELLS_MAX:
            _close(one)
            return
        self._farewell_count += 1
        try:
            protocol, first = await self._hello(one, FAREWELL_SECONDS)
            if protocol is Protocol.HTTP2:
                await self._refuse_first_call(one, reason)
            elif protocol is not None:
                await self._say(one, farewell(protocol, first or b"", reason))
        finally:
            self._farewell_count -= 1
            _close(one)

    async def _refuse_first_call(self, one: socket.socket, reason: Farewell) -> None:
        """Serve a client's HTTP/2 until its first call has been refused: a status is what its user sees."""
        refusing = Refusing(reason)
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._loop.connect_accepted_socket(lambda: refusing, one)
                await refusing.is_over

    async def _say(self, one: socket.socket, said: bytes) -> None:
        """Say something and hang up, when what was said before has been read."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                with suppress(BlockingIOError):
                    one.recv(1 << 16)
                await self._loop.sock_sendall(one, said)
        _close(one)

    def _look(self, one: Connection, now: float) -> None:
        """End a connection on which nothing has come for long, or does not go on."""
        if now - one.heard_at >= self._limits.idle_seconds:
            self.refused(one, IDLE, "")
            one.transport.abort()  # to close would wait for somebody who may be dead to read
        else:
            one.look(now)


class Slot:
    """One of the handshakes at once. Who is slow computes nothing: it gives its slot back after a while."""

    def __init__(self, slots: asyncio.Semaphore, loop: asyncio.AbstractEventLoop) -> None:
        self._slots, self._is_held = slots, True
        self._timer = loop.call_later(limits_of_all.HANDSHAKE_SLOT_MS_MAX / 1000, self.give_back)

    def give_back(self) -> None:
        """Let another one begin."""
        if self._is_held:
            self._is_held = False
            self._timer.cancel()
            self._slots.release()


def why(error: Exception) -> str:
    """Return what went wrong in a handshake, in one of few words."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return why_broken(error)
    return SLOW if isinstance(error, ConnectionAbortedError) else LEFT  # the loop's word for its time-out


def _has_hung_up(one: socket.socket) -> bool:
    """Return whether the client will say no more, where the system tells."""
    asking = select.poll()
    asking.register(one, getattr(select, "POLLRDHUP", select.POLLHUP))
    return bool(asking.poll(0))


def _release(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _close(one: socket.socket) -> None:
    """Close a socket once what has come is read: else the kernel's RST would destroy the answer."""
    with suppress(OSError):
        one.recv(PEEKED_BYTES)
    with suppress(OSError):
        one.close()
