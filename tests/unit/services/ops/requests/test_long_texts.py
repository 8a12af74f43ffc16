"""JSON with long texts says in pieces what it says in one go."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from services.live import pauses
from services.ops.requests import long_texts
from services.ops.requests.long_texts import read_json

GOOD_PARTS = b"a", b"\\n", b"\\\\", b'\\"', b"\\u00e9", b"\\\\u00e9", b"\\ud83d\\ude00", "é😀".encode()
BAD_PARTS = b"\\ud83d", b"\\ude00", b"\\", b"\\u12", b"\xff", b"\xf0\x9f", b"\x00"
PARTS = st.sampled_from([*GOOD_PARTS, *GOOD_PARTS, b"\\uD83D\\uDE00", b"ud8", b"\\\\ud83d", *BAD_PARTS])
TEXT = st.lists(PARTS, max_size=40).map(b"".join)
GOOD = st.text(min_size=20, max_size=120)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | GOOD,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9) | GOOD, inner),
    max_leaves=20,
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "LONG_BYTES", 20)
    monkeypatch.setattr(long_texts, "PIECE_BYTES", 16)


def in_one_go(body: bytes) -> Any:
    """Return what a body says, or that it says nothing."""
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        return ValueError


def in_pieces(body: bytes) -> Any:
    """Return the same, read in pieces."""
    try:
        return asyncio.run(read_json(body))
    except ValueError:
        return ValueError


@given(TEXT, TEXT)
def test_a_text_and_a_name_of_anything(name: bytes, text: bytes) -> None:
    for body in (b'"%b"' % text, b'{"a":1,"%b":["%b",{"b":"%b"}],"c":"c"}' % (name, text, text)):
        assert in_pieces(body) == in_one_go(body)


@given(VALUE, st.booleans())
def test_values_of_any_shape(value: Any, is_ascii: bool) -> None:
    try:
        body = json.dumps(value, ensure_ascii=is_ascii).encode()
    except UnicodeEncodeError:
        return
    assert in_pieces(body) == in_one_go(body)
    assert json.dumps(in_pieces(body)) == json.dumps(in_one_go(body)), "in the same order"


@given(st.binary(max_size=60))
def test_bytes_that_are_no_json(body: bytes) -> None:
    assert in_pieces(body) == in_one_go(body)
    assert in_pieces(b'{"' + body) == in_one_go(b'{"' + body)


def test_an_error_tells_no_place_in_what_was_made_of_the_body() -> None:
    long = '"' + "é" * 20 + '"'
    with pytest.raises(ValueError, match=r"^expected value$"):
        asyncio.run(read_json(f"[{long},x]".encode()))
    with pytest.raises(ValueError, match="at line 1 column 2"):
        asyncio.run(read_json(b"[x]"))


def test_others_have_their_turn_while_a_long_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(pauses, "SLICE_SECONDS", 0.0)
    text = "\n😀" * 500_000

    async def scenario() -> int:
        turns, reading = 0, asyncio.ensure_future(read_json(json.dumps([text]).encode()))
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
        assert reading.result() == [text]
        return turns

    assert asyncio.run(scenario()) > 50
