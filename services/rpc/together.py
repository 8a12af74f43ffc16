"""The entries of one request, answered together: stored in their order, awaited at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from commitlog.errors import ClientMistake

Answer = TypeVar("Answer")


async def together(entries: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Return the answer of every entry; a single one, as clients send it, costs no task of its own."""
    if not entries:
        raise ClientMistake("It holds no entry.")
    return [await entries[0]] if len(entries) == 1 else await asyncio.gather(*entries)
