"""The server side of gRPC on one connection. This module uses neither a socket nor a clock.

    receive(bytes) -> CallReceived                                   a complete unary call
                      CallStarted, MessageReceived ..., HalfClosed   a call with a request stream
                      CallCancelled                                  by the client, or after a violation
                      StreamDrained, ConnectionEnded                 events of HTTP/2 (`http2`)
    reply, send_message, end   send a response; `http2.take_output()` returns the bytes to write

`CallReceived` is returned only when a unary request is complete, so services never receive partial messages.
Most calls arrive in one read, as a HEADERS frame and a single DATA frame. `_handle_request` parses such calls
without an `IncomingRequest`.

In a request stream, the next message is parsed only after `finish_message`. The client's flow control window
therefore limits the amount of unparsed data. Without this rule, one megabyte of compressed data could expand
to a million parsed messages.

A request with the wrong content type or HTTP method is refused with an HTTP status. Unknown methods, unknown
compression methods, and messages that are too long or truncated are refused with a gRPC status. The text of
each refusal contains the reason, because clients log only the status and the text.

Limits: incomplete requests and unread messages use at most `REQUESTS_PER_CONNECTION_BYTES_MAX` bytes per
connection and `REQUESTS_BYTES_MAX` bytes in total (`RequestMemory`). A call that exceeds a limit is refused.
After `REQUEST_MS_MAX` milliseconds, `check_limits` also refuses requests that arrive at less than
`REQUEST_BYTES_PER_SECOND_MIN` bytes per second. Decompressed bytes in excess of the expected compression
ratio, as in a decompression bomb, use up the allowance for frames without progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from commitlog import limits
from commitlog.limits import REQUEST_BYTES_MAX
from services.front.grpc_wire import (
    DEFAULT_HEADERS,
    GRPC,
    OK_TRAILERS,
    PREFIX_BYTES,
    Messages,
    Refused,
    Status,
    encode_head,
    encode_trailers,
    frame_message,
    refusal,
)
from services.front.header_fields import Field, Head
from services.front.http2 import (
    ConnectionEnded,
    ConnectionLimits,
    DataReceived,
    HeadersTooLong,
    Http2Connection,
    RequestReceived,
    StreamDrained,
    StreamReset,
)
from services.front.http2_frames import Code

TEXT: Final = "text/plain; charset=utf-8"
TOO_SLOW: Final = "The request does not come. Send it again."
NO_GRPC: Final = b"This port serves RocketMQ 5 clients by gRPC: POST with content-type application/grpc.\n"
HEAD_BYTES, FIELD_BYTES = 1_024, 256
"""Number of bytes charged for an incomplete request, and for each of its header fields."""
_ENCODINGS: Final = frozenset(("", "identity", "gzip"))


class Method(NamedTuple):
    """A service method. If `takes_stream` is true, a request is a stream of messages."""

    target: Any
    takes_stream: bool
    message_bytes_max: int = REQUEST_BYTES_MAX


class CallReceived(NamedTuple):
    """Event: a call with a single request message has arrived."""

    stream_id: int
    method: Method
    head: Head
    message: bytes


class CallStarted(NamedTuple):
    """Event: a call with a request stream has started."""

    stream_id: int
    method: Method
    head: Head


class MessageReceived(NamedTuple):
    """Event: a message in a request stream has arrived.

    The caller must call `finish_message` after processing the message.
    """

    stream_id: int
    message: bytes


class HalfClosed(NamedTuple):
    """Event: the client has sent the last message of a request."""

    stream_id: int


class CallCancelled(NamedTuple):
    """Event: a call was cancelled by the client or after a protocol violation.

    The service can no longer respond to the call.
    """

    stream_id: int


Event = (
    CallReceived
    | CallStarted
    | MessageReceived
    | HalfClosed
    | CallCancelled
    | StreamDrained
    | ConnectionEnded
)


class RequestMemory:
    """The memory used by incomplete requests on all connections, in bytes."""

    def __init__(self) -> None:
        self.held_bytes = 0


class IncomingRequest:
    """A request that is incomplete or has unread messages."""

    __slots__ = (
        "began_at",
        "came_bytes",
        "head",
        "head_bytes",
        "held_bytes",
        "is_ended",
        "messages",
        "method",
        "size_bytes",
        "unread_bytes",
        "whole",
    )

    def __init__(self, method: Method, head: Head | None, messages: Messages, now: float) -> None:
        self.method, self.head, self.messages = method, head, messages
        self.began_at, self.came_bytes = now, 0
        """Start time in seconds of the request or current message, and the number of bytes received since."""
        self.whole: bytes | None = None
        """The message of a unary request, or None if it is incomplete."""
        self.size_bytes = -1
        """Size in bytes of the message that is being processed, or -1 if there is none."""
        self.unread_bytes = 0
        """Number of received bytes not yet returned to the client's flow control window."""
        self.is_ended = False
        self.head_bytes = 0 if head is None else HEAD_BYTES + FIELD_BYTES * len(head.fields)
        if head is not None:
            self.head_bytes += sum(map(len, head.fields.values()))
        self.held_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Return the memory used by the request, in bytes."""
        return self.head_bytes + self.messages.held_bytes + len(self.whole or b"") + max(0, self.size_bytes)


class GrpcCalls:
    """The gRPC calls on one connection.

    `method_of` maps a path to a method, or to None if the path is unknown.
    """

    __slots__ = (
        "_begun",
        "_found",
        "_held_bytes",
        "_incoming",
        "_later",
        "_method_of",
        "_no_grpc",
        "_now",
        "_parts",
        "_unpacked_bytes",
        "http2",
    )

    def __init__(
        self,
        method_of: Callable[[str], Method | None],
        bounds: ConnectionLimits,
        kept: dict[bytes, Field],
        parts: RequestMemory,
        now: float,
    ) -> None:
        self.http2 = Http2Connection(bounds, kept, now)
        self._method_of, self._parts = method_of, parts
        self._now, self._held_bytes = now, 0
        self._found: list[Event] = []
        self._later: list[Any] = []
        """HTTP/2 events left for the next call of `receive` because too many bytes were decompressed."""
        self._unpacked_bytes = 0
        self._incoming: dict[int, IncomingRequest] = {}
        self._begun: set[int] = set()
        """Streams whose response header block has been sent."""
        self._no_grpc: dict[int, tuple[int, float]] = {}
        """HTTP status and start time in seconds of each non-gRPC request, keyed by stream id."""

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Parse received bytes, and return the events."""
        self._now = now
        found: list[Event] = []
        events, self._later, self._unpacked_bytes = self._later, [], 0
        if data or not events:
            events += self.http2.receive(data, now)
        for place, event in enumerate(events):
            if self.http2.is_closed and isinstance(event, (RequestReceived, DataReceived)):
                continue  # The connection has ended, possibly during this loop.
            self._handle_event(event, found)
            if self._unpacked_bytes >= limits.UNPACKED_PER_TURN_BYTES:
                self._later = events[place + 1 :]
                break
        return found

    @property
    def has_unread(self) -> bool:
        """Return whether `receive` must be called again to process remaining bytes or events."""
        return bool(self._later) or self.http2.has_unread

    def resume(self) -> list[Event]:
        """Send the output that was blocked by the transport. Return the events."""
        found: list[Event] = []
        for event in self.http2.resume():
            self._handle_event(event, found)
        return found

    def events(self) -> list[Event]:
        """Return the events that were caused by responses or by `check_limits`."""
        found, self._found = self._found, []
        for event in self.http2.events():
            self._handle_event(event, found)
        return found

    def check_limits(self, now: float, ping_seconds: float, pong_seconds: float) -> bool:
        """Refuse slow requests, and return the result of `Http2Connection.check_limits`.

        The caller must then call `events`.
        """
        self._now = now
        late = [stream_id for stream_id, incoming in self._incoming.items() if self._is_too_slow(incoming)]
        for stream_id in late:
            if self._incoming[stream_id].method.takes_stream:
                self._found.append(CallCancelled(stream_id))
            self.end(stream_id, Status.DEADLINE_EXCEEDED, TOO_SLOW)
        for stream_id, (_, since) in list(self._no_grpc.items()):
            if now - since >= limits.REQUEST_MS_MAX / 1000:
                self._refuse_by_http(stream_id)
        return self.http2.check_limits(now, ping_seconds, pong_seconds)

    @property
    def has_output(self) -> bool:
        """Return whether there are bytes to write or events to return."""
        return bool(self._found) or self.http2.has_output

    def release_requests(self) -> None:
        """Release the memory of all requests on an ended connection."""
        for stream_id in list(self._incoming):
            self._remove_request(stream_id)

    def _handle_event(self, event: object, found: list[Event]) -> None:
        match event:
            case RequestReceived():
                self._handle_request(event, found)
            case DataReceived():
                self._handle_data(event, found)
            case StreamReset(stream_id):
                self._remove_request(stream_id)
                self._begun.discard(stream_id)
                self._no_grpc.pop(stream_id, None)
                found.append(CallCancelled(stream_id))
            case HeadersTooLong(stream_id):
                self._refuse(stream_id, Status.RESOURCE_EXHAUSTED, "The request has too many header fields.")
            case StreamDrained() | ConnectionEnded():
                found.append(event)

    def _handle_request(self, request: RequestReceived, found: list[Event]) -> None:
        stream_id, head, body, is_whole = request
        fields = head.fields
        if fields[":method"] != "POST" or not fields.get("content-type", "").startswith(GRPC):
            self._no_grpc[stream_id] = 405 if fields[":method"] != "POST" else 415, self._now
            if is_whole:
                self._refuse_by_http(stream_id)
            return
        self.http2.disable_table()
        method = self._method_of(fields[":path"])
        if method is None:
            self._refuse(stream_id, Status.UNIMPLEMENTED, f"Nothing is served as {fields[':path'][:200]}.")
            return
        encoding = fields.get("grpc-encoding", "")
        if encoding not in _ENCODINGS:
            self._refuse(stream_id, Status.UNIMPLEMENTED, f"grpc-encoding {encoding[:40]!r} is not taken.")
            return
        if is_whole and not method.takes_stream and body[:1] == b"\0":
            size = int.from_bytes(body[1:PREFIX_BYTES], "big")
            is_taken = size <= method.message_bytes_max
            # Almost all requests consist of one message in one DATA frame.
            if is_taken and len(body) == PREFIX_BYTES + size:
                found.append(CallReceived(stream_id, method, head, body[PREFIX_BYTES:]))
                return
        messages = Messages(method.message_bytes_max, is_gzip=encoding == "gzip")
        kept = None if method.takes_stream else head
        self._incoming[stream_id] = IncomingRequest(method, kept, messages, self._now)
        if method.takes_stream:
            found.append(CallStarted(stream_id, method, head))
        self._handle_data(DataReceived(stream_id, body, is_whole), found, is_counted=False)

    def _handle_data(self, body: DataReceived, found: list[Event], *, is_counted: bool = True) -> None:
        stream_id, data, is_end = body
        incoming = self._incoming.get(stream_id)
        size = len(data) if is_counted else 0
        if incoming is None:
            self.http2.acknowledge_data(stream_id, size)
            if is_end and stream_id in self._no_grpc:
                self._refuse_by_http(stream_id)
            return
        incoming.messages.add(data)
        incoming.is_ended = is_end
        incoming.came_bytes += len(data)
        incoming.unread_bytes += size
        self._parse_messages(stream_id, incoming, found)

    def _parse_messages(self, stream_id: int, incoming: IncomingRequest, found: list[Event]) -> None:
        """Parse the received bytes of a request."""
        try:
            if incoming.method.takes_stream:
                self._emit_message(stream_id, incoming, found)
            else:
                self._emit_call(stream_id, incoming, found)
            if stream_id in self._incoming:
                self._charge_memory(incoming)
        except Refused as refused:
            self._refuse_incoming(stream_id, incoming, refused, found)
        self._unpacked_bytes += incoming.messages.unpacked_bytes
        incoming.messages.unpacked_bytes = 0
        if incoming.messages.excess_bytes:
            self.http2.charge_frames(incoming.messages.excess_bytes / limits.UNPACKED_BYTES_PER_FRAME)
            incoming.messages.excess_bytes = 0

    def _emit_message(self, stream_id: int, incoming: IncomingRequest, found: list[Event]) -> None:
        """Append an event for the next message of a request stream, unless a message is being processed."""
        if incoming.size_bytes >= 0:
            return
        message = incoming.messages.next()
        if message is not None:
            incoming.size_bytes = len(message)
            found.append(MessageReceived(stream_id, message))
            return
        self._reopen_window(stream_id, incoming, 0)
        if not incoming.messages.held_bytes:
            incoming.began_at, incoming.came_bytes = self._now, 0
        if incoming.is_ended:
            incoming.messages.end()
            self._remove_request(stream_id)
            found.append(HalfClosed(stream_id))

    def _emit_call(self, stream_id: int, incoming: IncomingRequest, found: list[Event]) -> None:
        """Append an event for the call if the request is complete. Raise `Refused` for an invalid request."""
        self._reopen_window(stream_id, incoming, 0)
        if incoming.whole is None:
            incoming.whole = incoming.messages.next()
        if incoming.whole is not None and incoming.messages.held_bytes:
            raise Refused(Status.INTERNAL, "The request has more than one message.")
        if not incoming.is_ended:
            return
        incoming.messages.end()
        if incoming.whole is None or incoming.head is None:
            raise Refused(Status.INTERNAL, "The request has no message.")
        self._remove_request(stream_id)
        found.append(CallReceived(stream_id, incoming.method, incoming.head, incoming.whole))

    def _reopen_window(self, stream_id: int, incoming: IncomingRequest, left_bytes: int) -> None:
        """Enlarge the client's flow control window by the unread bytes, except for `left_bytes` bytes."""
        self.http2.acknowledge_data(stream_id, incoming.unread_bytes - left_bytes)
        incoming.unread_bytes = left_bytes

    def _is_too_slow(self, incoming: IncomingRequest) -> bool:
        """Return whether a request or a message in a stream is arriving too slowly."""
        if incoming.head is None and (incoming.size_bytes >= 0 or not incoming.messages.held_bytes):
            return False
        seconds = limits.REQUEST_MS_MAX / 1000 + incoming.came_bytes / limits.REQUEST_BYTES_PER_SECOND_MIN
        return self._now - incoming.began_at >= seconds

    def _refuse_incoming(
        self, stream_id: int, incoming: IncomingRequest, refused: Refused, found: list[Event]
    ) -> None:
        self._reopen_window(stream_id, incoming, 0)
        self.end(stream_id, refused.status, refused.text)
        if incoming.method.takes_stream:
            found.append(CallCancelled(stream_id))

    def _remove_request(self, stream_id: int) -> None:
        """Remove a request, and release its memory."""
        incoming = self._incoming.pop(stream_id, None)
        if incoming is not None:
            self._add_memory(-incoming.held_bytes)

    def _charge_memory(self, incoming: IncomingRequest) -> None:
        by_bytes = incoming.memory_bytes - incoming.held_bytes
        if by_bytes > 0:
            is_too_much = self._parts.held_bytes + by_bytes > limits.REQUESTS_BYTES_MAX
            if is_too_much or self._held_bytes + by_bytes > limits.REQUESTS_PER_CONNECTION_BYTES_MAX:
                raise Refused(
                    Status.RESOURCE_EXHAUSTED, "Too many long messages are under way. Send it again later."
                )
        self._add_memory(by_bytes)
        incoming.held_bytes += by_bytes

    def _add_memory(self, by_bytes: int) -> None:
        self._parts.held_bytes += by_bytes
        self._held_bytes += by_bytes

    def _refuse(self, stream_id: int, status: Status, text: str) -> None:
        self.http2.end_response(stream_id, refusal(status, text))

    def _refuse_by_http(self, stream_id: int) -> None:
        """Respond to a non-gRPC request with an HTTP status and a text message."""
        self.http2.begin_response(stream_id, encode_head(self._no_grpc.pop(stream_id)[0], TEXT))
        self.http2.send_data(stream_id, NO_GRPC)
        self.http2.end_response(stream_id)

    # The methods below send responses.

    def reply(self, stream_id: int, message: bytes) -> None:
        """Reply to a unary call with a message and the status OK."""
        self.http2.send_response(stream_id, DEFAULT_HEADERS, frame_message(message), OK_TRAILERS)

    def send_message(self, stream_id: int, message: bytes) -> None:
        """Send the next message in a response stream."""
        if stream_id not in self._begun:
            self.begin(stream_id)
        self.http2.send_data(stream_id, frame_message(message))

    def begin(self, stream_id: int, fields: Mapping[str, str] | None = None) -> None:
        """Send the header block of a response, with the additional header fields in `fields`."""
        self._begun.add(stream_id)
        self.http2.begin_response(
            stream_id, DEFAULT_HEADERS if not fields else encode_head(200, GRPC, dict(fields))
        )

    def end(self, stream_id: int, status: Status = Status.OK, text: str = "", more: bytes = b"") -> None:
        """End a response with a status, a status text, and the encoded trailer fields in `more`."""
        self._remove_request(stream_id)
        if stream_id in self._begun:
            self._begun.discard(stream_id)
            self.http2.end_response(stream_id, encode_trailers(status, text) + more)
        else:
            self.http2.end_response(stream_id, refusal(status, text) + more)

    def finish_message(self, stream_id: int) -> list[Event]:
        """Mark the current message as processed, and enlarge the flow control window. Return the events."""
        found: list[Event] = []
        incoming = self._incoming.get(stream_id)
        if incoming is not None and incoming.size_bytes >= 0:
            incoming.size_bytes = -1
            self._reopen_window(stream_id, incoming, min(incoming.unread_bytes, incoming.messages.held_bytes))
            self._parse_messages(stream_id, incoming, found)
        return found

    def abort(self, stream_id: int) -> None:
        """Reset a call to which no response can be sent because of an internal error in the service."""
        self._begun.discard(stream_id)
        self._remove_request(stream_id)
        self.http2.reset_stream(stream_id, Code.INTERNAL_ERROR)
