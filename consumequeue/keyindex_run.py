"""One file of the key index: entries in ascending order of hash, then of physical offset; never changed.

`keyindex/<20 digits first_offset>-<20 digits end_offset>` covers the records from the first offset up to the
end. It is a head and blocks, 4,096 bytes each; integers are little-endian, zeros fill what is left.

    head    width  field                        block     width    field
    0       8      "TWKEYS01"                   0         16 each  up to 255 entries, all but in the last
    8       8      first_offset                 4080      4        CRC-32 of bytes 0 to 4079, which starts
    16      8      end_offset                                      from the block's number, from 0
    24      8      entry_count
    32      4      CRC-32 of bytes 0 to 31      entry: hash (8), physical_offset (8)

It is written beside and renamed, so it is whole or not there; the head is checked when the store is opened,
each block when it is read. Hashes are spread evenly, so that a search guesses where its hash must lie: two
or three blocks for 10 million entries. Where they are not, because one key is everywhere, it halves.
Memory: none per entry.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import KEYINDEX, OFFSET_DIGITS

ENTRY: Final = np.dtype([("hash", "<u8"), ("physical_offset", "<u8")])
"""One entry; 64 bits of hash, and where the record lies."""

Entries = np.ndarray[Any, np.dtype[np.void]]
"""An array of `ENTRY`."""

BLOCK_BYTES: Final = 4096
BLOCK_ENTRIES: Final = 255
READ_BLOCKS: Final = 64

_MAGIC: Final = b"TWKEYS01"
_HEAD: Final = struct.Struct("<8sQQQ")
_CRC: Final = struct.Struct("<I")
_ENTRIES_BYTES: Final = BLOCK_ENTRIES * ENTRY.itemsize
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
        """How many blocks follow the head."""
        return -(-self.entry_count // BLOCK_ENTRIES)

    def is_whole(self, disk: Disk) -> bool:
        """Whether the file is there, as long as it must be, and has this head."""
        if disk.size(self.path) != (1 + self.block_count) * BLOCK_BYTES:
            return False
        return disk.read(self.path, 0, BLOCK_BYTES) == _head(self)

    def offsets(self, disk: Disk, key_hash: int) -> Iterator[int]:
        """The physical offsets stored for a hash, newest first; raises `StoreDamaged`."""
        number = self._last_block_of(disk, key_hash)
        while number >= 0:
            found = self.blocks(disk, number, 1)
            first, end = bounds(found, key_hash)
            yield from reversed(found["physical_offset"][first:end].tolist())
            number = number - 1 if first == 0 else -1

    def chunks(self, disk: Disk) -> Iterator[Entries]:
        """All entries, in order; raises `StoreDamaged`."""
        for number in range(0, self.block_count, READ_BLOCKS):
            yield self.blocks(disk, number, min(READ_BLOCKS, self.block_count - number))

    def blocks(self, disk: Disk, number: int, count: int) -> Entries:
        """The entries of `count` blocks from block `number` on; raises `StoreDamaged`."""
        stored = disk.read(self.path, (1 + number) * BLOCK_BYTES, count * BLOCK_BYTES)
        parts = [stored[at : at + BLOCK_BYTES] for at in range(0, len(stored), BLOCK_BYTES)]
        if len(parts) != count or any(map(_is_damaged, parts, range(number, number + count))):
            raise StoreDamaged(
                f"{self.path} does not match its CRC near block {number}. "
                "The key index is made anew from the log at the next start."
            )
        content = b"".join([part[:_ENTRIES_BYTES] for part in parts])
        return np.frombuffer(content, ENTRY)[: self.entry_count - number * BLOCK_ENTRIES]

    def _last_block_of(self, disk: Disk, key_hash: int) -> int:
        """The last block that can hold the hash; -1 if all entries are above it."""
        low, end = 0, self.block_count
        low_hash, end_hash = 0, _HASHES
        for step in range(2 * end + 1):
            if low == end:
                break
            share = (key_hash - low_hash) * (end - low) // max(1, end_hash - low_hash)
            guess = low + min(share if step < _GUESSES_MAX else (end - low) // 2, end - low - 1)
            hashes = self.blocks(disk, guess, 1)["hash"]
            if key_hash < hashes[0]:
                end, end_hash = guess, int(hashes[0])
            elif key_hash < hashes[-1]:
                return guess
            else:
                low, low_hash = guess + 1, int(hashes[-1])
        return low - 1


def bounds(entries: Entries, key_hash: int) -> tuple[int, int]:
    """The range of the entries, which are in order, that have the hash."""
    hashes, wanted = entries["hash"], np.uint64(key_hash)
    first = int(hashes.searchsorted(wanted))
    if first == len(hashes) or hashes[first] != wanted:
        return first, first
    return first, int(hashes.searchsorted(wanted, side="right"))


def write(disk: Disk, chunks: Iterable[Entries]) -> Run | None:
    """Makes a durable run of entries that come in order; None, and no file, if there are none."""
    disk.delete(_UNFINISHED)
    first_offset, end_offset, entry_count, block_count = -1, 0, 0, 0
    for whole in _in_whole_blocks(chunks):
        offsets = whole["physical_offset"]
        least = int(offsets.min())
        first_offset = least if first_offset < 0 else min(first_offset, least)
        end_offset = max(end_offset, int(offsets.max()) + 1)
        encoded = _encode_blocks(whole, block_count)
        disk.write(_UNFINISHED, (1 + block_count) * BLOCK_BYTES, encoded)
        block_count += len(encoded) // BLOCK_BYTES
        entry_count += len(whole)
    if entry_count == 0:
        return None
    return _finish(disk, Run(first_offset, end_offset, entry_count))


def _finish(disk: Disk, run: Run) -> Run:
    disk.write(_UNFINISHED, 0, _head(run))
    disk.sync(_UNFINISHED)
    disk.rename(_UNFINISHED, run.path)
    return run


def _in_whole_blocks(chunks: Iterable[Entries]) -> Iterator[Entries]:
    """The same entries in chunks that fill their blocks, all but the last."""
    left: Entries = np.empty(0, ENTRY)
    for chunk in chunks:
        gathered = np.concatenate((left, chunk))
        whole = len(gathered) // BLOCK_ENTRIES * BLOCK_ENTRIES
        left = gathered[whole:]
        if whole:
            yield gathered[:whole]
    if len(left):
        yield left


def _encode_blocks(entries: Entries, first_number: int) -> bytes:
    stored = entries.tobytes()
    blocks: list[bytes] = []
    for number, at in enumerate(range(0, len(stored), _ENTRIES_BYTES), first_number):
        content = stored[at : at + _ENTRIES_BYTES].ljust(_ENTRIES_BYTES, b"\0")
        blocks.append((content + _CRC.pack(zlib.crc32(content, number))).ljust(BLOCK_BYTES, b"\0"))
    return b"".join(blocks)


def _is_damaged(block: bytes, number: int) -> bool:
    content = block[:_ENTRIES_BYTES]
    return block[_ENTRIES_BYTES:] != _CRC.pack(zlib.crc32(content, number)).ljust(
        BLOCK_BYTES - _ENTRIES_BYTES, b"\0"
    )


def _head(run: Run) -> bytes:
    fields = _HEAD.pack(_MAGIC, run.first_offset, run.end_offset, run.entry_count)
    return (fields + _CRC.pack(zlib.crc32(fields))).ljust(BLOCK_BYTES, b"\0")
