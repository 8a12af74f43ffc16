"""Who came to the wrong port is told so in a protocol that they understand."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.front.answers import encode_error, encode_refusal, is_complete, read_opaque
from services.front.first_bytes import Protocol

HTTP = "http://127.0.0.1:8088"


def frame(header: bytes, kind: int = 0) -> bytes:
    return struct.pack(">II", len(header) + 4, kind << 24 | len(header)) + header


REQUEST = frame(json.dumps({"code": 105, "opaque": 77, "flag": 0}).encode())


def test_http1_gets_a_response_that_names_the_http_port() -> None:
    head, _, body = encode_error(Protocol.HTTP1, b"GET / HTTP/1.1\r\n\r\n", HTTP).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"gRPC over HTTP/2" in body
    assert b"http://127.0.0.1:8088" in body


def test_a_rocketmq_4_client_gets_the_answer_to_its_request() -> None:
    told = encode_error(Protocol.REMOTING, REQUEST, HTTP)
    frame_bytes, header_bytes = struct.unpack_from(">II", told)
    assert (frame_bytes, header_bytes) == (len(told) - 4, len(told) - 8)
    header = json.loads(told[8:])
    assert (header["opaque"], header["code"], header["flag"]) == (77, 1, 1)
    assert "RocketMQ 5" in header["remark"]


def test_a_binary_header_has_its_number_behind_code_language_and_version() -> None:
    assert read_opaque(frame(struct.pack(">HBHI", 105, 0, 401, 4711), kind=1)) == 4711


@pytest.mark.parametrize("header", [b"{", b"[]", b"{}", b'{"opaque": null}', b"\xff\xfe", b""])
def test_a_request_without_a_number_is_number_0(header: bytes) -> None:
    assert read_opaque(frame(header)) == 0


def test_anything_else_gets_a_line() -> None:
    told = encode_error(Protocol.UNKNOWN, b"hello", HTTP)
    assert told.startswith(b"This is an unknown protocol; this port serves RocketMQ 5 clients")
    assert told.endswith(b".\n")


@pytest.mark.parametrize("end", range(8, len(REQUEST)))
def test_a_frame_is_answered_when_its_header_is_there(end: int) -> None:
    assert not is_complete(Protocol.REMOTING, REQUEST[:end])
    assert is_complete(Protocol.REMOTING, REQUEST)


@given(st.binary(min_size=8, max_size=200))
def test_no_bytes_of_a_frame_break_the_answer(first: bytes) -> None:
    assert encode_error(Protocol.REMOTING, first, HTTP)


def test_each_protocol_has_a_refusal_of_its_own() -> None:
    assert encode_refusal(Protocol.TLS, b"\x16") == bytes.fromhex("15030300020231")
    assert encode_refusal(Protocol.HTTP1, b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 429 ")
    assert b"as many connections" in encode_refusal(Protocol.UNKNOWN, b"hello")
