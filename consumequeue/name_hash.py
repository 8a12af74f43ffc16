"""Computes the hash for a name in a topic, which is the BLAKE2b hash of `topic#name`.

The key index and the table of recent IDs use 8-byte hashes, and the timer tables use 16-byte hashes. BLAKE2b
includes the digest size in the hash, so the short digest of a name is not a prefix of the long digest.

Cost: Computing the hash of a name takes 0.6 us. A cache of hash states for 1,024 topics would reduce this
time to 0.4 us for few topics, but would increase it to 1.0 us for 10,000 alternating topics.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

HASH_BYTES: Final = 8
WIDE_HASH_BYTES: Final = 16


def digest_of(topic: str, name: str) -> bytes:
    """Return the digest for a name, which is HASH_BYTES bytes long."""
    return digest_of_name(f"{topic}#{name}".encode())


def wide_digest_of(topic: str, name: str) -> bytes:
    """Return the digest for a name, which is WIDE_HASH_BYTES bytes long."""
    return blake2b(f"{topic}#{name}".encode(), digest_size=WIDE_HASH_BYTES).digest()


def digest_of_name(whole_name: bytes) -> bytes:
    """Return the digest for a string of the form `topic#name`. The digest is HASH_BYTES bytes long."""
    return blake2b(whole_name, digest_size=HASH_BYTES).digest()
