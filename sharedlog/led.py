"""Stores the offsets and CRC-32s of the newest leader records that a fold has applied.

If a leader has read a record, or has written and proven it, the record must be the same when another node
reads it. Comparing records by offset detects that the engine has lost or replaced a record, even if there are
gaps between offsets.

Up to `LED_MAX` records are kept in memory, using 12 bytes each. The newest `FROZEN_LED_MAX` records are
stored in each checkpoint. Weak spot: Older records are not checked. However, a node that starts from a
checkpoint does not read these records again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

LED_MAX: Final = 65_536
FROZEN_LED_MAX: Final = 2_048


class LeaderRecord(NamedTuple):
    """A record of a leader, which consists of its offset in the engine's log and the CRC-32 of its bytes."""

    offset: int
    crc: int


class LeaderRecords:
    """A list of leader records, ordered by offset."""

    def __init__(self) -> None:
        self._offsets, self._crcs = array("Q"), array("I")

    def add(self, offset: int, crc: int) -> None:
        """Add the newest record. If there are more than `LED_MAX` records, discard the older half."""
        assert not self._offsets or offset > self._offsets[-1], "records come in order"
        self._offsets.append(offset)
        self._crcs.append(crc)
        if len(self._offsets) > LED_MAX:
            del self._offsets[: LED_MAX // 2], self._crcs[: LED_MAX // 2]

    def records_up_to(self, offset: int) -> list[LeaderRecord]:
        """Return the last leader record before `offset`, and the leader record at `offset`, if any."""
        end = bisect_right(self._offsets, offset)
        begin = max(0, end - 2 if end and self._offsets[end - 1] == offset else end - 1)
        return [LeaderRecord(self._offsets[at], self._crcs[at]) for at in range(begin, end)]

    def freeze(self, next_offset: int) -> list[list[int]]:
        """Return the state for a checkpoint. Records at or after `next_offset` are not included."""
        newest = slice(-FROZEN_LED_MAX, None)
        both = zip(self._offsets[newest], self._crcs[newest], strict=True)
        return [[offset, crc] for offset, crc in both if offset < next_offset]

    @classmethod
    def thaw(cls, frozen: list[list[int]]) -> LeaderRecords:
        """Restore the records from a checkpoint."""
        records = cls()
        for offset, crc in frozen:
            records.add(offset, crc)
        return records
