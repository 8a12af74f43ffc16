"""The newest records of leaders that a fold has taken: the engine's offset of each, and its CRC-32.

A record that a leader has read, or has written and proven, must still be there when another node reads it. A
record that the engine has since lost or replaced is found by its offset, even if offsets have gaps.

The last `LED_MAX` are remembered, and `FROZEN_LED_MAX` in a checkpoint. Memory: 12 bytes each. Weak spot:
older records are not checked here; a checkpoint without such a record reads on after it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

LED_MAX: Final = 65_536
FROZEN_LED_MAX: Final = 2_048


class Led(NamedTuple):
    """A record of a leader: its offset in the engine's log, and the CRC-32 of its bytes."""

    offset: int
    crc: int


class LedRecords:
    """Records of leaders, by offset."""

    def __init__(self) -> None:
        self._offsets, self._crcs = array("Q"), array("I")

    def add(self, offset: int, crc: int) -> None:
        """Add the newest record; discard the oldest half beyond LED_MAX."""
        assert not self._offsets or offset > self._offsets[-1], "records come in order"
        self._offsets.append(offset)
        self._crcs.append(crc)
        if len(self._offsets) > LED_MAX:
            del self._offsets[: LED_MAX // 2], self._crcs[: LED_MAX // 2]

    def up_to(self, offset: int) -> list[Led]:
        """Return the record at `offset`, if it is a leader's, preceded by the leader's record before it."""
        end = bisect_right(self._offsets, offset)
        begin = max(0, end - 2 if end and self._offsets[end - 1] == offset else end - 1)
        return [Led(self._offsets[at], self._crcs[at]) for at in range(begin, end)]

    def freeze(self, next_offset: int) -> list[list[int]]:
        """Return the state for a checkpoint from which reading continues at an offset."""
        newest = slice(-FROZEN_LED_MAX, None)
        both = zip(self._offsets[newest], self._crcs[newest], strict=True)
        return [[offset, crc] for offset, crc in both if offset < next_offset]

    @classmethod
    def thaw(cls, frozen: list[list[int]]) -> LedRecords:
        """Restore the records from a checkpoint."""
        records = cls()
        for offset, crc in frozen:
            records.add(offset, crc)
        return records
