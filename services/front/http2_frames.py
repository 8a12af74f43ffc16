"""Wire format of HTTP/2 frames (RFC 9113, Sections 4 and 6). All numbers are big-endian.

| bytes | content                                                                          |
|-------|----------------------------------------------------------------------------------|
| 3     | length of the payload                                                            |
| 1     | type (`Type`)                                                                    |
| 1     | flags                                                                            |
| 4     | one reserved bit, then the stream id, or 0 for the connection                    |
| ...   | payload                                                                          |

`encode_frame` encodes a frame of any type, and each other function encodes one type of frame.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The connection preface that a client sends first (RFC 9113, Section 3.4)."""
FRAME_HEADER: Final = struct.Struct(">HBBBI")
"""Frame header with the high 16 and low 8 bits of the length, the type, the flags, and the stream id."""
HEAD_BYTES: Final = 9
STREAM_MASK: Final = 0x7FFF_FFFF
WINDOW_MAX: Final = 0x7FFF_FFFF
WINDOW_DEFAULT: Final = 65_535
FRAME_BYTES_DEFAULT: Final = 16_384
FRAME_BYTES_LIMIT: Final = 0xFF_FFFF
TABLE_BYTES_DEFAULT: Final = 4_096
SETTING: Final = struct.Struct(">HI")
PING_BYTES: Final = 8
PRIORITY_BYTES: Final = 5

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20


class Type(IntEnum):
    """Supported frame types. Frames of other types must be ignored (RFC 9113, Section 4.1)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """Setting identifiers (RFC 9113, Section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Error codes for streams and connections (RFC 9113, Section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


def encode_frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return an encoded frame with the given type, flags, stream id, and payload."""
    size = len(payload)
    return FRAME_HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def encode_settings(pairs: dict[Setting, int]) -> bytes:
    """Return a SETTINGS frame. Each setting has a 2-byte identifier and a 4-byte value."""
    return encode_frame(
        Type.SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in pairs.items())
    )


def encode_window_update(stream_id: int, by_bytes: int) -> bytes:
    """Return a WINDOW_UPDATE frame with a 4-byte window increment."""
    return encode_frame(Type.WINDOW_UPDATE, 0, stream_id, by_bytes.to_bytes(4, "big"))


def encode_rst_stream(stream_id: int, code: Code) -> bytes:
    """Return an RST_STREAM frame with a 4-byte error code."""
    return encode_frame(Type.RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def encode_goaway(last_stream_id: int, code: Code, text: str) -> bytes:
    """Return a GOAWAY frame with the last stream id, the error code, and debug text."""
    return encode_frame(Type.GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code) + text.encode())


def encode_ping(payload: bytes, *, is_answer: bool) -> bytes:
    """Return a PING frame with an 8-byte payload. An acknowledgement repeats the payload of the ping."""
    return encode_frame(Type.PING, ACK if is_answer else 0, 0, payload)


SETTINGS_ACK: Final = encode_frame(Type.SETTINGS, ACK, 0)
