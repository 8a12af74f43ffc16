"""Sorted runs: immutable files of fixed-size entries in key order, with fences and a bloom filter.

`consumequeue.run_store` decides when runs are written, merged, and deleted. A `Schema` describes the entries.
The key index (`consumequeue.keyindex`) and the timer index (`consumequeue.timerindex`) each have a schema.

**A run** is the file `<folder>/<20 digits number>`: a head, blocks of 4,096 bytes, and a tail.

    head    width  field                        block     width    field
    0       8      magic of the schema          0         4080     whole entries, zeros after the last
    8       8      number                       4080      4        CRC-32 of bytes 0 to 4079, which starts
    16      8, 8   first_offset, end_offset                        from the block's number, from 0
    32      8      entry_count
    40      4      CRC-32 of bytes 0 to 39      tail      width    field
                                                0         8 each   fences: the key of each block's first entry
                                                ...       8 each   words of the filter (`bloom_filter.py`)
                                                ...       4, 4     CRC-32 of the fences, of the filter

Integers are little-endian, and unused bytes are zero. A file is written under another name, with the head
last, and then renamed, so that the file is either whole or absent. The block number in the CRC of a block
verifies the position of the block.

Entries are sorted by `key`, then by the minor field of the schema. The fences and the filter are kept in
memory. A look-up of a key that is not in the run usually needs no read, and a look-up of a key in the run
reads one block. A run with more entries than the schema's `filtered_max` has no filter, so that memory is
bounded, and each look-up in such a run reads a block. With damaged fences or a damaged filter, look-ups have
the same results but need more reads. No entry is returned from a damaged block, or from a file whose head
differs from the snapshot. A read error of the disk is also damage (`StoreDamaged`): the error EIO for any
index, and any error that concerns the file for a derived index.

**A merge** writes one run from several sorted sources. A pass takes a chunk of every source and yields all
entries up to the lowest last entry of the chunks. Therefore each pass consumes at least one chunk, and each
source has at most one chunk in memory. Entries with equal key and minor field are in the same pass.

Cost: a look-up takes 0.3 us for a run without the key, and 8 us per block read. Memory: 12 to 25 bits per
entry of a run with a filter, 8 bytes per block, and one chunk per source of a merge. Weak spot: a merge of
runs without equal entries writes every entry again.
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

from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import OFFSET_DIGITS
from consumequeue.bloom_filter import Filter, Mask, Probe, Words
from consumequeue.queue import is_of_others

Entries = np.ndarray[Any, np.dtype[np.void]]
"""An array of entries of a schema."""

BLOCK_BYTES: Final = 4096
CONTENT_BYTES: Final = 4080
READ_BLOCKS: Final = 64
"""The number of blocks per read, when all blocks of a run are read."""

_CRC: Final = struct.Struct("<I")
_CRCS: Final = struct.Struct("<II")
_HEAD: Final = struct.Struct("<8s4Q")
_PIECE_WORDS: Final = 1 << 17


@dataclass(slots=True, frozen=True, eq=False)
class Schema:
    """The dtype of the entries of a run, with the 64-bit fields `key` and `offset`, and index rules."""

    magic: bytes
    entry: np.dtype[np.void]
    minor: str
    """The field by which entries with equal keys are sorted."""
    merged: Callable[[Entries], Entries]
    """The function that sorts the entries of several sources, oldest first, and drops superseded ones."""
    newest_only: bool
    """Whether only the entry with the highest offset is valid, among equal keys and minor fields."""
    is_derived: bool
    """Whether all entries are derived from the log, so that an index with a damaged run is rebuilt."""
    filtered_max: int
    """The maximum number of entries of a run with a filter."""
    advice: str
    """The advice to the operator in the error message about a damaged run."""

    def __post_init__(self) -> None:
        assert CONTENT_BYTES % self.entry.itemsize == 0, "a full block of entries has room left"

    @property
    def block_entries(self) -> int:
        """The number of entries in a full block."""
        return CONTENT_BYTES // self.entry.itemsize


@dataclass(slots=True, eq=False)
class Run:
    """A file of `entry_count` entries with offsets from `first_offset` up to `end_offset`, exclusive."""

    schema: Schema = field(repr=False)
    folder: str
    number: int
    first_offset: int
    end_offset: int
    entry_count: int
    path: str = field(default="", kw_only=True)
    """The path of the file in the store, derived from the number by default."""
    fences: Words | None = field(default=None, init=False, repr=False)
    filter: Filter | None = field(default=None, init=False, repr=False)
    is_tail_sound: bool = field(default=False, init=False)
    """Whether the fences and the filter are undamaged."""
    lost: str = field(default="", init=False)
    """The reason why the whole run is unreadable, or "" if the run is readable."""
    unread: str = field(default="", init=False)
    """The error message of the operating system for an unreadable part of the file, or ""."""

    def __post_init__(self) -> None:
        self.path = self.path or f"{self.folder}/{self.name}"

    @classmethod
    def at(cls, schema: Schema, disk: Disk, path: str) -> Run:
        """Return the run described by the head of a file, without loading, or raise `StoreDamaged`."""
        stored = disk.read(path, 0, _HEAD.size)
        if len(stored) < _HEAD.size:
            raise StoreDamaged(f"{path} has no head. {schema.advice}")
        _, *fields = _HEAD.unpack(stored)
        return cls(schema, "", *fields, path=path)

    @property
    def name(self) -> str:
        """The name of the file in its folder."""
        return f"{self.number:0{OFFSET_DIGITS}d}"

    @property
    def block_count(self) -> int:
        """The number of blocks after the head."""
        return -(-self.entry_count // self.schema.block_entries)

    @property
    def tail_at(self) -> int:
        """The byte position of the fences."""
        return (1 + self.block_count) * BLOCK_BYTES

    def freeze(self) -> list[int]:
        """Return the row for a snapshot, with the number, the offsets, and the entry count of the head."""
        return [self.number, self.first_offset, self.end_offset, self.entry_count]

    def load(self, disk: Disk) -> None:
        """Read the fences and the filter into memory, and check whether the run is lost.

        A run is lost if the disk cannot read its head or, for a derived index, its tail. Raise OSError in the
        same cases as `blocks`.
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
        """Return bytes of the tail, or b"" if the disk cannot read the tail and the index is not derived."""
        try:
            return disk.read(self.path, position, length)
        except OSError as error:
            self._unread_or_raise(error)
            if self.schema.is_derived:
                raise
        return b""

    def may_hold(self, probe: Probe) -> bool:
        """Return whether the run may contain the key of a probe. A result of False is certain."""
        return self.filter is None or self.filter.may_hold(probe)

    def may_hold_each(self, places: Words, bits: Words) -> Mask:
        """Return for each key, given its probe, whether the run may have the key (True without a filter)."""
        if self.filter is None:
            return np.ones(len(places), np.bool_)
        return self.filter.may_hold_each(places, bits)

    def find(self, disk: Disk, key: int) -> Iterator[Entries]:
        """Yield the entries of a key by block, last block first.

        Raise `StoreDamaged` if a block is damaged. The caller should call `may_hold` first, because each call
        of `find` reads at least one block.
        """
        if self.lost:
            raise StoreDamaged(self.lost)
        fences: Sequence[int] = _FencesRead(self, disk) if self.fences is None else self.fences.data
        # The entries of a key may be in several blocks, from the block before the first block that begins
        # with the key up to the last block that begins with the key.
        end = bisect_right(fences, key)
        start = max(0, bisect_left(fences, key, 0, end) - 1)
        for number in reversed(range(start, end)):
            entries = self.blocks(disk, number, 1)
            first, behind = bounds(entries["key"], key)
            if first < behind:
                yield entries[first:behind]

    def chunks(self, disk: Disk) -> Iterator[Entries]:
        """Yield all entries, in order, or raise `StoreDamaged` if a block is damaged."""
        for number in range(0, self.block_count, READ_BLOCKS):
            yield self.blocks(disk, number, min(READ_BLOCKS, self.block_count - number))

    def is_sound(self, disk: Disk) -> bool:
        """Return whether the whole file is undamaged, by reading every block."""
        fresh, damaged = Run(self.schema, self.folder, *self.freeze(), path=self.path), list[int]()
        fresh.load(disk)
        if not fresh.lost:
            for _ in fresh.readable(disk, damaged):
                pass
        self.unread = fresh.unread or self.unread
        return fresh.is_tail_sound and not fresh.lost and not damaged

    def readable(self, disk: Disk, damaged: list[int]) -> Iterator[Entries]:
        """Yield the readable entries, in order, and append the numbers of damaged blocks to `damaged`."""
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
        """Return the entries of `count` blocks from block `number` on, or raise `StoreDamaged`.

        `StoreDamaged` is also raised if the disk cannot read the blocks. OSError is raised if the error does
        not concern the file, or if the index is not derived and the error is not EIO.
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
        """The message about the damage of a run, with advice."""
        return self.lost or f"{self.wrong} {self.schema.advice}"

    @property
    def wrong(self) -> str:
        """The message about the damage of a run."""
        if self.lost or not self.unread:
            return self.lost or f"{self.path} does not match its CRC."
        if self.schema.is_derived:
            return f"{self.path} cannot be read ({self.unread})."
        return (
            f"The disk cannot read {self.path} ({self.unread}): "
            "look at the kernel's log, and replace the disk."
        )

    def _unread_or_raise(self, error: OSError) -> str:
        """Record a read error of the disk, and return a message about the damage.

        Raise the error if it does not concern the file, or if it is not EIO and the index is not derived.
        """
        if is_of_others(error) or not (self.schema.is_derived or error.errno == EIO):
            raise error
        self.unread = error.strerror or str(error)
        return self.damage


def write_run(
    disk: Disk, schema: Schema, folder: str, number: int, chunks: Iterable[Entries], count_max: int
) -> Run | None:
    """Write a durable run of at most `count_max` sorted entries, or return None without entries."""
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
    """Return the range [first, end) of the sorted keys that are equal to `key`."""
    wanted = np.uint64(key)
    first = int(keys.searchsorted(wanted))
    if first == len(keys) or keys[first] != wanted:
        return first, first
    is_one = first + 1 == len(keys) or keys[first + 1] != wanted
    return first, first + 1 if is_one else int(keys.searchsorted(wanted, side="right"))


def order_of(keys: Words) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the places of the keys in ascending order. Equal keys keep their order."""
    order = np.argsort(keys)
    ordered = keys[order]
    # A stable sort takes five times as long, and has the same result if no keys are equal.
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def passes(sources: Iterable[Iterator[Entries]], major: str, minor: str) -> Iterator[Entries]:
    """Yield all entries in ascending chunks, each of which is grouped by source, oldest source first."""
    waiting = [(chunk, chunks) for chunks in sources if (chunk := _next_of(chunks)) is not None]
    while waiting:
        # No later entry of any source is below the lowest of the last entries.
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
    """Return the number of sorted entries up to (`last_major`, `last_minor`), inclusive."""
    first, end = bounds(majors, last_major)
    return first + int(minors[first:end].searchsorted(np.uint64(last_minor), side="right"))


class _FencesRead(Sequence[int]):
    """The fences of a run, each read from its block on demand."""

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
    """Yield the entries in chunks of full blocks, except for the last chunk."""
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
    """Return the encoded blocks of entries, with block numbers from `first_number` on."""
    # Entries never cross a block boundary, so that a block can be read, verified, and searched alone.
    stored = entries.tobytes()
    blocks: list[bytes] = []
    for number, at in enumerate(range(0, len(stored), CONTENT_BYTES), first_number):
        content = stored[at : at + CONTENT_BYTES].ljust(CONTENT_BYTES, b"\0")
        blocks.append((content + _CRC.pack(zlib.crc32(content, number))).ljust(BLOCK_BYTES, b"\0"))
    return b"".join(blocks)


def _write_words(disk: Disk, path: str, position: int, words: Words) -> tuple[int, int]:
    """Write words piece by piece, and return the CRC-32 and the end position of the words."""
    crc = 0
    for at in range(0, len(words), _PIECE_WORDS):
        piece = words[at : at + _PIECE_WORDS].tobytes()
        disk.write(path, position + 8 * at, piece)
        crc = zlib.crc32(piece, crc)
    return crc, position + words.nbytes


def _is_damaged(block: bytes, number: int) -> bool:
    sound = _CRC.pack(zlib.crc32(block[:CONTENT_BYTES], number)).ljust(BLOCK_BYTES - CONTENT_BYTES, b"\0")
    return block[CONTENT_BYTES:] != sound
