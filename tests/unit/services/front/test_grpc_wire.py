"""gRPC's own bytes: messages in pieces, time-outs, messages of refusals."""

from __future__ import annotations

import gzip
import random
import zlib
from itertools import pairwise
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.front.grpc_wire import (
    DEFAULT_HEADERS,
    PREFIX_BYTES,
    Messages,
    Refused,
    Status,
    encode_head,
    encode_trailers,
    frame_message,
    parse_timeout,
    percent_encode,
    refusal,
)
from tests.http2_client import fields_of

MOST = 1_000


def taken(messages: Messages, piece: bytes) -> list[bytes]:
    """What messages a piece completes."""
    messages.add(piece)
    found = []
    while (one := messages.next()) is not None:
        found.append(one)
    return found


@given(st.lists(st.binary(max_size=50), max_size=6), st.lists(st.integers(1, 40), max_size=20))
def test_messages_come_out_whole_however_they_are_cut(sent: list[bytes], cuts: list[int]) -> None:
    said, found, at = b"".join(map(frame_message, sent)), [], 0
    messages = Messages(MOST, is_gzip=False)
    for size in [*cuts, len(said)]:
        found += taken(messages, said[at : at + size])
        at += size
        assert messages.held_bytes < PREFIX_BYTES + 50
    messages.end()
    assert found == sent


def test_a_request_that_ends_in_the_middle_is_refused() -> None:
    messages = Messages(MOST, is_gzip=False)
    assert taken(messages, frame_message(b"whole")[:-1]) == []
    with pytest.raises(Refused, match="9 bytes in") as refused:
        messages.end()
    assert refused.value.status is Status.INTERNAL


def test_a_message_that_is_too_long_is_refused_by_its_head() -> None:
    messages = Messages(MOST, is_gzip=False)
    with pytest.raises(Refused, match="1001") as refused:
        taken(messages, frame_message(bytes(MOST + 1))[:PREFIX_BYTES])
    assert refused.value.status is Status.RESOURCE_EXHAUSTED


def compressed(message: bytes) -> bytes:
    packed = gzip.compress(message)
    return b"\x01" + len(packed).to_bytes(4, "big") + packed


def test_a_request_may_be_compressed() -> None:
    messages = Messages(MOST, is_gzip=True)
    assert taken(messages, compressed(b"a" * 900) + frame_message(b"plain")) == [b"a" * 900, b"plain"]


def test_a_compressed_message_is_unpacked_as_it_comes() -> None:
    plain = [bytes(random.Random(seed).choices(b"abcd", k=40_000)) for seed in range(3)]
    said = b"".join(map(compressed, plain))
    messages, found, unpacked_bytes = Messages(100_000, is_gzip=True), [], [0]
    for at in range(0, len(said), 1_000):
        messages.add(said[at : at + 1_000])
        while (message := messages.next()) is not None:
            found.append(message)
        unpacked_bytes.append(messages.unpacked_bytes)
        assert messages.held_bytes == messages.unpacked_bytes - sum(map(len, found)) + (
            PREFIX_BYTES if len(found) < len(plain) else 0
        )
    assert found == plain
    assert max(b - a for a, b in pairwise(unpacked_bytes)) < 10_000, "much at once"
    messages.end()


@pytest.mark.parametrize("behind", [gzip.compress(b"b"), b"\0", b"no gzip"], ids=["member", "zero", "text"])
@pytest.mark.parametrize("piece_bytes", [1, 1_000])
def test_a_compressed_message_that_goes_on_behind_its_end_is_refused_there(
    behind: bytes, piece_bytes: int
) -> None:
    packed = gzip.compress(b"a") + behind
    said, messages = b"\x01" + len(packed).to_bytes(4, "big") + packed, Messages(MOST, is_gzip=True)

    def take_in_pieces() -> None:
        for at in range(0, len(said), piece_bytes):
            messages.add(said[at : at + piece_bytes])
            messages.next()

    with pytest.raises(Refused, match="behind its end") as refused:
        take_in_pieces()
    assert refused.value.status is Status.INTERNAL


def test_a_request_that_ends_within_a_compressed_message_is_refused() -> None:
    messages = Messages(MOST, is_gzip=True)
    assert taken(messages, compressed(b"a" * 900)[:-8]) == []
    with pytest.raises(Refused, match="middle of a message"):
        messages.end()


@pytest.mark.parametrize(
    ("said", "is_gzip", "status"),
    [
        (compressed(bytes(MOST + 1)), True, Status.RESOURCE_EXHAUSTED),
        (compressed(bytes(50_000_000)), True, Status.RESOURCE_EXHAUSTED),
        (compressed(b"a"), False, Status.INTERNAL),
        (b"\x02" + frame_message(b"a")[1:], True, Status.INTERNAL),
        (b"\x01\0\0\0\x05abcde", True, Status.INTERNAL),
        (b"\x01\0\0\0\x08" + gzip.compress(b"abc")[:8], True, Status.INTERNAL),
        (b"\x01\0\0\0\x0b" + zlib.compress(b"abc"), True, Status.INTERNAL),
    ],
    ids=["too long", "a bomb", "not said", "another flag", "no gzip", "cut off", "another format"],
)
def test_what_cannot_be_unpacked_is_refused(said: bytes, is_gzip: bool, status: Status) -> None:
    with pytest.raises(Refused) as refused:
        taken(Messages(MOST * 60 if status is Status.INTERNAL else MOST, is_gzip=is_gzip), said)
    assert refused.value.status is status


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("1S", 1), ("0m", 0), ("99999999H", 99_999_999 * 3_600), ("3M", 180), ("20000u", 0.02), ("5n", 5e-9)],
)
def test_a_time_out_is_a_number_and_a_unit(said: str, seconds: float) -> None:
    assert parse_timeout(said) == pytest.approx(seconds)


@pytest.mark.parametrize("said", ["S", "1", "1s", "-1S", "1.5S", "999999999S", "\u0661S", ""])
def test_what_is_no_time_out_is_refused(said: str) -> None:
    with pytest.raises(Refused):
        parse_timeout(said)


@given(st.text(max_size=200))
def test_any_sentence_can_be_a_message_of_a_refusal(text: str) -> None:
    text = text.encode(errors="ignore").decode()
    written = percent_encode(text)
    assert written.isascii()
    assert written.isprintable()
    assert unquote(written) == text
    said = fields_of(DEFAULT_HEADERS + encode_trailers(Status.NOT_FOUND, text))
    assert said["grpc-status"] == "5"
    assert unquote(said.get("grpc-message", "")) == text


def test_blocks_are_read_by_any_decoder() -> None:
    assert fields_of(DEFAULT_HEADERS) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-accept-encoding": "identity,gzip",
    }
    assert fields_of(encode_head(415, "text/plain", {"x-a": "b" * 300})) == {
        ":status": "415",
        "content-type": "text/plain",
        "x-a": "b" * 300,
    }
    assert fields_of(refusal(Status.UNIMPLEMENTED, "no"))["grpc-message"] == "no"
