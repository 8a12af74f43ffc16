"""The hash of a name under a topic: BLAKE2b of `topic#name`.

The key index and the table of recent ids know a name by 8 bytes, the tables of timers by 16; BLAKE2b mixes
the size of a digest in, so that one is not a part of the other.

Cost: 0.6 us a name. A hash of `topic#` that is kept in a cache of 1,024 and copied takes 0.4 us for few
topics, and 1.0 where 10,000 come in turn.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

HASH_BYTES: Final = 8
WIDE_HASH_BYTES: Final = 16


def digest_of(topic: str, name: str) -> bytes:
    """Return the digest of a name, of HASH_BYTES."""
    return digest_of_name(f"{topic}#{name}".encode())


def wide_digest_of(topic: str, name: str) -> bytes:
    """Return the digest of a name, of WIDE_HASH_BYTES."""
    return blake2b(f"{topic}#{name}".encode(), digest_size=WIDE_HASH_BYTES).digest()


def digest_of_name(whole_name: bytes) -> bytes:
    """Return the digest, of HASH_BYTES, of a name behind its topic and `#`."""
    return blake2b(whole_name, digest_size=HASH_BYTES).digest()
