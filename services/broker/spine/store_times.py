"""Map store times to log offsets, with one entry for each period of STEP_MS milliseconds.

Recovery uses the table to find the offset at which the last few seconds of the log begin, without reading the
log. The table is derived from the log and included in snapshots. Both columns are in ascending order, because
store times never decrease. Only the newest KEPT_COUNT pairs are kept, and a forward clock step adds only one
pair.
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
        """Add the store time and the log offset of a record.

        The caller may skip records whose store time is below `next_ms`.
        """
        if store_ms >= self.next_ms:
            self._moments.append((store_ms, offset))
            self.next_ms = (store_ms // STEP_MS + 1) * STEP_MS

    def offset_at(self, store_ms: int) -> int | None:
        """Return a lower bound on the log offsets of records stored at or after `store_ms`.

        Return None if the table contains no pair at or before `store_ms`.
        """
        return max((offset for known_ms, offset in self._moments if known_ms <= store_ms), default=None)

    def freeze(self) -> Any:
        """Return all pairs for a snapshot."""
        return list(self._moments)

    def thaw(self, frozen: Any) -> None:
        """Restore the pairs from a snapshot."""
        for store_ms, offset in frozen:
            self.add_record(store_ms, offset)
