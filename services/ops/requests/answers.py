"""Large answers in JSON, which are encoded with pauses so that other calls do not wait.

The values of the outermost object may be iterators, whose rows are created and encoded one after the other. A
long text is encoded in pieces, and a long answer is sent in parts. For example, 100,000 groups with their
queues take 100 MB, which would take 60 ms to join. All other values are encoded in one step, so a row must
not be large, except for its texts and lists.
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
    """A value that is already encoded as JSON."""

    text: str


async def written(
    content: Mapping[str, Any], status_code: int = 200, pauses: Pauses | None = None
) -> Response:
    """Return an answer. `pauses` are the pauses of the operation that the answer belongs to.

    Without `pauses`, the encoding begins in a new turn of the event loop, because reading the data may have
    taken a whole turn.
    """
    parts = await in_parts(content, pauses)
    if len(parts) == 1:
        return Response(parts[0], status_code, media_type=_JSON)
    return InParts(parts, status_code)


async def in_parts(content: Mapping[str, Any], pauses: Pauses | None = None) -> list[bytes]:
    """Return the bytes of an answer in one or more parts of about _PART_BYTES.

    `pauses` is as in `written`.
    """
    if pauses is None:
        await asyncio.sleep(0)
        pauses = Pauses()
    parts = Parts()
    for piece in _object(content):
        parts.add(piece.encode())
        await pauses.pause()
    return parts.whole()


class Parts:
    """The bytes of an answer, whose pieces are joined to parts of about _PART_BYTES."""

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
        """Return the parts. There is at least one part."""
        return [*self._parts, b"".join(self._part)]


class InParts(Response):
    """An answer in parts. The server waits for the client between two parts.

    Starlette's StreamingResponse detects a disconnect in a task group of anyio, whose first use imports anyio
    in the event loop, which takes 15 to 30 ms. uvicorn discards data that is sent after a disconnect.
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
    """Return whether a value of a row is too long to be encoded in one step."""
    return any(
        isinstance(one, JsonText)
        or (isinstance(one, str | list) and len(one) > _PIECE_CHARACTERS // 512)
        or (isinstance(one, dict) and _is_long(one))
        for one in row.values()
    )
