"""The server side of an HTTP/2 connection (RFC 9113). This module uses neither a socket nor a clock.

    receive(bytes) -> events ...            requests, DATA, and resets from the client
    send_response, begin_response ...       send responses; `take_output()` returns the bytes to write

A stream carries one request and its response. The state of a stream determines how a frame is handled:

| state              | HEADERS         | DATA          | end of request     | RST_STREAM | server end |
|--------------------|-----------------|---------------|--------------------|------------|------------|
| idle               | OPEN            | error         |                    | error      |            |
| OPEN               | trailers        | accepted      | HALF_CLOSED_REMOTE | closed     | closed (1) |
| HALF_CLOSED_REMOTE | STREAM_CLOSED   | STREAM_CLOSED |                    | closed     | closed     |
| closed             | STREAM_CLOSED   | STREAM_CLOSED |                    | ignored    |            |
|   after reset (2)  | ignored         | ignored       |                    | ignored    |            |

(1) The server sends RST_STREAM(NO_ERROR), because the client may still be sending DATA. (2) Frames may have
been in transit when the server reset the stream. The server ignores such frames only on the `RESET_KEPT`
streams that were reset last.

In both directions, flow control windows limit the DATA per stream and per connection.
- Received DATA is deducted from the windows on arrival, including padding. `acknowledge_data` enlarges the
  windows again. The size of DATA on a closed stream is added back to the connection window on arrival,
  because the client has deducted it from that window.
- Outgoing DATA is queued per stream until both windows permit the transmission and the transport is not full
  (`is_full`). Streams send DATA in turn. A stream that is blocked by its stream window does not block other
  streams.
- `is_drained` returns whether all DATA on a stream has passed flow control.

`ConnectionLimits` limits the number of concurrent streams, the size of a header block, the total size of the
header blocks of open streams, and the amount of DATA queued for sending. Each connection has an allowance for
frames without progress, which are PING, SETTINGS, PRIORITY, RST_STREAM, GOAWAY, WINDOW_UPDATE, CONTINUATION,
DATA with only a few bytes, and frames of unknown types. Such a frame uses at least one unit of the allowance,
and an oversized header block uses many units. The allowance is refilled over time and by responses. When the
allowance is used up, the connection is closed with ENHANCE_YOUR_CALM. As in other gRPC servers, a ping less
than `ping_seconds` after the previous ping is a strike, and the third strike closes the connection with
`too_many_pings`. When the server sends HEADERS or DATA, the number of strikes is reset to 0, because clients
measure the round-trip time with pings while receiving data.

For fairness to other connections, `receive` stops after `work_per_turn` units of work. While `has_unread` is
true, the caller must not read from the transport and must call `receive` again in a later event loop
iteration.

Time limits: `check_limits` closes a connection if a frame, a header block, or the preface remains incomplete
for too long. `check_limits` also closes a connection if the client does not read output for too long
(`ConnectionLimits`).

Cost: a request with a HEADERS frame and a single DATA frame takes 8 us, including the response and the work
in `grpc_calls`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from commitlog import limits
from commitlog.limits import HEADERS_BYTES_MAX
from services.front.header_fields import (
    CompressionError,
    Field,
    FieldDecoder,
    Head,
    HeadersTooLongError,
    MalformedRequestError,
)
from services.front.http2_frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    FRAME_BYTES_LIMIT,
    FRAME_HEADER,
    HEAD_BYTES,
    PADDED,
    PING_BYTES,
    PREFACE,
    PRIORITY_BYTES,
    PRIORITY_FLAG,
    SETTING,
    SETTINGS_ACK,
    STREAM_MASK,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    Code,
    Setting,
    Type,
    encode_frame,
    encode_goaway,
    encode_ping,
    encode_rst_stream,
    encode_settings,
    encode_window_update,
)

Bytes = bytes | memoryview
RESET_KEPT: Final = 256
PING_STRIKES_MAX: Final = 2
OPEN, HALF_CLOSED_REMOTE = 0, 1
"""States of an open stream. A closed stream is removed and has no state."""
_EARNING_BYTES: Final = 1_024
_ALLOWANCE_SHARE: Final = 0.9
_TOO_LONG_MAX: Final = 10
"""Number of oversized header blocks that use up the entire allowance.

Decoding an oversized header block takes several milliseconds.
"""
_DRAIN_PING: Final = b"tidedone"
_ALIVE_PING: Final = b"tidewell"
_REACHED_PING: Final = b"tidehere"


class ConnectionLimits(NamedTuple):
    """The limits of one connection."""

    streams: int = limits.CONNECTION_STREAMS_MAX
    stream_window_bytes: int = limits.STREAM_WINDOW_BYTES
    connection_window_bytes: int = limits.CONNECTION_WINDOW_BYTES
    header_block_bytes: int = limits.HEADER_BLOCK_BYTES_MAX
    headers_bytes: int = limits.CONNECTION_HEADERS_BYTES_MAX
    """Maximum total size of the header blocks of all open streams, in bytes."""
    waiting_bytes: int = limits.CONNECTION_UNREAD_BYTES_MAX
    """Maximum size of the DATA that has not passed flow control, in bytes."""
    written_bytes: int = 64 * 1024
    """Maximum size of the DATA in a single write, in bytes."""
    idle_frames: int = limits.IDLE_FRAMES_MAX
    idle_frames_per_second: float = limits.IDLE_FRAMES_PER_SECOND
    ping_seconds: float = limits.PING_INTERVAL_MS_MIN / 1000
    work_per_turn: int = limits.WORK_PER_TURN_MAX
    frame_seconds: float = limits.FRAME_MS_MAX / 1000
    unread_seconds: float = limits.UNREAD_MS_MAX / 1000


class RequestReceived(NamedTuple):
    """Event: the header block of a request has arrived.

    If `is_whole` is true, `body` contains the entire body.
    """

    stream_id: int
    head: Head
    body: bytes
    is_whole: bool


class HeadersTooLong(NamedTuple):
    """Event: a request has too many header fields or bytes. The caller must refuse the request."""

    stream_id: int


class DataReceived(NamedTuple):
    """Event: a part of a request body has arrived. `is_end` is true for the last part.

    After consuming `data`, the caller must pass the size to `acknowledge_data`.
    """

    stream_id: int
    data: bytes
    is_end: bool


class StreamReset(NamedTuple):
    """Event: a stream was reset by the client or after a protocol violation."""

    stream_id: int
    code: int


class StreamDrained(NamedTuple):
    """Event: all queued DATA on a stream has passed flow control."""

    stream_id: int


class ConnectionEnded(NamedTuple):
    """Event: the connection must be closed once all output is written.

    `why` is the reason, or an empty string after a regular shutdown.
    """

    code: Code
    why: str


Event = RequestReceived | HeadersTooLong | DataReceived | StreamReset | StreamDrained | ConnectionEnded


class ProtocolViolation(Exception):
    """Raised when the client has violated the protocol. The connection must then be closed."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class Stream:
    """An open stream of an HTTP/2 connection."""

    __slots__ = (
        "declared_bytes",
        "headers_bytes",
        "held_bytes",
        "is_ended",
        "receive_window",
        "received_bytes",
        "send_window",
        "state",
        "trailers",
        "unread_bytes",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, send_window: int, receive_window: int, headers_bytes: int) -> None:
        self.state = OPEN
        self.headers_bytes = headers_bytes
        self.send_window, self.receive_window = send_window, receive_window
        self.declared_bytes = -1
        """Value of the request's content-length field, or -1 if there is none."""
        self.received_bytes = self.held_bytes = self.unread_bytes = 0
        """Numbers of body bytes: received, not yet acknowledged, and not yet returned to the window."""
        self.waiting: deque[Bytes] | None = None
        """Queued DATA that has not yet passed flow control, or None if there is none."""
        self.waiting_bytes = 0
        self.trailers = b""
        """Encoded last header block of the response."""
        self.is_ended = False
        """True if the response is complete. Parts of the response may not yet be sent."""


class Http2Connection:
    """Protocol state of an HTTP/2 connection, which begins with the client preface."""

    __slots__ = (
        "_allowance",
        "_allowance_at",
        "_block",
        "_bounds",
        "_closing_from",
        "_events",
        "_fields",
        "_frame_bytes",
        "_has_asked_for_no_table",
        "_has_preface",
        "_headers_bytes",
        "_is_draining",
        "_last_id",
        "_last_progress",
        "_last_received_at",
        "_needs_settings",
        "_now",
        "_out",
        "_partial_at",
        "_ping_at",
        "_ping_sent_at",
        "_ready",
        "_receive_initial",
        "_receive_window",
        "_reset_by_us",
        "_rest",
        "_room_bytes",
        "_send_window",
        "_sent_bytes",
        "_skipped",
        "_stream_send_window",
        "_streams",
        "_strikes",
        "_unacknowledged",
        "_unread_bytes",
        "_unsent_ends",
        "_waiting_bytes",
        "_work",
        "has_unread",
        "is_closed",
        "is_full",
        "reached_at",
    )

    def __init__(self, bounds: ConnectionLimits, kept: dict[bytes, Field], now: float) -> None:
        self._bounds = bounds
        self._fields = FieldDecoder(kept)
        self._has_asked_for_no_table = False
        self._streams: dict[int, Stream] = {}
        self._headers_bytes = 0
        """Total size of the header blocks of all open streams, in bytes."""
        self._last_id = 0
        self._reset_by_us: dict[int, None] = {}
        self._skipped: deque[range] | None = None
        """Stream ids that the client has skipped and must no longer use, or None."""
        self._rest = b""
        self.has_unread = False
        """True if unparsed frames remain for a later event loop iteration."""
        self._work = 0
        """Remaining units of work for the current call of `receive`."""
        self._has_preface, self._needs_settings = False, True
        self._now = now
        self._block: tuple[int, int, bytearray] | None = None
        """Incomplete header block as (stream id, HEADERS flags, received bytes), or None."""
        self._partial_at: float | None = now
        """Time at which the incomplete frame, header block, or preface began to arrive, or None."""
        self._out: list[Bytes] = [
            encode_settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: bounds.streams,
                    Setting.INITIAL_WINDOW_SIZE: bounds.stream_window_bytes,
                    Setting.MAX_HEADER_LIST_SIZE: HEADERS_BYTES_MAX,
                }
            )
        ]
        if (more := bounds.connection_window_bytes - WINDOW_DEFAULT) > 0:  # The increment must not be 0.
            self._out.append(encode_window_update(0, more))
        self._receive_window, self._unread_bytes = bounds.connection_window_bytes, 0
        self._send_window = WINDOW_DEFAULT
        self._stream_send_window, self._frame_bytes = WINDOW_DEFAULT, FRAME_BYTES_DEFAULT
        self._receive_initial = WINDOW_DEFAULT
        """Initial receive window of new streams, as acknowledged by the client."""
        self._unacknowledged: list[Callable[[], None]] = [self._apply_stream_window]
        """Functions to call for the next SETTINGS acknowledgements, one per acknowledgement, in order."""
        self._ready: dict[int, None] = {}
        """Streams whose DATA is blocked only by the connection window or the transport, in send order."""
        self._waiting_bytes = 0
        self._sent_bytes, self._last_progress = 0, (0, now)
        """Number of DATA bytes sent, and the last (DATA bytes, time) pair recorded by `check_limits`."""
        self.is_full = False
        """True if the transport accepts no more DATA."""
        self._unsent_ends: dict[int, None] = {}
        """Streams on which only the end of the response is blocked by the transport."""
        self._room_bytes = bounds.written_bytes
        """Remaining number of DATA bytes that may be added to the next output."""
        self._allowance, self._allowance_at = float(bounds.idle_frames), now
        self._ping_at, self._strikes = -1e9, 0
        self._last_received_at, self._ping_sent_at = now, 0.0
        self.reached_at = 0.0
        """Time at which the client last acknowledged a ping of `send_ping`, or 0."""
        self._closing_from: int | None = None
        """Id of the last stream that is served during shutdown, or None."""
        self._is_draining = self.is_closed = False
        self._events: list[Event] = []

    # The methods below handle received frames.

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Parse received bytes until `work_per_turn` is exhausted. Return the events.

        `now` is a monotonic time in seconds.
        """
        if self.is_closed:
            return []
        self._last_received_at, self._now = now, now
        self._work, self.has_unread = self._bounds.work_per_turn, False
        if self.is_throttled:
            self._refill_allowance()
        try:
            self._parse_frames(self._rest + data if self._rest else data)
        except CompressionError as error:
            self.end_with_reason(Code.COMPRESSION_ERROR, str(error))
        except ProtocolViolation as broken:
            self.end_with_reason(broken.code, str(broken))
        return self.events()

    def _parse_frames(self, data: bytes) -> None:
        at, size = 0, len(data)
        if not self._has_preface:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ProtocolViolation(Code.PROTOCOL_ERROR, "A connection begins with HTTP/2's preface.")
            if size < len(PREFACE):
                self._rest = data
                return
            self._has_preface, at = True, len(PREFACE)
        unpack = FRAME_HEADER.unpack_from
        while size - at >= HEAD_BYTES:
            high, low, kind, flags, stream_id = unpack(data, at)
            length = high << 8 | low
            payload_at = at + HEAD_BYTES
            end = payload_at + length
            if length > FRAME_BYTES_DEFAULT:
                raise ProtocolViolation(
                    Code.FRAME_SIZE_ERROR, f"A frame may have {FRAME_BYTES_DEFAULT} bytes, not {length}."
                )
            if end > size:
                break
            if self._work <= 0:
                self.has_unread = True
                break
            self._work -= 1
            payload = data[payload_at:end]
            at = end
            stream_id &= STREAM_MASK
            if self._needs_settings:
                if kind != Type.SETTINGS or flags & ACK:
                    raise ProtocolViolation(Code.PROTOCOL_ERROR, "The first frame must be SETTINGS.")
                self._needs_settings = False
            if self._block is not None and (kind != Type.CONTINUATION or stream_id != self._block[0]):
                raise ProtocolViolation(
                    Code.PROTOCOL_ERROR, "A header block was broken off by another frame."
                )
            handler = _HANDLERS.get(kind)
            if handler is None:
                self._spend_allowance(1)
            elif kind == Type.HEADERS and flags == END_HEADERS:
                at = self._handle_request(stream_id, payload, data, at)
            else:
                handler(self, stream_id, flags, payload)
            if self.is_closed:
                return
        self._rest = data[at:] if at else data
        if self._block is not None or self._needs_settings or (self._rest and not at):
            if self._partial_at is None:
                self._partial_at = self._now
        else:
            self._partial_at = self._now if self._rest else None

    def _handle_request(self, stream_id: int, block: bytes, data: bytes, at: int) -> int:
        """Handle a request in one HEADERS frame, with its body if a single complete DATA frame follows."""
        if len(data) - at >= HEAD_BYTES:
            high, low, kind, flags, same_id = FRAME_HEADER.unpack_from(data, at)
            length = high << 8 | low
            end = at + HEAD_BYTES + length
            is_whole = kind == Type.DATA and flags == END_STREAM and same_id == stream_id > self._last_id
            allowed_bytes = min(FRAME_BYTES_DEFAULT, self._receive_window, self._receive_initial)
            if is_whole and length <= allowed_bytes and end <= len(data):
                self._handle_header_block(stream_id, END_STREAM, block, data[at + HEAD_BYTES : end])
                self._consume_window(length)
                self._reopen_window(length)
                return int(end)
        self._handle_header_block(stream_id, 0, block, b"")
        return at

    def _handle_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = _strip_padding(payload)
        if flags & PRIORITY_FLAG:
            if len(payload) < PRIORITY_BYTES:
                raise ProtocolViolation(Code.FRAME_SIZE_ERROR, "HEADERS with a priority are too short.")
            if int.from_bytes(payload[:4], "big") & STREAM_MASK == stream_id:
                raise ProtocolViolation(Code.PROTOCOL_ERROR, "A stream cannot depend on itself.")
            payload = payload[PRIORITY_BYTES:]
        if flags & END_HEADERS:
            self._handle_header_block(stream_id, flags, payload, b"")
        else:
            self._begin_block(stream_id, flags, payload)

    def _begin_block(self, stream_id: int, flags: int, piece: bytes) -> None:
        if stream_id == 0:
            raise ProtocolViolation(Code.PROTOCOL_ERROR, "HEADERS belong to a stream.")
        self._block = stream_id, flags, bytearray(piece)

    def _handle_continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise ProtocolViolation(Code.PROTOCOL_ERROR, "CONTINUATION continues nothing.")
        _, first_flags, block = self._block
        self._spend_allowance(1)
        if len(block) + len(payload) > self._bounds.header_block_bytes:
            raise ProtocolViolation(
                Code.ENHANCE_YOUR_CALM, f"A header block may have {HEADERS_BYTES_MAX} bytes."
            )
        block += payload
        if flags & END_HEADERS:
            self._block = None
            self._handle_header_block(stream_id, first_flags, bytes(block), b"")

    def _handle_header_block(self, stream_id: int, flags: int, block: bytes, body: bytes) -> None:
        """Handle a complete header block, which begins a new request or ends an open request."""
        if stream_id <= self._last_id:
            self._handle_trailers(stream_id, flags, block)
            return
        if not stream_id & 1:
            raise ProtocolViolation(Code.PROTOCOL_ERROR, "A client's streams have odd numbers.")
        if stream_id > self._last_id + 2:
            if self._skipped is None:
                self._skipped = deque(maxlen=RESET_KEPT)
            self._skipped.append(range(self._last_id + 1, stream_id))
        self._last_id = stream_id
        try:
            head = self._fields.decode(block)
        except MalformedRequestError:
            self._fail_stream(stream_id, Code.PROTOCOL_ERROR)
            return
        except HeadersTooLongError:
            self._spend_allowance(self._bounds.idle_frames / _TOO_LONG_MAX)
            head = None
        finally:
            self._work -= self._fields.work
        if self._closing_from is not None and stream_id > self._closing_from:
            return  # The GOAWAY frame has excluded this stream.
        headers_bytes = self._fields.size_bytes
        is_room = self._headers_bytes + headers_bytes <= self._bounds.headers_bytes
        if not is_room or len(self._streams) >= self._bounds.streams:
            self._fail_stream(stream_id, Code.REFUSED_STREAM)
            return
        self._headers_bytes += headers_bytes
        stream = Stream(self._stream_send_window, self._receive_initial, headers_bytes)
        self._streams[stream_id] = stream
        is_whole = flags & END_STREAM != 0
        if is_whole:
            stream.state = HALF_CLOSED_REMOTE
        if head is None:
            self._events.append(HeadersTooLong(stream_id))
        elif self._check_content_length(stream_id, stream, head, len(body), is_whole):
            self._events.append(RequestReceived(stream_id, head, body, is_whole))

    def _check_content_length(
        self, stream_id: int, stream: Stream, head: Head, body_bytes: int, is_whole: bool
    ) -> bool:
        """Return whether the content-length of a request is valid. Reset the stream if it is not."""
        declared = head.get("content-length")
        if not declared:
            return True
        size = int(declared) if declared.isascii() and declared.isdigit() and len(declared) < 19 else -2
        stream.declared_bytes, stream.received_bytes = size, body_bytes
        if size < 0 or (is_whole and size != body_bytes):
            self.reset_stream(stream_id, Code.PROTOCOL_ERROR)
            self._spend_allowance(1)
            return False
        return True

    def _handle_trailers(self, stream_id: int, flags: int, block: bytes) -> None:
        """Handle a header block on an existing stream. The block must contain the trailers of the request."""
        stream = self._streams.get(stream_id)
        if not stream_id & 1 or any(stream_id in skipped for skipped in self._skipped or ()):
            raise ProtocolViolation(Code.PROTOCOL_ERROR, f"The client cannot begin stream {stream_id}.")
        is_late = stream is None and stream_id in self._reset_by_us
        if not is_late and (stream is None or stream.state != OPEN):
            raise ProtocolViolation(
                Code.STREAM_CLOSED, f"HEADERS came on stream {stream_id}, whose request has ended."
            )
        is_well = self._fields.are_trailers(block) and flags & END_STREAM
        self._work -= self._fields.work
        if stream is None:
            self._spend_allowance(1)
        elif is_well and stream.declared_bytes in (-1, stream.received_bytes):
            self._end_request(stream_id, stream, b"")
        else:
            self._fail_stream(stream_id, Code.PROTOCOL_ERROR)

    def _handle_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        stream, size = self._streams.get(stream_id), len(payload)
        if stream_id == 0 or (stream is None and stream_id > self._last_id):
            raise ProtocolViolation(
                Code.PROTOCOL_ERROR, f"DATA came on stream {stream_id}, which has not begun."
            )
        self._consume_window(size)
        data = _strip_padding(payload) if flags & PADDED else payload
        if stream is None or stream.state != OPEN:
            self._reopen_window(size)
            if stream is None and (stream_id in self._reset_by_us or self._is_refused_stream(stream_id)):
                self._spend_allowance(0 if size else 1)
                return
            self._fail_stream(stream_id, Code.STREAM_CLOSED)
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            self._reopen_window(size)
            self._fail_stream(stream_id, Code.FLOW_CONTROL_ERROR)
            return
        is_end = flags & END_STREAM != 0
        stream.received_bytes += len(data)
        if stream.declared_bytes >= 0:
            is_wrong = is_end and stream.received_bytes != stream.declared_bytes
            if is_wrong or stream.received_bytes > stream.declared_bytes:
                self._reopen_window(size)
                self._fail_stream(stream_id, Code.PROTOCOL_ERROR)
                return
        if len(data) < limits.IDLE_DATA_BYTES_MAX and not is_end:
            self._spend_allowance(1)
        stream.held_bytes += len(data)
        self._consume_data(stream_id, stream, size - len(data))
        if is_end:
            self._end_request(stream_id, stream, data)
        elif data:
            self._events.append(DataReceived(stream_id, data, is_end=False))

    def _end_request(self, stream_id: int, stream: Stream, data: bytes) -> None:
        stream.state = HALF_CLOSED_REMOTE
        self._events.append(DataReceived(stream_id, data, is_end=True))

    def _is_refused_stream(self, stream_id: int) -> bool:
        return self._closing_from is not None and stream_id > self._closing_from

    def _consume_window(self, size: int) -> None:
        self._receive_window -= size
        if self._receive_window < 0:
            raise ProtocolViolation(
                Code.FLOW_CONTROL_ERROR, "More DATA came than the connection's window allows."
            )

    def _reopen_window(self, size: int) -> None:
        """Enlarge the receive window of the connection by the number of consumed or discarded bytes."""
        self._unread_bytes += size
        if self._unread_bytes * 2 >= self._bounds.connection_window_bytes:
            self._out.append(encode_window_update(0, self._unread_bytes))
            self._receive_window += self._unread_bytes
            self._unread_bytes = 0

    def _consume_data(self, stream_id: int, stream: Stream, size: int) -> None:
        if size == 0:
            return
        self._reopen_window(size)
        stream.unread_bytes += size
        if stream.state == OPEN and stream.unread_bytes * 2 >= self._bounds.stream_window_bytes:
            self._out.append(encode_window_update(stream_id, stream.unread_bytes))
            stream.receive_window += stream.unread_bytes
            stream.unread_bytes = 0

    def _handle_priority(self, stream_id: int, flags: int, payload: bytes) -> None:
        self._spend_allowance(1)
        if stream_id == 0:
            raise ProtocolViolation(Code.PROTOCOL_ERROR, "PRIORITY belongs to a stream.")
        if len(payload) != PRIORITY_BYTES:
            self._fail_stream(stream_id, Code.FRAME_SIZE_ERROR)
        elif int.from_bytes(payload[:4], "big") & STREAM_MASK == stream_id:
            self._fail_stream(stream_id, Code.PROTOCOL_ERROR)

    def _handle_rst_stream(self, stream_id: int, flags: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolViolation(Code.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes.")
        if stream_id == 0 or stream_id > self._last_id:
            raise ProtocolViolation(Code.PROTOCOL_ERROR, f"Stream {stream_id} was reset before it began.")
        self._spend_allowance(1)
        if stream_id in self._streams:
            self._remove_stream(stream_id)
            self._events.append(StreamReset(stream_id, int.from_bytes(payload, "big")))

    def _handle_settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolViolation(Code.PROTOCOL_ERROR, "SETTINGS belong to the connection.")
        if flags & ACK:
            if payload:
                raise ProtocolViolation(Code.FRAME_SIZE_ERROR, "An acknowledgement of SETTINGS is empty.")
            self._handle_settings_ack()
            return
        if len(payload) % SETTING.size:
            raise ProtocolViolation(Code.FRAME_SIZE_ERROR, "SETTINGS have 6 bytes each.")
        self._spend_allowance(1 + len(payload) // SETTING.size / 10)
        self._work -= len(payload) // 64
        window = self._stream_send_window
        for name, value in SETTING.iter_unpack(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                window = value
            self._apply_setting(name, value)
        self._change_windows(window)
        self._out.append(SETTINGS_ACK)
        self._send_waiting()

    def _handle_settings_ack(self) -> None:
        if not self._unacknowledged:
            raise ProtocolViolation(Code.PROTOCOL_ERROR, "SETTINGS were acknowledged that were not sent.")
        self._unacknowledged.pop(0)()

    def _apply_stream_window(self) -> None:
        by_bytes, self._receive_initial = (
            self._bounds.stream_window_bytes - self._receive_initial,
            self._bounds.stream_window_bytes,
        )
        for stream in self._streams.values():
            stream.receive_window += by_bytes

    def _apply_setting(self, name: int, value: int) -> None:
        if name == Setting.INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
            raise ProtocolViolation(Code.FLOW_CONTROL_ERROR, "A window may have 2**31 - 1 bytes.")
        if name == Setting.MAX_FRAME_SIZE:
            if not FRAME_BYTES_DEFAULT <= value <= FRAME_BYTES_LIMIT:
                raise ProtocolViolation(Code.PROTOCOL_ERROR, f"Frames cannot be allowed {value} bytes.")
            self._frame_bytes = min(value, 4 * FRAME_BYTES_DEFAULT)
        elif name == Setting.ENABLE_PUSH and value > 1:
            raise ProtocolViolation(Code.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1.")

    def _change_windows(self, window: int) -> None:
        """Change the send windows of all streams. This method is called only once per SETTINGS frame."""
        by_bytes, self._stream_send_window = window - self._stream_send_window, window
        if by_bytes:
            self._work -= len(self._streams) // 2
            for stream_id, stream in list(self._streams.items()):
                self._widen_send_window(stream_id, stream, by_bytes)

    def _handle_push_promise(self, stream_id: int, flags: int, payload: bytes) -> None:
        raise ProtocolViolation(Code.PROTOCOL_ERROR, "Clients promise nothing.")

    def _handle_ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolViolation(Code.PROTOCOL_ERROR, "PING belongs to the connection.")
        if len(payload) != PING_BYTES:
            raise ProtocolViolation(Code.FRAME_SIZE_ERROR, "PING has 8 bytes.")
        if flags & ACK:
            self._handle_pong(payload)
            return
        self._spend_allowance(1)
        if self._now - self._ping_at < self._bounds.ping_seconds:
            self._strikes += 1
        self._ping_at = self._now
        if self._strikes > PING_STRIKES_MAX:
            raise ProtocolViolation(Code.ENHANCE_YOUR_CALM, "too_many_pings")
        self._out.append(encode_ping(payload, is_answer=True))

    def _handle_pong(self, payload: bytes) -> None:
        self._ping_sent_at = 0.0
        if payload == _REACHED_PING:
            self.reached_at = self._now
        if payload == _DRAIN_PING and self._is_draining and self._closing_from is None:
            self._closing_from = self._last_id
            self._out.append(encode_goaway(self._last_id, Code.NO_ERROR, ""))
            self._end_if_idle()

    def _handle_goaway(self, stream_id: int, flags: int, payload: bytes) -> None:
        """Process a GOAWAY frame.

        After this frame, the client opens no more streams, and the open streams continue.
        """
        self._spend_allowance(1)
        if stream_id:
            raise ProtocolViolation(Code.PROTOCOL_ERROR, "GOAWAY belongs to the connection.")
        if len(payload) < 8:
            raise ProtocolViolation(Code.FRAME_SIZE_ERROR, "GOAWAY has 8 bytes at least.")

    def _handle_window_update(self, stream_id: int, flags: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolViolation(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes.")
        by_bytes = int.from_bytes(payload, "big") & STREAM_MASK
        self._spend_allowance(1)
        if stream_id == 0:
            self._send_window += by_bytes
            if by_bytes == 0 or self._send_window > WINDOW_MAX:
                code = Code.FLOW_CONTROL_ERROR if by_bytes else Code.PROTOCOL_ERROR
                raise ProtocolViolation(code, "The connection's window must grow, and not beyond 2**31 - 1.")
            self._send_waiting()
            return
        if stream_id > self._last_id:
            raise ProtocolViolation(
                Code.PROTOCOL_ERROR, f"The window of stream {stream_id} grew before it began."
            )
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if by_bytes == 0:
            self._fail_stream(stream_id, Code.PROTOCOL_ERROR)
            return
        self._widen_send_window(stream_id, stream, by_bytes)
        self._send_waiting()

    def _widen_send_window(self, stream_id: int, stream: Stream, by_bytes: int) -> None:
        was_blocked = stream.send_window <= 0
        stream.send_window += by_bytes
        if stream.send_window > WINDOW_MAX:
            self._fail_stream(stream_id, Code.FLOW_CONTROL_ERROR)
        elif was_blocked and stream.send_window > 0 and stream.waiting:
            self._ready[stream_id] = None
        elif stream.send_window <= 0:
            self._ready.pop(stream_id, None)

    # The methods below send frames, check limits, or return the state of the connection.

    def send_response(self, stream_id: int, head: bytes, data: bytes, trailers: bytes) -> None:
        """Send a complete response: a header block, DATA, and trailers."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_ended:
            return
        size = len(data)
        is_open = size <= self._frame_bytes and size <= stream.send_window and not self.is_full
        is_open = is_open and self._room_bytes > 0 and size <= self._send_window
        if is_open and stream.waiting is None:
            self._send_window -= size
            self._room_bytes -= size
            self._out.append(
                b"".join(
                    (
                        FRAME_HEADER.pack(0, len(head), Type.HEADERS, END_HEADERS, stream_id),
                        head,
                        FRAME_HEADER.pack(size >> 8, size & 0xFF, Type.DATA, 0, stream_id),
                        data,
                        FRAME_HEADER.pack(
                            0, len(trailers), Type.HEADERS, END_HEADERS | END_STREAM, stream_id
                        ),
                        trailers,
                    )
                )
            )
            self._close_answered(stream_id, stream)
            return
        self.begin_response(stream_id, head)
        self.send_data(stream_id, data)
        self.end_response(stream_id, trailers)

    def begin_response(self, stream_id: int, head: bytes) -> None:
        """Send the header block of a response."""
        if stream_id in self._streams:
            self._out.append(encode_frame(Type.HEADERS, END_HEADERS, stream_id, head))
            self._strikes = 0

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send a part of a response body."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_ended or not data:
            return
        if stream.waiting is None:
            left = self._send_within_windows(stream_id, stream, data)
            if not left:
                return
            stream.waiting = deque()
            if stream.send_window > 0:
                self._ready[stream_id] = None
        else:
            left = data
        stream.waiting.append(left)
        stream.waiting_bytes += len(left)
        self._waiting_bytes += len(left)
        if self._waiting_bytes > self._bounds.waiting_bytes:
            self.end_with_reason(Code.ENHANCE_YOUR_CALM, "Too much waits to be read.")

    def end_response(self, stream_id: int, trailers: bytes = b"") -> None:
        """End a response with trailers, or with an empty DATA frame if `trailers` is empty."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_ended:
            return
        stream.is_ended, stream.trailers = True, trailers
        if stream.waiting is not None:
            return
        # The stream still counts as open, which limits the number of unread error responses.
        if self.is_full:
            self._unsent_ends[stream_id] = None
        else:
            self._end_answer(stream_id, stream)

    def reset_stream(self, stream_id: int, code: Code) -> None:
        """Reset a stream. Frames on the stream that are still in transit are ignored."""
        if self._streams.get(stream_id) is not None:
            self._remove_stream(stream_id)
            self._send_reset(stream_id, code)

    def acknowledge_data(self, stream_id: int, size: int) -> None:
        """Enlarge the receive windows by `size` consumed body bytes. Do nothing if the stream is closed."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.held_bytes -= size
            assert stream.held_bytes >= 0, f"more of stream {stream_id} was consumed than had come"
            self._consume_data(stream_id, stream, size)

    def is_drained(self, stream_id: int) -> bool:
        """Return whether all DATA on a stream has passed flow control."""
        stream = self._streams.get(stream_id)
        return stream is None or stream.waiting is None

    def disable_table(self) -> None:
        """Set the header table size to 0, so that the client stops using a dynamic table.

        Only the first call of this method has an effect.
        """
        if not self._has_asked_for_no_table:
            self._has_asked_for_no_table = True
            self._unacknowledged.append(self._fields.disable_table)
            self._out.append(encode_settings({Setting.HEADER_TABLE_SIZE: 0}))

    def shut_down(self) -> None:
        """Begin the shutdown with a GOAWAY frame.

        Streams that the client opens before receiving this frame are still served.
        """
        if not self._is_draining and not self.is_closed:
            self._is_draining = True
            self._out.append(
                encode_goaway(STREAM_MASK, Code.NO_ERROR, "") + encode_ping(_DRAIN_PING, is_answer=False)
            )

    def resume(self) -> list[Event]:
        """Send the output that was blocked by the transport. Return the events."""
        self.is_full = False
        ends, self._unsent_ends = self._unsent_ends, {}
        for stream_id in ends:
            if (stream := self._streams.get(stream_id)) is not None:
                self._end_answer(stream_id, stream)
        self._send_waiting()
        return self.events()

    def events(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def take_output(self) -> bytes:
        """Return the bytes to write, and clear the output."""
        if not self._out:
            return b""
        out, self._out = self._out, []
        self._room_bytes = self._bounds.written_bytes
        return b"".join(out)

    def charge_frames(self, count: float) -> None:
        """Charge the allowance for `count` frames without progress."""
        if not self.is_closed:
            try:
                self._spend_allowance(count)
            except ProtocolViolation as broken:
                self.end_with_reason(broken.code, str(broken))

    def send_ping(self) -> None:
        """Ping the client. The acknowledgement updates `reached_at`."""
        if not self.is_closed:
            self._out.append(encode_ping(_REACHED_PING, is_answer=False))

    def check_limits(self, now: float, ping_seconds: float, pong_seconds: float) -> bool:
        """Check the time limits, and ping a client that has been idle for `ping_seconds`.

        End the connection if a time limit is exceeded. Return False if the client has not answered a ping
        within `pong_seconds`.
        """
        if self.is_closed:
            return True
        if self._partial_at is not None and now - self._partial_at >= self._bounds.frame_seconds:
            what = "A greeting" if self._needs_settings else "A header block" if self._block else "A frame"
            self.end_with_reason(Code.ENHANCE_YOUR_CALM, f"{what} does not go on.")
            return True
        sent_bytes, since = self._last_progress
        if sent_bytes != self._sent_bytes or not (self._waiting_bytes or self._unsent_ends or self.is_full):
            self._last_progress = self._sent_bytes, now
        elif now - since >= self._bounds.unread_seconds:
            self.end_with_reason(Code.ENHANCE_YOUR_CALM, "Nothing is read of what waits for it.")
            return True
        if (
            self._ping_sent_at
            and now - self._ping_sent_at >= pong_seconds
            and self._last_received_at < self._ping_sent_at
        ):
            return False
        if now - self._last_received_at >= ping_seconds and self._last_received_at >= self._ping_sent_at:
            self._ping_sent_at = now
            self._out.append(encode_ping(_ALIVE_PING, is_answer=False))
        return True

    @property
    def stream_count(self) -> int:
        """Return the number of open streams."""
        return len(self._streams)

    @property
    def is_throttled(self) -> bool:
        """Return whether reads may be delayed because part of the allowance is used up."""
        return self._allowance < self._bounds.idle_frames * _ALLOWANCE_SHARE

    @property
    def has_output(self) -> bool:
        """Return whether there are bytes to write or events to return."""
        return bool(self._out or self._events)

    @property
    def waiting_bytes(self) -> int:
        """Return the number of DATA bytes that are blocked by flow control or the transport."""
        return self._waiting_bytes

    @property
    def uses_table(self) -> bool:
        """Return whether the client uses an HPACK dynamic table."""
        return self._fields.uses_table

    @property
    def can_send_data(self) -> bool:
        """Return whether queued DATA can be sent at present."""
        return bool(self._ready) and self._send_window > 0 and not self.is_full and self._room_bytes > 0

    def _send_waiting(self) -> None:
        """Send queued DATA, one frame per stream in turn."""
        while self.can_send_data:
            stream_id = next(iter(self._ready))
            del self._ready[stream_id]
            stream = self._streams.get(stream_id)
            if stream is None or not stream.waiting or stream.send_window <= 0:
                continue
            data = stream.waiting.popleft()
            left = self._send_within_windows(stream_id, stream, data, frames=1)
            stream.waiting_bytes -= len(data) - len(left)
            self._waiting_bytes -= len(data) - len(left)
            if left:
                stream.waiting.appendleft(left)
            if not stream.waiting:
                stream.waiting = None
                self._events.append(StreamDrained(stream_id))
                if stream.is_ended:
                    self._end_answer(stream_id, stream)
            elif stream.send_window > 0:
                self._ready[stream_id] = None

    def _send_within_windows(
        self, stream_id: int, stream: Stream, data: Bytes, frames: int = 1 << 30
    ) -> Bytes:
        """Send as much DATA as the windows, the transport, and `frames` permit. Return the remaining DATA."""
        left: Bytes = data
        while left and frames and not self.is_full and self._room_bytes > 0:
            count = min(len(left), stream.send_window, self._send_window, self._frame_bytes)
            if count <= 0:
                break
            stream.send_window -= count
            self._send_window -= count
            self._room_bytes -= count
            self._out.append(FRAME_HEADER.pack(count >> 8, count & 0xFF, Type.DATA, 0, stream_id))
            if count == len(left):
                self._out.append(left)
                left = b""
            else:
                left = memoryview(left)
                self._out.append(left[:count])
                left = left[count:]
            frames -= 1
        sent_bytes = len(data) - len(left)
        self._sent_bytes += sent_bytes
        if sent_bytes:
            self._strikes = 0
        # Small window updates must not enable a client to refill its allowance.
        if sent_bytes >= min(len(data), _EARNING_BYTES):
            self._earn_allowance()
        return left

    def _end_answer(self, stream_id: int, stream: Stream) -> None:
        trailers = stream.trailers
        if trailers:
            self._out.append(encode_frame(Type.HEADERS, END_HEADERS | END_STREAM, stream_id, trailers))
        else:
            self._out.append(encode_frame(Type.DATA, END_STREAM, stream_id))
        self._close_answered(stream_id, stream)

    def _close_answered(self, stream_id: int, stream: Stream) -> None:
        """Close a stream whose response has been sent."""
        self._strikes = 0
        self._earn_allowance()
        if stream.state == OPEN:
            self._send_reset(stream_id, Code.NO_ERROR)
        self._remove_stream(stream_id)

    # The methods below manage the allowance, and end streams and the connection.

    def _earn_allowance(self) -> None:
        if self._allowance < self._bounds.idle_frames:
            self._allowance += 4

    def _spend_allowance(self, count: float) -> None:
        self._allowance -= count
        if self.is_throttled:
            self._refill_allowance()
            if self._allowance < 0:
                raise ProtocolViolation(
                    Code.ENHANCE_YOUR_CALM, "Too many frames came that bring nothing forward."
                )

    def _refill_allowance(self) -> None:
        """Refill the allowance for the time since the last refill."""
        seconds, self._allowance_at = self._now - self._allowance_at, self._now
        filled = self._allowance + seconds * self._bounds.idle_frames_per_second
        self._allowance = min(filled, float(self._bounds.idle_frames))

    def _fail_stream(self, stream_id: int, code: Code) -> None:
        """Reset a stream because the client has violated the protocol."""
        if stream_id in self._streams:
            self._remove_stream(stream_id)
            self._events.append(StreamReset(stream_id, code))
        self._send_reset(stream_id, code)
        self._spend_allowance(1)

    def _send_reset(self, stream_id: int, code: Code) -> None:
        self._out.append(encode_rst_stream(stream_id, code))
        self._reset_by_us[stream_id] = None
        if len(self._reset_by_us) > RESET_KEPT:
            del self._reset_by_us[next(iter(self._reset_by_us))]

    def _remove_stream(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id)
        self._headers_bytes -= stream.headers_bytes
        self._reopen_window(stream.held_bytes)
        if stream.waiting is not None:
            self._waiting_bytes -= stream.waiting_bytes
            self._ready.pop(stream_id, None)
        if stream.is_ended:
            self._unsent_ends.pop(stream_id, None)
        if self._closing_from is not None:
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        if not self._streams and not self.is_closed:
            self.is_closed = True
            self._events.append(ConnectionEnded(Code.NO_ERROR, ""))

    def end_with_reason(self, code: Code, why: str) -> None:
        """End the connection with a GOAWAY frame that carries the reason."""
        self._out.append(encode_goaway(self._last_id, code, why))
        self.is_closed = True
        self._events += [StreamReset(stream_id, code) for stream_id in self._streams]
        self._streams.clear()
        self._ready.clear()
        self._unsent_ends.clear()
        self._headers_bytes, self._waiting_bytes = 0, 0
        self._rest, self._block, self.has_unread = b"", None, False
        self._events.append(ConnectionEnded(code, why))


_HANDLERS: Final[dict[int, Callable[[Http2Connection, int, int, bytes], None]]] = {
    Type.DATA: Http2Connection._handle_data,
    Type.HEADERS: Http2Connection._handle_headers,
    Type.PRIORITY: Http2Connection._handle_priority,
    Type.RST_STREAM: Http2Connection._handle_rst_stream,
    Type.SETTINGS: Http2Connection._handle_settings,
    Type.PUSH_PROMISE: Http2Connection._handle_push_promise,
    Type.PING: Http2Connection._handle_ping,
    Type.GOAWAY: Http2Connection._handle_goaway,
    Type.WINDOW_UPDATE: Http2Connection._handle_window_update,
    Type.CONTINUATION: Http2Connection._handle_continuation,
}


def _strip_padding(payload: bytes) -> bytes:
    if not payload:
        raise ProtocolViolation(Code.FRAME_SIZE_ERROR, "A padded frame says how much of it is padding.")
    padding = payload[0]
    if padding >= len(payload):
        raise ProtocolViolation(Code.PROTOCOL_ERROR, "A frame has more padding than bytes.")
    return payload[1 : len(payload) - padding]
