"""The beginning of a command with curl, as hints show it."""

from __future__ import annotations

from typing import Final

_TOKEN: Final = '-H "Authorization: Bearer $(cat "$TIDEWHEEL_HTTP_TOKEN")"'


def curl(is_asked: bool) -> str:
    """Return curl with the token in the file TIDEWHEEL_HTTP_TOKEN, as for commands, if HTTP requires one."""
    return f"curl {_TOKEN}" if is_asked else "curl"
