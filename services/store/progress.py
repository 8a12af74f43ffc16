"""Progress reports of long-running tools."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the current operation, the number of processed bytes, and the total number of bytes."""


def unseen(what: str, done_bytes: int, total_bytes: int) -> None:
    """Ignore progress."""
