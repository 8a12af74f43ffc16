"""Header blocks, written by `hpack`, taken apart by ours."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hpack import Decoder, Encoder
from hpack.hpack import encode_integer
from hpack.table import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from commitlog.limits import HEADERS_BYTES_MAX
from services.front.header_fields import (
    KEPT_FIELDS_MAX,
    CompressionError,
    Field,
    FieldDecoder,
    HeadersTooLongError,
    MalformedRequestError,
)
from tests.http2_client import REQUEST, block

RECORDED: dict[str, dict[str, list[list[str]]]] = json.loads(
    (Path(__file__).parents[3] / "vectors" / "header_blocks.json").read_text()
)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=20).map(
    lambda one: f"x-{one}"
)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300)


def acknowledged() -> FieldDecoder:
    decoder = FieldDecoder({})
    decoder.disable_table()
    return decoder


@given(more=st.lists(st.tuples(NAMES, VALUES), max_size=10), huffman=st.booleans(), times=st.integers(1, 3))
def test_a_block_says_what_was_written_however_often(
    more: list[tuple[str, str]], huffman: bool, times: int
) -> None:
    decoder = acknowledged()
    joined: dict[str, str] = dict(REQUEST)
    for name, value in more:
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    for _ in range(times):
        assert decoder.decode(block(*more, huffman=huffman)).all() == joined


@pytest.mark.parametrize("huffman", [False, True])
def test_what_changes_with_each_call_is_read_each_time_and_the_rest_is_the_same_object(huffman: bool) -> None:
    kept: dict[bytes, Field] = {}
    decoder = FieldDecoder(kept)
    decoder.disable_table()
    heads = [
        decoder.decode(
            block(
                ("x-mq-request-id", f"{number:08d}-a"),
                ("x-mq-language", "JAVA"),
                ("grpc-timeout", f"{number}m"),
                huffman=huffman,
            )
        )
        for number in range(100, 103)
    ]
    assert [one.get("grpc-timeout") for one in heads] == ["100m", "101m", "102m"]
    assert [one.get("x-mq-request-id") for one in heads] == [f"{one:08d}-a" for one in range(100, 103)]
    assert heads[1].fields is heads[2].fields
    assert heads[2].get("x-mq-language") == "JAVA"
    assert not any(one.name in ("grpc-timeout", "x-mq-request-id") for one in kept.values())


def test_a_long_value_of_a_field_that_changes_is_read_too() -> None:
    decoder = acknowledged()
    for length in (5, 126, 127, 128, 1_000, 5):
        assert decoder.decode(block(("authorization", "s" * length))).get("authorization") == "s" * length


def test_several_kinds_of_calls_take_turns() -> None:
    decoder = acknowledged()
    for number in range(12):
        head = decoder.decode(block(("x-kind", str(number % 3)), ("grpc-timeout", f"{number}S")))
        assert (head.get("x-kind"), head.get("grpc-timeout")) == (str(number % 3), f"{number}S")


def test_a_table_is_followed_until_its_client_lets_go_of_it() -> None:
    decoder, encoder = FieldDecoder({}), Encoder()
    for number in range(3):
        written = encoder.encode([*REQUEST, ("x-a", "always"), ("x-b", str(number))])
        assert decoder.decode(written).all() == {**dict(REQUEST), "x-a": "always", "x-b": str(number)}
    assert decoder.uses_table
    decoder.disable_table()
    encoder.header_table_size = 0
    for number in range(3):
        written = encoder.encode([*REQUEST, ("x-b", str(number))])
        assert decoder.decode(written).get("x-b") == str(number)
        assert not decoder.uses_table


@pytest.mark.parametrize("client", sorted(RECORDED))
@pytest.mark.parametrize("table", ["0", "4096"])
def test_what_clients_and_tools_have_sent_is_read_as_hpack_reads_it(client: str, table: str) -> None:
    """Recorded by `tests/interop/record_headers.py`; the first byte says that there is no table now."""
    for blocks in RECORDED[client][table]:
        ours, theirs, has_let_go = FieldDecoder({}), Decoder(1 << 20), False
        for block_of in map(bytes.fromhex, blocks):
            if table == "0" and block_of[0] == 0x20:
                ours.disable_table()
                has_let_go = True
            said = {str(name): str(value) for name, value in theirs.decode(block_of)}
            assert ours.decode(block_of).all() == said
        assert has_let_go == (table == "0") or len(blocks) < 3


def test_who_had_no_table_from_the_start_need_not_say_so_again() -> None:
    decoder = FieldDecoder({})
    decoder.decode(b"\x20" + block())
    assert not decoder.uses_table
    decoder.disable_table()
    assert decoder.decode(block()).fields == dict(REQUEST)


def test_who_refers_to_a_table_that_was_to_have_the_size_0_is_hung_up_on() -> None:
    decoder, encoder = FieldDecoder({}), Encoder()
    decoder.decode(encoder.encode(REQUEST))
    decoder.disable_table()
    with pytest.raises(CompressionError, match="size 0"):
        decoder.decode(encoder.encode(REQUEST))


class Writer:
    """An encoder that enters fields, refers to entries and resizes its table as it is told to (RFC 7541)."""

    def __init__(self) -> None:
        self._table = HeaderTable()

    def block(self, size: int | None, pieces: list[tuple[str, str, str]]) -> tuple[bytes, dict[str, str]]:
        """A block behind a change of the table's size, and what it says."""
        written, said = b"", dict(REQUEST)
        if size is not None:
            self._table.maxsize = size
            written = bytes(encode_integer(size, 5))
            written = bytes((written[0] | 0x20,)) + written[1:]
        for how, name, value in [("without", *one) for one in REQUEST] + pieces:
            if how == "refer" and self._table.dynamic_entries:
                newest = tuple(one.decode() for one in self._table.dynamic_entries[0])
                name, value, more = *newest, b"\xbe"
            else:
                mode = {"never": b"\x10", "without": b"\x00"}.get(how, b"\x40")
                more = mode + bytes(encode_integer(len(name), 7)) + name.encode()
                more += bytes(encode_integer(len(value), 7)) + value.encode()
            if more[:1] == b"\x40":
                self._table.add(name.encode(), value.encode())
            written += more
            if (name, value) not in REQUEST:
                said[name] = f"{said[name]},{value}" if name in said else value
        return written, said


PIECES = st.lists(
    st.tuples(st.sampled_from(["enter", "without", "never", "refer"]), NAMES, VALUES), max_size=5
)
BLOCKS = st.lists(st.tuples(st.sampled_from([None, None, 0, 60, 4096]), PIECES), max_size=6)


@given(
    before=BLOCKS,
    says_so=st.booleans(),
    after=st.lists(st.tuples(st.sampled_from([None, 0]), PIECES), max_size=4),
    times=st.integers(1, 2),
)
def test_what_can_be_decoded_is_whether_or_not_an_encoder_says_that_its_table_is_empty(
    before: list[tuple[int | None, list[tuple[str, str, str]]]],
    says_so: bool,
    after: list[tuple[int | None, list[tuple[str, str, str]]]],
    times: int,
) -> None:
    """As nginx and HAProxy do: they enter fields that they do not refer to, and never resize."""
    decoder, writer = FieldDecoder({}), Writer()
    for size, pieces in before * times:
        written, said = writer.block(size, pieces)
        assert decoder.decode(written).all() == said
    decoder.disable_table()
    writer.block(0, [])
    for number, (size, pieces) in enumerate(after * times):
        written, said = writer.block(0 if says_so and not number else size, pieces)
        assert decoder.decode(written).all() == said
        assert not decoder.uses_table


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x80",  # entry 0
        b"\xbe",  # entry 62, of a table that is empty
        b"\xff\xff\xff\xff\xff\xff\xff",  # a number without an end
        b"\x00\x7f",  # a length cut off
        b"\x00\x05ab",  # a string cut off
        b"\x00\x01a\x83\xff\xff\xff",  # padding that is longer than a byte
        b"\x00\x01a\x84\xff\xff\xff\xfc",  # the end of string inside
        b"\x3f\xe1\x1f",  # a table of 4,096 after it was to have 0
    ],
)
def test_what_is_no_header_block_ends_the_connection(wrong: bytes) -> None:
    with pytest.raises(CompressionError):
        acknowledged().decode(block() + wrong)
    with pytest.raises((CompressionError, MalformedRequestError)):
        acknowledged().decode(wrong + block())


@pytest.mark.parametrize(
    "fields",
    [
        REQUEST[1:],
        (REQUEST[0], *REQUEST),
        (*REQUEST[1:], REQUEST[0]),
        (*REQUEST, (":status", "200")),
        (*REQUEST, (":new", "x")),
        (*REQUEST, ("X-Upper", "x")),
        (*REQUEST, ("connection", "close")),
        (*REQUEST, ("transfer-encoding", "chunked")),
        (*REQUEST[:4], ("te", "gzip")),
        ((":method", "POST"), (":scheme", "http"), (":path", "")),
        (*REQUEST, ("x-line", "a\nb")),
    ],
)
def test_what_no_request_may_say_ends_its_stream(fields: tuple[tuple[str, str], ...]) -> None:
    decoder = acknowledged()
    with pytest.raises(MalformedRequestError):
        decoder.decode(block(fields=fields))
    assert decoder.decode(block()).fields == dict(REQUEST)


def test_trailers_have_no_pseudo_fields() -> None:
    decoder = acknowledged()
    assert decoder.are_trailers(block(fields=(("x-a", "b"),)))
    assert not decoder.are_trailers(block(fields=((":path", "/"),)))


@pytest.mark.parametrize("is_acknowledged", [False, True])
def test_a_block_that_says_too_much_is_told_so(is_acknowledged: bool) -> None:
    decoder = acknowledged() if is_acknowledged else FieldDecoder({})
    decoder.decode(b"\x20" + block())
    with pytest.raises(HeadersTooLongError):
        decoder.decode(block(("x-a", "b" * HEADERS_BYTES_MAX)))
    assert decoder.decode(block()).fields == dict(REQUEST)


def test_a_table_does_not_make_much_of_little() -> None:
    """A bomb: an entry of 3,000 bytes, named a thousand times by a byte each. A small one is only refused."""
    decoder, encoder = FieldDecoder({}), Encoder()
    written = encoder.encode([*REQUEST, ("x-a", "b" * 3_000)], huffman=False)
    with pytest.raises(HeadersTooLongError):
        decoder.decode(written + b"\xbe" * 10)
    assert decoder.decode(encoder.encode([*REQUEST, ("x-a", "b" * 3_000)])).get("x-a") == "b" * 3_000
    with pytest.raises(CompressionError):
        decoder.decode(encoder.encode(REQUEST) + b"\xbe" * 1_000)


def test_the_fields_that_are_kept_have_a_bound() -> None:
    kept: dict[bytes, Field] = {}
    decoder = FieldDecoder(kept)
    decoder.disable_table()
    for number in range(KEPT_FIELDS_MAX + 100):
        decoder.decode(block(("x-new", str(number))))
    assert 0 < len(kept) <= KEPT_FIELDS_MAX
    decoder.decode(block(("x-long", "b" * 600)))
    assert not any(one.name == "x-long" for one in kept.values())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(wrong: bytes) -> None:
    for decoder in (FieldDecoder({}), acknowledged()):
        for _ in range(2):
            with suppress(CompressionError, MalformedRequestError, HeadersTooLongError):
                decoder.decode(wrong).all()
