"""The Bloom filter for a run. Each test reads a single word.

Keys are hashed with the MurmurHash3 finalizer, because keys that are offsets are not evenly distributed. The
upper 40 bits of the hash select a 64-bit word, and the lower 24 bits select four bits in it. Adding a key
sets these four bits. At 12 bits per key, the false positive rate is about 1 %. For a new run, only an upper
bound on the key count is known. The filter of a new run therefore starts with a multiple of 64 words and is
folded later by combining the upper half of the words with the lower half. Word positions stay valid modulo
the smaller word count. Cost: 12 to 24 bits per key.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]
"""Array of 64-bit words, for keys and filters."""

Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""Array of Boolean values."""

BITS_PER_KEY: Final = 12
_FOLDS: Final = 64
_WORD: Final = (1 << 64) - 1
_FIRST: Final = 0xFF51AFD7ED558CCD
_SECOND: Final = 0xC4CEB9FE1A85EC53


class Probe(NamedTuple):
    """Word position (before the modulo) and bits for a key.

    A probe works with any filter.
    """

    place: int
    bits: int


def probe_of(key: int) -> Probe:
    """Return the probe for a key."""
    mixed = ((key ^ (key >> 33)) * _FIRST) & _WORD
    mixed = ((mixed ^ (mixed >> 33)) * _SECOND) & _WORD
    mixed ^= mixed >> 33
    bits = 1 << (mixed & 63) | 1 << (mixed >> 6 & 63) | 1 << (mixed >> 12 & 63) | 1 << (mixed >> 18 & 63)
    return Probe(mixed >> 24, bits)


def probes_of(keys: Words) -> tuple[Words, Words]:
    """Return the word positions and the bits for many keys as two arrays.

    The values match those of `probe_of`.
    """
    mixed = (keys ^ (keys >> _u64(33))) * _u64(_FIRST)
    mixed = (mixed ^ (mixed >> _u64(33))) * _u64(_SECOND)
    mixed ^= mixed >> _u64(33)
    bits = np.zeros(len(keys), np.uint64)
    for shift in (0, 6, 12, 18):
        bits |= _u64(1) << (mixed >> _u64(shift) & _u64(63))
    return mixed >> _u64(24), bits


class Filter:
    """The Bloom filter for a run."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self._seen = words.data
        self._count = len(words)

    @staticmethod
    def for_at_most(key_count: int) -> Filter:
        """Return an empty filter for up to `key_count` keys."""
        return Filter(np.zeros(_FOLDS * (1 + key_count * BITS_PER_KEY // (64 * _FOLDS)), np.uint64))

    def add(self, keys: Words) -> None:
        """Add keys to the filter."""
        places, bits = probes_of(keys)
        np.bitwise_or.at(self.words, places % _u64(self._count), bits)

    def folded(self, key_count: int) -> Filter:
        """Return the filter folded to the smallest size suitable for `key_count` keys."""
        words = self.words
        assert key_count * BITS_PER_KEY <= 64 * len(words), "more keys than the filter was made for"
        while len(words) % 2 == 0 and len(words) * 32 >= key_count * BITS_PER_KEY:
            half = len(words) // 2
            words = words[:half] | words[half:]
        return Filter(words)

    def may_hold(self, probe: Probe) -> bool:
        """Return whether the key of a probe may have been added.

        False means the key was not added.
        """
        return self._seen[probe.place % self._count] & probe.bits == probe.bits

    def may_hold_each(self, places: Words, bits: Words) -> Mask:
        """Return the results of `may_hold` for the arrays from `probes_of`."""
        held: Mask = (self.words[places % _u64(self._count)] & bits) == bits
        return held


def _u64(number: int) -> np.uint64:
    return np.uint64(number)
