"""Parser of the raw log of an engine, as a file, and its records, without Tidewheel's code.

    at     bytes   field of the file
    0      8       "TWRAWLOG"
    8      8       offset in the engine of the first remaining record
    16     ...     records, adjacent:
           8       offset in the engine
           8       time of the append in the engine, ms since 1970; 0: unknown
           4 + n   length, the stored bytes

    at     bytes   field of a record
    0      4       magic, "TWSL"
    4      16      cluster id
    20     1       kind: 1 GENESIS, 2 EPOCH, 3 BYTES, 4 BEAT, 5 CHECKPOINT, 6 HOLD
    21     1       version, 1
    22     8       epoch
    30     16      holder
    46     8       start
    54     8       zeros
    62     8       chain
    70     1       last
    71     4       body length
    75     4       CRC-32 of bytes 0 to 74 and of the body
    79     ...     body

Integers are big-endian and unsigned. Limitation: the file is a dump by one reader; the answers of the engine
to another reader may differ.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

MAGIC = b"TWRAWLOG"
RECORD_MAGIC = b"TWSL"
VERSION = 1
GENESIS, EPOCH, BYTES, BEAT, CHECKPOINT, HOLD = range(1, 7)
BODY_AT = 79
_FRAME_BYTES = 20


class BadInput(ValueError):
    """A file is not readable as expected; the text gives the reason."""


@dataclass(frozen=True)
class Stored:
    """A record as stored in the engine."""

    offset: int
    taken_ms: int
    content: bytes


@dataclass(frozen=True)
class RawLog:
    """The remaining records of a log."""

    first_offset: int
    records: list[Stored]


@dataclass(frozen=True)
class Shared:
    """A record of a shared log, by the table above."""

    cluster: bytes
    kind: int
    version: int
    epoch: int
    holder: bytes
    start: int
    zeros: int
    chain: int
    is_last: bool
    body: bytes
    is_sound: bool

    @property
    def end(self) -> int:
        """The offset in the CommitLog after the record's bytes."""
        return self.start + len(self.body) + self.zeros


def load(path: Path) -> RawLog:
    """Return the log in a file; raise `BadInput`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}.") from error
    if content[:8] != MAGIC or len(content) < 16:
        raise BadInput(f"{path} does not begin with {MAGIC.decode()}: it is no raw log.")
    records = list(_frames(path, content))
    for before, one in pairwise(records):
        if one.offset < before.offset:
            raise BadInput(f"{path}: record {one.offset} lies behind record {before.offset}.")
    return RawLog(number(content, 8, 8), records)


def parse(content: bytes) -> Shared | None:
    """Parse a record of a shared log; return None if the bytes have no such header."""
    if len(content) < BODY_AT or content[:4] != RECORD_MAGIC:
        return None
    body = content[BODY_AT:]
    is_whole = len(body) == number(content, 71, 4)
    is_sound = is_whole and zlib.crc32(body, zlib.crc32(content[:75])) == number(content, 75, 4)
    return Shared(
        cluster=content[4:20],
        kind=content[20],
        version=content[21],
        epoch=number(content, 22, 8),
        holder=content[30:46],
        start=number(content, 46, 8),
        zeros=number(content, 54, 8),
        chain=number(content, 62, 8),
        is_last=content[70] != 0,
        body=body,
        is_sound=is_sound,
    )


def linked(chain: int, record: Shared) -> int:
    """Return the chain after a record's bytes, given the chain before them."""
    named = b"".join(one.to_bytes(8, "big") for one in (chain, record.start, record.zeros))
    return int.from_bytes(blake2b(named + record.body, digest_size=8).digest(), "big")


def number(content: bytes, at: int, width: int, *, signed: bool = False) -> int:
    """Return the big-endian integer of `width` bytes at a position."""
    return int.from_bytes(content[at : at + width], "big", signed=signed)


def _frames(path: Path, content: bytes) -> Iterator[Stored]:
    at = 16
    while at < len(content):
        begins, length = at + _FRAME_BYTES, number(content, at + 16, 4)
        if begins + length > len(content):
            raise BadInput(f"{path} ends amid the record at byte {at}.")
        yield Stored(number(content, at, 8), number(content, at + 8, 8), content[begins : begins + length])
        at = begins + length
