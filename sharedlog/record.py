"""The record format of a shared log.

Each record contains the writer's ID, the epoch, and a position in the history.

    at     bytes   field
    0      4       magic, "TWSL"
    4      16      cluster ID, generated when the cluster is created
    20     1       kind: see `Kind`
    21     1       version of the body format
    22     8       epoch
    30     16      holder ID, generated for each candidacy to distinguish the candidates of an epoch
    46     8       start: CommitLog offset of the first byte of BYTES; end of the history in EPOCH and BEAT
    54     8       zeros: number of zero bytes that follow the body in the CommitLog and are not sent
    62     8       chain: after the last byte of BYTES; at the end of the history in EPOCH and BEAT
    70     1       last: 1 in the last BYTES record of a flush, 0 in the preceding BYTES records of the flush
    71     4       body_bytes
    75     4       CRC-32 of bytes 0 to 74 and of the body
    79     ...     body: CommitLog records in BYTES, a JSON object in the other kinds

A record kind or body version that older programs cannot read is written only if the finalized version
guarantees that all nodes support it (`sharedlog.versions`).

Integers are big-endian and unsigned. The chain identifies the history up to a record. It is a 64-bit BLAKE2b
hash of the previous chain and the start, zeros, and body of the record. Two histories that end at the same
offset with the same chain contain the same bytes, unless a hash collision occurs.

    kind         written                                  body
    GENESIS      once, when the cluster is created        metadata of the cluster; the epoch and start of the
                                                          record are those of the initial store, or 0
    EPOCH        by a candidate                           name, addresses, and certificate of the candidate
    BYTES        by the leader, for all or part of a      complete CommitLog records
                 flush
    BEAT         by the leader, when idle or as a proof   the leader's clock; an announcement that the leader
                                                          steps down, and its successor; a renewed
                                                          certificate; operator commands
    CHECKPOINT   by any node, after a checkpoint was      the copy of the store on the node
                 synced and verified                      (`sharedlog.holdings`)
    HOLD         by a node without a copy                 the first record that the node needs

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
"""Maximum size of a BYTES body in bytes, unless the body is a single CommitLog record."""
ID_BYTES: Final = 16
CHAIN_AT_GENESIS: Final = 0
NOBODY: Final = bytes(ID_BYTES)

_HEAD: Final = struct.Struct(">4s16sBBQ16sQQQBI")
_CRC: Final = struct.Struct(">I")
_LINK: Final = struct.Struct(">QQQ")
HEAD_BYTES: Final = _HEAD.size + _CRC.size


class Kind(IntEnum):
    """The kinds of shared log records."""

    GENESIS = 1
    EPOCH = 2
    BYTES = 3
    BEAT = 4
    CHECKPOINT = 5
    HOLD = 6


class ForeignRecord(ValueError):
    """Raised if the bytes are not a record of the given cluster."""


class CorruptRecord(ValueError):
    """Raised if a record of the given cluster has an incorrect length or does not match its CRC."""


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
        """Return the CommitLog offset after the last byte of the record, including the zero bytes."""
        return self.start + len(self.body) + self.zeros

    @property
    def facts(self) -> dict[str, Any]:
        """Return the decoded JSON body, or an empty dictionary if the body is empty.

        The body of a BYTES record is not JSON.
        """
        found: dict[str, Any] = json.loads(self.body) if self.body else {}
        return found


def encode(record: SharedRecord) -> bytes:
    """Encode a record in the stored format."""
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

    Raise `ForeignRecord` if the bytes are not a record of the cluster, or `CorruptRecord` if the record has
    an incorrect length or does not match its CRC.
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
    """Extend `chain`, the chain at the offset `start`, by `body` and `zeros` zero bytes."""
    linked = blake2b(_LINK.pack(chain, start, zeros), digest_size=8)
    linked.update(body)
    return int.from_bytes(linked.digest(), "big")


def encode_facts(facts: dict[str, Any]) -> bytes:
    """Encode the fields of a record as a JSON body. Equal fields result in equal bytes."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
