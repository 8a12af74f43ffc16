"""What a connection speaks is told by its first bytes, and never later than by the eighth."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.front.first_bytes import DETECTION_BYTES, Protocol, detect_protocol

REMOTING = struct.pack(">II", 120, 100) + b'{"code":105'


@pytest.mark.parametrize(
    ("first", "protocol"),
    [
        (b"\x16", Protocol.TLS),
        (b"\x16\x03\x01\x02\x00", Protocol.TLS),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Protocol.HTTP2),
        (b"GET / HTTP/1.1\r\n", Protocol.HTTP1),
        (b"POST / HTTP/1.1\r\n", Protocol.HTTP1),
        (b"OPTIONS * HTTP/1.1\r\n", Protocol.HTTP1),
        (REMOTING, Protocol.REMOTING),
        (struct.pack(">II", 120, 1 << 24 | 21), Protocol.REMOTING),
        (struct.pack(">II", 120, 200), Protocol.UNKNOWN),
        (b"\x80\x2e\x01\x00\x02", Protocol.UNKNOWN),
        (b"*1\r\n$4\r\nPING", Protocol.UNKNOWN),
        (b"hello", Protocol.UNKNOWN),
    ],
)
def test_a_protocol_is_known_by_how_it_begins(first: bytes, protocol: Protocol) -> None:
    assert detect_protocol(first) is protocol


@pytest.mark.parametrize("first", [b"", b"P", b"PR", b"PRI", b"GET", b"\0\0\0"])
def test_too_few_bytes_tell_nothing(first: bytes) -> None:
    assert detect_protocol(first) is None


@given(st.binary(min_size=DETECTION_BYTES, max_size=64))
def test_enough_bytes_always_tell(first: bytes) -> None:
    assert detect_protocol(first) is not None


@given(st.binary(min_size=1, max_size=64))
def test_what_was_told_early_stays_true(first: bytes) -> None:
    told = [detect_protocol(first[:end]) for end in range(1, len(first) + 1)]
    early = [one for one in told if one is not None]
    assert len(set(early)) <= 1
