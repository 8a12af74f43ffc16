"""Small files with secrets: the key of the users' secrets, the HTTP token; and how such files are written.

Either is made on first use, for its owner's eyes only (mode 0600), and made durable before it is used: a key
that a power cut takes away again would leave secrets that nobody can open.

The key lies in the store unless its owner says otherwise: beside the store it would be in the middle of what
a repository commits. In the store it has a `.gitignore` beside it, and no snapshot, dump or export takes it
along, but for a snapshot that is asked to.

A file is written under another name that nobody can have put there as a link (O_EXCL), and renamed: a link in
its place is replaced, never followed.
"""

from __future__ import annotations

import os
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Final

from commitlog.disk import FOLDER_MODE
from services.auth.errors import WrongKey
from services.auth.vault import KEY_BYTES
from tidewheel.errors import ConfigurationError

TOKEN_BYTES: Final = 32
OWNER_ONLY, GROUP_READS, EVERYBODY_READS = 0o600, 0o640, 0o644
KEY_FILE, IGNORED = "users.key", ".gitignore"

_TOKEN: Final = re.compile(r"[!-~]{16,512}")


def key_of(store: Path) -> Path:
    """Return where the key of a store lies unless its owner names another file."""
    return store / KEY_FILE


def auth_key(path: Path, may_make: bool) -> bytes:
    """Return the key in a file, made if there is none and it may be; raises `ConfigurationError`."""
    if not may_make and not path.exists():
        raise WrongKey(f"{path} is missing. Put it back, or give the file with --auth-key.")
    if not path.exists() and path.name == KEY_FILE:
        keep_from_repositories(path.parent)
    text = content_of(path, lambda: b64encode(secrets.token_bytes(KEY_BYTES)).decode(), "--auth-key")
    try:
        key = b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise WrongKey(f"{path} does not hold {KEY_BYTES} bytes in base64. Give the file with --auth-key.")
    return key


def http_token(path: Path) -> str:
    """Return the token in a file, made if there is none; raises `ConfigurationError`."""
    text = content_of(path, lambda: secrets.token_urlsafe(TOKEN_BYTES), "--http-token")
    if not _TOKEN.fullmatch(text):
        raise ConfigurationError(
            f"--http-token is {str(path)!r}: it must hold one word of 16 to 512 characters."
        )
    return text


def content_of(path: Path, make: Callable[[], str], flag: str) -> str:
    """Return what is in a file; made first if there is none. Raises `ConfigurationError` naming the flag."""
    try:
        if not path.exists():
            write_for_owner(path, make() + "\n")
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{flag} is {str(path)!r}: {error}. Name a file that this user can read."
        ) from error


def keep_from_repositories(folder: Path) -> None:
    """Have git leave a folder alone, whatever repository it is in; raises `ConfigurationError`."""
    content_of(folder / IGNORED, lambda: "*", "--store")


def write_for_owner(path: Path, text: str, mode: int = OWNER_ONLY) -> None:
    """Write a small file whole and durable, or leave the one before; `mode` says who may read it."""
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    write_whole(path, text, mode, is_durable=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_whole(path: Path, text: str, mode: int, *, is_durable: bool = False) -> None:
    """Write a small file so that a reader sees all of it or the one before, and never through a link."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    # What is there is of a process with our number that died, or somebody's link: it goes, not its target.
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "w") as file:
        file.write(text)
        file.flush()
        if is_durable:
            os.fsync(file.fileno())
    fresh.replace(path)
