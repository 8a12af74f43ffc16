"""Offsets and CRC-32s of the newest leader records that a reader has applied.

Records that a leader has read, or has written and proven, must be the same for every reader. A comparison by
offset detects a lost or replaced record even if the offsets have gaps.

Cost: up to `LEADER_RECORDS_MAX` entries of 12 bytes in memory, and the newest `FROZEN_LEADER_RECORDS_MAX`
entries in each checkpoint. Limitation: older records are not checked. However, a node that starts from a
checkpoint does not read them again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

LEADER_RECORDS_MAX: Final = 65_536
FROZEN_LEADER_RECORDS_MAX: Final = 2_048


class LeaderRecord(NamedTuple):
    """The offset and the CRC-32 of a leader record."""

    offset: int
    crc: int


class LeaderRecords:
    """The newest leader records, ordered by offset."""

    def __init__(self) -> None:
        self._offsets, self._crcs = array("Q"), array("I")

    def add(self, offset: int, crc: int) -> None:
        """Add a record, and discard the older half if more than `LEADER_RECORDS_MAX` are then stored."""
        assert not self._offsets or offset > self._offsets[-1], "records come in order"
        self._offsets.append(offset)
        self._crcs.append(crc)
        if len(self._offsets) > LEADER_RECORDS_MAX:
            del self._offsets[: LEADER_RECORDS_MAX // 2], self._crcs[: LEADER_RECORDS_MAX // 2]

    def records_up_to(self, offset: int) -> list[LeaderRecord]:
        """Return the last record before `offset` and the record at `offset`, if stored."""
        end = bisect_right(self._offsets, offset)
        begin = max(0, end - 2 if end and self._offsets[end - 1] == offset else end - 1)
        return [LeaderRecord(self._offsets[at], self._crcs[at]) for at in range(begin, end)]

    def freeze(self, next_offset: int) -> list[list[int]]:
        """Return the newest records before `next_offset` as lists `[offset, crc]`, for a checkpoint."""
        newest = slice(-FROZEN_LEADER_RECORDS_MAX, None)
        both = zip(self._offsets[newest], self._crcs[newest], strict=True)
        return [[offset, crc] for offset, crc in both if offset < next_offset]

    @classmethod
    def thaw(cls, frozen: list[list[int]]) -> LeaderRecords:
        """Restore the records from a checkpoint."""
        records = cls()
        for offset, crc in frozen:
            records.add(offset, crc)
        return records
