"""Sorted runs are immutable files of fixed-size entries in key order.

Each run also has fences and a Bloom filter.

`consumequeue.runs.run_store` decides when runs are written, merged, and deleted. A `Schema` describes the
entries. The key index (`consumequeue.indexes.keyindex`) and the timer index
(`consumequeue.indexes.timerindex`) each have one.

**A run** is the file `<folder>/<20-digit number>`: a header, blocks of 4,096 bytes, and a tail.

    head    width  field                        block     width    field
    0       8      magic of the schema          0         4080     whole entries, zeros after the last
    8       8      number                       4080      4        CRC-32 of bytes 0 to 4079, which starts
    16      8, 8   first_offset, end_offset                        from the block's number, from 0
    32      8      entry_count
    40      4      CRC-32 of bytes 0 to 39      tail      width    field
                                                0         8 each   fences: the key of each block's first entry
                                                ...       8 each   words of the filter (`bloom_filter.py`)
                                                ...       4, 4     CRC-32 of the fences, of the filter

Integers are little-endian, and unused bytes are zero. A file is written under a temporary name, with the
header last, and then renamed, so it is complete or absent. The CRC of a block depends on its number, so that
misplaced blocks are detected.

Entries are sorted by `key`, and then by the minor field of the schema. The fences and the filter are kept in
memory. A lookup usually reads one block if the run contains the key, and none otherwise. To limit memory, a
run with more than `filtered_max` entries has no filter, and each lookup in it reads a block. If the fences or
the filter are damaged, lookups return the same results but require more reads. No entry is returned from a
damaged block, or from a file whose header does not match the snapshot. A read error is also damage
(`StoreDamaged`): any error specific to the file in a derived index, and only EIO in any other index.

**A merge** combines sorted sources into a single run. Each pass reads a chunk from every source and yields
all entries up to the lowest of the chunks' last entries. Each pass thus consumes at least one whole chunk and
keeps at most one chunk per source in memory. Entries with the same key and minor field are yielded in the
same pass.

Cost: a lookup takes 0.3 us in a run that does not contain the key, and 8 us for each block read. Fences use 8
bytes of memory per block. A run with a filter uses 12 to 25 bits of memory per entry. A merge buffers one
chunk per source. Limitation: a merge rewrites all entries of its runs, even if their key ranges do not
overlap.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from errno import EIO
from typing import Any, Final

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import OFFSET_DIGITS
from consumequeue.queue import is_unrelated_error
from consumequeue.runs.bloom_filter import Filter, Mask, Probe, Words

Entries = np.ndarray[Any, np.dtype[np.void]]
"""Array of entries in the format of a schema."""

BLOCK_BYTES: Final = 4096
CONTENT_BYTES: Final = 4080
READ_BLOCKS: Final = 64
"""Blocks per read when a whole run is read."""

_CRC: Final = struct.Struct("<I")
_CRCS: Final = struct.Struct("<II")
_HEAD: Final = struct.Struct("<8s4Q")
_PIECE_WORDS: Final = 1 << 17


@dataclass(slots=True, frozen=True, eq=False)
class Schema:
    """Entry format and rules of a run store.

    The entry must have the 64-bit fields `key` and `offset`.
    """

    magic: bytes
    entry: np.dtype[np.void]
    minor: str
    """Field that sorts entries with the same key."""
    merged: Callable[[Entries], Entries]
    """Sorts entries of several sources, oldest source first, and drops superseded ones."""
    newest_only: bool
    """Whether only the highest offset is valid among entries with the same key and minor field."""
    is_derived: bool
    """Whether the log has all entries, so that a damaged index can be rebuilt."""
    filtered_max: int
    """Maximum number of entries of a run with a filter."""
    advice: str
    """Advice for the operator about a damaged run."""

    def __post_init__(self) -> None:
        assert CONTENT_BYTES % self.entry.itemsize == 0, "a full block of entries has room left"

    @property
    def block_entries(self) -> int:
        """Number of entries in a full block."""
        return CONTENT_BYTES // self.entry.itemsize


@dataclass(slots=True, eq=False)
class Run:
    """A file containing `entry_count` entries.

    The entries' offsets range from `first_offset` to `end_offset` (exclusive).
    """

    schema: Schema = field(repr=False)
    folder: str
    number: int
    first_offset: int
    end_offset: int
    entry_count: int
    path: str = field(default="", kw_only=True)
    """Path of the file in the store. By default, it follows from the number."""
    fences: Words | None = field(default=None, init=False, repr=False)
    filter: Filter | None = field(default=None, init=False, repr=False)
    is_tail_sound: bool = field(default=False, init=False)
    """Whether the fences and the filter are undamaged."""
    lost: str = field(default="", init=False)
    """Why the entire run cannot be read, or ""."""
    unread: str = field(default="", init=False)
    """Error message of a failed read, or ""."""

    def __post_init__(self) -> None:
        self.path = self.path or f"{self.folder}/{self.name}"

    @classmethod
    def at(cls, schema: Schema, disk: Disk, path: str) -> Run:
        """Return the run described by a file's header.

        Raise `StoreDamaged` if there is no header. Do not load the fences or the filter.
        """
        stored = disk.read(path, 0, _HEAD.size)
        if len(stored) < _HEAD.size:
            raise StoreDamaged(f"{path} has no head. {schema.advice}")
        _, *fields = _HEAD.unpack(stored)
        return cls(schema, "", *fields, path=path)

    @property
    def name(self) -> str:
        """Name of the file in its folder."""
        return f"{self.number:0{OFFSET_DIGITS}d}"

    @property
    def block_count(self) -> int:
        """Number of blocks after the header."""
        return -(-self.entry_count // self.schema.block_entries)

    @property
    def tail_at(self) -> int:
        """Byte position of the fences."""
        return (1 + self.block_count) * BLOCK_BYTES

    def freeze(self) -> list[int]:
        """Return the run's snapshot row, which contains the header fields."""
        return [self.number, self.first_offset, self.end_offset, self.entry_count]

    def load(self, disk: Disk) -> None:
        """Load the fences and the filter, and determine whether the run is lost.

        A run is lost if its header cannot be read. A run in a derived index is also lost if its tail cannot
        be read. Raise the same OSErrors as `blocks`.
        """
        try:
            self._load(disk)
        except OSError as error:
            self.lost = self._unread_or_raise(error)

    def _load(self, disk: Disk) -> None:
        if disk.size(self.path) < self.tail_at or disk.read(self.path, 0, BLOCK_BYTES) != _head(self):
            self.lost = f"{self.path} is missing or damaged. {self.schema.advice}"
            return
        fences_bytes = 8 * self.block_count
        filter_bytes = disk.size(self.path) - self.tail_at - fences_bytes - _CRCS.size
        if filter_bytes < 0 or filter_bytes % 8:
            return
        crcs = self._read_tail(disk, self.tail_at + fences_bytes + filter_bytes, _CRCS.size)
        if len(crcs) < _CRCS.size:
            return
        fences = self._read_tail(disk, self.tail_at, fences_bytes)
        filtered = self._read_tail(disk, self.tail_at + fences_bytes, filter_bytes)
        are_fences_sound, is_filter_sound = (
            zlib.crc32(part) == crc for part, crc in zip((fences, filtered), _CRCS.unpack(crcs), strict=True)
        )
        if are_fences_sound:
            self.fences = np.frombuffer(fences, np.uint64)
        if is_filter_sound and filtered:
            self.filter = Filter(np.frombuffer(filtered, np.uint64))
        self.is_tail_sound = are_fences_sound and is_filter_sound

    def _read_tail(self, disk: Disk, position: int, length: int) -> bytes:
        """Return bytes from the tail.

        For a non-derived index, return b"" if the bytes cannot be read.
        """
        try:
            return disk.read(self.path, position, length)
        except OSError as error:
            self._unread_or_raise(error)
            if self.schema.is_derived:
                raise
        return b""

    def may_hold(self, probe: Probe) -> bool:
        """Return whether the run may contain a probe's key.

        There are no false negatives.
        """
        return self.filter is None or self.filter.may_hold(probe)

    def may_hold_each(self, places: Words, bits: Words) -> Mask:
        """For each probe, return whether the run may contain its key.

        Without a filter, all results are True.
        """
        if self.filter is None:
            return np.ones(len(places), np.bool_)
        return self.filter.may_hold_each(places, bits)

    def find(self, disk: Disk, key: int) -> Iterator[Entries]:
        """Yield the entries for a key block by block, starting with the last block.

        Raise `StoreDamaged` if a block is damaged. Call `may_hold` first, because `find` always reads a
        block.
        """
        if self.lost:
            raise StoreDamaged(self.lost)
        fences: Sequence[int] = _FencesRead(self, disk) if self.fences is None else self.fences.data
        # The entries for a key may span several blocks. The search covers all blocks that begin with the key,
        # and the block that precedes them.
        end = bisect_right(fences, key)
        start = max(0, bisect_left(fences, key, 0, end) - 1)
        for number in reversed(range(start, end)):
            entries = self.blocks(disk, number, 1)
            first, behind = bounds(entries["key"], key)
            if first < behind:
                yield entries[first:behind]

    def chunks(self, disk: Disk) -> Iterator[Entries]:
        """Yield all entries in order. Raise `StoreDamaged` if a block is damaged."""
        for number in range(0, self.block_count, READ_BLOCKS):
            yield self.blocks(disk, number, min(READ_BLOCKS, self.block_count - number))

    def is_sound(self, disk: Disk) -> bool:
        """Read every block. Return whether the whole file is undamaged."""
        fresh, damaged = Run(self.schema, self.folder, *self.freeze(), path=self.path), list[int]()
        fresh.load(disk)
        if not fresh.lost:
            for _ in fresh.readable(disk, damaged):
                pass
        self.unread = fresh.unread or self.unread
        return fresh.is_tail_sound and not fresh.lost and not damaged

    def readable(self, disk: Disk, damaged: list[int]) -> Iterator[Entries]:
        """Yield the readable entries in order. Append the numbers of damaged blocks to `damaged`."""
        if disk.size(self.path) < 0:
            damaged.extend(range(self.block_count))
            return
        for first in range(0, self.block_count, READ_BLOCKS):
            count = min(READ_BLOCKS, self.block_count - first)
            try:
                yield self.blocks(disk, first, count)
            except StoreDamaged:
                yield from self._one_by_one(disk, range(first, first + count), damaged)

    def _one_by_one(self, disk: Disk, numbers: range, damaged: list[int]) -> Iterator[Entries]:
        for number in numbers:
            try:
                yield self.blocks(disk, number, 1)
            except StoreDamaged:
                damaged.append(number)

    def blocks(self, disk: Disk, number: int, count: int) -> Entries:
        """Return the entries in `count` blocks, starting at block `number`.

        Raise `StoreDamaged` if they cannot be read.

        Raise OSError if the error is not specific to the file or, for a non-derived index, if it is not EIO.
        """
        try:
            stored = disk.read(self.path, (1 + number) * BLOCK_BYTES, count * BLOCK_BYTES)
        except OSError as error:
            raise StoreDamaged(self._unread_or_raise(error)) from error
        parts = [stored[at : at + BLOCK_BYTES] for at in range(0, len(stored), BLOCK_BYTES)]
        if len(parts) != count or any(map(_is_damaged, parts, range(number, number + count))):
            raise StoreDamaged(
                f"{self.path} does not match its CRC near block {number}. {self.schema.advice}"
            )
        content = b"".join([part[:CONTENT_BYTES] for part in parts])
        held_count = self.entry_count - number * self.schema.block_entries
        return np.frombuffer(content, self.schema.entry)[:held_count]

    @property
    def damage(self) -> str:
        """Error message for a damaged run, with advice for the operator."""
        return self.lost or f"{self.wrong} {self.schema.advice}"

    @property
    def wrong(self) -> str:
        """Error message for a damaged run, without advice."""
        if self.lost or not self.unread:
            return self.lost or f"{self.path} does not match its CRC."
        if self.schema.is_derived:
            return f"{self.path} cannot be read ({self.unread})."
        return (
            f"The disk cannot read {self.path} ({self.unread}): "
            "look at the kernel's log, and replace the disk."
        )

    def _unread_or_raise(self, error: OSError) -> str:
        """Record a read error and return a message describing the damage.

        Raise the error under the same conditions as `blocks`.
        """
        if is_unrelated_error(error) or not (self.schema.is_derived or error.errno == EIO):
            raise error
        self.unread = error.strerror or str(error)
        return self.damage


def write_run(
    disk: Disk, schema: Schema, folder: str, number: int, chunks: Iterable[Entries], count_max: int
) -> Run | None:
    """Write a durable run of up to `count_max` sorted entries. Return None if there are no entries."""
    unfinished = f"{folder}/unfinished"
    disk.delete(unfinished)
    run, fences, last_key = Run(schema, folder, number, 1 << 63, 0, 0), [], 0
    kept = Filter.for_at_most(count_max) if count_max <= schema.filtered_max else None
    for whole in _in_whole_blocks(chunks, schema):
        assert last_key <= whole["key"][0] <= whole["key"][-1], "entries do not come in order"
        last_key = whole["key"][-1]
        disk.write(unfinished, run.tail_at, _encode_blocks(whole, run.block_count))
        run.first_offset = min(run.first_offset, int(whole["offset"].min()))
        run.end_offset = max(run.end_offset, int(whole["offset"].max()) + 1)
        run.entry_count += len(whole)
        fences.append(whole["key"][:: schema.block_entries].copy())
        if kept is not None:
            kept.add(whole["key"])
    if run.entry_count == 0:
        return None
    assert run.entry_count <= count_max, f"{run.entry_count} entries, the filter is for {count_max}"
    run.fences, run.filter = np.concatenate(fences), None if kept is None else kept.folded(run.entry_count)
    assert len(run.fences) == run.block_count, "a block before the last is not full"
    fences_crc, filter_at = _write_words(disk, unfinished, run.tail_at, run.fences)
    words = np.empty(0, np.uint64) if run.filter is None else run.filter.words
    filter_crc, end = _write_words(disk, unfinished, filter_at, words)
    disk.write(unfinished, end, _CRCS.pack(fences_crc, filter_crc))
    run.is_tail_sound = True
    disk.write(unfinished, 0, _head(run))
    disk.sync(unfinished)
    disk.rename(unfinished, run.path)
    return run


def bounds(keys: Words, key: int) -> tuple[int, int]:
    """Return the half-open range in which the sorted keys equal `key`."""
    wanted = np.uint64(key)
    first = int(keys.searchsorted(wanted))
    if first == len(keys) or keys[first] != wanted:
        return first, first
    is_one = first + 1 == len(keys) or keys[first + 1] != wanted
    return first, first + 1 if is_one else int(keys.searchsorted(wanted, side="right"))


def order_of(keys: Words) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the indexes that would sort the keys. The sort is stable."""
    order = np.argsort(keys)
    ordered = keys[order]
    # A stable sort takes five times as long, and produces the same result if all keys are different.
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def passes(sources: Iterable[Iterator[Entries]], major: str, minor: str) -> Iterator[Entries]:
    """Yield all entries in chunks with ascending keys.

    The entries of a chunk are grouped by source, oldest source first.
    """
    waiting = [(chunk, chunks) for chunks in sources if (chunk := _next_of(chunks)) is not None]
    while waiting:
        # Entries that have not been read yet are not lower than the lowest of the last entries.
        last = min((int(chunk[major][-1]), int(chunk[minor][-1])) for chunk, _ in waiting)
        ends = [_count_up_to(chunk[major], chunk[minor], *last) for chunk, _ in waiting]
        assert any(ends), "a source is not in order: nothing of it comes up to its last entry"
        yield np.concatenate([chunk[:end] for end, (chunk, _) in zip(ends, waiting, strict=True)])
        left = [(chunk[end:], chunks) for end, (chunk, chunks) in zip(ends, waiting, strict=True)]
        filled = ((chunk if len(chunk) else _next_of(chunks), chunks) for chunk, chunks in left)
        waiting = [(chunk, chunks) for chunk, chunks in filled if chunk is not None]


def _next_of(chunks: Iterator[Entries]) -> Entries | None:
    return next((chunk for chunk in chunks if len(chunk)), None)


def _count_up_to(majors: Words, minors: Words, last_major: int, last_minor: int) -> int:
    """Return the number of sorted entries up to and including (`last_major`, `last_minor`)."""
    first, end = bounds(majors, last_major)
    return first + int(minors[first:end].searchsorted(np.uint64(last_minor), side="right"))


class _FencesRead(Sequence[int]):
    """A run's fences, which are read on demand from the first entry of each block."""

    def __init__(self, run: Run, disk: Disk) -> None:
        self._run, self._disk = run, disk

    def __len__(self) -> int:
        return self._run.block_count

    def __getitem__(self, number: Any) -> Any:
        return int(self._run.blocks(self._disk, number, 1)["key"][0])


def _head(run: Run) -> bytes:
    fields = _HEAD.pack(run.schema.magic, *run.freeze())
    return (fields + _CRC.pack(zlib.crc32(fields))).ljust(BLOCK_BYTES, b"\0")


def _in_whole_blocks(chunks: Iterable[Entries], schema: Schema) -> Iterator[Entries]:
    """Yield the entries in chunks of full blocks. The last block may be partial."""
    left: Entries = np.empty(0, schema.entry)
    for chunk in chunks:
        gathered = np.concatenate((left, chunk))
        whole = len(gathered) // schema.block_entries * schema.block_entries
        left = gathered[whole:]
        if whole:
            yield gathered[:whole]
    if len(left):
        yield left


def _encode_blocks(entries: Entries, first_number: int) -> bytes:
    """Return the entries encoded as blocks. Block numbers start at `first_number`."""
    # Entries never cross a block boundary, so that each block can be read, verified, and searched
    # independently.
    stored = entries.tobytes()
    blocks: list[bytes] = []
    for number, at in enumerate(range(0, len(stored), CONTENT_BYTES), first_number):
        content = stored[at : at + CONTENT_BYTES].ljust(CONTENT_BYTES, b"\0")
        blocks.append((content + _CRC.pack(zlib.crc32(content, number))).ljust(BLOCK_BYTES, b"\0"))
    return b"".join(blocks)


def _write_words(disk: Disk, path: str, position: int, words: Words) -> tuple[int, int]:
    """Write words in pieces. Return the CRC-32 of the words and the position after them."""
    crc = 0
    for at in range(0, len(words), _PIECE_WORDS):
        piece = words[at : at + _PIECE_WORDS].tobytes()
        disk.write(path, position + 8 * at, piece)
        crc = zlib.crc32(piece, crc)
    return crc, position + words.nbytes


def _is_damaged(block: bytes, number: int) -> bool:
    sound = _CRC.pack(zlib.crc32(block[:CONTENT_BYTES], number)).ljust(BLOCK_BYTES - CONTENT_BYTES, b"\0")
    return block[CONTENT_BYTES:] != sound
