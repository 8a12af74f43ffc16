"""The hash of a name under a topic, which is BLAKE2b of `topic#name`.

The key index and the table of recent ids use 8 bytes per name, and the tables of timers use 16 bytes. BLAKE2b
includes the size of the digest in the hash, so the short digest is not a prefix of the long digest.

Cost: 0.6 us per name. A cache of 1,024 hash states of `topic#` reduces the time to 0.4 us for few topics, but
increases it to 1.0 us if 10,000 topics alternate.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

HASH_BYTES: Final = 8
WIDE_HASH_BYTES: Final = 16


def digest_of(topic: str, name: str) -> bytes:
    """Return the digest of a name, with HASH_BYTES bytes."""
    return digest_of_name(f"{topic}#{name}".encode())


def wide_digest_of(topic: str, name: str) -> bytes:
    """Return the digest of a name, with WIDE_HASH_BYTES bytes."""
    return blake2b(f"{topic}#{name}".encode(), digest_size=WIDE_HASH_BYTES).digest()


def digest_of_name(whole_name: bytes) -> bytes:
    """Return the digest of a topic, `#`, and a name, given as one text, with HASH_BYTES bytes."""
    return blake2b(whole_name, digest_size=HASH_BYTES).digest()
