"""The caller of a journal entry, as a word for people."""

from __future__ import annotations

from typing import Any, Final

NO_SIGN_IN: Final = "no sign-in"
"""The user where the interface requires no token, so that no user is recorded."""
BROKER: Final = "the broker"


def user_of(entry: dict[str, Any]) -> str:
    """Return the user of a journal entry. An entry without an address was made by the broker itself."""
    return entry["user"] or (NO_SIGN_IN if entry["host"] else BROKER)
