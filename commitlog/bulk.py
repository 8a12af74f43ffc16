"""Many records made records of the log at once: encoded, checked, and stamped with their places, by numpy.

An encoded or copied record keeps its bytes except for the fields that say where and when it lies, and the CRC
over all:

    offset     width  field
    20         8      queue_offset
    28         8      physical_offset
    56 or 68   8      store_ms           behind an IPv4 or IPv6 born host (bit 0x10 of sys_flag at 36)
    end - 11   10     CRC digits         least significant first (see `commitlog.record`)

Cost: about a microsecond a record, nearly all of it two CRCs; encoding is another, a third of what it
takes alone. Weak spot: the CRCs are a loop in Python, for numpy has none.

Arrays of one call have one entry a record, (n,); `starts` and `ends` are positions in bytes in `records`.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np

from commitlog.record import BORN_HOST_V6, CRC_BYTES, CRC_MASK, CRC_NAME

Integers = np.ndarray[Any, np.dtype[np.int64]]
"""An array of whole numbers."""
Flags = np.ndarray[Any, np.dtype[np.bool_]]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
"""An array of bytes."""

_QUEUE_OFFSET_AT: Final = 20
_PHYSICAL_OFFSET_AT: Final = 28
_SYS_FLAG_END: Final = 40
_STORE_MS_AT: Final = 56
_V6_MORE_BYTES: Final = 12
_DIGITS_AT: Final = CRC_BYTES - len(CRC_NAME)
_CLOSE: Final = 0x02
_DIGIT_COUNT: Final = 10
_POWERS: Final = 10 ** np.arange(_DIGIT_COUNT, dtype=np.int64)
_NAME: Final = np.frombuffer(CRC_NAME, np.uint8)
NO_CRC: Final = CRC_NAME + b"0" * _DIGIT_COUNT + b"\x02"
"""Where a CRC will be written."""


def are_sound(records: bytearray, starts: Integers, ends: Integers) -> Flags:
    """Return which records, from `starts` up to `ends`, match the CRC property that closes them, (n,)."""
    content = np.frombuffer(records, np.uint8)
    named = (content[_columns(ends - CRC_BYTES, len(CRC_NAME))] == _NAME).all(axis=1)
    named &= content[ends - 1] == _CLOSE
    digits = content[_columns(ends - _DIGITS_AT, _DIGIT_COUNT)].astype(np.int64) - ord("0")
    return np.asarray(named & ((digits * _POWERS).sum(axis=1) == _crcs(records, starts, ends)))


def store_times_ms(records: bytearray, starts: Integers) -> Integers:
    """Return the store times of the records that begin at `starts`, ms since 1970."""
    content = np.frombuffer(records, np.uint8)
    longs = content[_columns(_store_ms_at(content, starts), 8)]
    return np.ascontiguousarray(longs).view(">i8").ravel().astype(np.int64)


def stamp(
    records: bytearray,
    starts: Integers,
    ends: Integers,
    physical_offsets: Integers,
    queue_offsets: Integers,
    store_ms: int,
) -> None:
    """Write the records' places, their store time (ms since 1970) and their new CRCs into them."""
    # A shorter array would not fail: numpy would write one place into all records.
    assert len(starts) == len(ends) == len(physical_offsets) == len(queue_offsets), "a record has no place"
    content = np.frombuffer(records, np.uint8)
    _write_longs(content, starts + _QUEUE_OFFSET_AT, queue_offsets)
    _write_longs(content, starts + _PHYSICAL_OFFSET_AT, physical_offsets)
    _write_longs(content, _store_ms_at(content, starts), np.full(len(starts), store_ms, np.int64))
    seal(records, starts, ends)


def seal(records: bytearray, starts: Integers, ends: Integers) -> None:
    """Write the CRCs of the records into them."""
    content = np.frombuffer(records, np.uint8)
    digits = _crcs(records, starts, ends)[:, np.newaxis] // _POWERS % 10 + ord("0")
    content[_columns(ends - _DIGITS_AT, _DIGIT_COUNT)] = digits.astype(np.uint8)


def _crcs(records: bytearray, starts: Integers, ends: Integers) -> Integers:
    """Return the CRCs of the records without their CRC properties, (n,)."""
    view, crc32 = memoryview(records), zlib.crc32
    spans = zip(starts.tolist(), (ends - CRC_BYTES).tolist(), strict=True)
    crcs = [crc32(view[start:end]) for start, end in spans]
    return np.asarray(np.array(crcs, np.int64) & CRC_MASK)


def _store_ms_at(content: Bytes, starts: Integers) -> Integers:
    # The born host comes before the store time, and is 12 bytes longer as IPv6; the store host comes behind.
    is_v6 = content[starts + _SYS_FLAG_END - 1] & BORN_HOST_V6 != 0
    return np.asarray(starts + _STORE_MS_AT + _V6_MORE_BYTES * is_v6)


def _write_longs(content: Bytes, places: Integers, values: Integers) -> None:
    content[_columns(places, 8)] = values.astype(">i8").view(np.uint8).reshape(-1, 8)


def _columns(places: Integers, width: int) -> Integers:
    """Return the positions of `width` bytes from each place on, (n, width)."""
    return np.asarray(places[:, np.newaxis] + np.arange(width))
