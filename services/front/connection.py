"""Client connections. A connection passes bytes between a socket and the protocol code (`GrpcCalls`).

    socket --bytes--> GrpcCalls --events--> Service --replies--> GrpcCalls --bytes--> socket

Reading. `data_received` passes bytes to `GrpcCalls` and events to the service. The number of frames parsed
per event loop iteration is limited. If unparsed bytes remain, the connection pauses the transport and is
added to the `Backlog`. The connections in the backlog continue reading in turn, so a flood from one client
does not delay other clients. While part of a client's allowance for frames without progress is used up
(`http2`), every read is delayed by `THROTTLE_SECONDS`.

Writing. A connection with output calls `write` once at the end of an event loop iteration (`WriteQueue`), so
that 32 replies, for example, require only one system call. While the socket buffer is full (`pause_writing`),
`GrpcCalls` queues DATA, within the same limits as DATA blocked by flow control. The total number of unsent
bytes on all connections is also limited. If the total exceeds the limit, the connection with the most unsent
bytes is closed (`UnreadBytes`).

Calls. A unary call has no task. The service calls `reply` when the result is available. A streaming call has
a task (`start`), which receives messages with `messages` and sends messages with `send_message`.
`send_message` returns once the message has passed flow control, and the message is then considered delivered.
The task is cancelled if the client cancels the call or the connection is lost.

Closing. After a connection error, the server sends the reason in a GOAWAY frame, half-closes the connection,
and discards received bytes for `CLOSE_SECONDS`. If a socket with unread bytes were closed immediately, the
kernel would send RST, and the client might not receive the reason.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from ipaddress import ip_address
from itertools import count
from typing import Any, Final, Protocol, cast

import structlog

from commitlog import limits
from services.front.grpc_calls import (
    CallCancelled,
    CallReceived,
    CallStarted,
    GrpcCalls,
    HalfClosed,
    MessageReceived,
    Method,
    RequestMemory,
)
from services.front.grpc_wire import Status
from services.front.header_fields import Field
from services.front.http2 import ConnectionEnded, ConnectionLimits, StreamDrained
from services.front.http2_frames import Code

log = structlog.get_logger()

PING_SECONDS: Final = 30.0
PONG_SECONDS: Final = 10.0
"""Idle time before a ping is sent, and maximum time until the acknowledgement of the ping."""
CLOSE_SECONDS: Final = 2.0
DISCARDED_BYTES_MAX: Final = 256 * 1024
"""Time for which a connection remains open after an error, and maximum number of bytes then discarded."""
THROTTLE_SECONDS: Final = 0.01
"""Delay before the next read if a client sends frames without progress."""
MESSAGES_AT_ONCE: Final = 32
"""Maximum number of messages that one stream may process per event loop iteration."""
UNREAD: Final = "All answers that wait to be read are too many, and this client has most of them."
DEAD: Final = "no answer to a ping"


class Service(Protocol):
    """Processes the calls that arrive on connections."""

    def method_of(self, path: str) -> Method | None:
        """Return the service method for `path`, or None if the path is unknown."""

    def call_received(self, connection: Connection, call: CallReceived) -> None:
        """Process a unary call. The reply may be sent during or after this method."""

    def call_started(self, connection: Connection, call: CallStarted) -> None:
        """Process a call with a request stream."""


class Acceptor(Protocol):
    """Accepts connections, and counts open and refused connections."""

    def count_refusal(self, connection: Connection, why: str, detail: str) -> None:
        """Count a connection that the server closes because of an error. `why` is a short reason."""

    def remove_connection(self, connection: Connection) -> None:
        """Remove a closed connection from the count of open connections."""


class WriteQueue:
    """The connections whose output is written at the end of the current event loop iteration."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Connection] = []

    def add(self, connection: Connection) -> None:
        """Schedule a write at the end of the current event loop iteration."""
        if not self._waiting:
            self._loop.call_soon(self._write)
        self._waiting.append(connection)

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.write()


class Backlog:
    """The connections with unparsed frames. One connection continues reading per event loop iteration."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Connection] = deque()

    def add(self, connection: Connection) -> None:
        """Schedule a connection to continue reading in a later event loop iteration."""
        if not self._waiting:
            self._loop.call_soon(self._continue_next)
        self._waiting.append(connection)

    def _continue_next(self) -> None:
        connection = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._continue_next)
        connection.continue_reading()


class UnreadBytes:
    """The number of unsent bytes per connection and in total.

    If the total exceeds the limit, the connection with the most unsent bytes is closed.
    """

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self._of: dict[Connection, int] = {}

    def set_bytes(self, connection: Connection, waiting_bytes: int) -> None:
        """Set the number of unsent bytes of a connection, and enforce the limit on the total."""
        self.waiting_bytes += waiting_bytes - self._of.get(connection, 0)
        if waiting_bytes:
            self._of[connection] = waiting_bytes
        else:
            self._of.pop(connection, None)
        if self.waiting_bytes > limits.UNREAD_BYTES_MAX:
            most = max(self._of, key=self._of.__getitem__)
            self.set_bytes(most, 0)
            most.end_with_reason(UNREAD)


class ServerState:
    """The state shared by all connections of a server."""

    def __init__(self, service: Service, bounds: ConnectionLimits | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.service, self.bounds = service, bounds or ConnectionLimits()
        self.writes, self.backlog, self.unread = WriteQueue(self.loop), Backlog(self.loop), UnreadBytes()
        self.fields: dict[bytes, Field] = {}
        self.parts = RequestMemory()
        self.connections: set[Connection] = set()
        self.numbers = count(1)


class ServedCall:
    """A call that is processed in a task, with the request messages not yet read by the task."""

    __slots__ = ("inbox", "passed", "said", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.passed: asyncio.Future[None] | None = None
        """Future that completes when the last sent message has passed flow control."""
        self.inbox: list[MessageReceived | None] = []
        """Request messages that the task has not yet read. The value None marks the end of the request."""
        self.said: asyncio.Future[None] | None = None
        """Future that completes when a message is added to the inbox."""

    def add_message(self, said: MessageReceived | None) -> None:
        """Add a request message, or None at the end of the request, and wake the task."""
        self.inbox.append(said)
        if self.said is not None and not self.said.done():
            self.said.set_result(None)


class Connection(asyncio.Protocol):
    """An HTTP/2 connection that begins with the client preface."""

    __slots__ = (
        "_acceptor",
        "_answering",
        "_discarded_bytes",
        "_is_behind",
        "_is_closing",
        "_is_refused",
        "_is_write_scheduled",
        "_shared",
        "_unread_bytes",
        "callers",
        "calls",
        "heard_at",
        "host",
        "is_authenticated",
        "is_encrypted",
        "is_refusal_counted",
        "is_unauthenticated",
        "number",
        "protocol",
        "transport",
    )

    def __init__(
        self,
        shared: ServerState,
        host: str,
        acceptor: Acceptor,
        *,
        is_encrypted: bool = False,
    ) -> None:
        self._shared, self._acceptor = shared, acceptor
        self.host, self.is_encrypted = host, is_encrypted
        self.number = next(shared.numbers)
        """Number of the connection, which is unique within the process."""
        self.is_authenticated = False
        """True if a call on this connection has been authenticated."""
        self.is_unauthenticated = self.is_refusal_counted = False
        """True if the connection counts as unauthenticated, and true if the closure is already counted."""
        self.protocol = ""
        """The protocol negotiated by ALPN, or an empty string without TLS."""
        self.callers: dict[int, tuple[dict[str, str], Any]] = {}
        """A cache of the service with (header fields, parsed object) pairs, keyed by `id(fields)`."""
        self.calls = GrpcCalls(
            shared.service.method_of, shared.bounds, shared.fields, shared.parts, shared.loop.time()
        )
        self._answering: dict[int, ServedCall] = {}
        self._is_write_scheduled = self._is_behind = self._is_closing = False
        self._unread_bytes = self._discarded_bytes = 0
        """Number of unsent bytes, and number of bytes received after the end of the connection."""
        self._is_refused = False
        """True if the connection must remain open until the client has read why it is closed."""
        self.heard_at = shared.loop.time()

    @property
    def is_from_own_address(self) -> bool:
        """Return whether the client connects from the server's own address.

        Return False for a loopback address.
        """
        own = self.transport.get_extra_info("sockname")
        return bool(own) and own[0] == self.host and not ip_address(self.host).is_loopback

    # The transport calls the methods below.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, and send the server preface."""
        self.transport = cast(asyncio.Transport, transport)
        if (sealed := transport.get_extra_info("ssl_object")) is not None:
            self.protocol = sealed.selected_alpn_protocol() or ""
        self._shared.connections.add(self)
        self.schedule_write()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. Schedule another read if unparsed bytes remain or reads are throttled."""
        self.heard_at = now = self._shared.loop.time()
        http2 = self.calls.http2
        if http2.is_closed:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > DISCARDED_BYTES_MAX:
                # A client that sends more than `DISCARDED_BYTES_MAX` bytes may not receive the reason.
                self.transport.pause_reading()
            return
        self._handle_events(self.calls.receive(data, now))
        if (self.calls.has_unread or http2.is_throttled) and not self._is_behind and not http2.is_closed:
            self.transport.pause_reading()
            self._schedule_reading()
        if not self._is_write_scheduled:
            self.schedule_write()

    def continue_reading(self) -> None:
        """Parse the bytes that remain from a previous event loop iteration."""
        self._is_behind = False
        if self.transport.is_closing():
            return
        self._handle_events(self.calls.receive(b"", self._shared.loop.time()))
        if self.calls.has_unread:
            self._schedule_reading()
        else:
            self.transport.resume_reading()
        self.schedule_write()

    def _schedule_reading(self) -> None:
        """Schedule another read, with a delay of `THROTTLE_SECONDS` if reads are throttled."""
        self._is_behind = True
        if self.calls.http2.is_throttled:
            self._shared.loop.call_later(THROTTLE_SECONDS, self._shared.backlog.add, self)
        else:
            self._shared.backlog.add(self)

    def pause_writing(self) -> None:
        """Stop sending DATA because the socket buffer is full."""
        self.calls.http2.is_full = True

    def resume_writing(self) -> None:
        """Resume sending DATA because the socket buffer is no longer full."""
        self._handle_events(self.calls.resume())
        self.schedule_write()

    def eof_received(self) -> bool:
        """Return False, so that the transport is closed when the client closes its side of the connection."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel all calls on the connection."""
        self._shared.connections.discard(self)
        for answering in list(self._answering.values()):
            self._cancel_task(answering)
        self.calls.release_requests()
        self._shared.unread.set_bytes(self, 0)
        if isinstance(error, ssl.SSLError):
            self._acceptor.count_refusal(self, describe_tls_error(error), str(error))
        self._acceptor.remove_connection(self)

    def schedule_write(self) -> None:
        """Schedule a write at the end of the current event loop iteration."""
        if not self._is_write_scheduled:
            self._is_write_scheduled = True
            self._shared.writes.add(self)

    def write(self) -> None:
        """Write all output to the transport, and update the number of unsent bytes."""
        self._is_write_scheduled = False
        if self.transport.is_closing():
            return
        self._handle_events(self.calls.events())
        if out := self.calls.http2.take_output():
            self.transport.write(out)
        # DATA is written in pieces, so that the transport can call `pause_writing` after each piece. The
        # remaining DATA then stays in the queue, which has a size limit, instead of in the transport buffer,
        # which has none.
        while self.calls.http2.can_send_data:
            self._handle_events(self.calls.resume())
            self.transport.write(self.calls.http2.take_output())
        http2 = self.calls.http2
        unread_bytes = http2.waiting_bytes
        if http2.is_full:
            unread_bytes += self.transport.get_write_buffer_size()
        if unread_bytes != self._unread_bytes:
            self._unread_bytes = unread_bytes
            self._shared.unread.set_bytes(self, unread_bytes)
        if http2.is_closed:
            self._close_after_output()

    def end_with_reason(self, why: str) -> None:
        """Close the connection with a GOAWAY frame that carries the reason."""
        self.calls.http2.end_with_reason(Code.ENHANCE_YOUR_CALM, why)
        self.schedule_write()

    def _close_after_output(self) -> None:
        """Close the connection once all output is written, or abort it after `CLOSE_SECONDS`."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._is_refused and self.transport.can_write_eof():
            self.transport.write_eof()  # After reading the reason, the client closes the connection.
        else:
            self.transport.close()
        self._shared.loop.call_later(CLOSE_SECONDS, self.transport.abort)

    def shut_down(self) -> None:
        """Send a GOAWAY frame, so that the client starts no new calls on this connection.

        Open calls are not affected.
        """
        self.calls.http2.shut_down()
        self.schedule_write()

    def check_limits(self, now: float) -> None:
        """Refuse slow requests, and ping an idle client.

        Abort the connection if a ping is not acknowledged in time.
        """
        if not self.calls.check_limits(now, PING_SECONDS, PONG_SECONDS):
            self._acceptor.count_refusal(self, DEAD, "")
            self.transport.abort()
        elif self.calls.has_output:
            self.schedule_write()

    def send_ping(self) -> None:
        """Send a ping to the client."""
        self.calls.http2.send_ping()
        self.schedule_write()

    # The methods below process calls.

    def _handle_events(self, events: list[Any]) -> None:
        for event in events:
            match event:
                case CallReceived():
                    self._shared.service.call_received(self, event)
                case CallStarted():
                    self._answering[event.stream_id] = ServedCall()
                    self._shared.service.call_started(self, event)
                case MessageReceived(stream_id) | HalfClosed(stream_id):
                    if (answering := self._answering.get(stream_id)) is not None:
                        answering.add_message(event if isinstance(event, MessageReceived) else None)
                case CallCancelled(stream_id):
                    if (answering := self._answering.pop(stream_id, None)) is not None:
                        self._cancel_task(answering)
                case StreamDrained(stream_id):
                    if (answering := self._answering.get(stream_id)) is not None:
                        _complete(answering.passed)
                case ConnectionEnded(code, why):
                    if code is not Code.NO_ERROR:
                        self._is_refused = True
                        self._acceptor.count_refusal(
                            self, f"HTTP/2: {code.name.lower().replace('_', ' ')}", why
                        )
                    self.schedule_write()

    def reply(self, stream_id: int, message: bytes) -> None:
        """Reply to a unary call with a message and the status OK."""
        self.calls.reply(stream_id, message)
        if not self._is_write_scheduled:
            self.schedule_write()

    def end(self, stream_id: int, status: Status = Status.OK, text: str = "") -> None:
        """End a call with a status."""
        self.calls.end(stream_id, status, text)
        self.schedule_write()

    async def send_message(self, stream_id: int, message: bytes) -> None:
        """Send a message in a response stream. Return when the message has passed flow control."""
        self.calls.send_message(stream_id, message)
        self.schedule_write()
        if not self.calls.http2.is_drained(stream_id):
            answering = self._answering[stream_id]
            answering.passed = self._shared.loop.create_future()
            await answering.passed

    async def messages(self, stream_id: int) -> AsyncIterator[bytes]:
        """Yield the request messages until the request ends or the call is cancelled."""
        answering, count = self._answering.get(stream_id), 0
        while answering is not None:
            while answering.inbox:
                said = answering.inbox.pop(0)
                if said is None:
                    return
                yield said.message
                # The next message is parsed, and the client's window enlarged, only after the current message
                # has been processed. A slow task therefore does not use up the server's memory.
                self._handle_events(self.calls.finish_message(stream_id))
                self.schedule_write()
                count += 1
                if count % MESSAGES_AT_ONCE == 0:
                    await asyncio.sleep(0)
            answering.said = self._shared.loop.create_future()
            await answering.said

    def start(self, stream_id: int, serving: Coroutine[Any, Any, None]) -> None:
        """Process a call in a task, which is cancelled with the call."""
        answering = self._answering.get(stream_id)
        if answering is None:
            answering = self._answering[stream_id] = ServedCall()
        answering.task = self._shared.loop.create_task(serving)
        answering.task.add_done_callback(lambda task: self._finish_task(stream_id, task))

    def _finish_task(self, stream_id: int, task: asyncio.Task[None]) -> None:
        if (answering := self._answering.pop(stream_id, None)) is not None:
            answering.add_message(None)  # Another task may be waiting for request messages.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("bug while answering", exc_info=error)
            self.calls.abort(stream_id)
            self.schedule_write()

    def _cancel_task(self, answering: ServedCall) -> None:
        answering.add_message(None)
        if answering.task is not None:
            answering.task.cancel()


def describe_tls_error(error: ssl.SSLError) -> str:
    """Return a short description of a TLS failure, from the client's alert or the local error."""
    reason = (error.reason or "broken").lower().replace("_", " ")
    _, is_said, alert = reason.partition(" alert ")
    return f"TLS: the client says {alert}" if is_said else f"TLS: {reason}"


def _complete(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
