"""Access tokens of users for the HTTP interface: their text, and the part that is stored.

    tw_3f9a61c07b52_kJ2...         text: shown once, sent as `Authorization: Bearer TEXT`
       ------------ id             12 hex digits: names the token in lists and to `revoke`
                    --- secret     32 random bytes in base64url, 43 characters

The SHA-256 digest of the text is stored. The secret is random, so neither a salt nor a slow hash would
increase security: 2**256 values cannot be tried. A token has exactly the rights of its user, until it is
revoked, expires, or its user is removed.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

ID_BYTES: Final = 6
SECRET_BYTES: Final = 32
_ID: Final = "[0-9a-f]{12}"
_TEXT: Final = re.compile(rf"tw_({_ID})_[A-Za-z0-9_-]{{43}}")
_BEGINNING: Final = re.compile(rf"tw_({_ID})_[A-Za-z0-9_-]{{16}}")
"""Matches the beginning of a token. The name of a topic may look like the first part."""


@dataclass(frozen=True, slots=True)
class Token:
    """An access token of a user. `made_ms` and `expires_ms` are in the broker's time.

    If `expires_ms` is None, the token does not expire.
    """

    id: str
    user: str
    digest: str
    made_ms: int
    expires_ms: int | None

    def has_expired(self, at_ms: int) -> bool:
        """Return whether the token has expired at a given time."""
        return self.expires_ms is not None and at_ms >= self.expires_ms


def text_of(random: bytes) -> str:
    """Return the text of a new token from `ID_BYTES + SECRET_BYTES` random bytes of the operating system."""
    assert len(random) == ID_BYTES + SECRET_BYTES, "a token is of other bytes"
    secret = urlsafe_b64encode(random[ID_BYTES:]).rstrip(b"=").decode()
    return f"tw_{random[:ID_BYTES].hex()}_{secret}"


def id_of(text: str) -> str:
    """Return the id of a complete token text, or an empty string for other texts."""
    found = _TEXT.fullmatch(text)
    return found[1] if found else ""


def id_within(text: str) -> str:
    """Return the id of a token that occurs in a text such as a URL, even if it is truncated, or an empty
    string.
    """
    found = _BEGINNING.search(text)
    return found[1] if found else ""


def digest_of(text: str) -> str:
    """Return the digest of a token's text."""
    return sha256(text.encode()).hexdigest()
