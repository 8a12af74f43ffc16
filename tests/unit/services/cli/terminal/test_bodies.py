"""A body on the command line: text, a file, or stdin."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace

import pytest

from commitlog import limits
from services.cli.terminal.bodies import body_fields, body_text
from services.settings.errors import InputUnreadable
from tidewheel.errors import BodyTooLarge


@pytest.mark.parametrize(("said", "meant"), [("text", "text"), ("", ""), ("@@home", "@home"), ("--", "--")])
def test_text_is_the_body(said: str, meant: str) -> None:
    assert body_text(said) == meant


def test_a_file_or_stdin_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "body.json"
    file.write_bytes('{"köy": 1}\r\n'.encode())
    assert body_text(f"@{file}") == '{"köy": 1}\r\n'
    for said in ("-", "@-"):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"piped\n")))
        assert body_text(said) == "piped\n"


def test_a_long_body_goes_out_in_base64() -> None:
    assert body_fields("x") == {"body": "x"}
    long = "\x01" * limits.BODY_BYTES_MAX
    sent = body_fields(long)
    assert b64decode(sent["body_base64"]).decode() == long
    assert len(json.dumps(sent)) < limits.HTTP_MESSAGES_BYTES_MAX


def test_other_bytes_are_sent_with_curl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a scan.pdf"
    file.write_bytes(b"ok\xff")
    sent = "curl -H content-type:application/octet-stream --data-binary {} http://HOST:PORT/api/topics/TOPIC/"
    with pytest.raises(InputUnreadable) as refused:
        body_fields(f"@{file}")
    assert sent.format(f"'@{file}'") in str(refused.value)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"ok\xff")))
    with pytest.raises(InputUnreadable) as refused:
        body_fields("-")
    assert sent.format("@-") in str(refused.value)
    with pytest.raises(InputUnreadable) as refused:  # of a schedule
        body_text(f"@{file}")
    assert "curl" not in str(refused.value)


def test_what_cannot_be_a_body_is_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"ok\xff")
    (tmp_path / "large").write_bytes(b"x" * (limits.BODY_BYTES_MAX + 1))
    for name, error, said in (
        ("none", InputUnreadable, "No such file.*written @@"),
        (".", InputUnreadable, "directory"),
        ("binary", InputUnreadable, r"no UTF-8 text \(byte 2\)"),
        ("large", BodyTooLarge, "longer than 4194304 bytes"),
    ):
        with pytest.raises(error, match=said):
            body_text(f"@{tmp_path / name}")
    with pytest.raises(BodyTooLarge, match="longer than 65536 bytes"):  # of a schedule
        body_text(f"@{tmp_path / 'large'}", limits.SCHEDULE_BODY_BYTES_MAX)
