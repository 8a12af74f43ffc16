"""Sorted runs: the store under both indexes, of files that never change and are merged by size.

`consumequeue.keyindex` and `consumequeue.timerindex` are two schemas of it: what an entry is, what counts of
several that are alike, how a block is found, and what is done about a damaged file.

**A run** is a file of entries in order: a head, and blocks, each of 4,096 bytes.

    head    width  field                        block     width    field
    0       8      what the file is             0         4080     whole entries, zeros after the last
    8       8 each what says which it is        4080      4        CRC-32 of bytes 0 to 4079, which starts
    then    4      CRC-32 of what is before                        from the block's number, from 0

Integers are little-endian, zeros fill what is left. A file is written beside and renamed, head last, so it is
whole or not there. The number in a block's CRC says that the block is where it belongs.

**A merge** makes one run of new entries and older runs. Each source is in order of two fields, the major and
the minor one. A pass takes a chunk of every source and gives out all entries up to the least of the chunks'
last ones; so each pass uses one chunk up, and none holds back more than its own. Entries with both fields
equal are in one pass.

**Which runs are merged** is decided by size: a run waits until those behind it, the new entries with them,
hold three times as much as it does. So there are some three runs of each size, a number that grows with the
logarithm of the log, and an entry is written again only when its run grows fourfold.

**A file goes** when neither the new snapshot nor the one before names it: the next start may be from either.

Cost: a block is one read. Memory: what one call reads or writes; in a merge one chunk per source. Weak spot:
a merge in which nothing is alike still writes every entry again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np

from commitlog.disk import Disk
from commitlog.errors import StoreDamaged

Sorted = np.ndarray[Any, np.dtype[np.void]]
"""An array of entries in order."""

BLOCK_BYTES: Final = 4096
CONTENT_BYTES: Final = 4080
READ_BLOCKS: Final = 64
"""How many blocks are read at once where all of a run is wanted."""

_CRC: Final = struct.Struct("<I")
_GROWTH: Final = 3


class Named(Protocol):
    """A run, as far as its file's name goes."""

    @property
    def name(self) -> str:
        """The file's name in its folder."""


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


def chunks(blocks: Callable[[int, int], Sorted], block_count: int) -> Iterator[Sorted]:
    """Yield all entries of a run in order, by `blocks(number, count)`, which may raise `StoreDamaged`."""
    for number in range(0, block_count, READ_BLOCKS):
        yield blocks(number, min(READ_BLOCKS, block_count - number))


def file_names(runs: Iterable[Named]) -> frozenset[str]:
    """Return the names of runs' files."""
    return frozenset(run.name for run in runs)


def delete_all_but(disk: Disk, folder: str, names: frozenset[str]) -> None:
    """Delete the files of a folder that have none of the names."""
    for name in disk.list(folder):
        if name not in names:
            disk.delete(f"{folder}/{name}")


class Counted(Protocol):
    """A run, as far as its size goes."""

    @property
    def entry_count(self) -> int:
        """The number of entries in the run."""


def kept_count(runs: Sequence[Counted], new_count: int) -> int:
    """Return how many of the runs, oldest first, stay as they are when `new_count` entries come behind."""
    behind = new_count + sum(run.entry_count for run in runs)
    for position, run in enumerate(runs):
        behind -= run.entry_count
        if run.entry_count * _GROWTH <= behind:
            return position
    return len(runs)


def passes(sources: Iterable[Iterator[Sorted]], major: str, minor: str) -> Iterator[Sorted]:
    """Yield all entries in chunks, in order among each other, not within: there older sources come first."""
    waiting = [_Source(chunks, major, minor) for chunks in sources]
    while waiting := [source for source in waiting if source.fill()]:
        # The least of the last entries: nothing that any source still has to bring can come before it.
        last = min(source.last for source in waiting)
        gathered = np.concatenate([source.take(*last) for source in waiting])
        assert len(gathered), "a source is not in order: nothing of it comes up to its last entry"
        yield gathered


class _Source:
    """A source, and the part of its chunk at hand that has not been given out."""

    def __init__(self, chunks: Iterator[Sorted], major: str, minor: str) -> None:
        self._chunks = chunks
        self._major, self._minor = major, minor
        self._entries: Sorted | None = None

    def fill(self) -> bool:
        """Get a chunk if none is left; return False at the source's end."""
        while self._entries is None or len(self._entries) == 0:
            self._entries = next(self._chunks, None)
            if self._entries is None:
                return False
        return True

    @property
    def last(self) -> tuple[int, int]:
        """The (major, minor) of the last entry at hand."""
        assert self._entries is not None, "not filled"
        entry = self._entries[-1]
        return int(entry[self._major]), int(entry[self._minor])

    def take(self, last_major: int, last_minor: int) -> Sorted:
        """Return, and let go of, the entries up to (`last_major`, `last_minor`)."""
        assert self._entries is not None, "not filled"
        majors, minors = self._entries[self._major], self._entries[self._minor]
        first = np.searchsorted(majors, np.uint64(last_major))
        end = np.searchsorted(majors, np.uint64(last_major), side="right")
        end = first + np.searchsorted(minors[first:end], np.uint64(last_minor), side="right")
        taken, self._entries = self._entries[:end], self._entries[end:]
        return taken


def _is_damaged(block: bytes, number: int) -> bool:
    sound = _CRC.pack(zlib.crc32(block[:CONTENT_BYTES], number)).ljust(BLOCK_BYTES - CONTENT_BYTES, b"\0")
    return block[CONTENT_BYTES:] != sound
