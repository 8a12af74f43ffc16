"""Record format of a shared log.

Each record names its writer, epoch, and position in the history.

    at     bytes   field
    0      4       magic, "TWSL"
    4      16      cluster ID, generated when the cluster is created
    20     1       kind: see `Kind`
    21     1       version of the kind's body
    22     8       epoch
    30     16      holder ID, generated for each candidacy to distinguish the candidates of an epoch
    46     8       start: the CommitLog offset at which BYTES begin, or the end given by EPOCH and BEAT
    54     8       zeros: the number of zero bytes after the body in the CommitLog, which are not sent
    62     8       chain: after these BYTES, or at the end given by EPOCH and BEAT
    70     1       last: 1 if the flush ends with these BYTES, 0 if further BYTES follow
    71     4       body_bytes
    75     4       CRC-32 of bytes 0 to 74 and of the body
    79     ...     body: CommitLog records in BYTES, or a JSON object in the other kinds

A kind or body version that older programs cannot read is written only if the finalized version guarantees
that all nodes support it (`sharedlog.versions`).

Integers are big-endian and unsigned. The chain identifies the history up to a record. It is a 64-bit BLAKE2b
hash of the previous chain and the record's start, zeros, and body. Two histories that end at the same offset
with the same chain contain the same bytes, barring a hash collision.

    kind         written                                  body
    GENESIS      once, when the cluster is created        the facts of the cluster; its epoch and start are
                                                          those of the initial store, 0 without a store
    EPOCH        by a candidate                           the candidate's name, addresses and certificate
    BYTES        by the leader: a flush or part of one    complete CommitLog records
    BEAT         by the leader, when idle or as a proof   the leader's clock; whether it leaves, and its
                                                          successor; its certificate, if renewed; commands of
                                                          an operator
    CHECKPOINT   by any node                              its holding, after a sync and verification
    HOLD         by a node that copies                    the first record that must be kept for it

Cost: 79 bytes per record, and BLAKE2b hashing at 1 GB/s. Limitation: a 64-bit chain detects accidental
differences, but not forged histories.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Final

MAGIC: Final = b"TWSL"
VERSION: Final = 1
BODY_BYTES_MAX: Final = 900_000
"""Maximum size of a BYTES body in bytes. A single CommitLog record may be larger."""
ID_BYTES: Final = 16
CHAIN_AT_GENESIS: Final = 0
NOBODY: Final = bytes(ID_BYTES)

_HEAD: Final = struct.Struct(">4s16sBBQ16sQQQBI")
_CRC: Final = struct.Struct(">I")
_LINK: Final = struct.Struct(">QQQ")
HEAD_BYTES: Final = _HEAD.size + _CRC.size


class Kind(IntEnum):
    """Kinds of shared log records."""

    GENESIS = 1
    EPOCH = 2
    BYTES = 3
    BEAT = 4
    CHECKPOINT = 5
    HOLD = 6


class ForeignRecord(ValueError):
    """Raised if the bytes are not a record of this cluster."""


class CorruptRecord(ValueError):
    """Raised if the bytes are a record of this cluster that does not match its CRC."""


@dataclass(slots=True, frozen=True)
class SharedRecord:
    """A record of a shared log.

    The module docstring describes `start`, `zeros`, `chain`, and `is_last`.
    """

    cluster: bytes
    kind: int
    epoch: int
    holder: bytes
    start: int
    chain: int
    body: bytes = b""
    zeros: int = 0
    is_last: bool = True
    version: int = VERSION

    @property
    def end(self) -> int:
        """CommitLog offset just after the bytes in this record."""
        return self.start + len(self.body) + self.zeros

    @property
    def facts(self) -> dict[str, Any]:
        """Decoded JSON body. BYTES records have none."""
        found: dict[str, Any] = json.loads(self.body) if self.body else {}
        return found


def encode(record: SharedRecord) -> bytes:
    """Encode a record."""
    assert len(record.cluster) == len(record.holder) == ID_BYTES, "an id of another length"
    head = _HEAD.pack(
        MAGIC,
        record.cluster,
        record.kind,
        record.version,
        record.epoch,
        record.holder,
        record.start,
        record.zeros,
        record.chain,
        record.is_last,
        len(record.body),
    )
    return head + _CRC.pack(zlib.crc32(record.body, zlib.crc32(head))) + record.body


def decode(stored: bytes, cluster: bytes | None) -> SharedRecord:
    """Decode a record of the given cluster, or of any cluster if `cluster` is None.

    Raise `ForeignRecord` if the bytes are not a record of the cluster, or `CorruptRecord` if they do not
    match their CRC.
    """
    if len(stored) < HEAD_BYTES or not stored.startswith(MAGIC):
        raise ForeignRecord("no record of a shared log")
    fields = _HEAD.unpack_from(stored)
    _, found, kind, version, epoch, holder, start, zeros, chain, last, body_bytes = fields
    if cluster is not None and found != cluster:
        raise ForeignRecord(f"a record of another cluster, {found.hex()}")
    head, body = stored[: _HEAD.size], stored[HEAD_BYTES:]
    (crc,) = _CRC.unpack_from(stored, _HEAD.size)
    if len(body) != body_bytes or zlib.crc32(body, zlib.crc32(head)) != crc:
        raise CorruptRecord("a record that does not match its CRC")
    return SharedRecord(found, kind, epoch, holder, start, chain, body, zeros, bool(last), version)


def extend_chain(chain: int, start: int, body: bytes, zeros: int) -> int:
    """Return the chain value after `body` and `zeros`."""
    linked = blake2b(_LINK.pack(chain, start, zeros), digest_size=8)
    linked.update(body)
    return int.from_bytes(linked.digest(), "big")


def encode_facts(facts: dict[str, Any]) -> bytes:
    """Encode facts as a JSON body. Equal facts yield equal bytes."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
