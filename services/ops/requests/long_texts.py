"""A JSON parser that reads long texts in pieces, so that no body blocks the event loop for long.

The standard parser reads a body in a single call, which holds the interpreter lock. For 6 MiB of escapes and
characters of 4 bytes, this call takes 17 to 30 ms. Therefore, long texts with such characters are removed
from the body, decoded separately in pieces, and inserted again:

    {"topic":"t","body":"...MiB..."}  -->  {"topic":"t","body":"MARK:0"}  -->  parsed, and the mark replaced

Texts of plain ASCII remain in the body, because 6 MiB of ASCII take only 1 ms. Cost: for bodies with a long
text, a search for the quotes of the text, and a check of each value. Limitation: short texts are parsed in a
single call, which takes 14 ms for 6 MiB.
"""

from __future__ import annotations

import asyncio
import re
from secrets import token_hex
from typing import Any, Final

from pydantic_core import from_json

from services.live.pauses import Pauses

LONG_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = 128 * 1024
_POSITION: Final = re.compile(r" at line \d+ column \d+$")
_UNICODE_BYTES: Final = 6
"""Of an escape such as \\u00e9."""
_CHARACTER_BYTES: Final = 4

Place = tuple[int, int]
"""A text within a body: its first byte behind the quote, and the quote at its end."""


async def read_json(body: bytes) -> Any:
    """Return the value of a JSON body. Raise ValueError, without a position if the body has long texts."""
    pauses = Pauses()
    places = await _long_texts(body, pauses) if await _may_have_long_texts(body, pauses) else []
    if len(body) > LONG_BYTES:
        await asyncio.sleep(0)
    if not places:
        return _read(body)
    mark = token_hex(16)
    try:
        said = [_read(_marked(body, places, mark))]
        texts = {f"{mark}:{number}": await _text(body, place, pauses) for number, place in enumerate(places)}
    except ValueError as error:
        raise ValueError(_POSITION.sub("", str(error))) from None
    await _put_back(said, texts, pauses)
    return said[0]


def _read(body: bytes) -> Any:
    return from_json(body, allow_inf_nan=False)


async def _may_have_long_texts(body: bytes, pauses: Pauses) -> bool:
    """Return whether the body may contain half of a long text, which is a block with only escaped quotes."""
    block = LONG_BYTES // 2
    for at in range(0, len(body) - block + 1, block):
        if body.count(b'"', at, at + block) <= body.count(b'\\"', max(0, at - 1), at + block):
            return True
        await pauses.pause()
    return False


async def _long_texts(body: bytes, pauses: Pauses) -> list[Place]:
    """Return the long texts of a body that are not plain ASCII, in order."""
    found, at = list[Place](), body.find(b'"') + 1
    while at:
        end = await end_of_text(body, at, pauses)
        if end - at >= LONG_BYTES and end < len(body) and not _is_plain(body[at:end]):
            found.append((at, end))
        at = body.find(b'"', end + 1) + 1
        await pauses.pause()
    return found


async def end_of_text(body: bytes, at: int, pauses: Pauses) -> int:
    """Return the position of the quote that ends the text at a position, or else the end of the body."""
    while (quote := body.find(b'"', at)) >= 0:
        if not _is_escaped(body, at, quote):
            return quote
        at = quote + 1
        await pauses.pause()
    return len(body)


def _is_escaped(body: bytes, begin: int, at: int) -> bool:
    """Return whether the number of backslashes before a position and after `begin` is odd."""
    before = body[begin:at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _is_plain(text: bytes) -> bool:
    return text.isascii() and b"\\" not in text


def _marked(body: bytes, places: list[Place], mark: str) -> bytes:
    """Return a body in which marks replace the long texts."""
    parts, behind = list[bytes](), 0
    for number, (begin, end) in enumerate(places):
        parts += body[behind:begin], f"{mark}:{number}".encode()
        behind = end
    return b"".join([*parts, body[behind:]])


async def _text(body: bytes, place: Place, pauses: Pauses) -> str:
    """Return a text, which is decoded in pieces. Raise ValueError for an invalid text."""
    at, last = place
    pieces = list[str]()
    while at < last:
        end = _cut(body, at, min(at + PIECE_BYTES, last)) if at + PIECE_BYTES < last else last
        pieces.append(_read(b'"%b"' % body[at:end]))
        at = end
        await pauses.pause()
    return "".join(pieces)


def _cut(body: bytes, begin: int, end: int) -> int:
    """Return a position at or shortly before `end` that is not inside a character or an escape."""
    for _ in range(_CHARACTER_BYTES):
        if body[end] & 0xC0 == 0x80:  # a UTF-8 continuation byte
            end -= 1
    if _is_escaped(body, begin, end):
        end -= 1
    for back in range(2, _UNICODE_BYTES):
        if body[end - back : end - back + 2] == b"\\u" and not _is_escaped(body, begin, end - back):
            end -= back
            break
    last = body[max(begin, end - _UNICODE_BYTES) : end].lower()
    is_half = last[:3] == b"\\ud" and last[3:4] in (b"8", b"9", b"a", b"b")
    if is_half and not _is_escaped(body, begin, end - _UNICODE_BYTES):
        end -= _UNICODE_BYTES  # the first surrogate of a character of 4 bytes
    return end


async def _put_back(said: list[Any], texts: dict[str, str], pauses: Pauses) -> None:
    """Replace the marks in the parsed value, including marks in names."""
    todo: list[Any] = [said]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            if not texts.keys().isdisjoint(one):
                items = [(texts.get(name, name), value) for name, value in one.items()]
                one.clear()
                one.update(items)
            pairs: list[tuple[Any, Any]] = list(one.items())
        else:
            pairs = list(enumerate(one))
        for place, value in pairs:
            if isinstance(value, str):
                if value in texts:
                    one[place] = texts[value]
            elif isinstance(value, dict | list):
                todo.append(value)
        await pauses.pause()
