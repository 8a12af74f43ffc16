"""Timer records that are in the log and not durable yet: until then nobody delivers them.

A timer may end before it is durable; then it is not armed when its flush is through.
"""

from __future__ import annotations

from typing import Final

from commitlog import record as records
from commitlog.record import Record

_NOWHERE: Final = 1 << 62


class Unarmed:
    """The timers that wait for their flush."""

    def __init__(self) -> None:
        self._records: dict[int, tuple[Record | bytes, int]] = {}

    @property
    def first_offset(self) -> int:
        """No timer before this is among these."""
        return next(iter(self._records), _NOWHERE)

    def __contains__(self, timer_offset: int) -> bool:
        return timer_offset in self._records

    def add(self, timer_offset: int, timer: Record | bytes, due_ms: int) -> None:
        """A timer record was appended: here it is, or its bytes."""
        self._records[timer_offset] = timer, due_ms

    def record(self, timer_offset: int) -> Record | None:
        """The record of a timer that waits."""
        timer, _ = self._records.get(timer_offset, (None, 0))
        return records.decode(timer) if isinstance(timer, bytes) else timer

    def drop(self, timer_offset: int) -> bool:
        """A timer has ended; False if it is not among these."""
        return self._records.pop(timer_offset, None) is not None

    def take(self, timer_offset: int) -> int | None:
        """A timer is durable: when it is due; None if it has ended."""
        _, due_ms = self._records.pop(timer_offset, (None, None))
        return due_ms
