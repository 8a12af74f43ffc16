"""Wire format of gRPC over HTTP/2, with header blocks and messages in DATA frames.

Layout of a message in DATA frames (PROTOCOL-HTTP2.md in grpc/grpc):

| bytes | content                                                  |
|-------|----------------------------------------------------------|
| 1     | 1 if compressed with the codec in `grpc-encoding`        |
| 4     | length of the message, big-endian                        |
| ...   | the message                                              |

A response consists of a HEADERS frame, the messages, and a final HEADERS frame with `grpc-status`. A refusal
consists of one HEADERS frame with the fields of both. Header blocks contain only static table entries and
literals without indexing (RFC 7541, Section 6.2.2), and therefore do not depend on the client's dynamic
table.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from commitlog.limits import REQUEST_UNPACKED_BYTES_MAX, UNPACKED_BYTES_FREE, UNPACKED_RATIO_MAX

PREFIX_BYTES: Final = 5
TIMEOUT_DIGITS_MAX: Final = 8
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_GZIP_WINDOW: Final = 31
_STATUS_200: Final = b"\x88"
_NEW_NAME, _CONTENT_TYPE, _STATUS = b"\0", b"\x0f\x10", b"\x08"
_SEVEN_BITS: Final = 127


class Status(IntEnum):
    """The supported gRPC status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Refused(Exception):
    """Raised when a call is refused. Contains the status and the error message of the response."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def encode_string(value: bytes) -> bytes:
    """Encode a string with a length prefix, without Huffman coding (RFC 7541, Sections 5.1 and 5.2)."""
    length = len(value)
    if length < _SEVEN_BITS:
        return bytes((length,)) + value
    written, length = bytearray((_SEVEN_BITS,)), length - _SEVEN_BITS
    while length >= 128:
        written.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*written, length)) + value


def encode_field(name: str, value: str) -> bytes:
    """Encode a header field as a literal without indexing."""
    return _NEW_NAME + encode_string(name.encode("latin-1")) + encode_string(value.encode("latin-1"))


def encode_head(status: int, content_type: str, fields: dict[str, str] | None = None) -> bytes:
    """Return the encoded first header block of a response."""
    begun = _STATUS_200 if status == 200 else _STATUS + encode_string(str(status).encode())
    others = b"".join(encode_field(name, value) for name, value in (fields or {}).items())
    return begun + _CONTENT_TYPE + encode_string(content_type.encode()) + others


@lru_cache(maxsize=1024)
def encode_trailers(status: Status, text: str = "") -> bytes:
    """Return the encoded last header block of a response, with `grpc-status`.

    The block also contains `grpc-message` if `text` is not empty.
    """
    said = encode_field("grpc-message", percent_encode(text)) if text else b""
    return encode_field("grpc-status", str(int(status))) + said


def percent_encode(text: str) -> str:
    """Encode text for `grpc-message` as percent-encoded UTF-8.

    The percent sign and all characters outside printable ASCII are escaped.
    """
    return quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


GRPC: Final = "application/grpc"
DEFAULT_HEADERS: Final = encode_head(200, GRPC, {"grpc-accept-encoding": "identity,gzip"})
OK_TRAILERS: Final = encode_trailers(Status.OK)


def refusal(status: Status, text: str) -> bytes:
    """Return the only header block of the response to a refused call."""
    return DEFAULT_HEADERS + encode_trailers(status, text)


def parse_timeout(timeout: str) -> float:
    """Convert a `grpc-timeout` value to seconds. Raise `Refused` if the value is invalid."""
    digits, unit = timeout[:-1], _UNITS.get(timeout[-1:])
    if unit is None or not (digits.isascii() and digits.isdigit()) or len(digits) > TIMEOUT_DIGITS_MAX:
        raise Refused(Status.INTERNAL, f"grpc-timeout is no number of {TIMEOUT_DIGITS_MAX} digits and unit.")
    return int(digits) * unit


def frame_message(message: bytes) -> bytes:
    """Return an uncompressed message with the 5-byte gRPC prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Messages:
    """Splits a request body into messages.

    Pieces are joined on arrival, because many small pieces would use far more memory. Gzip messages are
    decompressed piece by piece on arrival, because a limit on the output size does not limit the
    decompression time. For example, the decompression of 32 MiB of nearly empty blocks with separate code
    tables takes 0.8 s.
    """

    __slots__ = ("_held", "_is_gzip", "_max", "_unpacking", "_wanted", "excess_bytes", "unpacked_bytes")

    def __init__(self, message_bytes_max: int, *, is_gzip: bool) -> None:
        self._max, self._is_gzip = message_bytes_max, is_gzip
        self._held = bytearray()
        self._wanted = PREFIX_BYTES
        self._unpacking: GzipMessage | None = None
        self.unpacked_bytes = self.excess_bytes = 0
        """Number of decompressed bytes, in total and in excess of `UNPACKED_RATIO_MAX`."""

    @property
    def held_bytes(self) -> int:
        """Return the number of received or decompressed bytes that are not yet part of a returned message."""
        unpacking = self._unpacking
        return len(self._held) + (0 if unpacking is None else PREFIX_BYTES + len(unpacking.plain))

    def add(self, data: bytes) -> None:
        """Add a piece of the request body."""
        self._held += data

    def next(self) -> bytes | None:
        """Return the next message, or None if it is incomplete. Raise `Refused` if it is invalid."""
        held = self._held
        if self._unpacking is not None:
            return self._unpack(self._unpacking)
        if len(held) < self._wanted:
            return None
        if self._wanted == PREFIX_BYTES:
            size = int.from_bytes(held[1:PREFIX_BYTES], "big")
            if size > self._max:
                raise size_error(size, self._max)
            if flag := held[0]:
                if flag != 1 or not self._is_gzip:
                    raise Refused(
                        Status.INTERNAL, "A message is compressed though grpc-encoding does not say by what."
                    )
                del held[:PREFIX_BYTES]
                self._unpacking = GzipMessage(size, self._max)
                return self._unpack(self._unpacking)
            self._wanted = PREFIX_BYTES + size
            if len(held) < self._wanted:
                return None
        with memoryview(held) as whole:
            message = bytes(whole[PREFIX_BYTES : self._wanted])
        del held[: self._wanted]
        self._wanted = PREFIX_BYTES
        return message

    def end(self) -> None:
        """Process the end of the request. Raise `Refused` if the last message is incomplete."""
        if self._held or self._unpacking is not None:
            raise Refused(
                Status.INTERNAL, f"The request ends in the middle of a message, {self.held_bytes} bytes in."
            )

    def _unpack(self, unpacking: GzipMessage) -> bytes | None:
        """Decompress the received bytes. Return the message, or None if it is incomplete."""
        piece = bytes(self._held[: unpacking.left_bytes])
        del self._held[: len(piece)]
        plain_bytes, excess_bytes = len(unpacking.plain), unpacking.excess_bytes
        try:
            unpacking.add(piece)
        finally:
            self.unpacked_bytes += len(unpacking.plain) - plain_bytes
            self.excess_bytes += unpacking.excess_bytes - excess_bytes
        if unpacking.left_bytes:
            return None
        self._unpacking = None
        return unpacking.end()


class GzipMessage:
    """A gzip message that is being received, of which `left_bytes` compressed bytes have not yet arrived."""

    __slots__ = ("_expected_bytes", "_gzip", "_limit_bytes", "left_bytes", "plain")

    def __init__(self, size: int, message_bytes_max: int) -> None:
        self.left_bytes, self.plain = size, bytearray()
        self._expected_bytes = UNPACKED_RATIO_MAX * size
        self._limit_bytes = min(
            message_bytes_max, REQUEST_UNPACKED_BYTES_MAX, self._expected_bytes + UNPACKED_BYTES_FREE
        )
        self._gzip = zlib.decompressobj(_GZIP_WINDOW)

    @property
    def excess_bytes(self) -> int:
        """Return the number of decompressed bytes in excess of `UNPACKED_RATIO_MAX`."""
        return max(0, len(self.plain) - self._expected_bytes)

    def add(self, piece: bytes) -> None:
        """Decompress the next bytes. Raise `Refused` if the bytes are invalid or the message is too long."""
        self.left_bytes -= len(piece)
        try:
            self.plain += self._gzip.decompress(piece, self._limit_bytes + 1 - len(self.plain))
        except zlib.error as error:
            raise Refused(Status.INTERNAL, f"A message is not in gzip: {error}.") from error
        if self._gzip.eof and (self.left_bytes or self._gzip.unused_data):
            # zlib would ignore a second gzip member, and copy all bytes after the first member for every
            # piece.
            raise Refused(
                Status.INTERNAL, "A message in gzip goes on behind its end. Send one member of gzip."
            )
        if len(self.plain) > self._limit_bytes:
            raise size_error(len(self.plain), self._limit_bytes)

    def end(self) -> bytes:
        """Return the decompressed message. Raise `Refused` if the message is truncated."""
        if not self._gzip.eof:
            raise Refused(Status.INTERNAL, "A message in gzip is cut off.")
        return bytes(self.plain)


def size_error(size: int, most: int) -> Refused:
    """Return the error for a message that exceeds the size limit."""
    return Refused(Status.RESOURCE_EXHAUSTED, f"A message has {size} bytes or more; {most} are the limit.")
