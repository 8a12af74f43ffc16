"""Text for people: untrusted text escaped for one line of a terminal or a log, and times in UTC.

Message bodies, keys, properties and client ids may contain escape sequences that control the terminal, line
breaks that forge a line, and marks that reverse the text direction. Each such character is replaced by its
Python escape sequence: \\n, \\x1b, \\u202e. Letters, symbols and blanks of all scripts are not changed.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def one_line(text: str) -> str:
    """Return the text with nonprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(letter if _is_shown(letter) else written_out(letter) for letter in text)


def written_out(letter: str) -> str:
    """Return a character as a Python escape sequence: \\n, \\x1b, \\u202e."""
    return letter.encode("unicode_escape").decode("ascii")


def utc(time_ms: int) -> str:
    """Return a time in milliseconds since 1970 as 2026-11-22T01:00:00.000Z.

    A time before the year 1 or after 9999 is returned in milliseconds.
    """
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms since 1970"
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"
