"""A single gRPC call on a separate connection, without the gRPC library.

    preface, SETTINGS, HEADERS, DATA --> the server --> HEADERS, DATA ..., HEADERS with grpc-status

(RFC 9113; PROTOCOL-HTTP2.md of grpc/grpc.)

Rules
1. A request fits into one frame, and a reply fits into the initial window, so flow control is not needed.
2. The call is limited to `SECONDS` in total.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote

from hpack import Decoder, HPACKError

from services.front.grpc_wire import PREFIX_BYTES, Status, encode_field, frame_message
from services.front.http2_frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    FRAME_HEADER,
    HEAD_BYTES,
    PADDED,
    PREFACE,
    PRIORITY_BYTES,
    PRIORITY_FLAG,
    STREAM_MASK,
    WINDOW_DEFAULT,
    Type,
    encode_frame,
    encode_ping,
)

SECONDS: Final = 10.0
STREAM: Final = 1
HEADERS_BYTES_MAX: Final = 64 * 1024
Fields = tuple[tuple[str, str], ...]


class CallFailed(Exception):
    """A call ended without a reply; `status` is the name of gRPC's status for that."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Frame(NamedTuple):
    """An HTTP/2 frame: type, flags, stream and payload."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def call(connected: socket.socket, authority: str, path: str, message: bytes, fields: Fields) -> bytes:
    """Send a message and return the reply. Raises `CallFailed`."""
    until = time.monotonic() + SECONDS
    try:
        connected.settimeout(SECONDS)
        connected.sendall(request(authority, path, message, fields))
        return _reply(connected, until)
    except TimeoutError:
        raise CallFailed("DEADLINE_EXCEEDED", f"no reply within {SECONDS:.0f} s") from None
    except OSError as error:
        raise CallFailed("UNAVAILABLE", error.strerror or str(error)) from error
    except HPACKError as error:
        raise CallFailed("INTERNAL", f"header fields that cannot be read: {error}") from error


def request(authority: str, path: str, message: bytes, fields: Fields) -> bytes:
    """Return all bytes of a request."""
    head = (
        *((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", authority)),
        *(("te", "trailers"), ("content-type", "application/grpc"), *fields),
    )
    block = b"".join(encode_field(name, value) for name, value in head)
    data = frame_message(message)
    if max(len(block), len(data)) > FRAME_BYTES_DEFAULT:
        raise CallFailed("INVALID_ARGUMENT", f"the request has more than {FRAME_BYTES_DEFAULT:,} B")
    begun = (
        PREFACE + encode_frame(Type.SETTINGS, 0, 0) + encode_frame(Type.HEADERS, END_HEADERS, STREAM, block)
    )
    return begun + encode_frame(Type.DATA, END_STREAM, STREAM, data)


def _reply(connected: socket.socket, until: float) -> bytes:
    """Read frames until the end of the stream."""
    decoder, told, block, data = Decoder(), dict[str, str](), b"", b""
    for one in _frames(connected, until):
        if one.kind == Type.SETTINGS and not one.flags & ACK:
            connected.sendall(encode_frame(Type.SETTINGS, ACK, 0))
        elif one.kind == Type.PING and not one.flags & ACK:
            connected.sendall(encode_ping(one.payload, is_answer=True))
        elif one.kind == Type.GOAWAY and _last_stream(one.payload) < STREAM:
            text = one.payload[8:].decode(errors="replace")
            raise CallFailed("UNAVAILABLE", f"the server ends the connection: {text or 'no reason'}")
        elif one.stream_id != STREAM:
            continue
        elif one.kind == Type.RST_STREAM:
            raise CallFailed("UNAVAILABLE", "the server reset the call")
        elif one.kind == Type.DATA:
            data += _content(one)
        elif one.kind in (Type.HEADERS, Type.CONTINUATION):
            block += _content(one)
            if len(block) > HEADERS_BYTES_MAX:
                raise CallFailed("INTERNAL", f"header fields of more than {HEADERS_BYTES_MAX:,} B")
            if one.flags & END_HEADERS:
                told |= {str(name): str(value) for name, value in decoder.decode(block)}
                block = b""
        if one.flags & END_STREAM and one.kind in (Type.DATA, Type.HEADERS):
            return _message(told, data)
    raise CallFailed("UNAVAILABLE", "the connection was closed before the reply")


def _frames(connected: socket.socket, until: float) -> Iterator[Frame]:
    """Yield frames until the connection is closed. Raises TimeoutError at the time limit."""
    held, taken = b"", 0
    while True:
        while len(held) >= HEAD_BYTES:
            high, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(held)
            length = high << 8 | low
            if length > FRAME_BYTES_DEFAULT:
                raise CallFailed("UNKNOWN", "what answers does not speak HTTP/2")
            if len(held) < HEAD_BYTES + length:
                break
            yield Frame(kind, flags, stream_id & STREAM_MASK, held[HEAD_BYTES : HEAD_BYTES + length])
            held = held[HEAD_BYTES + length :]
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connected.settimeout(left)
        piece = connected.recv(WINDOW_DEFAULT)
        held, taken = held + piece, taken + len(piece)
        if not piece:
            return
        if taken > WINDOW_DEFAULT + HEADERS_BYTES_MAX:
            raise CallFailed("RESOURCE_EXHAUSTED", f"a reply of more than {WINDOW_DEFAULT:,} B")


def _last_stream(goaway: bytes) -> int:
    """Return the last stream that the server processes."""
    return int.from_bytes(goaway[:4], "big") & STREAM_MASK


def _content(one: Frame) -> bytes:
    """Return the content of a HEADERS, CONTINUATION or DATA frame, without padding and priority."""
    payload = one.payload
    if one.kind != Type.CONTINUATION and one.flags & PADDED:
        padding = payload[0] if payload else 0
        payload = payload[1 : len(payload) - padding]
    if one.kind == Type.HEADERS and one.flags & PRIORITY_FLAG:
        payload = payload[PRIORITY_BYTES:]
    return payload


def _message(told: dict[str, str], data: bytes) -> bytes:
    """Return the single message of a complete reply."""
    if told.get(":status") != "200":
        raise CallFailed("UNKNOWN", f"the status of HTTP is {told.get(':status', 'missing')}")
    status = told.get("grpc-status", "missing")
    if status != "0":
        known = {str(int(one)): one.name for one in Status}
        raise CallFailed(known.get(status, f"status {status}"), unquote(told.get("grpc-message", "")))
    length = int.from_bytes(data[1:PREFIX_BYTES], "big")
    if data[:1] != b"\0" or len(data) != PREFIX_BYTES + length:
        raise CallFailed("INTERNAL", "the reply is not one plain message")
    return data[PREFIX_BYTES:]
