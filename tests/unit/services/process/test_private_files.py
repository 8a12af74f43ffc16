"""Keys and tokens are made once, for their owner's eyes, and a file that holds neither is refused."""

from __future__ import annotations

import subprocess
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from services.auth.errors import WrongKey
from services.auth.vault import KEY_BYTES
from services.process.private_files import auth_key, http_token, key_of
from tidewheel.errors import ConfigurationError


@pytest.mark.parametrize("read", [partial(auth_key, may_make=True), http_token], ids=["key", "token"])
def test_a_file_is_made_once_and_only_its_owner_reads_it(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "new" / "file"
    made = read(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["file"]
    assert read(path) == made
    assert read(tmp_path / "other") != made


def test_a_key_that_is_needed_but_missing_is_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(WrongKey, match=r"users\.key is missing\. Put it back"):
        auth_key(key_of(tmp_path / "store"), may_make=False)
    assert not list(tmp_path.iterdir())


def test_no_repository_commits_a_key_that_is_made_in_a_store_within_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    store = tmp_path / "tidewheel-store"
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / "0").write_text("log")
    auth_key(key_of(store), may_make=True)
    assert [one.name for one in tmp_path.iterdir() if one.name != ".git"] == ["tidewheel-store"]
    subprocess.run(["git", "-C", tmp_path, "add", "--all"], check=True)
    listed = subprocess.run(["git", "-C", tmp_path, "ls-files"], check=True, capture_output=True, text=True)
    assert listed.stdout == ""


def test_a_file_that_holds_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"", b"short", b64encode(bytes(KEY_BYTES - 1))):
        path.write_bytes(content)
        with pytest.raises(WrongKey, match="--auth-key"):
            auth_key(path, may_make=True)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="--auth-key is"):
        auth_key(path, may_make=True)
    with pytest.raises(ConfigurationError, match="--auth-key is"):
        auth_key(tmp_path, may_make=True)


@pytest.mark.parametrize("content", ["", "short", "two words that are long", "ümlauts-are-not-for-headers"])
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="--http-token is"):
        http_token(path)
