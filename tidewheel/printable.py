"""Escaping of untrusted text for output on one line of a terminal or a log.

Message bodies, keys, properties and client ids may contain escape sequences that control the terminal, line
breaks that forge a line, and marks that reverse the text direction. Each such character is replaced by its
Python escape sequence: \\n, \\x1b, \\u202e. Letters, symbols and blanks of all scripts are not changed.
"""

from __future__ import annotations

import unicodedata


def one_line(text: str) -> str:
    """Return the text with nonprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(letter if _is_shown(letter) else written_out(letter) for letter in text)


def written_out(letter: str) -> str:
    """Return a character as a Python escape sequence: \\n, \\x1b, \\u202e."""
    return letter.encode("unicode_escape").decode("ascii")


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"
