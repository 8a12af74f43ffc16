"""The server's side of gRPC on one connection: bytes in, calls out; no socket, no clock.

    receive(bytes) -> Called, Began, Said, Silent, Gone, Passed, Ended
    reply, say, end                     the answers; `take()` gives the bytes to be written

A method says whether a request is one message (`Called` when all of it has come) or a stream of them
(`Began`, then `Said` for each message, `Silent` behind the last). What gRPC cannot take is refused here and
never seen outside: another content type or verb (by HTTP's status), an unknown method, an unknown
compression, a message that is too long or cut off. A sentence says why.

Bounds: of messages that have not come whole all connections together hold `PARTS_BYTES_MAX` (`Parts`); a call
that brings more is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

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
NO_GRPC: Final = b"This port serves RocketMQ 5 clients by gRPC: POST with content-type application/grpc.\n"
PARTS_BYTES_MAX: Final = 8 * REQUEST_BYTES_MAX
_ENCODINGS: Final = frozenset(("", "identity", "gzip"))


class Method(NamedTuple):
    """What a path means: a target of the caller's own, and whether a request is a stream of messages."""

    target: Any
    takes_stream: bool


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
    """One more message of a request. Its bytes are to be `heard`, then more may come."""

    stream_id: int
    message: bytes
    body_bytes: int


class Silent(NamedTuple):
    """A request has ended."""

    stream_id: int


class Gone(NamedTuple):
    """A caller has broken its call off, or a rule: nothing can be said any more."""

    stream_id: int


Event = Called | Began | Said | Silent | Gone | Passed | Ended


class Parts:
    """How much of messages that have not come whole all connections hold."""

    def __init__(self) -> None:
        self.held_bytes = 0

    def change(self, by_bytes: int) -> None:
        """Hold more or less; raises `Refused`."""
        if by_bytes > 0 and self.held_bytes + by_bytes > PARTS_BYTES_MAX:
            raise Refused(
                Status.RESOURCE_EXHAUSTED, "Too many long messages are under way. Send it again later."
            )
        self.held_bytes += by_bytes


class Incoming:
    """A request of which more is to come."""

    __slots__ = ("head", "held_bytes", "messages", "method", "whole")

    def __init__(self, method: Method, head: Head, messages: Messages) -> None:
        self.method, self.head, self.messages = method, head, messages
        self.whole: bytes | None = None
        """The one message of a request that is no stream."""
        self.held_bytes = 0


class GrpcCalls:
    """The calls of one connection. `method_of` tells what a path means, None if nothing."""

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
        self._incoming: dict[int, Incoming] = {}
        self._begun: set[int] = set()
        """Streams on which the head of the answer was said."""
        self._no_grpc: dict[int, int] = {}
        """Requests that are none of gRPC, and HTTP's status for each."""

    def receive(self, data: bytes, now: float) -> list[Event]:
        """What the client's bytes mean."""
        found: list[Event] = []
        for event in self.http2.receive(data, now):
            self._take(event, found)
        return found

    def resume(self) -> list[Event]:
        """The transport takes more."""
        found: list[Event] = []
        for event in self.http2.resume():
            self._take(event, found)
        return found

    def events(self) -> list[Event]:
        """What has come of what was said."""
        found: list[Event] = []
        for event in self.http2.events():
            self._take(event, found)
        return found

    def drop(self) -> None:
        """The connection is gone: nothing of it is held any more."""
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
            self._no_grpc[stream_id] = 405 if fields[":method"] != "POST" else 415
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
            if len(body) == PREFIX_BYTES + size:  # nearly every call: one message in one frame
                found.append(Called(stream_id, method, head, body[PREFIX_BYTES:]))
                return
        messages = Messages(REQUEST_BYTES_MAX, is_gzip=encoding == "gzip")
        self._incoming[stream_id] = Incoming(method, head, messages)
        if method.takes_stream:
            found.append(Began(stream_id, method, head))
        if is_whole or body:
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
        try:
            messages = incoming.messages.take(data)
            self._hold(incoming)
            if is_end:
                incoming.messages.end()
            if incoming.method.takes_stream:
                self._said(stream_id, messages, size, found)
            else:
                self.http2.consumed(stream_id, size)
                self._whole(stream_id, incoming, messages, found, is_end=is_end)
        except Refused as refused:
            self.http2.consumed(stream_id, size)
            self._give_up(stream_id, refused, found)
            return
        if is_end:
            self._leave(stream_id)
            if incoming.method.takes_stream:
                found.append(Silent(stream_id))

    def _said(self, stream_id: int, messages: list[bytes], size: int, found: list[Event]) -> None:
        """Bytes count as read with the messages they complete, or at once where they complete none."""
        if not messages:
            self.http2.consumed(stream_id, size)
        for place, message in enumerate(messages):
            found.append(Said(stream_id, message, size if place == 0 else 0))

    def _whole(
        self, stream_id: int, incoming: Incoming, messages: list[bytes], found: list[Event], *, is_end: bool
    ) -> None:
        if len(messages) + (incoming.whole is not None) > 1:
            raise Refused(Status.INTERNAL, "The request has more than one message.")
        if messages:
            incoming.whole = messages[0]
            self._hold(incoming)
        if not is_end:
            return
        if incoming.whole is None:
            raise Refused(Status.INTERNAL, "The request has no message.")
        found.append(Called(stream_id, incoming.method, incoming.head, incoming.whole))

    def _give_up(self, stream_id: int, refused: Refused, found: list[Event]) -> None:
        takes_stream = self._incoming[stream_id].method.takes_stream
        self._leave(stream_id)
        self.end(stream_id, refused.status, refused.text)
        if takes_stream:
            found.append(Gone(stream_id))

    def _leave(self, stream_id: int) -> None:
        """Take no more of a request."""
        incoming = self._incoming.pop(stream_id, None)
        if incoming is not None:
            self._parts.change(-incoming.held_bytes)

    def _hold(self, incoming: Incoming) -> None:
        by_bytes = incoming.messages.held_bytes + len(incoming.whole or b"") - incoming.held_bytes
        self._parts.change(by_bytes)
        incoming.held_bytes += by_bytes

    def _refuse(self, stream_id: int, status: Status, text: str) -> None:
        self.http2.finish(stream_id, refusal(status, text))

    def _refuse_by_http(self, stream_id: int) -> None:
        """Answer what is no gRPC; all of it has come."""
        self.http2.begin(stream_id, head_block(self._no_grpc.pop(stream_id), TEXT))
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

    def heard(self, stream_id: int, body_bytes: int) -> None:
        """A message of a stream was taken: as much may come again."""
        self.http2.consumed(stream_id, body_bytes)

    def abort(self, stream_id: int) -> None:
        """Break an answer off that cannot be ended well."""
        self._begun.discard(stream_id)
        self._leave(stream_id)
        self.http2.reset(stream_id, Code.INTERNAL_ERROR)
