"""One connection of a load: the parts of HTTP/2 and gRPC that a measuring client needs.

The load shares the cores with the server under test and must not be the bottleneck. Its calls are made by
*workers*, plain generators: a worker yields a call (or a list of calls, which are then in flight together)
and is sent the reply (or the list of replies); nothing is scheduled between a reply and the next call. All
frames caused by one read from the server leave in one write. A call then takes 9 us of a core (`load_busy`
of the rows).

Every call must end with gRPC's status 0, or the load has failed: `Failures` keeps the first reason. The
status inside a reply is checked by the worker (`peers_calls`). Receive windows have the maximum of HTTP/2;
requests must be smaller than a frame, and wait for the connection's window if necessary.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Generator, Sequence
from struct import Struct
from typing import Any, Final

from hpack import Decoder, HPACKError
from peers_fields import Changing, Field, FieldWriter

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
TABLE_SIZE, PUSH, WINDOW = 1, 2, 4
WINDOW_MAX, WINDOW_FIRST, RENEWED_BYTES = (1 << 31) - 1, 65_535, 1 << 30
FRAME_BYTES_MAX: Final = 16_384
TABLE_BYTES_FIRST: Final = 4_096
HEAD: Final = Struct(">IBI")
SETTING: Final = Struct(">HI")
CONNECT_SECONDS: Final = 20.0

Asked = tuple[bytes, bytes]
"""The name of an RPC, and its request with gRPC's five bytes before it."""
Worker = Generator[Any, Any, None]
"""Yields `Asked` and is sent bytes, or yields a list of them and is sent a list."""


class LoadFailed(Exception):
    """A call was not answered as required."""


class Failures:
    """The number of failures, and the reason of the first."""

    def __init__(self, tell: Callable[[], None] = lambda: None) -> None:
        self.count, self.first, self._tell = 0, "", tell

    def note(self, why: str) -> None:
        """Record a failure, and notify the waiting load."""
        self.count += 1
        self.first = self.first or why
        self._tell()

    def check(self) -> None:
        """Raise `LoadFailed` if a failure was recorded."""
        if self.count:
            raise LoadFailed(f"{self.count} calls failed; the first: {self.first}")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


class Together:
    """A list of calls that a worker waits for."""

    __slots__ = ("left", "replies")

    def __init__(self, count: int) -> None:
        self.left, self.replies = count, [b""] * count


class Stream:
    """A call in flight."""

    __slots__ = ("data", "place", "together", "worker")

    def __init__(self, worker: Worker | None, together: Together | None, place: int) -> None:
        self.worker, self.together, self.place = worker, together, place
        self.data = b""


class Connection(asyncio.Protocol):
    """A client's connection; workers are started on it."""

    def __init__(self, stable: Sequence[Field], changing: dict[bytes, Changing], failures: Failures) -> None:
        self._stable, self._changing, self._failures = stable, changing, failures
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.idle = asyncio.Event()
        self._transport: Any = None
        self._fields: FieldWriter | None = None
        self._opened: dict[int, asyncio.Future[bytes]] = {}
        self._streams: dict[int, Stream] = {}
        self._ok_blocks: set[bytes] = set()
        self._held: deque[tuple[Stream, Asked]] = deque()
        self._out: list[bytes] = []
        self._rest, self._stream_id, self._workers = b"", 1, 0
        self._window, self._received = WINDOW_FIRST, 0
        self._is_closed = False

    def start(self, worker: Worker) -> None:
        """Start a worker: make its first call."""
        self._workers += 1
        self.idle.clear()
        self._go_on(worker, None)
        self._flush()

    def open(self, rpc: bytes, request: bytes) -> asyncio.Future[bytes]:
        """Open a persistent stream; return a future of its first answer, or of the error of its end."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._opened[self._stream_id] = answer
        self._send(Stream(None, None, 0), (rpc, request), DATA)
        self._flush()
        return answer

    def close(self) -> None:
        """Close the connection; calls in flight do not count as failures."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # Events.

    def connection_made(self, transport: Any) -> None:
        """Send the preface, SETTINGS and WINDOW_UPDATE."""
        self._transport = transport
        values = ((TABLE_SIZE, 0), (PUSH, 0), (WINDOW, WINDOW_MAX))
        said = frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*pair) for pair in values))
        transport.write(PREFACE + said + self._renewed(WINDOW_MAX - WINDOW_FIRST))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all waiters."""
        if not self._is_closed:
            self._failures.note(f"the server hung up: {error or 'no reason given'}")
        if not self.ready.done():
            self.ready.set_exception(LoadFailed(f"The server hung up: {error or 'no reason given'}."))
        for answer in self._opened.values():
            if not answer.done():
                answer.set_exception(LoadFailed("The server hung up."))
        self.idle.set()

    def data_received(self, data: bytes) -> None:
        """Process the server's frames, and write all resulting frames."""
        if self._rest:
            data = self._rest + data
        at, end, streams = 0, len(data), self._streams
        while end - at >= HEAD.size:
            size_and_kind, flags, stream_id = HEAD.unpack_from(data, at)
            begins = at + HEAD.size
            ends = begins + (size_and_kind >> 8)
            if ends > end:
                break
            at, kind = ends, size_and_kind & 0xFF
            if kind == DATA:
                self._received += ends - begins
                stream = streams.get(stream_id)
                if stream is not None and not flags & PADDED:
                    stream.data += data[begins:ends]
                    if stream.worker is None:
                        self._answered(stream_id, stream)
                elif stream is not None:
                    self._failures.note("the server pads, which this load cannot read")
            elif kind == HEADERS:
                block = data[begins:ends]
                if block not in self._ok_blocks:
                    self._judge(block, flags, stream_id)
                elif flags & END_STREAM:
                    self._ended(stream_id)
            else:
                self._other(kind, flags, stream_id, data[begins:ends])
        self._rest = data[at:]
        self._flush()

    # Frames.

    def _other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self._settle(payload)
        elif kind == PING and not flags & ACK:
            self._out.append(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE and stream_id == 0:
            self._window += int.from_bytes(payload, "big")
            while self._held and len(self._held[0][1][1]) <= self._window:
                self._send(*self._held.popleft())
        elif kind == RST_STREAM:
            code = int.from_bytes(payload, "big")
            if stream_id in self._streams and (code or not self._streams[stream_id].worker):
                self._fail(stream_id, f"the stream was reset with code {code}")
        elif kind == GOAWAY and payload[4:8] != bytes(4):
            self._failures.note(
                f"the server goes away: {payload[4:].hex()} {payload[8:].decode(errors='replace')}"
            )

    def _settle(self, payload: bytes) -> None:
        said = dict(SETTING.iter_unpack(payload))
        self._out.append(frame(SETTINGS, ACK, 0))
        if self._fields is None or TABLE_SIZE in said:
            uses_table = said.get(TABLE_SIZE, TABLE_BYTES_FIRST) >= TABLE_BYTES_FIRST and self._fields is None
            self._fields = FieldWriter(self._stable, self._changing, uses_table=uses_table)
        if not self.ready.done():
            self.ready.set_result(None)

    def _judge(self, block: bytes, flags: int, stream_id: int) -> None:
        """Decode a header block that is not yet known as one of success."""
        try:
            fields = dict(Decoder().decode(block, raw=True))
        except HPACKError as error:
            self._fail(stream_id, f"its header block cannot be read: {error!r}")
            return
        status, grpc = fields.get(b":status", b"200"), fields.get(b"grpc-status")
        is_end = bool(flags & END_STREAM)
        if (
            not flags & END_HEADERS
            or status != b"200"
            or grpc not in (b"0", None)
            or is_end != (grpc is not None)
        ):
            said = fields.get(b"grpc-message", b"").decode(errors="replace")
            self._fail(
                stream_id, f":status {status.decode()}, grpc-status {(grpc or b'none').decode()} {said}"
            )
            return
        self._ok_blocks.add(block)
        if is_end:
            self._ended(stream_id)

    # Calls.

    def _go_on(self, worker: Worker, replies: Any) -> None:
        try:
            asked = worker.send(replies)
        except StopIteration:
            self._end_worker()
            return
        except LoadFailed as error:
            self._failures.note(str(error))
            self._end_worker()
            return
        if type(asked) is tuple:
            self._send(Stream(worker, None, 0), asked)
        else:
            together = Together(len(asked))
            for place, one in enumerate(asked):
                self._send(Stream(worker, together, place), one)

    def _end_worker(self) -> None:
        self._workers -= 1
        if not self._workers:
            self.idle.set()

    def _send(self, stream: Stream, asked: Asked, flags: int = END_STREAM) -> None:
        rpc, request = asked
        size = len(request)
        if size > self._window:
            self._held.append((stream, asked))
            return
        assert size <= FRAME_BYTES_MAX, f"A request of {size} bytes needs more than one frame."
        assert self._fields is not None, "The connection is not ready yet."
        self._window -= size
        stream_id = self._stream_id
        self._stream_id += 2
        self._streams[stream_id] = stream
        block = self._fields.block(rpc)
        self._out += (
            HEAD.pack(len(block) << 8 | HEADERS, END_HEADERS, stream_id),
            block,
            HEAD.pack(size << 8, flags, stream_id),
            request,
        )

    def _ended(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        if stream.worker is None:
            self._answered(stream_id, stream)
        elif stream.together is None:
            self._go_on(stream.worker, stream.data)
        else:
            together = stream.together
            together.replies[stream.place] = stream.data
            together.left -= 1
            if not together.left:
                self._go_on(stream.worker, together.replies)

    def _answered(self, stream_id: int, stream: Stream) -> None:
        """Set the first answer of a persistent stream."""
        answer = self._opened.get(stream_id)
        if answer is not None and not answer.done():
            answer.set_result(stream.data)
        stream.data = b""

    def _fail(self, stream_id: int, why: str) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        if stream.worker is None:
            answer = self._opened[stream_id]
            if not answer.done():
                answer.set_exception(LoadFailed(f"The stream ended: {why}."))
            return
        self._failures.note(why)
        if stream.together is None or stream.together.left > 0:
            if stream.together is not None:
                stream.together.left = -1
            stream.worker.close()
            self._end_worker()

    def _flush(self) -> None:
        if self._received > RENEWED_BYTES:
            self._out.append(self._renewed(self._received))
            self._received = 0
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    @staticmethod
    def _renewed(by_bytes: int) -> bytes:
        return frame(WINDOW_UPDATE, 0, 0, by_bytes.to_bytes(4, "big"))


async def connect(
    address: str,
    stable: Sequence[Field],
    changing: dict[bytes, Changing],
    failures: Failures,
    *,
    is_tls: bool,
) -> Connection:
    """Return a connection after the server's SETTINGS."""
    host, _, port = address.rpartition(":")
    context = None
    if is_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: Connection(stable, changing, failures), host, int(port), ssl=context
    )
    await asyncio.wait_for(connection.ready, CONNECT_SECONDS)
    return connection
