"""A client of HTTP/2 in tests: writes frames and reads them; knows nothing of the server's code."""

from __future__ import annotations

import struct
from typing import NamedTuple

from hpack import Decoder, Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 1, 1, 4, 8, 32
PATH = "/apache.rocketmq.v2.MessagingService/SendMessage"
REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "localhost:8081"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("x-mq-client-id", "client-1"),
)
FRAME_BYTES = 16_384
Fields = tuple[tuple[str, str], ...]


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def frames(said: bytes) -> list[Frame]:
    found, at = [], 0
    while at < len(said):
        length = int.from_bytes(said[at : at + 3], "big")
        kind, flags, stream_id = struct.unpack_from(">BBI", said, at + 3)
        found.append(Frame(kind, flags, stream_id, said[at + 9 : at + 9 + length]))
        assert len(found[-1].payload) == length
        at += 9 + length
    return found


def settings(**given: int) -> bytes:
    numbers = {"table": 1, "push": 2, "streams": 3, "window": 4, "frame": 5, "list": 6}
    pairs = b"".join(struct.pack(">HI", numbers[name], value) for name, value in given.items())
    return frame(SETTINGS, 0, 0, pairs)


GREETING = PREFACE + settings() + frame(SETTINGS, ACK, 0)


def block(*more: tuple[str, str], fields: Fields = REQUEST, huffman: bool = False) -> bytes:
    """A header block without a table."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode([*fields, *more], huffman=huffman).removeprefix(b"\x20")


def request(stream_id: int, *more: tuple[str, str], ends: bool = False, fields: Fields = REQUEST) -> bytes:
    whole, ending = block(*more, fields=fields), END_STREAM if ends else 0
    if len(whole) <= FRAME_BYTES:
        return frame(HEADERS, END_HEADERS | ending, stream_id, whole)
    first = frame(HEADERS, ending, stream_id, whole[:FRAME_BYTES])
    return first + frame(CONTINUATION, END_HEADERS, stream_id, whole[FRAME_BYTES:])


def data(stream_id: int, payload: bytes, *, ends: bool = False) -> bytes:
    return frame(DATA, END_STREAM if ends else 0, stream_id, payload)


def window_update(stream_id: int, by_bytes: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, by_bytes.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def fields_of(payload: bytes) -> dict[str, str]:
    return dict(Decoder().decode(payload))


def code_of(one: Frame) -> int:
    """The error of RST_STREAM or GOAWAY."""
    return int.from_bytes(one.payload[:4] if one.kind == RST_STREAM else one.payload[4:8], "big")
