"""Names of timers, and how timers ended: the newest fact about each, on disk, in bounded memory, exact.

    put ----> recent (hash table) ----> closed ----> runs (sorted files with filters)
              all since the last checkpoint          merged by size at checkpoints

Two instances, in folders of their own. About a name, `hashes_of(topic, name)`: the timer's offset, when it is
due, when it was stored. About a timer, by its offset: the record that ended it, when and how.

1. Of the facts about one (key, check) only that with the highest offset counts. It is asked of memory first,
   then of every run that may hold a higher one, so facts may be put in any order.
2. A merge keeps the newest facts that are not expired. An expired fact stays as long as a run outside the
   merge may hold an older one about the same: else that would count again. So an expired fact may be found
   or not; who asks judges by its own clock, and then the answer is the same.
3. What is not in the log any more is nowhere else. So nothing is thrown away because something is damaged:
   a damaged run stays, sound blocks of it still answer, and what would need the others is refused with
   `StoreDamaged`. Merges take newer runs only.
4. Files are written by a checkpoint's worker and named by its snapshot. A file goes when neither the new
   snapshot nor the one before names it.

**A run** (`consumequeue.sorted_runs`) is in order of (key, check), with one fact of each. The file
`<folder>/<20 digits number>` is a head, "TWFACTS1", number, first_offset, end_offset, entry_count, and blocks
of 102 facts (`timerindex_fact.py`), the last one with what is left; then

    width               field
    8 a block           fences: the key of each block's first fact
    8 a word            filter: see `bloom_filter.py`
    4, 4                CRC-32 of the fences, of the filter

Fences and filter are held in memory: a key that is not held costs no read, one that is costs a block. When
one of them is damaged the answers are the same, found by halving or by looking. Nothing is answered from a
damaged block, nor from a file that has another head than the snapshot names.

Cost: a put 0.7 us and 48 bytes until the next checkpoint; a look-up that finds nothing about 2 us and 0.3 us
a run; one that finds, a block more. Memory: 4 MB, and 13 to 25 bits a fact in runs. Weak spot: no log tells
these facts again, so what damage takes is lost (rule 3); and a damaged run stops merges of all older ones.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import OFFSET_DIGITS
from consumequeue import sorted_runs
from consumequeue.bloom_filter import Filter, Mask, Probe, Words, probe_of, probes_of
from consumequeue.name_hash import digest_of
from consumequeue.sorted_runs import BLOCK_BYTES, file_names
from consumequeue.timerindex_fact import FACT, Facts, IsExpired, Said, newest_of
from consumequeue.timerindex_recent import Recent

UNSAVED_MAX: Final = 1_000_000
_HASHES: Final = struct.Struct("<QQ")
BLOCK_FACTS: Final = sorted_runs.CONTENT_BYTES // FACT.itemsize

_MAGIC: Final = b"TWFACTS1"
_CRCS: Final = struct.Struct("<II")
_PIECE_WORDS: Final = 1 << 17
_ADVICE: Final = (
    "What it says of timers is nowhere else: restore the file from a backup while the broker is stopped. "
    "Timers that it does not concern go on."
)


def hashes_of(topic: str, name: str) -> tuple[int, int]:
    """Return the key and the check, 64 bits each, that stand for a timer's name under a topic."""
    key, check = _HASHES.unpack(digest_of(topic, name, _HASHES.size))
    return key, check


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
        """Return all facts, in order; reading them raises `StoreDamaged`."""
        return sorted_runs.chunks(partial(self.blocks, disk), self.block_count)

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
        for first in range(0, self.block_count, sorted_runs.READ_BLOCKS):
            count = min(sorted_runs.READ_BLOCKS, self.block_count - first)
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
        content = sorted_runs.read_blocks(disk, self.path, number, count, _ADVICE)
        return np.frombuffer(content, FACT)[: self.entry_count - number * BLOCK_FACTS]


def write_run(
    disk: Disk, folder: str, number: int, chunks: Iterable[Facts], count_max: int
) -> FactRun | None:
    """Make a durable run of at most `count_max` facts that come in order; None, no file, if none come."""
    unfinished = f"{folder}/unfinished"
    disk.delete(unfinished)
    run, fences, last_key = FactRun(folder, number, 1 << 63, 0, 0), [], 0
    kept = Filter.for_at_most(count_max)
    for whole in sorted_runs.in_whole_blocks(chunks, FACT):
        assert last_key <= whole["key"][0] <= whole["key"][-1], "facts do not come in order"
        last_key = whole["key"][-1]
        disk.write(unfinished, run.tail_at, sorted_runs.encode_blocks(whole, run.block_count))
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
    sorted_runs.finish(disk, unfinished, run.path, _head(run))
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
    return sorted_runs.head(_MAGIC, *run.freeze())


@dataclass(slots=True, eq=False)
class FactsToWrite:
    """The index at one moment, for a checkpoint: facts and runs that do not change."""

    folder: str
    number: int
    runs: tuple[FactRun, ...]
    recents: tuple[Recent, ...]
    named: frozenset[str]
    is_expired: IsExpired
    now_ms: int
    damaged: set[int]
    written: tuple[FactRun, ...] | None = field(default=None, init=False)
    """The runs afterwards; None until it is written."""

    def write(self, disk: Disk) -> None:
        """Make one durable run of the facts and of older runs that it is time to merge. Raise OSError.

        A run that is found damaged is left as it is, and so are those before it.
        """
        new_count = sum(map(len, self.recents))
        kept = sorted_runs.kept_count(self.runs, new_count) if new_count else len(self.runs)
        new: FactRun | None = None
        is_merged = False
        # Each turn finds one more damaged run or ends, since from `kept` on no known damage is left.
        while not is_merged:
            kept = max(kept, self._sound_from())
            try:
                new = self._merge(disk, kept)
                is_merged = True
            except StoreDamaged:
                assert kept < self._sound_from(), "damage that no run has"
        self.written = self.runs[:kept] if new is None else (*self.runs[:kept], new)

    def freeze(self) -> Any:
        """Return what a snapshot keeps: see `FactRun.freeze`."""
        assert self.written is not None, "frozen before it was written"
        return [run.freeze() for run in self.written]

    def tidy(self, disk: Disk) -> None:
        """Delete the files that neither the new snapshot nor the one before it names."""
        assert self.written is not None, "tidied before it was written"
        sorted_runs.delete_all_but(
            disk, self.folder, self.named | file_names(self.runs) | file_names(self.written)
        )

    def _sound_from(self) -> int:
        """Return the place from which on no run is damaged: 0 if none is, `len(runs)` if the newest is."""
        places = [place for place, run in enumerate(self.runs, 1) if run.number in self.damaged or run.lost]
        return max(places, default=0)

    def _merge(self, disk: Disk, kept: int) -> FactRun | None:
        merged = self.runs[kept:]
        count_max = sum(run.entry_count for run in merged) + sum(map(len, self.recents))
        if count_max == 0 or not self.recents:
            return None
        sources = [self._chunks(disk, run) for run in merged] + [recent.chunks() for recent in self.recents]
        gathered = map(newest_of, sorted_runs.passes(sources, "key", "check"))
        needed = (self._needed(facts, self.runs[:kept]) for facts in gathered)
        return write_run(disk, self.folder, self.number, needed, count_max)

    def _chunks(self, disk: Disk, run: FactRun) -> Iterator[Facts]:
        try:
            yield from run.chunks(disk)
        except StoreDamaged:
            self.damaged.add(run.number)
            raise

    def _needed(self, facts: Facts, older: tuple[FactRun, ...]) -> Facts:
        """Return the facts less those that are expired and hide no older one."""
        # A run that a filter lets through by mistake costs a fact that stays until the next merge, no more.
        is_over = self.is_expired(facts, self.now_ms)
        if is_over.any() and older:
            probes = probes_of(facts["key"])
            for run in older:
                is_over &= ~run.may_hold_each(*probes)
        return facts[~is_over] if is_over.any() else facts


class FactIndex:
    """An index in one folder; empty until runs are adopted or facts are put."""

    def __init__(self, disk: Disk, folder: str, is_expired: IsExpired) -> None:
        self._disk, self._folder, self._is_expired = disk, folder, is_expired
        self._clear()

    def _clear(self) -> None:
        self._recent = Recent()
        self._closed: list[Recent] = []
        self._runs: tuple[FactRun, ...] = ()
        self._named: frozenset[str] = frozenset()
        self._damaged: frozenset[int] = frozenset()
        self._next_number = 0
        self._unnamed_count = 0
        self._spill_count = UNSAVED_MAX

    @property
    def is_full(self) -> bool:
        """Whether so much is in memory, or in runs that no snapshot names, that a checkpoint is due."""
        return self._unsaved_count + self._unnamed_count >= UNSAVED_MAX

    @property
    def _unsaved_count(self) -> int:
        return len(self._recent) + sum(map(len, self._closed))

    @property
    def damage(self) -> str:
        """What is known to be unreadable, in words; empty if nothing is."""
        damaged = [run.path for run in self._runs if run.number in self._damaged]
        lost = [run.lost for run in self._runs if run.lost]
        return " ".join([*lost, *(f"{path} does not match its CRC." for path in damaged)])

    @property
    def runs(self) -> tuple[FactRun, ...]:
        """The files as they are between checkpoints."""
        return self._runs

    def recents(self) -> tuple[Recent, ...]:
        """Return the tables of the facts in memory, oldest first."""
        return (*self._closed, self._recent)

    @property
    def damaged_runs(self) -> list[FactRun]:
        """The runs that are known to be damaged."""
        return [run for run in self._runs if run.lost or run.number in self._damaged]

    def take_out(self, run: FactRun) -> int:
        """Let go of a run; what can be read of it is recent again. Return how many facts that were."""
        count = 0
        for facts in run.readable(self._disk, []):
            self.put_many(facts)
            count += len(facts)
        self._runs = tuple(one for one in self._runs if one is not run)
        self._damaged -= {run.number}
        return count

    def check(self, damaged_numbers: Iterable[int], bytes_max: int) -> None:
        """Read the runs, if they have up to `bytes_max`, and take over what was known to be damaged."""
        known = set(damaged_numbers)
        if sum((1 + run.block_count) * BLOCK_BYTES for run in self._runs) <= bytes_max:
            known |= {run.number for run in self._runs if not run.is_sound(self._disk)}
        self._damaged = frozenset(run.number for run in self._runs if run.number in known)

    def found_damaged(self, runs: Iterable[FactRun]) -> None:
        """Note that runs are damaged: the next start makes them anew of what still tells their facts."""
        self._damaged |= {run.number for run in runs if run in self._runs}

    def put(self, key: int, check: int, offset: int, at: int, extra: int) -> None:
        """Take in one fact: see `timerindex_fact`."""
        self._recent.put(key, check, offset, at, extra)

    def put_many(self, facts: Facts) -> None:
        """Take in many facts, in any order."""
        self._recent.put_many(facts)

    def newest(self, key: int, check: int) -> Said | None:
        """Return what is said of one (key, check); None if nothing is, and maybe if it is expired.

        Raise `StoreDamaged` where the answer cannot be read, OSError where the disk fails.
        """
        best = self._recent.find(key, check)
        for closed in self._closed:
            best = _newer(best, closed.find(key, check))
        probe: Probe | None = None
        # Facts come in any order, so a newer run may hold an older fact. Only a run whose offsets are all
        # lower than that of the best so far cannot change the answer.
        for run in reversed(self._runs):
            if best is None or best.offset < run.end_offset - 1:
                probe = probe or probe_of(key)
                best = _newer(best, self._find(run, key, check, probe))
        return best

    def _find(self, run: FactRun, key: int, check: int, probe: Probe) -> Said | None:
        try:
            return run.find(self._disk, key, check, probe)
        except StoreDamaged:
            self.found_damaged((run,))
            raise

    def all_newest(self, keys: Words, checks: Words) -> tuple[Mask, Facts]:
        """Return for many (key, check) of which something is said, and the facts, zeros where nothing is.

        Raise `StoreDamaged` if any of the answers cannot be read, OSError where the disk fails.
        """
        is_found, facts = self._recent.find_many(keys, checks)
        for closed in self._closed:
            is_known, known = closed.find_many(keys, checks)
            is_newer = is_known & (~is_found | (known["offset"] > facts["offset"]))
            facts[is_newer] = known[is_newer]
            is_found |= is_known
        for place in self._places_in_runs(keys, is_found, facts["offset"]):
            said = self.newest(key := int(keys[place]), check := int(checks[place]))
            if said is not None:
                is_found[place], facts[place] = True, (key, check, *said)
        return is_found, facts

    def _places_in_runs(self, keys: Words, is_found: Mask, offsets: Words) -> list[int]:
        """Return the places of the keys that a run may know more of than memory does."""
        probes = probes_of(keys)
        may_be = np.zeros(len(keys), np.bool_)
        for run in self._runs:
            is_open = ~is_found | (offsets < np.uint64(run.end_offset - 1))
            may_be |= is_open & run.may_hold_each(*probes)
        return np.flatnonzero(may_be).tolist()

    def to_write(self, now_ms: int) -> FactsToWrite:
        """Return everything that a checkpoint needs, which may be written by another thread.

        Tell what became of it by `written` or `failed`; until then nothing in memory is let go.
        """
        if len(self._recent):
            self._closed.append(self._recent)
            self._recent = Recent()
        # A number is used once, also when nothing comes of it: a file that a snapshot names never changes.
        self._next_number += 1
        assert all(run.number < self._next_number - 1 for run in self._runs), "a run's number comes again"
        return FactsToWrite(
            self._folder,
            self._next_number - 1,
            self._runs,
            tuple(self._closed),
            self._named,
            self._is_expired,
            now_ms,
            set(self._damaged),
        )

    def written(self, done: FactsToWrite) -> None:
        """Let the runs of a checkpoint that is durable take the place of what they were made from."""
        self._take_over(done)
        self._named, self._unnamed_count = file_names(self._runs), 0

    def failed(self, done: FactsToWrite) -> None:
        """Use the runs that a failed checkpoint has written all the same; a snapshot may name them."""
        # Its snapshot may have reached the disk before it failed: while later ones fail, that is the newest
        # there, and then the one before. So its files stay until a checkpoint succeeds, whatever merges them.
        if done.written is not None:
            self._named |= file_names(done.written)
        self._use(done)

    def _use(self, done: FactsToWrite) -> None:
        """Use the runs that were written; if they were not, make the newest of their facts recent again."""
        if done.written is not None:
            self._unnamed_count += sum(map(len, done.recents))
            self._take_over(done)
        elif self._closed:
            # One table is opened again: else checkpoints that fail one after the other would leave a table
            # each, and every look-up asks all tables.
            since, self._recent = self._recent, self._closed.pop()
            self._recent.put_many(since.all_facts())

    def spill(self, now_ms: int) -> None:
        """Write a run now if memory is full: for a start, which puts more than a checkpoint's worth.

        On a full disk what is new waits in memory, and is tried again when there is as much again.
        """
        if self._unsaved_count >= self._spill_count:
            done = self.to_write(now_ms)
            try:
                done.write(self._disk)
                self._spill_count = UNSAVED_MAX
            except OSError:
                self._spill_count += UNSAVED_MAX
            self._use(done)

    def adopt(self, frozen: Any, others: Iterable[Any] = ()) -> str:
        """Take over the runs that a snapshot names; return in words which of them are lost, empty if none is.

        The files of the runs that others name are kept for the snapshots that they are of. A lost run is
        named by the next snapshots too: what it said is missing, not untrue.
        """
        self._clear()
        self._runs = tuple(FactRun(self._folder, *fields) for fields in frozen or [])
        for run in self._runs:
            run.load(self._disk)
        self._named = file_names(self._runs)
        kept = [FactRun(self._folder, *fields) for other in others for fields in other]
        self._next_number = 1 + max((run.number for run in (*self._runs, *kept)), default=-1)
        sorted_runs.delete_all_but(self._disk, self._folder, self._named | file_names(kept))
        return self.damage

    def drop(self) -> None:
        """Delete the index."""
        self._clear()
        self._disk.delete(self._folder)

    def _take_over(self, done: FactsToWrite) -> None:
        assert done.written is not None, "nothing was written"
        assert len(done.recents) <= len(self._closed), "facts of a checkpoint are gone"
        self._runs = done.written
        self._damaged = frozenset(done.damaged)
        del self._closed[: len(done.recents)]


def _newer(one: Said | None, other: Said | None) -> Said | None:
    if one is None or (other is not None and other.offset > one.offset):
        return other
    return one
