"""What every file of sorted entries is made of, whichever its entries are: a head, and blocks with a CRC.

    head    width  field                        block     width    field
    0       8      what the file is             0         4080     whole entries, zeros after the last
    8       8 each what says which it is        4080      4        CRC-32 of bytes 0 to 4079, which starts
    then    4      CRC-32 of what is before                        from the block's number, from 0

Each is 4,096 bytes; integers are little-endian, zeros fill what is left. A file is written beside and
renamed, head last, so it is whole or not there. The number in a block's CRC says that the block is where it
belongs. Memory: what one call reads or writes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from commitlog.disk import Disk
from commitlog.errors import StoreDamaged

Sorted = np.ndarray[Any, np.dtype[np.void]]
"""An array of entries in order."""

BLOCK_BYTES: Final = 4096
CONTENT_BYTES: Final = 4080

_CRC: Final = struct.Struct("<I")


def head(magic: bytes, *which: int) -> bytes:
    """Return the first block of a file: 8 bytes of magic, and integers of 64 bits."""
    fields = struct.pack(f"<8s{len(which)}Q", magic, *which)
    return (fields + _CRC.pack(zlib.crc32(fields))).ljust(BLOCK_BYTES, b"\0")


def in_whole_blocks(chunks: Iterable[Sorted], dtype: np.dtype[np.void]) -> Iterator[Sorted]:
    """Yield the same entries in chunks that fill their blocks, all but the last."""
    left: Sorted = np.empty(0, dtype)
    block_entries = CONTENT_BYTES // dtype.itemsize
    for chunk in chunks:
        gathered = np.concatenate((left, chunk))
        whole = len(gathered) // block_entries * block_entries
        left = gathered[whole:]
        if whole:
            yield gathered[:whole]
    if len(left):
        yield left


def encode_blocks(entries: Sorted, first_number: int) -> bytes:
    """Return the blocks of these entries, numbered from `first_number`."""
    # Entries never go over the edge of a block, so a block is read, checked and searched by itself.
    stored = entries.tobytes()
    blocks: list[bytes] = []
    content_bytes = CONTENT_BYTES // entries.itemsize * entries.itemsize
    for number, at in enumerate(range(0, len(stored), content_bytes), first_number):
        content = stored[at : at + content_bytes].ljust(CONTENT_BYTES, b"\0")
        blocks.append((content + _CRC.pack(zlib.crc32(content, number))).ljust(BLOCK_BYTES, b"\0"))
    return b"".join(blocks)


def read_blocks(disk: Disk, path: str, number: int, count: int, advice: str) -> bytes:
    """Return the content of `count` blocks from `number` on; raise `StoreDamaged`, ending with `advice`."""
    stored = disk.read(path, (1 + number) * BLOCK_BYTES, count * BLOCK_BYTES)
    parts = [stored[at : at + BLOCK_BYTES] for at in range(0, len(stored), BLOCK_BYTES)]
    if len(parts) != count or any(map(_is_damaged, parts, range(number, number + count))):
        raise StoreDamaged(f"{path} does not match its CRC near block {number}. {advice}")
    return b"".join([part[:CONTENT_BYTES] for part in parts])


def finish(disk: Disk, unfinished: str, path: str, first_block: bytes) -> None:
    """Give a written file its head and its name, durably."""
    assert len(first_block) == BLOCK_BYTES, "a head is one block"
    disk.write(unfinished, 0, first_block)
    disk.sync(unfinished)
    disk.rename(unfinished, path)


def _is_damaged(block: bytes, number: int) -> bool:
    sound = _CRC.pack(zlib.crc32(block[:CONTENT_BYTES], number)).ljust(BLOCK_BYTES - CONTENT_BYTES, b"\0")
    return block[CONTENT_BYTES:] != sound
