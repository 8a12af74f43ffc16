"""Computes the CRCs of many ranges, and reads the final CRC property of many records at once.

The property is `__CRC32#`, 0x01, ten decimal digits, the least significant first, and 0x02 (see
`commitlog.records.record`). Eight digits fit in a 64-bit word, with the least significant digit in the lowest
byte. Three steps each combine adjacent numbers into one. Cost: mainly one Python call per range. The CRC
itself takes a tenth of that time, because `isal` uses SIMD instructions.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

import numpy as np
from isal import isal_zlib

from commitlog.records import record
from spark_jobs.log.columns.ragged import Bytes, Flags, Integers, items

_TAIL: Final = np.dtype(
    [("name", "<u8"), ("name_end", "u1"), ("low", "<u8"), ("high", "<u2"), ("pair_end", "u1")]
)
_NAME: Final = int.from_bytes(record.CRC_NAME[:8], "little")
_PAIR_END: Final = 2
_ZEROS: Final = np.uint64(0x3030303030303030)
_JOINS: Final = (
    (np.uint64(8), np.uint64(10), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(16), np.uint64(100), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(32), np.uint64(10_000), np.uint64(0x00000000FFFFFFFF)),
)


def crcs(data: Bytes, starts: Integers, ends: Integers) -> Integers:
    """Return the CRC-32 of each range of `data` (uint32), without its highest bit, as stored in records.

    `starts` and `ends` are byte positions, with one entry per range.
    """
    view, crc32 = data.data, isal_zlib.crc32
    found = [crc32(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.frombuffer(array("I", found), np.uint32) & np.uint32(record.CRC_MASK)


class Tails:
    """The last 20 bytes of each record. Each record must have at least 20 bytes."""

    def __init__(self, data: Bytes, ends: Integers) -> None:
        places = np.minimum(np.maximum(ends, _TAIL.itemsize), len(data)) - _TAIL.itemsize
        self._tails: Any = items(data, f"V{_TAIL.itemsize}")[places].view(_TAIL)

    def are_crcs(self) -> Flags:
        """Return which tails begin with the name of the CRC property."""
        flags: Flags = self._tails["name"] == _NAME
        flags &= self._tails["name_end"] == record.CRC_NAME[8]
        return flags

    def say(self, found: Integers) -> Flags:
        """Return which tails are a valid CRC property with the number in `found`, by record."""
        low = self._tails["low"] ^ _ZEROS
        high = self._tails["high"].astype(np.uint64) ^ (_ZEROS & np.uint64(0xFFFF))
        stored = _joined(low) + _joined(high) * np.uint64(100_000_000)
        flags: Flags = self.are_crcs() & _are_digits(low) & _are_digits(high) & (stored == found)
        flags &= self._tails["pair_end"] == _PAIR_END
        return flags


def _are_digits(words: Integers) -> Flags:
    over_9 = words + np.uint64(0x0606060606060606)
    flags: Flags = ((words | over_9) & np.uint64(0xF0F0F0F0F0F0F0F0)) == 0
    return flags


def _joined(words: Integers) -> Integers:
    for bits, weight, mask in _JOINS:
        words = (words + (words >> bits) * weight) & mask
    return words
