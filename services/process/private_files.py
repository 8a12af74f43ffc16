"""Small files with secrets: the encryption key for user secrets, and the HTTP token.

Both are created on first use with mode 0600, and made durable before use. If a key were lost in a power
failure, the secrets encrypted with it could not be decrypted.

By default, the key is in the store, because a file next to the store could be committed to a repository by
mistake. The store contains a `.gitignore` for it, and snapshots, dumps and exports do not include it, unless
a snapshot is requested with the key.

A file is created under a temporary name with O_EXCL and then renamed, so that an existing link is replaced
and never followed.
"""

from __future__ import annotations

import os
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Final

from commitlog.disk.disk import FOLDER_MODE
from services.auth.errors import WrongKey
from services.auth.vault import KEY_BYTES
from tidewheel.errors import ConfigurationError

TOKEN_BYTES: Final = 32
OWNER_ONLY, GROUP_READS, EVERYBODY_READS = 0o600, 0o640, 0o644
KEY_FILE, IGNORED = "users.key", ".gitignore"

_TOKEN: Final = re.compile(r"[!-~]{16,512}")


def key_of(store: Path) -> Path:
    """Return the default path of the key of a store."""
    return store / KEY_FILE


def auth_key(path: Path, may_make: bool) -> bytes:
    """Return the key in a file, and create it if `may_make` is set. Raises `ConfigurationError`."""
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
    """Return the token in a file, and create it if the file is missing. Raises `ConfigurationError`."""
    text = content_of(path, lambda: secrets.token_urlsafe(TOKEN_BYTES), "--http-token")
    if not _TOKEN.fullmatch(text):
        raise ConfigurationError(
            f"--http-token is {str(path)!r}: it must hold one word of 16 to 512 characters."
        )
    return text


def content_of(path: Path, make: Callable[[], str], flag: str) -> str:
    """Return the content of a file, and create it if it is missing. `ConfigurationError` names the option."""
    try:
        if not path.exists():
            write_for_owner(path, make() + "\n")
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{flag} is {str(path)!r}: {error}. Name a file that this user can read."
        ) from error


def keep_from_repositories(folder: Path) -> None:
    """Create a `.gitignore` that excludes a folder from git repositories. Raises `ConfigurationError`."""
    content_of(folder / IGNORED, lambda: "*", "--store")


def write_for_owner(path: Path, text: str, mode: int = OWNER_ONLY) -> None:
    """Write a small file atomically and durably. `mode` sets its permissions."""
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    write_whole(path, text, mode, is_durable=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_whole(path: Path, text: str, mode: int, *, is_durable: bool = False) -> None:
    """Write a small file atomically, without following links."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    # A leftover of a crashed process with the same id, or a link. Only the link itself is removed.
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "w") as file:
        file.write(text)
        file.flush()
        if is_durable:
            os.fsync(file.fileno())
    fresh.replace(path)
