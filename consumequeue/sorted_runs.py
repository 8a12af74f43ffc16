"""Sorted runs: immutable files of fixed-size entries in key order, each with fences and a bloom filter.

`consumequeue.run_store` decides when runs are written, merged and deleted. A `Schema` describes the entries:
the key index (`consumequeue.keyindex`) and the timer index (`consumequeue.timerindex`) have one each.

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

Integers are little-endian, zeros fill what is left. A file is written under another name and renamed, head
last, so it is whole or not there. The number in a block's CRC says that the block is where it belongs.

Entries are in order of `key`, then of the schema's minor field. Fences and filter are held in memory. A key
that is not in the run costs no read, one that is costs a block. A run of more entries than the schema's
`filtered_max` has no filter, so that memory stays bounded: there each look-up reads a block. When fences or
filter are damaged the answers are the same and take more reads. Nothing is answered from a damaged block, nor
from a file that has another head than the snapshot names. A read error of the disk is damage, too
(`StoreDamaged`): EIO of any index, and any error that says something of the file where the log can tell the
index again.

**A merge** makes one run of several sources, each in order. A pass takes a chunk of every source and yields
all entries up to the least of the chunks' last ones. So each pass uses one chunk up, and no source holds back
more than its own chunk. Entries with key and minor field equal are in one pass.

Cost: a look-up 0.3 us a run that does not hold the key, 8 us a block. Memory: 12 to 25 bits an entry of a run
with a filter, and 8 bytes a block; in a merge one chunk per source. Weak spot: a merge of runs without equal
entries still writes every entry again.
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
"""How many blocks are read at once where all of a run is wanted."""

_CRC: Final = struct.Struct("<I")
_CRCS: Final = struct.Struct("<II")
_HEAD: Final = struct.Struct("<8s4Q")
_PIECE_WORDS: Final = 1 << 17


@dataclass(slots=True, frozen=True, eq=False)
class Schema:
    """The dtype of a run's entries; it has the fields `key` and `offset`, 64 bits each."""

    magic: bytes
    entry: np.dtype[np.void]
    minor: str
    """The field that orders entries of equal key."""
    merged: Callable[[Entries], Entries]
    """Puts entries of several sources, older sources first, in order, and leaves out what does not count."""
    newest_only: bool
    """Whether of equal key and minor field only the entry with the highest offset counts."""
    is_derived: bool
    """Whether the log can tell every entry again, so that an index with a damaged run is made anew."""
    filtered_max: int
    """The entries that a run with a filter has at most."""
    advice: str
    """The advice to the operator in an error about a damaged run."""

    def __post_init__(self) -> None:
        assert CONTENT_BYTES % self.entry.itemsize == 0, "a full block of entries has room left"

    @property
    def block_entries(self) -> int:
        """The number of entries in a full block."""
        return CONTENT_BYTES // self.entry.itemsize


@dataclass(slots=True, eq=False)
class Run:
    """A file of `entry_count` entries, the offsets of which are from `first_offset` up to `end_offset`."""

    schema: Schema = field(repr=False)
    folder: str
    number: int
    first_offset: int
    end_offset: int
    entry_count: int
    path: str = field(default="", kw_only=True)
    """The file's path in the store: by its number, unless it is given."""
    fences: Words | None = field(default=None, init=False, repr=False)
    filter: Filter | None = field(default=None, init=False, repr=False)
    is_tail_sound: bool = field(default=False, init=False)
    """Whether fences and filter are as they were written."""
    lost: str = field(default="", init=False)
    """Why nothing of the run can be read; empty if it can be."""
    unread: str = field(default="", init=False)
    """Why the disk could not read some of it, as the operating system says; empty if it could."""

    def __post_init__(self) -> None:
        self.path = self.path or f"{self.folder}/{self.name}"

    @classmethod
    def at(cls, schema: Schema, disk: Disk, path: str) -> Run:
        """Return the run that the head of a file describes, not loaded; raise `StoreDamaged`."""
        stored = disk.read(path, 0, _HEAD.size)
        if len(stored) < _HEAD.size:
            raise StoreDamaged(f"{path} has no head. {schema.advice}")
        _, *fields = _HEAD.unpack(stored)
        return cls(schema, "", *fields, path=path)

    @property
    def name(self) -> str:
        """The file's name in its folder."""
        return f"{self.number:0{OFFSET_DIGITS}d}"

    @property
    def block_count(self) -> int:
        """The number of blocks after the head."""
        return -(-self.entry_count // self.schema.block_entries)

    @property
    def tail_at(self) -> int:
        """The byte at which the fences begin."""
        return (1 + self.block_count) * BLOCK_BYTES

    def freeze(self) -> list[int]:
        """Return what a snapshot keeps, which is what the head says: number, offsets and entry count."""
        return [self.number, self.first_offset, self.end_offset, self.entry_count]

    def load(self, disk: Disk) -> None:
        """Read what is held in memory, and find out whether the run is lost.

        A run whose head the disk cannot read is lost, and of a derived index also one whose tail it cannot
        read. Raise OSError as `blocks` does.
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
        """Return bytes of the tail; none of an index that is not derived where the disk cannot read them."""
        try:
            return disk.read(self.path, position, length)
        except OSError as error:
            self._unread_or_raise(error)
            if self.schema.is_derived:
                raise
        return b""

    def may_hold(self, probe: Probe) -> bool:
        """Return whether the run may hold the key of a probe; False is sure, and costs no read."""
        return self.filter is None or self.filter.may_hold(probe)

    def may_hold_each(self, places: Words, bits: Words) -> Mask:
        """Return of which keys, by their probes, the run may hold entries; all of them without a filter."""
        if self.filter is None:
            return np.ones(len(places), np.bool_)
        return self.filter.may_hold_each(places, bits)

    def find(self, disk: Disk, key: int) -> Iterator[Entries]:
        """Yield the entries of a key, those of each block together, the last block first.

        Raise `StoreDamaged`. Each call reads a block at least: ask `may_hold` first.
        """
        if self.lost:
            raise StoreDamaged(self.lost)
        fences: Sequence[int] = _FencesRead(self, disk) if self.fences is None else self.fences.data
        # Entries of one key may go over several blocks: from the block before the first that begins with the
        # key, up to the last that does.
        end = bisect_right(fences, key)
        start = max(0, bisect_left(fences, key, 0, end) - 1)
        for number in reversed(range(start, end)):
            entries = self.blocks(disk, number, 1)
            first, behind = bounds(entries["key"], key)
            if first < behind:
                yield entries[first:behind]

    def chunks(self, disk: Disk) -> Iterator[Entries]:
        """Yield all entries, in order; raise `StoreDamaged`."""
        for number in range(0, self.block_count, READ_BLOCKS):
            yield self.blocks(disk, number, min(READ_BLOCKS, self.block_count - number))

    def is_sound(self, disk: Disk) -> bool:
        """Return whether all of the file is as it was written, reading every block."""
        fresh, damaged = Run(self.schema, self.folder, *self.freeze(), path=self.path), list[int]()
        fresh.load(disk)
        if not fresh.lost:
            for _ in fresh.readable(disk, damaged):
                pass
        self.unread = fresh.unread or self.unread
        return fresh.is_tail_sound and not fresh.lost and not damaged

    def readable(self, disk: Disk, damaged: list[int]) -> Iterator[Entries]:
        """Yield the entries that can be read, in order; append the other blocks' numbers to `damaged`."""
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
        """Return the entries of `count` blocks from block `number` on; raise `StoreDamaged`.

        Also where the disk cannot read them; raise OSError where that says nothing of the file, and, of an
        index that is not derived, of anything but EIO.
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
        """The damage of a run, as a sentence with advice."""
        return self.lost or f"{self.wrong} {self.schema.advice}"

    @property
    def wrong(self) -> str:
        """The damage of a run, as a sentence."""
        if self.lost or not self.unread:
            return self.lost or f"{self.path} does not match its CRC."
        if self.schema.is_derived:
            return f"{self.path} cannot be read ({self.unread})."
        return (
            f"The disk cannot read {self.path} ({self.unread}): "
            "look at the kernel's log, and replace the disk."
        )

    def _unread_or_raise(self, error: OSError) -> str:
        """Note what the disk cannot read; return it as a sentence.

        Raise the error where it says nothing of the file, or is not EIO and the index is not derived.
        """
        if is_of_others(error) or not (self.schema.is_derived or error.errno == EIO):
            raise error
        self.unread = error.strerror or str(error)
        return self.damage


def write_run(
    disk: Disk, schema: Schema, folder: str, number: int, chunks: Iterable[Entries], count_max: int
) -> Run | None:
    """Make a durable run of at most `count_max` entries that come in order; None, no file, if none come."""
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
    """Return the range [first, end) of the keys, which are in order, that equal `key`."""
    wanted = np.uint64(key)
    first = int(keys.searchsorted(wanted))
    if first == len(keys) or keys[first] != wanted:
        return first, first
    is_one = first + 1 == len(keys) or keys[first + 1] != wanted
    return first, first + 1 if is_one else int(keys.searchsorted(wanted, side="right"))


def order_of(keys: Words) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the places of the keys in ascending order; equal keys stay as they come."""
    order = np.argsort(keys)
    ordered = keys[order]
    # The stable sort takes five times as long, and where no two keys are equal both give the same.
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def passes(sources: Iterable[Iterator[Entries]], major: str, minor: str) -> Iterator[Entries]:
    """Yield all entries in chunks, in order among each other, not within: there older sources come first."""
    waiting = [(chunk, chunks) for chunks in sources if (chunk := _next_of(chunks)) is not None]
    while waiting:
        # The least of the last entries: nothing that any source still has to bring can come before it.
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
    """Return how many entries, which are in order, come up to (`last_major`, `last_minor`)."""
    first, end = bounds(majors, last_major)
    return first + int(minors[first:end].searchsorted(np.uint64(last_minor), side="right"))


class _FencesRead(Sequence[int]):
    """The fences of a run, each read from its block."""

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
    """Yield the same entries in chunks that fill their blocks, all but the last."""
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
    """Return the blocks of these entries, numbered from `first_number`."""
    # Entries never go over the edge of a block, so a block is read, checked and searched by itself.
    stored = entries.tobytes()
    blocks: list[bytes] = []
    for number, at in enumerate(range(0, len(stored), CONTENT_BYTES), first_number):
        content = stored[at : at + CONTENT_BYTES].ljust(CONTENT_BYTES, b"\0")
        blocks.append((content + _CRC.pack(zlib.crc32(content, number))).ljust(BLOCK_BYTES, b"\0"))
    return b"".join(blocks)


def _write_words(disk: Disk, path: str, position: int, words: Words) -> tuple[int, int]:
    """Write words piece by piece; return their CRC-32, and the position behind them."""
    crc = 0
    for at in range(0, len(words), _PIECE_WORDS):
        piece = words[at : at + _PIECE_WORDS].tobytes()
        disk.write(path, position + 8 * at, piece)
        crc = zlib.crc32(piece, crc)
    return crc, position + words.nbytes


def _is_damaged(block: bytes, number: int) -> bool:
    sound = _CRC.pack(zlib.crc32(block[:CONTENT_BYTES], number)).ljust(BLOCK_BYTES - CONTENT_BYTES, b"\0")
    return block[CONTENT_BYTES:] != sound
