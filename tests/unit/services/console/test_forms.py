"""What the form of a message says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.console.forms import (
    body_fields,
    body_of,
    is_typed,
    lines_of,
    pairs_of,
    pairs_text,
    seen_in,
    unfit,
)
from services.console.page import Asked
from tidewheel.errors import ClientMistake


def test_a_body_keeps_its_blanks_and_its_line_breaks_are_those_of_logs() -> None:
    assert body_of(Asked({"body": "  a\r\nb \r\n"})) == {"body": "  a\nb \n"}
    assert body_of(Asked({"body": " AAE= ", "encoding": "base64"})) == {"body_base64": "AAE="}
    with pytest.raises(ClientMistake, match="no base64"):
        body_of(Asked({"body": "A", "encoding": "base64"}))


def test_what_a_form_would_change_is_no_typed_text() -> None:
    assert is_typed("שלום 🙂\n\t<b>")
    assert not any(map(is_typed, ("a\rb", "\0", "\x1b[2J", "\u202e")))


def test_what_a_form_showed_is_an_object_of_few_levels() -> None:
    assert seen_in(Asked({"seen": '{"orders": {"0": "7"}}'}), "seen") == {"orders": {"0": "7"}}
    for depth in (10, 900, 3_000, 100_000):
        for nested in ('{"a":' * depth + "1" + "}" * depth, "[" * depth, '{"a":' + "[" * depth):
            with pytest.raises(ClientMistake, match="Open the form again"):
                seen_in(Asked({"seen": nested}), "seen")


def test_properties_are_one_a_line() -> None:
    assert pairs_of(" a = b=c \r\n\r\nd=") == {"a": " b=c ", "d": ""}
    for wrong in ("a", "=b", " =b"):
        with pytest.raises(ClientMistake, match="NAME=VALUE"):
            pairs_of(wrong)


def test_a_body_is_in_its_form_as_it_is_carried_unchanged() -> None:
    assert body_fields({"body": "a"}) == {"body": "a", "encoding": "text", "is_long": False}
    assert body_fields({"body": "\0"}) == {"body": "AA==", "encoding": "base64", "is_long": False}
    assert body_fields({"body_base64": "AA=="})["encoding"] == "base64"
    assert body_fields({"body": "x" * 70_000}) == {"body": "", "encoding": "text", "is_long": True}


def test_lines_end_with_line_breaks_only_and_keep_their_blanks() -> None:
    assert lines_of(" a \r\n \r\np  q\u2028r\n\x85b") == [" a ", "p  q\u2028r", "\x85b"]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({}, ""),
        ({"keys": [" a ", "b\u2028c"], "tag": " t ", "properties": {"a": " v=w ", "b c": ""}}, ""),
        ({"tag": "a\rb"}, "tag 'a"),
        ({"lite_topic": "a\nb"}, "lite topic 'a"),
        ({"keys": ["a", "b\0"]}, "key 'b"),
        ({"message_group": " "}, "message group ' ' is blank"),
        ({"properties": {"a": "b\nc"}}, "property 'a=b"),
        ({"properties": {"n=1": "w"}}, "'n=1' has an equals sign in its name"),
        ({"properties": {" n": "w"}}, "' n' has"),
    ],
)
def test_what_a_form_would_change_is_unfit(message: dict[str, Any], why: str) -> None:
    said = unfit({"keys": [], "properties": {}} | message)
    assert said.startswith("its ") == bool(why)
    assert why in said


TEXTS = st.text(st.sampled_from("ab =\t\n\r\u2028\u00a0\x85ש"), max_size=4)


@given(st.lists(TEXTS), st.dictionaries(TEXTS.filter(bool), TEXTS))
def test_what_is_fit_comes_back_as_it_was(keys: list[str], properties: dict[str, str]) -> None:
    found = {"keys": [key for key in keys if key], "properties": properties}
    if not unfit(found):
        sent = "\n".join(found["keys"]).replace("\n", "\r\n")
        assert lines_of(sent) == found["keys"]
        assert pairs_of(pairs_text(properties).replace("\n", "\r\n")) == properties
