"""The server's side of gRPC on one connection: bytes in, calls out; no socket, no clock.

    receive(bytes) -> Called, Began, Said, Silent, Gone, Passed, Ended
    reply, say, end                     the answers; `take()` gives the bytes to be written

A method says whether a request is one message (`Called` when all of it has come) or a stream of them
(`Began`, then `Said` for each message, `Silent` behind the last). What gRPC cannot take is refused here and
never seen outside: another content type or verb (by HTTP's status), an unknown method, an unknown
compression, a message that is too long or cut off. A sentence says why.

A stream's next message is taken apart when the one before was `heard`: until then it stays in bytes that its
client's window bounds, however little of it makes how many messages.

Bounds: of requests that have not come whole, and of messages that wait to be heard, one connection holds
`REQUESTS_PER_CONNECTION_BYTES_MAX` and all together `REQUESTS_BYTES_MAX` (`Parts`); a call that brings more
is refused. So is one, when somebody `look`s, that after `REQUEST_MS_MAX` comes slower than
`REQUEST_BYTES_PER_SECOND_MIN`. What is unpacked out of nothing counts as frames that bring nothing forward.
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
from services.front.http2 import Body, Bounds, Ended, Http2, Passed, Request, Reset, TooLongRequest
from services.front.http2_frames import Code

TEXT: Final = "text/plain; charset=utf-8"
TOO_SLOW: Final = "The request does not come. Send it again."
NO_GRPC: Final = b"This port serves RocketMQ 5 clients by gRPC: POST with content-type application/grpc.\n"
HEAD_BYTES, FIELD_BYTES = 1_024, 256
"""What a request that has not come whole counts besides its message: itself, and each header field."""
_ENCODINGS: Final = frozenset(("", "identity", "gzip"))


class Method(NamedTuple):
    """What a path means: a target of the caller's own, and whether a request is a stream of messages."""

    target: Any
    takes_stream: bool
    message_bytes_max: int = REQUEST_BYTES_MAX


class Called(NamedTuple):
    """A call whose request is one message."""

    stream_id: int
    method: Method
    head: Head
    message: bytes


class Began(NamedTuple):
    """A call whose request is a stream."""

    stream_id: int
    method: Method
    head: Head


class Said(NamedTuple):
    """One more message of a request; the next one comes when it is `heard`."""

    stream_id: int
    message: bytes


class Silent(NamedTuple):
    """A request has ended."""

    stream_id: int


class Gone(NamedTuple):
    """A caller has broken its call off, or a rule: nothing can be said any more."""

    stream_id: int


Event = Called | Began | Said | Silent | Gone | Passed | Ended


class Parts:
    """How much of requests that have not come whole all connections hold."""

    def __init__(self) -> None:
        self.held_bytes = 0


class Incoming:
    """A request of which more is to come."""

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
        """Since when it comes, or a stream's message does; and how much has come since."""
        self.whole: bytes | None = None
        """The one message of a request that is no stream."""
        self.said_bytes = -1
        """Of a stream: what the message has that waits to be heard; -1: none does."""
        self.unread_bytes = 0
        """What its client's window lacks until more is heard."""
        self.is_ended = False
        self.head_bytes = 0 if head is None else HEAD_BYTES + FIELD_BYTES * len(head.fields)
        if head is not None:
            self.head_bytes += sum(map(len, head.fields.values()))
        self.held_bytes = 0

    @property
    def holds_bytes(self) -> int:
        """How much it holds now."""
        return self.head_bytes + self.messages.held_bytes + len(self.whole or b"") + max(0, self.said_bytes)


class GrpcCalls:
    """The calls of one connection. `method_of` tells what a path means, None if nothing."""

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
        parts: Parts,
        now: float,
    ) -> None:
        self.http2 = Http2(bounds, kept, now)
        self._method_of, self._parts = method_of, parts
        self._now, self._held_bytes = now, 0
        self._found: list[Event] = []
        self._later: list[Any] = []
        """Events of HTTP/2 that wait for a later turn, since those of this one were much to unpack."""
        self._unpacked_bytes = 0
        self._incoming: dict[int, Incoming] = {}
        self._begun: set[int] = set()
        """Streams on which the head of the answer was said."""
        self._no_grpc: dict[int, tuple[int, float]] = {}
        """Requests that are none of gRPC: HTTP's status for each, and since when it comes."""

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Return what the client's bytes mean."""
        self._now = now
        found: list[Event] = []
        events, self._later, self._unpacked_bytes = self._later, [], 0
        if data or not events:
            events += self.http2.receive(data, now)
        for place, event in enumerate(events):
            if self.http2.is_over and isinstance(event, (Request, Body)):
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
        """Return the transport takes more."""
        found: list[Event] = []
        for event in self.http2.resume():
            self._take(event, found)
        return found

    def events(self) -> list[Event]:
        """Return what has come of what was said, and of a look."""
        found, self._found = self._found, []
        for event in self.http2.events():
            self._take(event, found)
        return found

    def look(self, now: float, ping_seconds: float, pong_seconds: float) -> bool:
        """Refuse requests that do not come; what `Http2.look` tells. Its events are to be asked for."""
        self._now = now
        late = [stream_id for stream_id, incoming in self._incoming.items() if self._is_late(incoming)]
        for stream_id in late:
            if self._incoming[stream_id].method.takes_stream:
                self._found.append(Gone(stream_id))
            self.end(stream_id, Status.DEADLINE_EXCEEDED, TOO_SLOW)
        for stream_id, (_, since) in list(self._no_grpc.items()):
            if now - since >= limits.REQUEST_MS_MAX / 1000:
                self._refuse_by_http(stream_id)
        return self.http2.look(now, ping_seconds, pong_seconds)

    @property
    def has_news(self) -> bool:
        """Whether something is to be said, or has come of what was."""
        return bool(self._found) or self.http2.has_news

    def drop(self) -> None:
        """Let go of everything: the connection is gone."""
        for stream_id in list(self._incoming):
            self._leave(stream_id)

    def _take(self, event: object, found: list[Event]) -> None:
        match event:
            case Request():
                self._request(event, found)
            case Body():
                self._body(event, found)
            case Reset(stream_id):
                self._leave(stream_id)
                self._begun.discard(stream_id)
                self._no_grpc.pop(stream_id, None)
                found.append(Gone(stream_id))
            case TooLongRequest(stream_id):
                self._refuse(stream_id, Status.RESOURCE_EXHAUSTED, "The request has too many header fields.")
            case Passed() | Ended():
                found.append(event)

    def _request(self, request: Request, found: list[Event]) -> None:
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
                found.append(Called(stream_id, method, head, body[PREFIX_BYTES:]))
                return
        messages = Messages(method.message_bytes_max, is_gzip=encoding == "gzip")
        kept = None if method.takes_stream else head
        self._incoming[stream_id] = Incoming(method, kept, messages, self._now)
        if method.takes_stream:
            found.append(Began(stream_id, method, head))
        self._body(Body(stream_id, body, is_whole), found, is_counted=False)

    def _body(self, body: Body, found: list[Event], *, is_counted: bool = True) -> None:
        stream_id, data, is_end = body
        incoming = self._incoming.get(stream_id)
        size = len(data) if is_counted else 0
        if incoming is None:
            self.http2.consumed(stream_id, size)
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
        """Give out the next message of a stream, unless one waits to be heard."""
        if incoming.said_bytes >= 0:
            return
        message = incoming.messages.next()
        if message is not None:
            incoming.said_bytes = len(message)
            found.append(Said(stream_id, message))
            return
        self._consume(stream_id, incoming, 0)
        if not incoming.messages.held_bytes:
            incoming.began_at, incoming.came_bytes = self._now, 0
        if incoming.is_ended:
            incoming.messages.end()
            self._leave(stream_id)
            found.append(Silent(stream_id))

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
        found.append(Called(stream_id, incoming.method, incoming.head, incoming.whole))

    def _consume(self, stream_id: int, incoming: Incoming, left_bytes: int) -> None:
        """Give the window back of all but so many bytes."""
        self.http2.consumed(stream_id, incoming.unread_bytes - left_bytes)
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
            found.append(Gone(stream_id))

    def _leave(self, stream_id: int) -> None:
        """Take no more of a request."""
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
        """Answer a call with one message, well."""
        self.http2.answer(stream_id, HEAD, framed(message), WELL)

    def say(self, stream_id: int, message: bytes) -> None:
        """Answer with one more message."""
        if stream_id not in self._begun:
            self.begin(stream_id)
        self.http2.send(stream_id, framed(message))

    def begin(self, stream_id: int, fields: Mapping[str, str] | None = None) -> None:
        """Begin an answer, with header fields of its own."""
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

    def heard(self, stream_id: int) -> list[Event]:
        """Return what comes next: a message of a stream was taken."""
        found: list[Event] = []
        incoming = self._incoming.get(stream_id)
        if incoming is not None and incoming.said_bytes >= 0:
            incoming.said_bytes = -1
            self._consume(stream_id, incoming, min(incoming.unread_bytes, incoming.messages.held_bytes))
            self._go_on(stream_id, incoming, found)
        return found

    def abort(self, stream_id: int) -> None:
        """Break an answer off that cannot be ended well."""
        self._begun.discard(stream_id)
        self._leave(stream_id)
        self.http2.reset(stream_id, Code.INTERNAL_ERROR)
