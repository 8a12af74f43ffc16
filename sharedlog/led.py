"""The newest records of leaders that a fold has taken: where each lies in the engine's log, and its CRC-32.

What a leader has read, or written and proven, must lie there when another node comes to it. So a record that
the engine has lost since, or has another one for, is found by its offset, also where offsets have gaps.

The last `LED_MAX` are remembered, in a checkpoint `FROZEN_LED_MAX`. Memory: 12 bytes each. Weak spot: of an
older record nothing is known here; the checkpoint that remembers no such record lies behind it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

LED_MAX: Final = 65_536
FROZEN_LED_MAX: Final = 2_048


class Led(NamedTuple):
    """A record of a leader's: its offset in the engine's log, and the CRC-32 of its bytes."""

    offset: int
    crc: int


class LedRecords:
    """Records of leaders, by their offsets."""

    def __init__(self) -> None:
        self._offsets, self._crcs = array("Q"), array("I")

    def add(self, offset: int, crc: int) -> None:
        """Remember the newest one; forget the oldest half where there are too many."""
        assert not self._offsets or offset > self._offsets[-1], "records come in order"
        self._offsets.append(offset)
        self._crcs.append(crc)
        if len(self._offsets) > LED_MAX:
            del self._offsets[: LED_MAX // 2], self._crcs[: LED_MAX // 2]

    def up_to(self, offset: int) -> list[Led]:
        """Return the record at an offset, if it is a leader's, behind the one before it, if that is known."""
        end = bisect_right(self._offsets, offset)
        begin = max(0, end - 2 if end and self._offsets[end - 1] == offset else end - 1)
        return [Led(self._offsets[at], self._crcs[at]) for at in range(begin, end)]

    def freeze(self, next_offset: int) -> list[list[int]]:
        """Return what a checkpoint keeps that reads on from an offset."""
        newest = slice(-FROZEN_LED_MAX, None)
        both = zip(self._offsets[newest], self._crcs[newest], strict=True)
        return [[offset, crc] for offset, crc in both if offset < next_offset]

    @classmethod
    def thaw(cls, frozen: list[list[int]]) -> LedRecords:
        """Return what a checkpoint keeps."""
        records = cls()
        for offset, crc in frozen:
            records.add(offset, crc)
        return records
