"""Splits BYTES records into CommitLog records, and verifies the CRC and the offset of each one.

The history chain cannot detect corruption in the leader's memory, because the leader computes the chain over
the corrupted bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from commitlog.records import record
from sharedlog.errors import LogDamaged
from sharedlog.record import SharedRecord

_HEAD: Final = struct.Struct(">II")
_PLACE: Final = struct.Struct(">q")
_PLACE_AT: Final = 28


def verify_records(part: SharedRecord, offset: int) -> list[bytes]:
    """Return the CommitLog records in `part`, the BYTES record at `offset` of the shared log.

    Raise `LogDamaged` if a CommitLog record has an invalid length, a CRC mismatch, or an incorrect offset.
    """
    holds, place_of, start, found = record.crc_holds, _PLACE.unpack_from, part.start, []
    try:
        for at, one in _split_body(part.body):
            if not holds(one):
                raise ValueError(f"the record at {start + at} does not match its CRC")
            if (place := place_of(one, _PLACE_AT)[0]) != start + at:
                raise ValueError(f"the record at {start + at} is that of {place}")
            found.append(one)
    except ValueError as error:
        raise LogDamaged(
            f"Record {offset} of the shared log: of bytes {part.start} to {part.end} of the history {error}. "
            f"Their chain is right, so the leader of epoch {part.epoch} wrote them so: look at its memory.",
            offset,
        ) from error
    return found


def split_records(body: bytes) -> Iterator[bytes]:
    """Yield the CommitLog records in the body of a BYTES record, except for blank records.

    A blank record fills the unused space at the end of a segment. Raise ValueError if a CommitLog record has
    an invalid length or is incomplete.
    """
    return (one for _, one in _split_body(body))


def _split_body(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(body):
        if at + _HEAD.size > len(body):
            raise ValueError(f"the last {len(body) - at} are no record")
        record_bytes, magic = _HEAD.unpack_from(body, at)
        # The length field of a blank record also counts zero bytes that the body does not contain.
        if magic == record.MAGIC_BLANK:
            at += record.BLANK_BYTES
            continue
        if not record.RECORD_BYTES_MIN <= record_bytes <= len(body) - at:
            raise ValueError(f"a record at {at} has a length of {record_bytes}")
        yield at, body[at : at + record_bytes]
        at += record_bytes
