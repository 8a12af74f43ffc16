"""The server's side of gRPC on one connection: bytes in, calls out; no socket, no clock.

    receive(bytes) -> CallReceived                                   a unary call, whole
                      CallStarted, MessageReceived ..., HalfClosed   a call whose request is a stream
                      CallCancelled                                  by the client, or for a broken rule
                      StreamDrained, ConnectionEnded                 as HTTP/2 told (`http2`)
    reply, send_message, end   the answers; `http2.take()` gives the bytes to be written

Unary. `CallReceived` comes when all of the request has come: a handler never sees part of a message. Nearly
every call is HEADERS and one DATA frame in one read, and passes `_request` alone, without an `Incoming`.

Streams. The next message is taken apart when the one before was `message_read`. Until then it stays in bytes
that its client's window bounds: a megabyte of compressed bytes could be a million empty messages.

Refusals. What gRPC cannot take is refused here and never seen outside: another content type or verb (by
HTTP's status), an unknown method, an unknown compression, a message that is too long or cut off. Each ends
with a sentence that says why, since a client's log shows the status and its text and nothing else.

Bounds: of requests that have not come whole, and of messages that were not read, one connection holds
`REQUESTS_PER_CONNECTION_BYTES_MAX` and all together `REQUESTS_BYTES_MAX` (`HeldBytes`); a call that brings
more is refused. So is one that, after `REQUEST_MS_MAX`, comes slower than `REQUEST_BYTES_PER_SECOND_MIN`
(`look`). What is unpacked out of nothing (a bomb) counts as frames that bring nothing forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from commitlog import limits
from commitlog.limits import REQUEST_BYTES_MAX
from services.front.grpc_wire import (
    GRPC,
    HEAD,
    PREFIX_BYTES,
    WELL,
    Messages,
    Refused,
    Status,
    framed,
    head_block,
    refusal,
    trailers,
)
from services.front.header_fields import Field, Head
from services.front.http2 import (
    Bounds,
    ConnectionEnded,
    DataReceived,
    HeadersTooLong,
    Http2,
    RequestReceived,
    StreamDrained,
    StreamReset,
)
from services.front.http2_frames import Code

TEXT: Final = "text/plain; charset=utf-8"
TOO_SLOW: Final = "The request does not come. Send it again."
NO_GRPC: Final = b"This port serves RocketMQ 5 clients by gRPC: POST with content-type application/grpc.\n"
HEAD_BYTES, FIELD_BYTES = 1_024, 256
"""What a request that has not come whole counts besides its bytes: its objects, and each header field."""
_ENCODINGS: Final = frozenset(("", "identity", "gzip"))


class Method(NamedTuple):
    """A method: the service's own target for it, and whether a request is a stream of messages."""

    target: Any
    takes_stream: bool
    message_bytes_max: int = REQUEST_BYTES_MAX


class CallReceived(NamedTuple):
    """A call whose request is one message."""

    stream_id: int
    method: Method
    head: Head
    message: bytes


class CallStarted(NamedTuple):
    """A call whose request is a stream."""

    stream_id: int
    method: Method
    head: Head


class MessageReceived(NamedTuple):
    """One more message of a request; the next one comes after `message_read`."""

    stream_id: int
    message: bytes


class HalfClosed(NamedTuple):
    """The client has sent the last message of a request."""

    stream_id: int


class CallCancelled(NamedTuple):
    """The client has cancelled a call, or broken a rule on it: nothing can be answered any more."""

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


class HeldBytes:
    """How many bytes of requests that have not come whole all connections hold together."""

    def __init__(self) -> None:
        self.held_bytes = 0


class Incoming:
    """A request that has not come whole, or whose messages were not all read."""

    __slots__ = (
        "began_at",
        "came_bytes",
        "head",
        "head_bytes",
        "held_bytes",
        "is_ended",
        "messages",
        "method",
        "said_bytes",
        "unread_bytes",
        "whole",
    )

    def __init__(self, method: Method, head: Head | None, messages: Messages, now: float) -> None:
        self.method, self.head, self.messages = method, head, messages
        self.began_at, self.came_bytes = now, 0
        """When the request, or a stream's present message, began to come (s); and how much has come since."""
        self.whole: bytes | None = None
        """The one message of a request that is no stream."""
        self.said_bytes = -1
        """Of a stream: the bytes of the message that was given out and not read; -1: there is none."""
        self.unread_bytes = 0
        """The bytes that the client's window lacks until more is read."""
        self.is_ended = False
        self.head_bytes = 0 if head is None else HEAD_BYTES + FIELD_BYTES * len(head.fields)
        if head is not None:
            self.head_bytes += sum(map(len, head.fields.values()))
        self.held_bytes = 0

    @property
    def holds_bytes(self) -> int:
        """The bytes that the request holds in memory now."""
        return self.head_bytes + self.messages.held_bytes + len(self.whole or b"") + max(0, self.said_bytes)


class GrpcCalls:
    """The calls of one connection. `method_of` gives the method of a path; None if there is none."""

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
        bounds: Bounds,
        kept: dict[bytes, Field],
        parts: HeldBytes,
        now: float,
    ) -> None:
        self.http2 = Http2(bounds, kept, now)
        self._method_of, self._parts = method_of, parts
        self._now, self._held_bytes = now, 0
        self._found: list[Event] = []
        self._later: list[Any] = []
        """Events of HTTP/2 that wait for a later turn, since this turn has unpacked its share."""
        self._unpacked_bytes = 0
        self._incoming: dict[int, Incoming] = {}
        self._begun: set[int] = set()
        """Streams on which the answer's header block was sent."""
        self._no_grpc: dict[int, tuple[int, float]] = {}
        """Requests that are not gRPC: (HTTP's status for it, when it began to come in seconds)."""

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Return what the client's bytes mean."""
        self._now = now
        found: list[Event] = []
        events, self._later, self._unpacked_bytes = self._later, [], 0
        if data or not events:
            events += self.http2.receive(data, now)
        for place, event in enumerate(events):
            if self.http2.is_over and isinstance(event, (RequestReceived, DataReceived)):
                continue  # it is no more use, and may be what the connection was ended for
            self._take(event, found)
            if self._unpacked_bytes >= limits.UNPACKED_PER_TURN_BYTES:
                self._later = events[place + 1 :]
                break
        return found

    @property
    def has_unread(self) -> bool:
        """Whether something that has come is left for a later turn, and `receive` to be called again."""
        return bool(self._later) or self.http2.has_unread

    def resume(self) -> list[Event]:
        """Let what waits go on, as the transport takes more; return the events."""
        found: list[Event] = []
        for event in self.http2.resume():
            self._take(event, found)
        return found

    def events(self) -> list[Event]:
        """Return the events that answers, and `look`, have brought about."""
        found, self._found = self._found, []
        for event in self.http2.events():
            self._take(event, found)
        return found

    def look(self, now: float, ping_seconds: float, pong_seconds: float) -> bool:
        """Refuse requests that come too slowly, and do what `Http2.look` does; call `events` behind it."""
        self._now = now
        late = [stream_id for stream_id, incoming in self._incoming.items() if self._is_late(incoming)]
        for stream_id in late:
            if self._incoming[stream_id].method.takes_stream:
                self._found.append(CallCancelled(stream_id))
            self.end(stream_id, Status.DEADLINE_EXCEEDED, TOO_SLOW)
        for stream_id, (_, since) in list(self._no_grpc.items()):
            if now - since >= limits.REQUEST_MS_MAX / 1000:
                self._refuse_by_http(stream_id)
        return self.http2.look(now, ping_seconds, pong_seconds)

    @property
    def has_news(self) -> bool:
        """Whether there are bytes to write, or events."""
        return bool(self._found) or self.http2.has_news

    def drop(self) -> None:
        """Release what all requests hold: the connection is gone."""
        for stream_id in list(self._incoming):
            self._leave(stream_id)

    def _take(self, event: object, found: list[Event]) -> None:
        match event:
            case RequestReceived():
                self._request(event, found)
            case DataReceived():
                self._body(event, found)
            case StreamReset(stream_id):
                self._leave(stream_id)
                self._begun.discard(stream_id)
                self._no_grpc.pop(stream_id, None)
                found.append(CallCancelled(stream_id))
            case HeadersTooLong(stream_id):
                self._refuse(stream_id, Status.RESOURCE_EXHAUSTED, "The request has too many header fields.")
            case StreamDrained() | ConnectionEnded():
                found.append(event)

    def _request(self, request: RequestReceived, found: list[Event]) -> None:
        stream_id, head, body, is_whole = request
        fields = head.fields
        if fields[":method"] != "POST" or not fields.get("content-type", "").startswith(GRPC):
            self._no_grpc[stream_id] = 405 if fields[":method"] != "POST" else 415, self._now
            if is_whole:
                self._refuse_by_http(stream_id)
            return
        self.http2.ask_for_no_table()
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
            if is_taken and len(body) == PREFIX_BYTES + size:  # nearly every call: one message in one frame
                found.append(CallReceived(stream_id, method, head, body[PREFIX_BYTES:]))
                return
        messages = Messages(method.message_bytes_max, is_gzip=encoding == "gzip")
        kept = None if method.takes_stream else head
        self._incoming[stream_id] = Incoming(method, kept, messages, self._now)
        if method.takes_stream:
            found.append(CallStarted(stream_id, method, head))
        self._body(DataReceived(stream_id, body, is_whole), found, is_counted=False)

    def _body(self, body: DataReceived, found: list[Event], *, is_counted: bool = True) -> None:
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
        self._go_on(stream_id, incoming, found)

    def _go_on(self, stream_id: int, incoming: Incoming, found: list[Event]) -> None:
        """Take apart what has come of a request."""
        try:
            if incoming.method.takes_stream:
                self._say_next(stream_id, incoming, found)
            else:
                self._make_whole(stream_id, incoming, found)
            if stream_id in self._incoming:
                self._hold(incoming)
        except Refused as refused:
            self._give_up(stream_id, incoming, refused, found)
        self._unpacked_bytes += incoming.messages.unpacked_bytes
        incoming.messages.unpacked_bytes = 0
        if incoming.messages.excess_bytes:
            self.http2.spend(incoming.messages.excess_bytes / limits.UNPACKED_BYTES_PER_FRAME)
            incoming.messages.excess_bytes = 0

    def _say_next(self, stream_id: int, incoming: Incoming, found: list[Event]) -> None:
        """Give out the next message of a stream, unless one is not read yet."""
        if incoming.said_bytes >= 0:
            return
        message = incoming.messages.next()
        if message is not None:
            incoming.said_bytes = len(message)
            found.append(MessageReceived(stream_id, message))
            return
        self._consume(stream_id, incoming, 0)
        if not incoming.messages.held_bytes:
            incoming.began_at, incoming.came_bytes = self._now, 0
        if incoming.is_ended:
            incoming.messages.end()
            self._leave(stream_id)
            found.append(HalfClosed(stream_id))

    def _make_whole(self, stream_id: int, incoming: Incoming, found: list[Event]) -> None:
        """Give out the one message of a request, at its end."""
        self._consume(stream_id, incoming, 0)
        if incoming.whole is None:
            incoming.whole = incoming.messages.next()
        if incoming.whole is not None and incoming.messages.held_bytes:
            raise Refused(Status.INTERNAL, "The request has more than one message.")
        if not incoming.is_ended:
            return
        incoming.messages.end()
        if incoming.whole is None or incoming.head is None:
            raise Refused(Status.INTERNAL, "The request has no message.")
        self._leave(stream_id)
        found.append(CallReceived(stream_id, incoming.method, incoming.head, incoming.whole))

    def _consume(self, stream_id: int, incoming: Incoming, left_bytes: int) -> None:
        """Give the window back of all but so many bytes."""
        self.http2.acknowledge_data(stream_id, incoming.unread_bytes - left_bytes)
        incoming.unread_bytes = left_bytes

    def _is_late(self, incoming: Incoming) -> bool:
        """Return whether a request, or a message of a stream, takes longer to come than it may."""
        if incoming.head is None and (incoming.said_bytes >= 0 or not incoming.messages.held_bytes):
            return False
        seconds = limits.REQUEST_MS_MAX / 1000 + incoming.came_bytes / limits.REQUEST_BYTES_PER_SECOND_MIN
        return self._now - incoming.began_at >= seconds

    def _give_up(self, stream_id: int, incoming: Incoming, refused: Refused, found: list[Event]) -> None:
        self._consume(stream_id, incoming, 0)
        self.end(stream_id, refused.status, refused.text)
        if incoming.method.takes_stream:
            found.append(CallCancelled(stream_id))

    def _leave(self, stream_id: int) -> None:
        """Forget a request, and what it holds."""
        incoming = self._incoming.pop(stream_id, None)
        if incoming is not None:
            self._change(-incoming.held_bytes)

    def _hold(self, incoming: Incoming) -> None:
        by_bytes = incoming.holds_bytes - incoming.held_bytes
        if by_bytes > 0:
            is_too_much = self._parts.held_bytes + by_bytes > limits.REQUESTS_BYTES_MAX
            if is_too_much or self._held_bytes + by_bytes > limits.REQUESTS_PER_CONNECTION_BYTES_MAX:
                raise Refused(
                    Status.RESOURCE_EXHAUSTED, "Too many long messages are under way. Send it again later."
                )
        self._change(by_bytes)
        incoming.held_bytes += by_bytes

    def _change(self, by_bytes: int) -> None:
        self._parts.held_bytes += by_bytes
        self._held_bytes += by_bytes

    def _refuse(self, stream_id: int, status: Status, text: str) -> None:
        self.http2.finish(stream_id, refusal(status, text))

    def _refuse_by_http(self, stream_id: int) -> None:
        """Answer what is no gRPC; all of it has come."""
        self.http2.begin(stream_id, head_block(self._no_grpc.pop(stream_id)[0], TEXT))
        self.http2.send(stream_id, NO_GRPC)
        self.http2.finish(stream_id)

    # Answers.

    def reply(self, stream_id: int, message: bytes) -> None:
        """Answer a call with one message and status OK."""
        self.http2.answer(stream_id, HEAD, framed(message), WELL)

    def send_message(self, stream_id: int, message: bytes) -> None:
        """Send one more message of an answer."""
        if stream_id not in self._begun:
            self.begin(stream_id)
        self.http2.send(stream_id, framed(message))

    def begin(self, stream_id: int, fields: Mapping[str, str] | None = None) -> None:
        """Send an answer's header block, with header fields of the service's own."""
        self._begun.add(stream_id)
        self.http2.begin(stream_id, HEAD if not fields else head_block(200, GRPC, dict(fields)))

    def end(self, stream_id: int, status: Status = Status.OK, text: str = "", more: bytes = b"") -> None:
        """End an answer."""
        self._leave(stream_id)
        if stream_id in self._begun:
            self._begun.discard(stream_id)
            self.http2.finish(stream_id, trailers(status, text) + more)
        else:
            self.http2.finish(stream_id, refusal(status, text) + more)

    def message_read(self, stream_id: int) -> list[Event]:
        """Give back the window of the message read; return the events: the next message, or the end."""
        found: list[Event] = []
        incoming = self._incoming.get(stream_id)
        if incoming is not None and incoming.said_bytes >= 0:
            incoming.said_bytes = -1
            self._consume(stream_id, incoming, min(incoming.unread_bytes, incoming.messages.held_bytes))
            self._go_on(stream_id, incoming, found)
        return found

    def abort(self, stream_id: int) -> None:
        """Reset a call that cannot be answered (a bug of the service)."""
        self._begun.discard(stream_id)
        self._leave(stream_id)
        self.http2.reset(stream_id, Code.INTERNAL_ERROR)
