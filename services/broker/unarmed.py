"""Timer records that are in the log and not durable yet: until then nobody delivers them.

They come one by one, as records or as their bytes, or many at once as the bytes that were appended. A timer
may end before it is durable; then it is not armed when its flush is through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from commitlog import record as records
from commitlog.bulk import Integers
from commitlog.record import Record
from services.broker.copies import Appended

_NOWHERE: Final = 1 << 62
Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(slots=True, eq=False)
class _Batch:
    appended: Appended
    is_waiting: Mask

    def place(self, timer_offset: int) -> int:
        """The number of a timer that waits; -1 if it is none of these."""
        offsets = self.appended.physical_offsets
        place = int(np.searchsorted(offsets, timer_offset))
        is_it = place < len(offsets) and offsets[place] == timer_offset and self.is_waiting[place]
        return place if is_it else -1

    def record(self, place: int) -> Record:
        """The record of a timer."""
        offsets = self.appended.physical_offsets
        position = int(offsets[place] - offsets[0])  # they lie back to back
        return records.decode(memoryview(self.appended.copies.content), position)


class Unarmed:
    """The timers that wait for their flush."""

    def __init__(self) -> None:
        self._records: dict[int, tuple[Record | bytes, int]] = {}
        self._batches: list[_Batch] = []

    @property
    def first_offset(self) -> int:
        """No timer before this is among these."""
        batched = [int(batch.appended.physical_offsets[0]) for batch in self._batches[:1]]
        return min([next(iter(self._records), _NOWHERE), *batched])

    def __contains__(self, timer_offset: int) -> bool:
        return timer_offset in self._records or self._find(timer_offset) is not None

    def add(self, timer_offset: int, timer: Record | bytes, due_ms: int) -> None:
        """One timer record was appended."""
        self._records[timer_offset] = timer, due_ms

    def add_many(self, appended: Appended) -> None:
        """Many were, in this order."""
        self._batches.append(_Batch(appended, np.ones(len(appended.copies), np.bool_)))

    def record(self, timer_offset: int) -> Record | None:
        """The record of a timer that waits."""
        if timer_offset in self._records:
            timer, _ = self._records[timer_offset]
            return timer if isinstance(timer, Record) else records.decode(timer)
        found = self._find(timer_offset)
        return None if found is None else found[0].record(found[1])

    def drop(self, timer_offset: int) -> bool:
        """A timer has ended; False if it is not among these."""
        if self._records.pop(timer_offset, None) is not None:
            return True
        found = self._find(timer_offset)
        if found is not None:
            batch, place = found
            batch.is_waiting[place] = False
        return found is not None

    def take(self, timer_offset: int) -> int | None:
        """A timer is durable: when it is due; None if it has ended."""
        _, due_ms = self._records.pop(timer_offset, (None, None))
        return due_ms

    def take_many(self, appended: Appended) -> tuple[Integers, Integers]:
        """Many are durable: when those that still wait are due, and their offsets."""
        batch = self._batches.pop(0)
        assert batch.appended is appended, "flushes come in the order of the log"
        return appended.copies.due_ms[batch.is_waiting], appended.physical_offsets[batch.is_waiting]

    def _find(self, timer_offset: int) -> tuple[_Batch, int] | None:
        for batch in self._batches:
            if (place := batch.place(timer_offset)) >= 0:
                return batch, place
        return None
