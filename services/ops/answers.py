"""Answers in JSON that may be large, written with pauses: no list keeps other calls waiting.

The values of the outermost object may be iterators, whose rows are made and written one after the other. A
long text is written in pieces, and a long answer sent in parts: 100,000 groups with their queues have 100 MB,
which take 60 ms to join. Everything else is written in one go, so a row must not be long but for texts and
lists.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.live.pauses import Pauses

_PIECE_CHARACTERS: Final = 64 * 1024
_PART_BYTES: Final = 1024 * 1024
_JSON: Final = "application/json"
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@dataclass(slots=True, frozen=True)
class JsonText:
    """A value that is JSON already, to be written as it is."""

    text: str


async def written(
    content: Mapping[str, Any], status_code: int = 200, pauses: Pauses | None = None
) -> Response:
    """Return an answer; `pauses` are those of the work that it is a part of.

    Without them the writing begins in a turn of its own: what was read for it may have taken a whole turn.
    """
    parts = await in_parts(content, pauses)
    if len(parts) == 1:
        return Response(parts[0], status_code, media_type=_JSON)
    return InParts(parts, status_code)


async def in_parts(content: Mapping[str, Any], pauses: Pauses | None = None) -> list[bytes]:
    """Return an answer's bytes in parts of some _PART_BYTES, one at least; `pauses` as in `written`."""
    if pauses is None:
        await asyncio.sleep(0)
        pauses = Pauses()
    parts = Parts()
    for piece in _object(content):
        parts.add(piece.encode())
        await pauses.pause()
    return parts.whole()


class Parts:
    """An answer's bytes, whose pieces are joined to parts of some _PART_BYTES."""

    def __init__(self) -> None:
        self._parts, self._part, self._part_bytes = list[bytes](), list[bytes](), 0

    def add(self, piece: bytes) -> None:
        """Add the next piece."""
        self._part.append(piece)
        self._part_bytes += len(piece)
        if self._part_bytes >= _PART_BYTES:
            self._parts.append(b"".join(self._part))
            self._part, self._part_bytes = [], 0

    def whole(self) -> list[bytes]:
        """Return the parts, one at least."""
        return [*self._parts, b"".join(self._part)]


class InParts(Response):
    """An answer in parts; the server waits for its client in between.

    Starlette's StreamingResponse watches for a hang-up in a task group of anyio, whose first use imports it
    in the loop, for 15 to 30 ms. uvicorn drops what is sent after a hang-up.
    """

    def __init__(self, parts: list[bytes], status_code: int = 200, media_type: str = _JSON) -> None:
        length = {"Content-Length": str(sum(map(len, parts)))}
        super().__init__(b"", status_code, length, media_type=media_type)
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for left, part in zip(range(len(self._parts) - 1, -1, -1), self._parts, strict=True):
            await send({"type": "http.response.body", "body": part, "more_body": left > 0})
            await asyncio.sleep(0)


def _object(content: Mapping[str, Any]) -> Iterator[str]:
    before = "{"
    for name, value in content.items():
        yield f"{before}{_ENCODER.encode(name)}:"
        yield from _value(value)
        before = ","
    yield "}" if content else "{}"


def _value(value: Any) -> Iterator[str]:
    if isinstance(value, JsonText):
        for first in range(0, len(value.text), _PIECE_CHARACTERS):
            yield value.text[first : first + _PIECE_CHARACTERS]
    elif isinstance(value, str) and len(value) > _PIECE_CHARACTERS:
        yield '"'
        for first in range(0, len(value), _PIECE_CHARACTERS):
            yield encode_basestring(value[first : first + _PIECE_CHARACTERS])[1:-1]
        yield '"'
    elif isinstance(value, Mapping):
        yield from _object(value) if _is_long(value) else (_ENCODER.encode(value),)
    elif isinstance(value, Iterable) and not isinstance(value, str):
        yield from _list(value)
    else:
        yield _ENCODER.encode(value)


def _list(rows: Iterable[Any]) -> Iterator[str]:
    yield "["
    before = ""
    for row in rows:
        yield before
        yield from _value(row)
        before = ","
    yield "]"


def _is_long(row: Mapping[str, Any]) -> bool:
    """Return whether a value of a row is so long that the row is not written in one go."""
    return any(
        isinstance(one, JsonText)
        or (isinstance(one, str | list) and len(one) > _PIECE_CHARACTERS // 512)
        or (isinstance(one, dict) and _is_long(one))
        for one in row.values()
    )
