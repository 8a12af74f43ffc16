"""Tests that each read of a password file returns the first line of its current content."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedlog.errors import SessionRefused
from sharedlog.password_file import PasswordFile


@pytest.mark.parametrize(
    ("held", "password"),
    [(b"one", "one"), (b"one\n", "one"), (b"one\r\n", "one"), (b" a b \nc", " a b "), (b"\xc3\xa4", "ä")],
)
def test_the_first_line_is_the_password(tmp_path: Path, held: bytes, password: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(held)
    assert PasswordFile(str(file)).read() == password


@pytest.mark.parametrize(
    ("held", "said"),
    [(None, "No such file"), (b"", "no password in its first"), (b"\nx", "no password"), (b"\xff", "UTF-8")],
)
def test_where_there_is_none_that_is_said(tmp_path: Path, held: bytes | None, said: str) -> None:
    file = tmp_path / "password"
    if held is not None:
        file.write_bytes(held)
    with pytest.raises(SessionRefused, match=said):
        PasswordFile(str(file)).read()
