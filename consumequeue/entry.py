"""The 20-byte ConsumeQueue entry with the location of a record.

The format is compatible with Apache RocketMQ.

    offset width  field
    0      8      physical_offset of the record
    8      4      record_bytes
    12     8      tags_code: Java's String.hashCode() of the tag, sign-extended; 0 without a tag.
                  For a message of a lite topic, the `hash_lite_topic` of the lite topic

Gap entries with the tags_code 0 replace records lost from a damaged log, so that all other entries keep their
positions. Readers skip gap entries.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np

ENTRY_BYTES: Final = 20
ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("record_bytes", ">i4"), ("tags_code", ">i8")])
"""NumPy dtype of an entry."""

Entries = np.ndarray[Any, np.dtype[np.void]]
"""Array of `ENTRY`."""

ENTRY_FORMAT: Final = struct.Struct(">qiq")


class Entry(NamedTuple):
    """Log offset and size of a record, and the hash of its tag."""

    physical_offset: int
    record_bytes: int
    tags_code: int


def encode(entry: Entry) -> bytes:
    """Encode an entry in 20 bytes."""
    return ENTRY_FORMAT.pack(*entry)


def decode(stored: bytes, at: int) -> Entry:
    """Return the entry at a byte position."""
    return Entry._make(ENTRY_FORMAT.unpack_from(stored, at))


def decode_all(stored: bytes) -> list[Entry]:
    """Return the decoded entries. The length must be a multiple of 20."""
    return list(map(Entry._make, ENTRY_FORMAT.iter_unpack(stored)))


@lru_cache(maxsize=16_384)
def hash_lite_topic(lite_topic: str) -> int:
    """Return the 64-bit BLAKE2b hash of a lite topic as a signed integer.

    Collisions are very rare.
    """
    return int.from_bytes(blake2b(lite_topic.encode(), digest_size=8).digest(), "big", signed=True)


@lru_cache(maxsize=4096)
def tags_code(tag: str) -> int:
    """Return Java's `String.hashCode()` of a tag, or 0 for "".

    This is a signed 32-bit hash of the UTF-16 code units.
    """
    code = 0
    units = tag.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code
