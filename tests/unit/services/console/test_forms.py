"""What the form of a message says."""

from __future__ import annotations

import pytest

from services.console.forms import body_fields, body_of, is_typed, pairs_of
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


def test_properties_are_one_a_line() -> None:
    assert pairs_of(" a = b=c \r\n\r\nd=") == {"a": " b=c", "d": ""}
    for wrong in ("a", "=b"):
        with pytest.raises(ClientMistake, match="NAME=VALUE"):
            pairs_of(wrong)


def test_a_body_is_in_its_form_as_it_is_carried_unchanged() -> None:
    assert body_fields({"body": "a"}) == {"body": "a", "encoding": "text", "is_long": False}
    assert body_fields({"body": "\0"}) == {"body": "AA==", "encoding": "base64", "is_long": False}
    assert body_fields({"body_base64": "AA=="})["encoding"] == "base64"
    assert body_fields({"body": "x" * 70_000}) == {"body": "", "encoding": "text", "is_long": True}
