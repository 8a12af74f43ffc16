"""Protocol detection from the first bytes of a connection.

| first bytes                          | protocol                               | source                |
|--------------------------------------|----------------------------------------|-----------------------|
| 16                                   | TLS (handshake record)                 | RFC 8446, Section 5.1 |
| "PRI "                               | HTTP/2 without TLS (preface)           | RFC 9113, Section 3.4 |
| an HTTP method and a space           | HTTP/1                                 | RFC 9110, Section 9   |
| 00, a frame length, a header type,   | RocketMQ 4 remoting (frame and header) | RemotingCommand in    |
| and a header length within the frame |                                        | Apache RocketMQ       |
| other bytes                          | unknown                                |                       |
"""

from __future__ import annotations

import re
import struct
from enum import Enum
from typing import Final

DETECTION_BYTES: Final = 8
"""Number of bytes that suffice to identify any protocol."""

_TLS_HANDSHAKE: Final = b"\x16"
_PREFACE: Final = b"PRI "
_METHOD: Final = re.compile(rb"(GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH) ")
_LETTERS: Final = re.compile(rb"[A-Z]+")
_FRAME: Final = struct.Struct(">II")
_HEADER_LENGTH_MASK: Final = 0xFFFFFF


class Protocol(Enum):
    """The protocols that the port can distinguish."""

    TLS = "TLS"
    HTTP2 = "HTTP/2"
    HTTP1 = "HTTP/1"
    REMOTING = "RocketMQ 4 remoting"
    UNKNOWN = "unknown"


def detect_protocol(first: bytes) -> Protocol | None:
    """Return the protocol of a connection that begins with `first`, or None if more bytes are required."""
    if first.startswith(_TLS_HANDSHAKE):
        return Protocol.TLS
    if first.startswith(_PREFACE):
        return Protocol.HTTP2
    if _METHOD.match(first):
        return Protocol.HTTP1
    if len(first) < DETECTION_BYTES and (first[:1] in (b"", b"\0") or _LETTERS.fullmatch(first)):
        return None
    return Protocol.REMOTING if _is_frame(first) else Protocol.UNKNOWN


def _is_frame(first: bytes) -> bool:
    if len(first) < DETECTION_BYTES or first[0] != 0:
        return False
    frame_bytes, header = _FRAME.unpack_from(first)
    return bool(0 < header & _HEADER_LENGTH_MASK <= frame_bytes - 4)
