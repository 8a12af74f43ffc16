"""Text that a stranger may have written, as one line of a terminal or a log.

Bodies, keys, properties and client ids may hold escape sequences, which move the cursor or set the title,
line breaks, which forge a line, and marks that reverse what follows. Each such character is written as Python
writes it in a string: \\n, \\x1b, \\u202e. Blanks of all scripts, letters and signs stay.
"""

from __future__ import annotations

import unicodedata


def one_line(text: str) -> str:
    """Return text in which what is not printable is written out."""
    if text.isprintable():
        return text
    return "".join(letter if _is_shown(letter) else written_out(letter) for letter in text)


def written_out(letter: str) -> str:
    """Return a character as Python writes it: \\n, \\x1b, \\u202e."""
    return letter.encode("unicode_escape").decode("ascii")


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"
