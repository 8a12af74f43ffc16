"""The protocol port, which accepts connections, and serves or refuses them by protocol.

    accept -> peek at the first bytes in the socket -> HTTP/2            `Connection`
                                                       TLS with HTTP/2   `Connection` over TLS
                                                       other bytes       error message, then close

The port limits the number of connections per address, with a separate limit for unauthenticated connections.
It also limits the idle time of a connection (`services.front.admission`). The number of concurrent TLS
handshakes and the duration of a handshake are limited. `services.front.http2.ConnectionLimits` limits the
memory of a connection. The port checks all connections every `CHECK_SECONDS`.
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
from services.front.admission import IDLE, SILENT, TOO_MANY, UNAUTHENTICATED, Admission, Limits
from services.front.answers import (
    NO_HTTP2_ALERT,
    PLAINTEXT_REFUSAL,
    TOO_MANY_REFUSAL,
    ClientRefusal,
    encode_error,
    encode_refusal,
    is_complete,
)
from services.front.client_hello import H2, parse_protocols
from services.front.connection import Connection, ServerState, describe_tls_error
from services.front.first_bytes import Protocol, detect_protocol
from services.front.http2_frames import Code, encode_goaway
from services.front.refusing import RefusalConnection
from services.front.sweep import ConnectionSweep

BACKLOG: Final = 1_024
ACCEPTED_AT_ONCE: Final = 64
PEEKED_BYTES: Final = 4 * 1024
PEEK_AGAIN_SECONDS, PEEK_SELDOM_SECONDS = 0.02, 1.0
"""Initial and maximum interval between two attempts to read further bytes, in seconds."""
CHECK_SECONDS: Final = 5.0
ASK_AGAIN_SECONDS: Final = 0.05
"""Interval between two checks for ping acknowledgements, in seconds."""
REFUSALS_MAX: Final = 64
REFUSAL_SECONDS: Final = 2.0
"""Maximum number of concurrent refusals with a message, and time limit for each step of a refusal."""

UNKNOWN: Final = Protocol.UNKNOWN
"""An unknown protocol. The response is a GOAWAY frame with a text (RFC 9113, Section 3.4)."""
NO_HTTP2: Final = "TLS without HTTP/2"
PLAINTEXT: Final = "plaintext"
LEFT: Final = "TLS: the client hangs up in the handshake"
SLOW: Final = "TLS: the handshake is not finished in time"

Refuse = Callable[[str, str, str], None]
"""Callback for each refused connection, with a short reason, the client address, and details."""
log = structlog.get_logger()


class Port:
    """The protocol port of a broker. An instance must be created in the event loop in which it runs.

    `tls` returns the TLS context for a handshake. If `tls` is None, TLS is disabled. If
    `requires_authentication` is true, a connection is unauthenticated until one of its calls has been
    authenticated.
    """

    def __init__(
        self,
        shared: ServerState,
        limits: Limits,
        http: str,
        refuse: Refuse,
        tls: Callable[[], ssl.SSLContext] | None,
        *,
        has_plaintext: bool = True,
        requires_authentication: bool = False,
    ) -> None:
        self._shared, self._limits, self._http, self._refuse = shared, limits, http, refuse
        self._tls, self._has_plaintext, self._requires_authentication = (
            tls,
            has_plaintext,
            requires_authentication,
        )
        self._loop = shared.loop
        self._admission = Admission(limits)
        self._unauthenticated_count: Counter[str] = Counter()
        self._arriving: set[asyncio.Task[None]] = set()
        self._refusal_count = 0
        self._handshakes = asyncio.Semaphore(limits_of_all.HANDSHAKES_MAX)
        self._listening: socket.socket | None = None
        self._sweep = ConnectionSweep(
            min(CHECK_SECONDS, limits.idle_seconds), shared.connections, self._check_connection
        )
        self._is_shutting_down = False
        self._ended: asyncio.Future[None] | None = None
        """Future that completes when the last connection is closed."""

    @property
    def connection_count(self) -> int:
        """Return the number of open connections."""
        return self._admission.connection_count

    @property
    def table_count(self) -> int:
        """Return the number of connections whose clients use an HPACK dynamic table."""
        return sum(one.calls.http2.uses_table for one in self._shared.connections)

    def start(self, listening: socket.socket) -> None:
        """Start accepting connections on a bound socket."""
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._listening = listening
        self._loop.add_reader(listening.fileno(), self._accept)
        self._sweep.start()

    async def shut_down(self, grace_seconds: float) -> None:
        """Stop accepting connections, and close all connections.

        Open calls may continue for up to `grace_seconds`.
        """
        self._is_shutting_down = True
        self._stop_listening()
        for task in list(self._arriving):
            task.cancel()
        for one in list(self._shared.connections):
            one.shut_down()
        self._ended = self._loop.create_future()
        if self._shared.connections:
            await asyncio.wait((self._ended,), timeout=grace_seconds)
        for one in list(self._shared.connections):
            one.transport.abort()
        if self._shared.connections:
            await self._ended
        self._sweep.stop()

    async def has_reachable_client(self, seconds: float) -> bool:
        """Ping all clients, and return whether any client acknowledges the ping within `seconds`.

        Clients at the broker's own address are not pinged, unless it is a loopback address. An
        acknowledgement from the same machine does not prove that the network works.
        """
        asked_at = self._loop.time()
        asked = [one for one in self._shared.connections if not one.is_from_own_address]
        for one in asked:
            one.send_ping()
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
                self._pause_accepting(error)
                return
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            host = str(address[0]).removeprefix("::ffff:")
            task = self._loop.create_task(self._admit_connection(one, host))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    def _pause_accepting(self, error: OSError) -> None:
        """Stop accepting connections for one second, as asyncio does when file descriptors run out."""
        assert self._listening is not None
        log.error("no connection can be taken", reason=str(error))
        self._loop.remove_reader(self._listening.fileno())
        self._loop.call_later(1, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._listening is not None:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    async def _admit_connection(self, one: socket.socket, host: str) -> None:
        """Serve a new connection, or refuse it if a limit has been reached."""
        is_over_limit = self._unauthenticated_count[host] >= self._limits.strangers_per_address
        if is_over_limit or not self._admission.admit(host):
            self._refuse(TOO_MANY, host, "")
            await self._refuse_connection(one, TOO_MANY_REFUSAL)
            return
        is_served = False
        try:
            is_served = await self._serve_connection(one, host)
        finally:
            if not is_served:
                self._admission.release(host)
                _close(one)

    async def _serve_connection(self, one: socket.socket, host: str) -> bool:
        """Serve a connection. Return False if the connection was refused or closed."""
        protocol, first = await self._detect_protocol(one, self._limits.hello_seconds)
        if protocol is None:
            if first is not None:
                self._refuse(SILENT, host, "")
            return False
        if protocol is Protocol.TLS and self._tls is not None:
            return await self._serve_tls(one, host, first or b"")
        if protocol is Protocol.HTTP2 and self._has_plaintext:
            await self._start_connection(one, host, None)
            return True
        if protocol is Protocol.HTTP2:
            self._refuse(PLAINTEXT, host, "")
            await self._refuse_connection(one, PLAINTEXT_REFUSAL)
            return False
        self._refuse(protocol.value, host, "")
        told = encode_error(protocol, first or b"", self._http)
        await self._send_and_close(
            one, encode_goaway(0, Code.PROTOCOL_ERROR, told.decode()) if protocol is UNKNOWN else told
        )
        return False

    async def _detect_protocol(
        self, one: socket.socket, seconds: float
    ) -> tuple[Protocol | None, bytes | None]:
        """Return the protocol and the first bytes of a connection. The bytes remain in the socket buffer.

        After a timeout, the protocol is None. If the client has closed the connection, both results are None.
        """
        first = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    seen = await self._peek(one, len(first))
                    if not seen:
                        return None, None
                    first = seen
                    protocol = detect_protocol(first)
                    if protocol is not None and self._is_sufficient(protocol, first):
                        return protocol, first
        return None, first

    def _is_sufficient(self, protocol: Protocol, first: bytes) -> bool:
        if protocol is Protocol.HTTP2:
            return True
        return is_complete(protocol, first) or len(first) >= PEEKED_BYTES

    async def _peek(self, one: socket.socket, known_bytes: int) -> bytes:
        """Wait for more than `known_bytes` bytes, and return all bytes without removing them from the socket.

        Return an empty bytes object if the client has closed the connection.
        """
        pause_seconds = PEEK_AGAIN_SECONDS
        while True:
            try:
                seen = one.recv(PEEKED_BYTES, socket.MSG_PEEK)
            except BlockingIOError:
                await self._wait_readable(one)
                continue
            except OSError:
                return b""
            if len(seen) > known_bytes or not seen:
                return seen
            if _is_disconnected(one):
                return b""
            await asyncio.sleep(pause_seconds)  # The known bytes keep the socket readable.
            pause_seconds = min(2 * pause_seconds, PEEK_SELDOM_SECONDS)

    async def _wait_readable(self, one: socket.socket) -> None:
        ready = self._loop.create_future()
        self._loop.add_reader(one.fileno(), _complete, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(one.fileno())

    async def _serve_tls(self, one: socket.socket, host: str, first: bytes) -> bool:
        protocols = parse_protocols(first)
        if protocols and H2 not in protocols:
            self._refuse(NO_HTTP2, host, "")
            await self._send_and_close(one, NO_HTTP2_ALERT)
            return False
        await self._handshakes.acquire()
        slot = HandshakeSlot(self._handshakes, self._loop)
        try:
            assert self._tls is not None
            connection = await self._start_connection(one, host, self._tls())
        except (OSError, ssl.SSLError) as error:
            if not self._is_shutting_down:
                self._refuse(describe_error(error), host, str(error))
            return False
        finally:
            slot.release()
        if connection.protocol != H2.decode():
            self.count_refusal(connection, NO_HTTP2, "")
            connection.transport.close()
        return True

    async def _start_connection(
        self, one: socket.socket, host: str, tls: ssl.SSLContext | None
    ) -> Connection:
        connection = Connection(self._shared, host, self, is_encrypted=tls is not None)
        seconds = limits_of_all.HANDSHAKE_MS_MAX / 1000 if tls is not None else None
        await self._loop.connect_accepted_socket(
            lambda: connection, one, ssl=tls, ssl_handshake_timeout=seconds
        )
        if self._requires_authentication:
            connection.is_unauthenticated = True
            self._unauthenticated_count[host] += 1
            self._loop.call_later(self._limits.stranger_seconds, self._close_if_unauthenticated, connection)
        else:
            connection.is_authenticated = True
        return connection

    def count_refusal(self, connection: Connection, why: str, detail: str) -> None:
        """Count a connection that the server closes because of an error.

        Each connection is counted at most once. During shutdown, no connections are counted.
        """
        if not self._is_shutting_down and not connection.is_refusal_counted:
            connection.is_refusal_counted = True
            self._refuse(why, connection.host, detail)

    def remove_connection(self, connection: Connection) -> None:
        """Remove a closed connection from the count of open connections."""
        self._admission.release(connection.host)
        self._release_unauthenticated_slot(connection)
        if not self._shared.connections and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _release_unauthenticated_slot(self, connection: Connection) -> None:
        if connection.is_unauthenticated:
            connection.is_unauthenticated = False
            self._unauthenticated_count[connection.host] -= 1
            if not self._unauthenticated_count[connection.host]:
                del self._unauthenticated_count[connection.host]

    def _close_if_unauthenticated(self, connection: Connection) -> None:
        if connection.is_authenticated or connection not in self._shared.connections:
            self._release_unauthenticated_slot(connection)
        elif connection.calls.http2.stream_count:
            self.count_refusal(connection, UNAUTHENTICATED, "")
            connection.transport.abort()
        else:  # A health probe, for example, may never authenticate.
            self._loop.call_later(self._limits.stranger_seconds, self._close_if_unauthenticated, connection)

    async def _refuse_connection(self, one: socket.socket, reason: ClientRefusal) -> None:
        """Refuse a connection with a message in the protocol of the client.

        If `REFUSALS_MAX` refusals are in progress, close the connection without a message.
        """
        if self._refusal_count >= REFUSALS_MAX:
            _close(one)
            return
        self._refusal_count += 1
        try:
            protocol, first = await self._detect_protocol(one, REFUSAL_SECONDS)
            if protocol is Protocol.HTTP2:
                await self._refuse_first_call(one, reason)
            elif protocol is not None:
                await self._send_and_close(one, encode_refusal(protocol, first or b"", reason))
        finally:
            self._refusal_count -= 1
            _close(one)

    async def _refuse_first_call(self, one: socket.socket, reason: ClientRefusal) -> None:
        """Refuse the first call of an HTTP/2 client, because clients report only the status of a call."""
        refusing = RefusalConnection(reason)
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(REFUSAL_SECONDS):
                await self._loop.connect_accepted_socket(lambda: refusing, one)
                await refusing.closed

    async def _send_and_close(self, one: socket.socket, said: bytes) -> None:
        """Discard the received bytes, send `said`, and close the socket."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(REFUSAL_SECONDS):
                with suppress(BlockingIOError):
                    one.recv(1 << 16)
                await self._loop.sock_sendall(one, said)
        _close(one)

    def _check_connection(self, one: Connection, now: float) -> None:
        """Close a connection that has been idle for `idle_seconds`. Otherwise, check the other limits."""
        if now - one.heard_at >= self._limits.idle_seconds:
            self.count_refusal(one, IDLE, "")
            one.transport.abort()  # `close` would wait for the client, which may be unreachable.
        else:
            one.check_limits(now)


class HandshakeSlot:
    """A slot for a concurrent TLS handshake.

    The slot is released after at most `HANDSHAKE_SLOT_MS_MAX` milliseconds, even if the handshake is not
    finished. A handshake that waits for the client uses no CPU time.
    """

    def __init__(self, slots: asyncio.Semaphore, loop: asyncio.AbstractEventLoop) -> None:
        self._slots, self._is_held = slots, True
        self._timer = loop.call_later(limits_of_all.HANDSHAKE_SLOT_MS_MAX / 1000, self.release)

    def release(self) -> None:
        """Release the slot. A repeated call has no effect."""
        if self._is_held:
            self._is_held = False
            self._timer.cancel()
            self._slots.release()


def describe_error(error: Exception) -> str:
    """Return a short description of the error that ended a TLS handshake."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return describe_tls_error(error)
    # After a handshake timeout, asyncio raises ConnectionAbortedError.
    return SLOW if isinstance(error, ConnectionAbortedError) else LEFT


def _is_disconnected(one: socket.socket) -> bool:
    """Return whether the client has closed the sending side of the connection.

    Without POLLRDHUP, return whether both sides are closed.
    """
    asking = select.poll()
    asking.register(one, getattr(select, "POLLRDHUP", select.POLLHUP))
    return bool(asking.poll(0))


def _complete(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _close(one: socket.socket) -> None:
    """Discard received bytes, and close a socket. If unread bytes remained, the kernel would send RST."""
    with suppress(OSError):
        one.recv(PEEKED_BYTES)
    with suppress(OSError):
        one.close()
