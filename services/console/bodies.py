"""Display of message bodies: text with nonprintable characters escaped, and other bytes in hexadecimal.

Cost: at most `CHARACTERS_MAX` characters or `BYTES_MAX` bytes are shown, regardless of the body size.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from tidewheel.printable import one_line

CHARACTERS_MAX: Final = 8_192
BYTES_MAX: Final = 512
ROW_BYTES: Final = 16


def body_text(content: dict[str, Any]) -> str:
    """Return the body of a message in an HTTP response as lines of text."""
    if "body_base64" in content:
        return hexadecimal(base64.b64decode(content["body_base64"]))
    text: str = content.get("body") or ""
    more = len(text) - CHARACTERS_MAX
    lines = "\n".join(one_line(row) for row in text[:CHARACTERS_MAX].split("\n"))
    return lines + (f"\n… and {more:,} more characters" if more > 0 else "")


def hexadecimal(body: bytes) -> str:
    """Return the first bytes of a body as rows of offset, hexadecimal bytes and ASCII characters."""
    rows = []
    for first in range(0, min(len(body), BYTES_MAX), ROW_BYTES):
        part = body[first : first + ROW_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append(f"{first:08x}  {part.hex(' '):<47}  {letters}")
    more = len(body) - BYTES_MAX
    return "\n".join(rows) + (f"\n… and {more:,} more bytes" if more > 0 else "")


def shown(content: dict[str, Any]) -> dict[str, Any]:
    """Return a message from an HTTP response with the truncated body in `text`."""
    rest = {name: value for name, value in content.items() if name not in ("body", "body_base64")}
    return rest | {"text": body_text(content), "is_binary": "body_base64" in content}
