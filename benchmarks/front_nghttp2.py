"""A front of our own: libnghttp2 through cffi, on the loop's transports, calling the broker's table of RPCs.

    transport --bytes--> nghttp2 --callbacks--> Stream --task--> handler
              <--bytes--         <--takes-- what the stream has to send

nghttp2 does HTTP/2: HPACK, windows, pings, limits of frames. Here are its callbacks; gRPC's part is
`front_grpc`. What the handlers answer in one turn of the loop leaves in one write, so a receive of 32 is one.
What it lacks is in docs/front.md.

Callbacks run inside nghttp2: they may not raise and may not call `mem_recv` or `mem_send`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from functools import cache
from typing import Any, Final, cast

from front_grpc import (
    DEADLINE_EXCEEDED,
    HEADERS,
    INTERNAL,
    OK,
    UNIMPLEMENTED,
    BadCall,
    Frames,
    Route,
    caller_of,
)
from front_nghttp2_library import Nghttp2
from front_standin import BACKLOG, StandIn, tls_context

from services.front.certificates import TlsFiles
from services.rpc.caller import Caller
from services.rpc.server import Connections

DATA, HEADERS_FRAME, END_STREAM = 0, 1, 1
EOF, NO_END_STREAM, DEFERRED = 1, 2, -508
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW = 3, 4
STREAMS_MAX, WINDOW_BYTES = 1_024, 1024 * 1024
NO_ERROR: Final = 0
PATH: Final = b":path"
KEPT: Final = {name.encode(): name for name in HEADERS} | {PATH: ":path"}
KEPT_LENGTHS: Final = frozenset(map(len, KEPT))
WRITTEN_BYTES: Final = 256 * 1024
"""So many bytes at most are asked of nghttp2 before the transport gets them."""


@cache
def nghttp2() -> Nghttp2:
    """Return the library, loaded once."""
    return Nghttp2(Connection)


class Stream:
    """One call: what has come of it, and what is to be sent."""

    __slots__ = ("deadline", "frames", "headers", "is_answered", "messages", "out", "sent", "status", "task")

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.frames = Frames()
        self.messages: list[bytes] | asyncio.Queue[bytes | None] = []
        self.task: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.is_answered = False
        self.out, self.sent = b"", 0
        self.status: tuple[int, str] | None = None


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, front: Nghttp2Server) -> None:
        self._front, self._bound = front, nghttp2()
        self._lib, self._ffi = self._bound.lib, self._bound.ffi
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Stream] = {}
        self._sent = self._ffi.new("uint8_t **")
        self._transport: asyncio.Transport
        self._session: Any = None
        self._host = ""
        self._is_flushing = self._is_full = False

    # The transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin HTTP/2."""
        self._transport = cast(asyncio.Transport, transport)
        made = self._ffi.new("void **")
        self._lib.nghttp2_session_server_new(made, self._bound.callbacks, self._ffi.NULL)
        self._session = made[0]
        values = {MAX_CONCURRENT_STREAMS: STREAMS_MAX, INITIAL_WINDOW: WINDOW_BYTES}
        entries = self._ffi.new("settings_entry[]", list(values.items()))
        self._lib.nghttp2_submit_settings(self._session, 0, entries, len(values))
        self._lib.nghttp2_session_set_local_window_size(self._session, 0, 0, WINDOW_BYTES)
        self._front.connections.add(self)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Give nghttp2 what came, and send what that led to."""
        if self._session is None:
            return
        self._bound.current = self
        read = self._lib.nghttp2_session_mem_recv(self._session, self._ffi.from_buffer(data), len(data))
        if read < 0:
            self._transport.close()
            return
        self._flush()

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self._is_full = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._is_full = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        """End the calls under way."""
        self._front.connections.discard(self)
        for stream in self._streams.values():
            self._give_up(stream)
        self._streams.clear()
        self._lib.nghttp2_session_del(self._session)
        self._session = None

    def leave(self) -> None:
        """Take no more calls."""
        self._lib.nghttp2_submit_shutdown_notice(self._session)
        self._flush()

    def close(self) -> None:
        """Hang up."""
        if self._session is not None:
            self._lib.nghttp2_session_terminate_session(self._session, NO_ERROR)
            self._flush()
            self._transport.close()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The calls under way."""
        return [stream.task for stream in self._streams.values() if stream.task is not None]

    # Callbacks of nghttp2.

    def on_begin_headers(self, _: Any, frame: Any, __: Any) -> int:
        """A call begins, or its trailers."""
        self._streams.setdefault(frame.stream_id, Stream())
        return 0

    def on_header(self, _: Any, frame: Any, name: Any, size: int, value: Any, length: int, *__: Any) -> int:
        """One header; most are not ours."""
        if size in KEPT_LENGTHS:
            buffer = self._ffi.buffer
            kept = KEPT.get(buffer(name, size)[:])
            if kept is not None:
                self._streams[frame.stream_id].headers[kept] = buffer(value, length)[:].decode("latin-1")
        return 0

    def on_chunk(self, _: Any, __: int, stream_id: int, data: Any, size: int, ___: Any) -> int:
        """Some of a request."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.status is not None:
            return 0
        try:
            for message in stream.frames.feed(self._ffi.buffer(data, size)[:]):
                self._message(stream, message)
        except BadCall as error:
            self._end(stream_id, stream, error.status, str(error))
        return 0

    def on_frame(self, _: Any, frame: Any, __: Any) -> int:
        """A frame is whole: a call that takes a stream may begin, one that does not when it has ended."""
        if frame.type > HEADERS_FRAME:
            return 0
        stream = self._streams.get(frame.stream_id)
        if stream is None or stream.status is not None:
            return 0
        if stream.task is None:
            self._begin(frame.stream_id, stream, bool(frame.flags & END_STREAM))
        if frame.flags & END_STREAM and isinstance(stream.messages, asyncio.Queue):
            stream.messages.put_nowait(None)
        return 0

    def on_close(self, _: Any, stream_id: int, __: int, ___: Any) -> int:
        """A call is over; a client that reset it wants nothing more."""
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._give_up(stream)
        return 0

    def take(self, _: Any, stream_id: int, buffer: Any, size: int, flags: Any, __: Any, ___: Any) -> int:
        """Give nghttp2 what a stream has to send; at its end the trailers."""
        stream = self._streams[stream_id]
        left = len(stream.out) - stream.sent
        if not left and stream.status is None:
            return DEFERRED
        count = min(left, size)
        if count == len(stream.out):
            self._ffi.memmove(buffer, stream.out, count)
        else:
            self._ffi.memmove(buffer, memoryview(stream.out)[stream.sent : stream.sent + count], count)
        stream.sent += count
        if count == left:
            stream.out, stream.sent = b"", 0
            if stream.status is not None:
                flags[0] = EOF | NO_END_STREAM
                self._trail(stream_id, *stream.status)
        return count

    # Calls.

    def _message(self, stream: Stream, message: bytes) -> None:
        if isinstance(stream.messages, asyncio.Queue):
            stream.messages.put_nowait(message)
        else:
            stream.messages.append(message)

    def _begin(self, stream_id: int, stream: Stream, is_ended: bool) -> None:
        route = self._front.routes.get(stream.headers.get(":path", ""))
        if route is None:
            self._end(stream_id, stream, UNIMPLEMENTED, "There is no such RPC here.")
        elif route.is_both_ways:
            waiting, stream.messages = stream.messages, asyncio.Queue()
            for message in cast(list[bytes], waiting):
                self._message(stream, message)
            self._serve(stream_id, stream, route)
        elif is_ended and len(cast(list[bytes], stream.messages)) != 1:
            self._end(stream_id, stream, INTERNAL, "The request is not one message.")
        elif is_ended:
            self._serve(stream_id, stream, route)

    def _serve(self, stream_id: int, stream: Stream, route: Route) -> None:
        caller = caller_of(stream.headers, self._host or self._known_host())
        if caller.seconds_left is not None:
            stream.deadline = self._loop.call_later(caller.seconds_left, self._late, stream_id, stream)
        run = self._unary if route.is_unary else self._streaming
        stream.task = self._loop.create_task(run(stream_id, stream, route, caller))

    async def _unary(self, stream_id: int, stream: Stream, route: Route, caller: Caller) -> None:
        status = OK, ""
        try:
            self._send(stream_id, stream, await route.answer(cast(list[bytes], stream.messages)[0], caller))
        except BadCall as error:
            status = error.status, str(error)
        self._end(stream_id, stream, *status)

    async def _streaming(self, stream_id: int, stream: Stream, route: Route, caller: Caller) -> None:
        status, said = (OK, ""), stream.messages
        request = said[0] if isinstance(said, list) else coming(said)
        try:
            async for reply in route.answers(request, caller):
                self._send(stream_id, stream, reply)
        except BadCall as error:
            status = error.status, str(error)
        self._end(stream_id, stream, *status)

    def _late(self, stream_id: int, stream: Stream) -> None:
        """A call's time is up."""
        if stream.task is not None:
            stream.task.cancel()
        self._end(stream_id, stream, DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _give_up(self, stream: Stream) -> None:
        if stream.deadline is not None:
            stream.deadline.cancel()
        if stream.task is not None and not stream.task.done():
            stream.task.cancel()

    # Answers.

    def _send(self, stream_id: int, stream: Stream, data: bytes) -> None:
        stream.out = stream.out[stream.sent :] + data if stream.out else data
        stream.sent = 0
        self._go_on(stream_id, stream)

    def _end(self, stream_id: int, stream: Stream, status: int, why: str) -> None:
        if stream.status is None:
            stream.status = status, why
            self._go_on(stream_id, stream)

    def _go_on(self, stream_id: int, stream: Stream) -> None:
        """Tell nghttp2 that a stream has something to send."""
        if self._session is None or stream_id not in self._streams:
            return
        if stream.is_answered:
            self._lib.nghttp2_session_resume_data(self._session, stream_id)
        else:
            stream.is_answered = True
            began, provider = self._bound.began, self._bound.provider
            self._lib.nghttp2_submit_response(self._session, stream_id, began, len(began), provider)
        self._flush_later()

    def _trail(self, stream_id: int, status: int, why: str) -> None:
        if status == OK:
            self._lib.nghttp2_submit_trailer(self._session, stream_id, self._bound.went_well, 1)
        else:
            block, _alive = self._bound.failure(status, why)
            self._lib.nghttp2_submit_trailer(self._session, stream_id, block, len(block))

    def _flush_later(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write what nghttp2 has to send."""
        self._is_flushing = False
        if self._session is None or self._is_full:
            return
        self._bound.current = self
        data, parts, size = self._sent, [], 0
        while (count := self._lib.nghttp2_session_mem_send(self._session, data)) > 0:
            parts.append(self._ffi.buffer(data[0], count)[:])
            size += count
            if size >= WRITTEN_BYTES:
                self._flush_later()
                break
        if parts:
            self._transport.write(b"".join(parts))
        if not self._lib.nghttp2_session_want_read(self._session) and not self._streams:
            self._transport.close()

    def _known_host(self) -> str:
        peer = self._transport.get_extra_info("peername")
        self._host = self._front.host_of(f"ipv4:{peer[0]}:{peer[1]}")
        return self._host


async def coming(messages: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
    """Yield the messages of a client's stream until it ends."""
    while (message := await messages.get()) is not None:
        yield message


class Nghttp2Server(StandIn):
    """The front; it takes the place of grpc.aio's."""

    def __init__(self, connections: Connections | None = None) -> None:
        super().__init__(connections)
        self.connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []

    async def serve(self, taken: socket.socket, files: TlsFiles | None) -> None:
        """Take connections of a socket."""
        tls = None if files is None else tls_context(files)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(self), sock=taken, ssl=tls, backlog=BACKLOG)
        self._servers.append(server)

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls; those under way have `grace_seconds` to end."""
        for server in self._servers:
            server.close()
        for one in list(self.connections):
            one.leave()
        tasks = [task for one in self.connections for task in one.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_seconds)
        for one in list(self.connections):
            one.close()
