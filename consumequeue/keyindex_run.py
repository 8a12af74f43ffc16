"""One file of the key index: entries in ascending order of hash, then of physical offset; never changed.

`keyindex/<20 digits first_offset>-<20 digits end_offset>` covers the records from the first offset up to the
end: a head, "TWKEYS01", first_offset, end_offset, entry_count, and blocks, as `consumequeue.sorted_run` says.
An entry is hash (8), physical_offset (8); a block holds 255, the last one what is left.

The head is checked when the store is opened, each block when it is read. Hashes are spread evenly, so that a
search guesses where its hash must lie (interpolation search, Perl and others 1978): two or three blocks for
10 million entries. Where they are not, because one key is everywhere, it halves. Memory: none per entry.
Weak spot: a hash of many entries is read block by block, backwards, though only some may be wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from commitlog.disk import Disk
from commitlog.layout import KEYINDEX, OFFSET_DIGITS
from consumequeue import sorted_run
from consumequeue.sorted_run import BLOCK_BYTES as BLOCK_BYTES

ENTRY: Final = np.dtype([("hash", "<u8"), ("physical_offset", "<u8")])
"""One entry; 64 bits of hash, and where the record lies."""

Entries = np.ndarray[Any, np.dtype[np.void]]
"""An array of `ENTRY`."""

BLOCK_ENTRIES: Final = 255
READ_BLOCKS: Final = 64

_MAGIC: Final = b"TWKEYS01"
_ADVICE: Final = "The key index is made anew from the log at the next start."
_UNFINISHED: Final = f"{KEYINDEX}/unfinished"
_HASHES: Final = 1 << 64
_GUESSES_MAX: Final = 6


@dataclass(slots=True, frozen=True)
class Run:
    """A file of `entry_count` entries for the records from `first_offset` up to `end_offset`."""

    first_offset: int
    end_offset: int
    entry_count: int

    @property
    def name(self) -> str:
        """The file's name in the folder of the index."""
        return f"{self.first_offset:0{OFFSET_DIGITS}d}-{self.end_offset:0{OFFSET_DIGITS}d}"

    @property
    def path(self) -> str:
        """The file's path in the store."""
        return f"{KEYINDEX}/{self.name}"

    @property
    def block_count(self) -> int:
        """The number of blocks behind the head."""
        return -(-self.entry_count // BLOCK_ENTRIES)

    def is_whole(self, disk: Disk) -> bool:
        """Return whether the file is there, as long as it must be, and has this head."""
        if disk.size(self.path) != (1 + self.block_count) * BLOCK_BYTES:
            return False
        return disk.read(self.path, 0, BLOCK_BYTES) == _head(self)

    def offsets(self, disk: Disk, key_hash: int) -> Iterator[int]:
        """Yield the physical offsets stored for a hash, newest first; raise `StoreDamaged`."""
        number = self._last_block_of(disk, key_hash)
        while number >= 0:
            found = self.blocks(disk, number, 1)
            first, end = bounds(found, key_hash)
            yield from reversed(found["physical_offset"][first:end].tolist())
            number = number - 1 if first == 0 else -1

    def chunks(self, disk: Disk) -> Iterator[Entries]:
        """Yield all entries, in order; raise `StoreDamaged`."""
        for number in range(0, self.block_count, READ_BLOCKS):
            yield self.blocks(disk, number, min(READ_BLOCKS, self.block_count - number))

    def blocks(self, disk: Disk, number: int, count: int) -> Entries:
        """Return the entries of `count` blocks from block `number` on; raise `StoreDamaged`."""
        content = sorted_run.read_blocks(disk, self.path, number, count, _ADVICE)
        return np.frombuffer(content, ENTRY)[: self.entry_count - number * BLOCK_ENTRIES]

    def _last_block_of(self, disk: Disk, key_hash: int) -> int:
        """Return the number of the last block that can hold the hash; -1 if all entries are above it."""
        low, end = 0, self.block_count
        low_hash, end_hash = 0, _HASHES
        for step in range(2 * end + 1):
            if low == end:
                break
            # Where between the hashes at both ends the wanted one lies is about where its block is. After six
            # guesses that were no use the hashes are not even, and halving is sure.
            share = (key_hash - low_hash) * (end - low) // max(1, end_hash - low_hash)
            guess = low + min(share if step < _GUESSES_MAX else (end - low) // 2, end - low - 1)
            hashes = self.blocks(disk, guess, 1)["hash"]
            if key_hash < hashes[0]:
                end, end_hash = guess, int(hashes[0])
            elif key_hash < hashes[-1]:
                return guess
            else:
                # Also when it equals the last hash: blocks behind may go on with it, and the last is wanted.
                low, low_hash = guess + 1, int(hashes[-1])
        return low - 1


def bounds(entries: Entries, key_hash: int) -> tuple[int, int]:
    """Return the range [first, end) of the entries, which are in order, that have the hash."""
    hashes, wanted = entries["hash"], np.uint64(key_hash)
    first = int(hashes.searchsorted(wanted))
    if first == len(hashes) or hashes[first] != wanted:
        return first, first
    return first, int(hashes.searchsorted(wanted, side="right"))


def write(disk: Disk, chunks: Iterable[Entries]) -> Run | None:
    """Make a durable run of entries that come in order; return None, and make no file, if none come."""
    disk.delete(_UNFINISHED)
    first_offset, end_offset, entry_count, block_count, last_hash = -1, 0, 0, 0, 0
    for whole in sorted_run.in_whole_blocks(chunks, ENTRY):
        assert last_hash <= whole["hash"][0] <= whole["hash"][-1], "entries do not come in order"
        last_hash = whole["hash"][-1]
        offsets = whole["physical_offset"]
        least = int(offsets.min())
        first_offset = least if first_offset < 0 else min(first_offset, least)
        end_offset = max(end_offset, int(offsets.max()) + 1)
        encoded = sorted_run.encode_blocks(whole, block_count)
        disk.write(_UNFINISHED, (1 + block_count) * BLOCK_BYTES, encoded)
        block_count += len(encoded) // BLOCK_BYTES
        entry_count += len(whole)
    if entry_count == 0:
        return None
    run = Run(first_offset, end_offset, entry_count)
    assert run.block_count == block_count, "a block before the last is not full"
    sorted_run.finish(disk, _UNFINISHED, run.path, _head(run))
    return run


def _head(run: Run) -> bytes:
    return sorted_run.head(_MAGIC, run.first_offset, run.end_offset, run.entry_count)
