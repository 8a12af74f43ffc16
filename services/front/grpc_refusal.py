"""A gRPC client's first call is answered with the reason why there will be no second.

A GOAWAY alone would tell the client's log at best: gRPC takes it for a server that leaves, and tries the call
on another connection at once, again and again. A status such as `RESOURCE_EXHAUSTED` ends the call, and its
message is what the client's user sees. The client calls when it has our SETTINGS, so these go first.

Frames (RFC 9113, 4.1; gRPC over HTTP/2, "Trailers-Only"), all numbers big-endian:

| bytes | what                                                                             |
|-------|----------------------------------------------------------------------------------|
| 3     | length of the payload                                                            |
| 1     | type: 1 HEADERS, 4 SETTINGS, 7 GOAWAY                                            |
| 1     | flags; of HEADERS 1 END_STREAM, 4 END_HEADERS                                    |
| 4     | stream; 0 for the connection                                                     |
| ...   | payload; of GOAWAY the last stream 4, the error 4, text                          |

Headers are written as HPACK's literals that enter no table (RFC 7541, 6.2.2).
"""

from __future__ import annotations

import struct
from typing import Final
from urllib.parse import quote

PREFACE_BYTES: Final = 24
SETTINGS: Final = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))

_FRAME: Final = struct.Struct(">IBI")
_FRAME_BYTES: Final = _FRAME.size
_HEADERS_TYPE, _GOAWAY_TYPE = 1, 7
_END: Final = 1 | 4
_ENHANCE_YOUR_CALM: Final = 11
RESOURCE_EXHAUSTED, UNAUTHENTICATED = "8", "16"
"""Statuses of gRPC."""
_STATUS_200: Final = b"\x88"
_CONTENT_TYPE: Final = b"\x0f\x10"
_NEW_NAME: Final = b"\0"
_SEVEN_BITS: Final = 127


def asked_stream(first: bytes) -> int:
    """Return the stream of the first call in what a client has said since its preface; 0 if there is none."""
    at = PREFACE_BYTES
    while at + _FRAME_BYTES <= len(first):
        length_and_type, _, stream = _FRAME.unpack_from(first, at)
        if length_and_type & 0xFF == _HEADERS_TYPE:
            return int(stream)
        at += _FRAME_BYTES + (length_and_type >> 8)
    return 0


def refusal(text: str, first: bytes, status: str = RESOURCE_EXHAUSTED) -> bytes:
    """Return the answer to the first call, then the GOAWAY; the SETTINGS have been sent."""
    stream = asked_stream(first)
    goaway = struct.pack(">II", stream, _ENHANCE_YOUR_CALM) + text.encode()
    answer = _frame(_HEADERS_TYPE, _END, stream, _trailers(text, status)) if stream else b""
    return answer + _frame(_GOAWAY_TYPE, 0, 0, goaway)


def _trailers(text: str, status: str) -> bytes:
    return (
        _STATUS_200
        + _CONTENT_TYPE
        + _string("application/grpc")
        + _NEW_NAME
        + _string("grpc-status")
        + _string(status)
        + _NEW_NAME
        + _string("grpc-message")
        + _string(quote(text, safe=" ,:;.-()"))
    )


def _string(text: str) -> bytes:
    """A string without Huffman's code, behind its length (RFC 7541, 5.1 and 5.2)."""
    length, written = len(text), bytearray()
    if length < _SEVEN_BITS:
        return bytes((length,)) + text.encode()
    written.append(_SEVEN_BITS)
    length -= _SEVEN_BITS
    while length >= 128:
        written.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*written, length)) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload) << 8 | kind, flags, stream) + payload
