"""One file of facts in order, one for each (key, check), with what makes looking fast; never changed.

`<folder>/<20 digits number>` is a head, "TWFACTS1", number, first_offset, end_offset, entry_count, and blocks
of 102 facts, the last one with what is left, as `sorted_run` says; then

    width               field
    8 a block           fences: the key of each block's first fact
    8 a word            filter: see `timerindex_filter`
    4, 4                CRC-32 of the fences, of the filter

Fences and filter are held in memory: a key that is not held costs no read, one that is costs a block. When
one of them is damaged the answers are the same, found by halving or by looking. Nothing is answered from a
damaged block, nor from a file that has another head than the snapshot names.
Memory: 13 to 25 bits a fact. Weak spot: what a damaged block says is in no other file (rule 3 of
`timerindex.py`).
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import OFFSET_DIGITS
from consumequeue import sorted_run
from consumequeue.sorted_run import BLOCK_BYTES
from consumequeue.timerindex_fact import FACT, Facts, Said
from consumequeue.timerindex_filter import Filter, Mask, Probe, Words

BLOCK_FACTS: Final = sorted_run.CONTENT_BYTES // FACT.itemsize
READ_BLOCKS: Final = 64

_MAGIC: Final = b"TWFACTS1"
_CRCS: Final = struct.Struct("<II")
_PIECE_WORDS: Final = 1 << 17
_ADVICE: Final = (
    "What it says of timers is nowhere else: restore the file from a backup while the broker is stopped. "
    "Timers that it does not concern go on."
)


@dataclass(slots=True, eq=False)
class FactRun:
    """A file of `entry_count` facts, the offsets of which are from `first_offset` up to `end_offset`."""

    folder: str
    number: int
    first_offset: int
    end_offset: int
    entry_count: int
    fences: Words | None = field(default=None, repr=False)
    filter: Filter | None = field(default=None, repr=False)
    lost: str = ""
    """Why nothing of the run can be read; empty if it can be."""

    @property
    def name(self) -> str:
        """The file's name in its folder."""
        return f"{self.number:0{OFFSET_DIGITS}d}"

    @property
    def path(self) -> str:
        """The file's path in the store."""
        return f"{self.folder}/{self.name}"

    @property
    def block_count(self) -> int:
        """The number of blocks behind the head."""
        return -(-self.entry_count // BLOCK_FACTS)

    @property
    def tail_at(self) -> int:
        """The byte at which the fences begin."""
        return (1 + self.block_count) * BLOCK_BYTES

    def freeze(self) -> list[int]:
        """Return what a snapshot keeps, which is what the head says: number, offsets and entry count."""
        return [self.number, self.first_offset, self.end_offset, self.entry_count]

    def load(self, disk: Disk) -> None:
        """Read what is held in memory, and find out whether the run is lost. Raise OSError."""
        if disk.size(self.path) < self.tail_at or disk.read(self.path, 0, BLOCK_BYTES) != _head(self):
            self.lost = f"{self.path} is missing or damaged. {_ADVICE}"
            return
        fences_bytes = 8 * self.block_count
        filter_bytes = disk.size(self.path) - self.tail_at - fences_bytes - _CRCS.size
        if filter_bytes <= 0 or filter_bytes % 8:
            return
        fences = disk.read(self.path, self.tail_at, fences_bytes)
        filtered = disk.read(self.path, self.tail_at + fences_bytes, filter_bytes)
        crcs = disk.read(self.path, self.tail_at + fences_bytes + filter_bytes, _CRCS.size)
        if zlib.crc32(fences) == _CRCS.unpack(crcs)[0]:
            self.fences = np.frombuffer(fences, np.uint64)
        if zlib.crc32(filtered) == _CRCS.unpack(crcs)[1]:
            self.filter = Filter(np.frombuffer(filtered, np.uint64))

    def find(self, disk: Disk, key: int, check: int, probe: Probe) -> Said | None:
        """Return what the run says of one (key, check), if anything; raise `StoreDamaged`."""
        if self.lost:
            raise StoreDamaged(self.lost)
        if self.filter is not None and not self.filter.may_hold(probe):
            return None
        fences: Sequence[int] = _FencesRead(self, disk) if self.fences is None else self.fences.data
        # Facts of one key, by check, may go over several blocks: from the block before the first that begins
        # with the key, up to the last that does.
        end = bisect_right(fences, key)
        start = max(0, bisect_left(fences, key, 0, end) - 1)
        for number in range(start, end):
            found = _find(self.blocks(disk, number, 1), key, check)
            if found is not None:
                return found
        return None

    def may_hold_each(self, places: Words, bits: Words) -> Mask:
        """Return of which keys, by their probes, the run may hold facts; all of them without a filter."""
        if self.filter is None:
            return np.ones(len(places), np.bool_)
        return self.filter.may_hold_each(places, bits)

    def chunks(self, disk: Disk) -> Iterator[Facts]:
        """Yield all facts, in order; raise `StoreDamaged`."""
        for number in range(0, self.block_count, READ_BLOCKS):
            yield self.blocks(disk, number, min(READ_BLOCKS, self.block_count - number))

    def is_sound(self, disk: Disk) -> bool:
        """Return whether all of the file is as it was written, reading every block."""
        damaged: list[int] = []
        for _ in self.readable(disk, damaged):
            pass
        fresh = FactRun(self.folder, self.number, self.first_offset, self.end_offset, self.entry_count)
        fresh.load(disk)
        return not (damaged or fresh.lost) and fresh.fences is not None and fresh.filter is not None

    def readable(self, disk: Disk, damaged: list[int]) -> Iterator[Facts]:
        """Yield the facts that can be read, in order; append the numbers of the other blocks to `damaged`."""
        if disk.size(self.path) < 0:
            damaged.extend(range(self.block_count))
            return
        for first in range(0, self.block_count, READ_BLOCKS):
            count = min(READ_BLOCKS, self.block_count - first)
            try:
                yield self.blocks(disk, first, count)
            except StoreDamaged:
                yield from self._one_by_one(disk, range(first, first + count), damaged)

    def _one_by_one(self, disk: Disk, numbers: range, damaged: list[int]) -> Iterator[Facts]:
        for number in numbers:
            try:
                yield self.blocks(disk, number, 1)
            except StoreDamaged:
                damaged.append(number)

    def blocks(self, disk: Disk, number: int, count: int) -> Facts:
        """Return the facts of `count` blocks from block `number` on; raise `StoreDamaged`."""
        content = sorted_run.read_blocks(disk, self.path, number, count, _ADVICE)
        return np.frombuffer(content, FACT)[: self.entry_count - number * BLOCK_FACTS]


def write(disk: Disk, folder: str, number: int, chunks: Iterable[Facts], count_max: int) -> FactRun | None:
    """Make a durable run of at most `count_max` facts that come in order; None, no file, if none come."""
    unfinished = f"{folder}/unfinished"
    disk.delete(unfinished)
    run, fences, last_key = FactRun(folder, number, 1 << 63, 0, 0), [], 0
    kept = Filter.for_at_most(count_max)
    for whole in sorted_run.in_whole_blocks(chunks, FACT):
        assert last_key <= whole["key"][0] <= whole["key"][-1], "facts do not come in order"
        last_key = whole["key"][-1]
        disk.write(unfinished, run.tail_at, sorted_run.encode_blocks(whole, run.block_count))
        run.first_offset = min(run.first_offset, int(whole["offset"].min()))
        run.end_offset = max(run.end_offset, int(whole["offset"].max()) + 1)
        run.entry_count += len(whole)
        fences.append(whole["key"][::BLOCK_FACTS].copy())
        kept.add(whole["key"])
    if run.entry_count == 0:
        return None
    assert run.entry_count <= count_max, f"{run.entry_count} facts, the filter is for {count_max}"
    run.fences, run.filter = np.concatenate(fences), kept.folded(run.entry_count)
    assert len(run.fences) == run.block_count, "a block before the last is not full"
    fences_crc, filter_at = _write_words(disk, unfinished, run.tail_at, run.fences)
    filter_crc, end = _write_words(disk, unfinished, filter_at, run.filter.words)
    disk.write(unfinished, end, _CRCS.pack(fences_crc, filter_crc))
    sorted_run.finish(disk, unfinished, run.path, _head(run))
    return run


class _FencesRead(Sequence[int]):
    """The fences of a run, each read from its block."""

    def __init__(self, run: FactRun, disk: Disk) -> None:
        self._run, self._disk = run, disk

    def __len__(self) -> int:
        return self._run.block_count

    def __getitem__(self, number: Any) -> Any:
        return int(self._run.blocks(self._disk, number, 1)["key"][0])


def _find(facts: Facts, key: int, check: int) -> Said | None:
    keys = facts["key"]
    at = int(keys.searchsorted(np.uint64(key)))
    while at < len(facts) and keys[at] == key:
        if facts["check"][at] == check:
            _, _, *said = facts[at].item()
            return Said(*said)
        at += 1
    return None


def _write_words(disk: Disk, path: str, position: int, words: Words) -> tuple[int, int]:
    """Write words piece by piece; return their CRC-32, and the position behind them."""
    crc = 0
    for at in range(0, len(words), _PIECE_WORDS):
        piece = words[at : at + _PIECE_WORDS].tobytes()
        disk.write(path, position + 8 * at, piece)
        crc = zlib.crc32(piece, crc)
    return crc, position + words.nbytes


def _head(run: FactRun) -> bytes:
    return sorted_run.head(_MAGIC, *run.freeze())
