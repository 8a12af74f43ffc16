"""Bodies: the bytes in a request are those that the application gave."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.client.bodies import (
    CONTENT_TYPE,
    JSON_TYPE,
    TEXT_BYTES_MAX,
    body_fields,
    body_of,
    json_of,
    text_of,
)
from tidewheel.errors import ClientMistake

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
JSON = st.recursive(
    st.dictionaries(TEXTS, PLAIN), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8
)


@given(TEXTS)
def test_a_text_comes_back_through_the_json_of_a_request(text: str) -> None:
    fields, marks = body_fields(text)
    assert body_of(json.loads(json.dumps(fields))) == text.encode()
    assert marks == {}


@given(st.binary())
def test_bytes_come_back(body: bytes) -> None:
    for form in (body, bytearray(body), memoryview(body)):
        fields, marks = body_fields(form)
        assert body_of(json.loads(json.dumps(fields))) == body
        assert marks == {}


@given(JSON)
def test_json_comes_back_and_says_that_it_is(value: Any) -> None:
    fields, marks = body_fields(value)
    assert json_of(body_of(fields), None) == value
    assert marks == {CONTENT_TYPE: JSON_TYPE}


def test_bytes_that_are_no_text_are_one_error() -> None:
    assert text_of("ü".encode()) == "ü"
    with pytest.raises(ClientMistake, match="no text in UTF-8"):
        text_of(b"\xff")


def test_a_long_text_does_not_grow_by_its_escapes() -> None:
    fields, _ = body_fields("\x00" * (TEXT_BYTES_MAX + 1))
    assert len(json.dumps(fields)) < 1.4 * TEXT_BYTES_MAX


@pytest.mark.parametrize(
    "body",
    [None, {"at": datetime(2026, 1, 1)}, float("nan"), {1, 2}, object(), "\ud800", {"a": "\ud800"}],
)
def test_what_is_no_body_is_one_error(body: Any) -> None:
    with pytest.raises(ClientMistake) as refused:
        body_fields(body)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_json_is_fitted_to_any_type_that_pydantic_knows() -> None:
    assert json_of(b"[1, 2]", list[int]) == [1, 2]
    with pytest.raises(ClientMistake, match=r"no list.*: 0: Input should be a valid integer"):
        json_of(b'["a"]', list[int])


def test_json_that_nests_too_deep_is_one_error() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ClientMistake, match="no JSON"):
        body_fields(value)
    with pytest.raises(ClientMistake, match="no JSON"):
        json_of(b"[" * 200_000, None)
