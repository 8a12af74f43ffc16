"""Parser for the ALPN protocols in a TLS ClientHello (RFC 8446, Section 4.1.2; RFC 7301, Section 3.1).

    record      16, version 2, length 2
    handshake   01, length 3
    hello       version 2, random 32, session id <1>, cipher suites <2>, compression <1>, extensions <2>
    extension   type 2, <2>;  ALPN is type 16: a list <2> of names <1>

`<n>` denotes an n-byte length followed by that number of bytes. The port parses the ClientHello before the
handshake, and sends an alert to a client that offers only protocols other than HTTP/2. A ClientHello that
spans several records is not checked.
"""

from __future__ import annotations

from typing import Final

RECORD_HEAD_BYTES: Final = 5
RECORD_BYTES_MAX: Final = 2**14 + 2048
"""Maximum length of a TLS record in any TLS version."""
H2: Final = b"h2"
_LENGTH_AT: Final = 3
_HEAD: Final = bytes((22, 3))
_CLIENT_HELLO: Final = 1
_FIXED_BYTES: Final = 4 + 2 + 32
_ALPN: Final = 16


def is_complete_record(first: bytes) -> bool:
    """Return whether the first TLS record is complete, or is too long to be valid."""
    if len(first) < RECORD_HEAD_BYTES:
        return False
    length = _read_number(first, _LENGTH_AT, 2)
    return length > RECORD_BYTES_MAX or len(first) >= RECORD_HEAD_BYTES + length


def parse_protocols(first: bytes) -> list[bytes] | None:
    """Return the ALPN protocols in a ClientHello, or an empty list if it has no ALPN extension.

    Return None if the ClientHello is invalid or spans several records.
    """
    try:
        return _parse_alpn(first)
    except IndexError:
        return None


def _parse_alpn(first: bytes) -> list[bytes] | None:
    record, _ = _read_length_prefixed(first, _LENGTH_AT, 2)
    if first[:2] != _HEAD or record[0] != _CLIENT_HELLO:
        return None
    place = _FIXED_BYTES
    for length_bytes in (1, 2, 1):
        _, place = _read_length_prefixed(record, place, length_bytes)
    extensions = _read_length_prefixed(record, place, 2)[0] if place < len(record) else b""
    place = 0
    while place < len(extensions):
        content, after = _read_length_prefixed(extensions, place + 2, 2)
        if _read_number(extensions, place, 2) == _ALPN:
            return _split_names(_read_length_prefixed(content, 0, 2)[0])
        place = after
    return []


def _split_names(listed: bytes) -> list[bytes]:
    names, place = [], 0
    while place < len(listed):
        name, place = _read_length_prefixed(listed, place, 1)
        names.append(name)
    return names


def _read_length_prefixed(content: bytes, place: int, length_bytes: int) -> tuple[bytes, int]:
    """Return the length-prefixed bytes at offset `place`, and their end offset.

    Raise IndexError if `content` is truncated.
    """
    begins = place + length_bytes
    ends = begins + _read_number(content, place, length_bytes)
    if ends > len(content):
        raise IndexError
    return content[begins:ends], ends


def _read_number(content: bytes, place: int, length_bytes: int) -> int:
    if place + length_bytes > len(content):
        raise IndexError
    return int.from_bytes(content[place : place + length_bytes])
