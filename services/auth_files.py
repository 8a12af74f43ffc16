"""The small files that hold what must not be in the store: the key of the users' secrets, the HTTP token.

Either is made on first use, for its owner's eyes only (mode 0600), and made durable before it is used: a key
that a power cut takes away again would leave secrets that nobody can open.
"""

from __future__ import annotations

import os
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Final

from commitlog.errors import ConfigurationError, WrongKey
from services.auth.vault import KEY_BYTES

TOKEN_BYTES: Final = 32
OWNER_ONLY: Final = 0o600
_TOKEN: Final = re.compile(r"[!-~]{16,512}")


def key_beside(store: Path) -> Path:
    """Return where the key of a store lies unless somebody says otherwise."""
    whole = store.absolute()
    return whole.with_name(f"{whole.name}.key")


def auth_key(path: Path, may_make: bool) -> bytes:
    """Return the key in a file, made if there is none and it may be; raises `ConfigurationError`."""
    if not may_make and not path.exists():
        raise WrongKey(f"{path} is missing. Put it back, or give the file with --auth-key.")
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


def write_for_owner(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole and durable, or leave none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
