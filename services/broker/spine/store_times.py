"""Log offsets by store time, one for each period of STEP_MS milliseconds.

This table lets recovery find the log offset at which the last few seconds begin without reading the log. The
table is derived from the log and included in snapshots. Store times never decrease, so both columns are
ascending. Only the newest KEPT_COUNT pairs are kept, and a forward clock step adds only one pair.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

STEP_MS: Final = 10_000
KEPT_COUNT: Final = 8


class StoreTimes:
    """The newest (store time, log offset) pairs."""

    def __init__(self) -> None:
        self._moments: deque[tuple[int, int]] = deque(maxlen=KEPT_COUNT)
        self.next_ms = 0
        """The lowest store time for which `add_record` adds a pair."""

    def add_record(self, store_ms: int, offset: int) -> None:
        """Add a record's store time and offset.

        The caller may omit records stored before `next_ms`.
        """
        if store_ms >= self.next_ms:
            self._moments.append((store_ms, offset))
            self.next_ms = (store_ms // STEP_MS + 1) * STEP_MS

    def offset_at(self, store_ms: int) -> int | None:
        """Return a lower bound on the offsets of records stored at or after a time, or None if unknown."""
        return max((offset for known_ms, offset in self._moments if known_ms <= store_ms), default=None)

    def freeze(self) -> Any:
        """Return all pairs for a snapshot."""
        return list(self._moments)

    def thaw(self, frozen: Any) -> None:
        """Restore the pairs from a snapshot."""
        for store_ms, offset in frozen:
            self.add_record(store_ms, offset)
