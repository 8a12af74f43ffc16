"""JSON with long texts, read in pieces: no body holds the loop for long.

The parser reads a body in one call, which holds the interpreter: of 6 MiB of escapes and characters of 4
bytes for 17 to 30 ms. So a long text of them is cut out, read apart, a piece at a time, and put back:

    {"topic":"t","body":"...MiB..."}  -->  {"topic":"t","body":"MARK:0"}  -->  read, and the mark replaced

A text of plain ASCII stays where it is: 6 MiB of it take 1 ms. Cost, of bodies with a long text: a search for
each of their quotes, and a look at each value. Weak spot: short texts are read in one go, 6 MiB for 14 ms.
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
    """Return what a body in JSON says; raise ValueError, without a position if there are long texts."""
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
    """Return whether a half of a long text could be somewhere: a block whose quotes are all escaped."""
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
    """Return the place of the quote that ends a text whose first character is there; else the body's end."""
    while (quote := body.find(b'"', at)) >= 0:
        if not _is_escaped(body, at, quote):
            return quote
        at = quote + 1
        await pauses.pause()
    return len(body)


def _is_escaped(body: bytes, begin: int, at: int) -> bool:
    """Return whether an odd number of backslashes is before a place; none of them before `begin`."""
    before = body[begin:at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _is_plain(text: bytes) -> bool:
    return text.isascii() and b"\\" not in text


def _marked(body: bytes, places: list[Place], mark: str) -> bytes:
    """Return a body with a mark in place of each long text."""
    parts, behind = list[bytes](), 0
    for number, (begin, end) in enumerate(places):
        parts += body[behind:begin], f"{mark}:{number}".encode()
        behind = end
    return b"".join([*parts, body[behind:]])


async def _text(body: bytes, place: Place, pauses: Pauses) -> str:
    """Return a text, read in pieces; raise ValueError."""
    at, last = place
    pieces = list[str]()
    while at < last:
        end = _cut(body, at, min(at + PIECE_BYTES, last)) if at + PIECE_BYTES < last else last
        pieces.append(_read(b'"%b"' % body[at:end]))
        at = end
        await pauses.pause()
    return "".join(pieces)


def _cut(body: bytes, begin: int, end: int) -> int:
    """Return a place at `end`, or a little before it, that is within no character and no escape."""
    for _ in range(_CHARACTER_BYTES):
        if body[end] & 0xC0 == 0x80:  # UTF-8: not the first byte of a character
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
        end -= _UNICODE_BYTES  # the first half of a character of 4 bytes
    return end


async def _put_back(said: list[Any], texts: dict[str, str], pauses: Pauses) -> None:
    """Replace the marks in what was read, in names as well."""
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
