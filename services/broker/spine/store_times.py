"""Where the log ended at moments of store time: (time, offset) of the first record of each STEP_MS.

A start finds the offset from which on records are younger than some seconds, without reading the log. A fold
over the log, kept in the snapshot: store times never go back, so both columns ascend. The newest KEPT_COUNT
are kept, of which a clock that steps forward uses up one each time.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

STEP_MS: Final = 10_000
KEPT_COUNT: Final = 8


class StoreTimes:
    """The newest moments of a log."""

    def __init__(self) -> None:
        self._moments: deque[tuple[int, int]] = deque(maxlen=KEPT_COUNT)
        self.next_ms = 0
        """From which store time on a record begins a moment of its own."""

    def note(self, store_ms: int, offset: int) -> None:
        """Take in a record of the log; the caller may leave out those stored before `next_ms`."""
        if store_ms >= self.next_ms:
            self._moments.append((store_ms, offset))
            self.next_ms = (store_ms // STEP_MS + 1) * STEP_MS

    def offset_at(self, store_ms: int) -> int | None:
        """Return an offset that all records stored at a time or later lie at or above; None if unknown."""
        return max((offset for known_ms, offset in self._moments if known_ms <= store_ms), default=None)

    def freeze(self) -> Any:
        """Return what a snapshot keeps."""
        return list(self._moments)

    def thaw(self, frozen: Any) -> None:
        """Take a snapshot's part over."""
        for store_ms, offset in frozen:
            self.note(store_ms, offset)
