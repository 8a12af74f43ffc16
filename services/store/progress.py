"""How a long tool says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many bytes are done, and how many there are."""


def unseen(what: str, done_bytes: int, total_bytes: int) -> None:
    """Tell nobody of progress."""
