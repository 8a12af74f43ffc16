"""Answers in JSON that may be large, written with pauses: no list keeps other calls waiting.

The values of the outermost object may be iterators, whose rows are made and written one after the other. A
long text is written in pieces; everything else in one go, so a row must not be long but for texts and lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from json.encoder import encode_basestring
from typing import Any, Final

from starlette.responses import Response

from services.live.pauses import Pauses

_PIECE_CHARACTERS: Final = 64 * 1024
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


async def written(
    content: Mapping[str, Any], status_code: int = 200, pauses: Pauses | None = None
) -> Response:
    """Return an answer; `pauses` are those of the work that it is a part of."""
    pauses = pauses or Pauses()
    parts: list[bytes] = []
    for piece in _object(content):
        parts.append(piece.encode())
        await pauses.pause()
    return Response(b"".join(parts), status_code, media_type="application/json")


def _object(content: Mapping[str, Any]) -> Iterator[str]:
    before = "{"
    for name, value in content.items():
        yield f"{before}{_ENCODER.encode(name)}:"
        yield from _value(value)
        before = ","
    yield "}" if content else "{}"


def _value(value: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) > _PIECE_CHARACTERS:
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
    return any(isinstance(one, (str, list)) and len(one) > _PIECE_CHARACTERS // 512 for one in row.values())
