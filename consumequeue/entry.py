"""The entry of a ConsumeQueue, which locates a record in 20 bytes, in the format of Apache RocketMQ.

    offset width  field
    0      8      physical_offset of the record
    8      4      record_bytes
    12     8      tags_code: Java's String.hashCode() of the tag, sign-extended; 0 without a tag.
                  For a message of a lite topic, the `lite_code` of the lite topic

A gap because of damage to the log is filled with entries for the damaged range, with tags_code 0, so that
later entries keep their positions. Readers find no record in the range, and skip the entries of a gap.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np

ENTRY_BYTES: Final = 20
ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("record_bytes", ">i4"), ("tags_code", ">i8")])
"""The layout of an entry as a numpy dtype, for arrays of entries."""

Entries = np.ndarray[Any, np.dtype[np.void]]
"""An array of `ENTRY`."""

ENTRY_FORMAT: Final = struct.Struct(">qiq")


class Entry(NamedTuple):
    """The log offset and the size of a record, and the hash of its tag."""

    physical_offset: int
    record_bytes: int
    tags_code: int


def encode(entry: Entry) -> bytes:
    """Return an entry encoded in 20 bytes."""
    return ENTRY_FORMAT.pack(*entry)


def decode(stored: bytes, at: int) -> Entry:
    """Return the entry that begins at a byte position."""
    return Entry._make(ENTRY_FORMAT.unpack_from(stored, at))


def decode_all(stored: bytes) -> list[Entry]:
    """Return the entries in a multiple of 20 bytes."""
    return list(map(Entry._make, ENTRY_FORMAT.iter_unpack(stored)))


@lru_cache(maxsize=16_384)
def lite_code(lite_topic: str) -> int:
    """Return the hash of a lite topic, which is BLAKE2b in 64 signed bits, with very rare collisions."""
    return int.from_bytes(blake2b(lite_topic.encode(), digest_size=8).digest(), "big", signed=True)


@lru_cache(maxsize=4096)
def tags_code(tag: str) -> int:
    """Return Java's `String.hashCode()` of a tag, over UTF-16 code units in 32 signed bits, or 0 for ""."""
    code = 0
    units = tag.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code
