"""What strangers wrote, as pages show it."""

from __future__ import annotations

from services.console import words


def test_a_line_is_one_line_and_has_a_length() -> None:
    assert words.line("a\nb\x1b[2J\u202ec") == "a\\nb\\x1b[2J\\u202ec"
    assert words.line("x" * 300, 10) == "x" * 10 + " … and 290 more characters"
    assert words.line("שלום 🙂") == "שלום 🙂"
    assert words.line(7) == "7"


def test_moments_that_are_not_known_are_said_to_be_so() -> None:
    assert words.moment(None) == words.moment_exactly(None) == words.number(None) == "not known"
    assert words.iso("0") == "1970-01-01T00:00:00.000+00:00"
    assert words.number(1234567) == "1,234,567"
