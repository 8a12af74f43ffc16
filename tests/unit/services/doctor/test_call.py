"""A call of gRPC without gRPC's library, against what a server may answer."""

from __future__ import annotations

import socket

import pytest
from hpack import Encoder

from services.doctor import call as calling
from services.doctor.call import CallFailed, call
from services.front.grpc_wire import DEFAULT_HEADERS, OK_TRAILERS, Status, frame_message, refusal
from services.front.http2_frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    PADDED,
    PREFACE,
    Code,
    Type,
    encode_frame,
    encode_goaway,
    encode_ping,
    encode_rst_stream,
    encode_settings,
)

GREETING = encode_settings({}) + encode_frame(Type.SETTINGS, ACK, 0)
LAST = END_HEADERS | END_STREAM
REPLY = (
    encode_frame(Type.HEADERS, END_HEADERS, 1, DEFAULT_HEADERS)
    + encode_frame(Type.DATA, 0, 1, frame_message(b"seven"))
    + encode_frame(Type.HEADERS, LAST, 1, OK_TRAILERS)
)


def answered(*said: bytes, is_open: bool = False) -> tuple[bytes, bytes]:
    """The reply to a call that a server answers so, and what the server was told."""
    here, there = socket.socketpair()
    with here, there:
        for one in said:
            there.sendall(one)
        if not is_open:
            there.shutdown(socket.SHUT_WR)
        reply = call(here, "broker:8081", "/package.Service/Method", b"question", (("x-mq-client-id", "me"),))
        here.shutdown(socket.SHUT_WR)
        told = b""
        while piece := there.recv(65_536):
            told += piece
        return reply, told


def failure(*said: bytes) -> CallFailed:
    with pytest.raises(CallFailed) as failed:
        answered(*said)
    return failed.value


def test_a_reply_is_returned() -> None:
    reply, told = answered(GREETING, REPLY)
    assert reply == b"seven"
    assert told.startswith(PREFACE)
    assert b"/package.Service/Method" in told
    assert frame_message(b"question") in told
    assert told.endswith(encode_frame(Type.SETTINGS, ACK, 0))


def test_a_ping_is_answered_and_what_is_not_of_the_call_passed_over() -> None:
    other = encode_frame(Type.HEADERS, LAST, 3, OK_TRAILERS) + encode_frame(20, 0, 0, b"unknown")
    reply, told = answered(GREETING, encode_ping(b"12345678", is_answer=False), other, REPLY)
    assert reply == b"seven"
    assert encode_ping(b"12345678", is_answer=True) in told


def test_the_pieces_in_which_a_reply_comes_do_not_matter() -> None:
    said = GREETING + REPLY
    assert answered(*(said[at : at + 1] for at in range(len(said))))[0] == b"seven"


def test_header_fields_may_be_compressed_continued_and_padded() -> None:
    block = Encoder().encode([(":status", "200"), ("content-type", "application/grpc")])
    head = encode_frame(Type.HEADERS, PADDED, 1, b"\2" + block[:3] + b"\0\0")
    data = encode_frame(Type.DATA, PADDED, 1, b"\1" + frame_message(b"seven") + b"\0")
    rest = encode_frame(Type.CONTINUATION, END_HEADERS, 1, block[3:])
    end = encode_frame(Type.HEADERS, LAST, 1, OK_TRAILERS)
    assert answered(GREETING, head, rest, data, end)[0] == b"seven"


def test_a_server_that_leaves_answers_what_it_has_begun() -> None:
    assert answered(GREETING, encode_goaway(1, Code.NO_ERROR, ""), REPLY)[0] == b"seven"


def test_a_refusal_has_its_status_and_words() -> None:
    block = refusal(Status.UNIMPLEMENTED, "Not “here”.")
    failed = failure(GREETING, encode_frame(Type.HEADERS, LAST, 1, block))
    assert (failed.status, failed.text) == ("UNIMPLEMENTED", "Not “here”.")


@pytest.mark.parametrize(
    ("said", "status", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "UNKNOWN", "does not speak HTTP/2"),
        (b"", "UNAVAILABLE", "closed before the reply"),
        (GREETING + REPLY[:-3], "UNAVAILABLE", "closed before the reply"),
        (GREETING + encode_rst_stream(1, Code.CANCEL), "UNAVAILABLE", "reset"),
        (GREETING + encode_goaway(0, Code.ENHANCE_YOUR_CALM, "too many"), "UNAVAILABLE", "too many"),
        (
            GREETING + encode_frame(Type.HEADERS, LAST, 1, b"\xff\xff\xff\xff\xff\xff"),
            "INTERNAL",
            "cannot be read",
        ),
        (GREETING + encode_frame(Type.HEADERS, LAST, 1, b"\x8d"), "UNKNOWN", "status of HTTP is 404"),
        (GREETING + encode_frame(Type.HEADERS, LAST, 1, b"\x88"), "status missing", ""),
        (
            GREETING + encode_frame(Type.HEADERS, LAST, 1, DEFAULT_HEADERS + OK_TRAILERS),
            "INTERNAL",
            "not one plain message",
        ),
        (GREETING + encode_frame(Type.DATA, PADDED | END_STREAM, 1), "UNKNOWN", "missing"),
        (
            GREETING + 12 * encode_frame(Type.DATA, 0, 1, bytes(16_384)),
            "RESOURCE_EXHAUSTED",
            "a reply of more",
        ),
    ],
)
def test_what_is_no_reply_is_one_sentence(said: bytes, status: str, text: str) -> None:
    failed = failure(said)
    assert failed.status == status
    assert text in failed.text


def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "SECONDS", 0.05)
    with pytest.raises(CallFailed, match="no reply within") as failed:
        answered(GREETING, is_open=True)
    assert failed.value.status == "DEADLINE_EXCEEDED"


def test_a_request_that_does_not_fit_is_refused() -> None:
    with pytest.raises(CallFailed, match="more than"):
        calling.request("broker:8081", "/p", bytes(20_000), ())
