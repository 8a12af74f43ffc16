"""Bodies of messages: text, bytes, and how much of them."""

from __future__ import annotations

import base64

from services.console import bodies
from services.console.bodies import body_text, shown


def test_a_text_keeps_its_lines_and_loses_its_tricks() -> None:
    assert body_text({"body": "a\nb\x1b[2J\u202ec"}) == "a\nb\\x1b[2J\\u202ec"
    assert body_text({"body": ""}) == ""
    assert body_text({"body": "x" * (bodies.CHARACTERS_MAX + 7)}).endswith("x\n… and 7 more characters")


def test_bytes_are_rows_of_hexadecimal() -> None:
    body = bytes(range(256)) * 3
    rows = body_text({"body_base64": base64.b64encode(body).decode()}).split("\n")
    assert rows[0] == "00000000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  ................"
    assert rows[4].endswith("  @ABCDEFGHIJKLMNO")
    assert rows[-1] == "… and 256 more bytes"


def test_a_content_keeps_everything_but_the_body() -> None:
    assert shown({"topic": "t", "body": "b"}) == {"topic": "t", "text": "b", "is_binary": False}
    assert shown({"body_base64": "AA=="})["is_binary"]
