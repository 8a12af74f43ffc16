"""The entries of one request, answered together: stored in their order, awaited at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from commitlog.errors import ClientMistake
from commitlog.limits import ENTRIES_PER_REQUEST_MAX

Answer = TypeVar("Answer")


async def together(entries: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Return the answer of every entry; a single one, as clients send it, costs no task of its own.

    Raises `ClientMistake` for none at all, and for so many that answering them would keep others waiting.
    """
    if not entries:
        raise ClientMistake("It holds no entry.")
    if len(entries) > ENTRIES_PER_REQUEST_MAX:
        for entry in entries:
            entry.close()
        raise ClientMistake(f"It holds {len(entries)} entries, at most {ENTRIES_PER_REQUEST_MAX} may be.")
    return [await entries[0]] if len(entries) == 1 else await asyncio.gather(*entries)
