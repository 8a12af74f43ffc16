"""Which records carry a key: by each word of KEYS and by message id, of one topic, newest first.

    put ----> recent (packed arrays) ----> batches (sorted, in memory) ----> runs (sorted files)
              16,384 entries                until a checkpoint has written them, merged by size

Indexed is what has a queue: messages, halves and timers under their real topic, dead letters. An entry is
64 bits of a hash and the record's physical offset; whoever looks something up reads the record and compares
(`carries`), so an answer is exact. Recent entries, batches and runs cover ascending parts of the log, so
newest first is one after the other, backwards.

A pure function of the log, like the queues: the snapshot names the runs, and when one is missing or damaged
the index is made anew, never half believed. A file stays as long as a snapshot names it, also where the index
was made anew: the next start may be from the other snapshot, and who proves the store meets what it names.
Entries of records that retention has deleted are passed over, and gone after the next merge.

**A run** (`consumequeue.sorted_runs`) is in ascending order of hash, then of physical offset. The file
`keyindex/<20 digits first_offset>-<20 digits end_offset>` covers the records from the first offset up to the
end: a head, "TWKEYS01", first_offset, end_offset, entry_count, and blocks of 255 entries, the last one with
what is left. An entry is hash (8), physical_offset (8). The head is checked when the store is opened, each
block when it is read. Hashes are spread evenly, so that a search guesses where its hash must lie
(interpolation search, Perl and others 1978): two or three blocks for 10 million entries. Where they are not,
because one key is everywhere, it halves.

Cost: an entry is sorted once and written again each time its run grows fourfold. A look-up reads two or three
blocks of each run, of which there are some three of each size. Memory: 16 bytes an entry up to `UNSAVED_MAX`,
nothing for what is in runs. Weak spot: a look-up reads as much for a key that no record ever had, as runs
have no filters (those of `timerindex.py` have); and a hash of many entries is read block by block, backwards,
though only some may be wanted.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from commitlog import inner_batch, properties
from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import KEYINDEX, OFFSET_DIGITS
from commitlog.message import Message
from commitlog.record import INNER_BATCH, Record
from consumequeue import sorted_runs
from consumequeue.name_hash import digest_of, digests_of
from consumequeue.sorted_runs import BLOCK_BYTES, file_names
from tidewheel.errors import LibraryMissing

BATCH_ENTRIES: Final = 16_384
UNSAVED_MAX: Final = 1_000_000
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
"""An array of hashes, or of offsets."""

_KEYS: Final = properties.KEYS.encode()
_REAL_TOPIC: Final = properties.REAL_TOPIC.encode()
_HASH: Final = struct.Struct("<Q")
HASH_BYTES: Final = _HASH.size

ENTRY: Final = np.dtype([("hash", "<u8"), ("physical_offset", "<u8")])
"""One entry; 64 bits of hash, and where the record lies."""

Entries = np.ndarray[Any, np.dtype[np.void]]
"""An array of `ENTRY`."""

BLOCK_ENTRIES: Final = 255

_MAGIC: Final = b"TWKEYS01"
_ADVICE: Final = "The key index is made anew from the log at the next start."
_UNFINISHED: Final = f"{KEYINDEX}/unfinished"
_HASHES: Final = 1 << 64
_GUESSES_MAX: Final = 6


def hash_of(topic: str, key: str) -> int:
    """Return the 64 bits that stand for a key of a topic."""
    return int(_HASH.unpack(digest_of(topic, key, HASH_BYTES))[0])


def names_of(record: Record) -> tuple[str, dict[str, None]]:
    """Return the topic that users know a record by, and the keys it has there: its words and its id.

    An inner batch is found under the names of each of its messages, too.
    """
    stored = record.properties
    names = words_of(stored)
    if record.sys_flag & INNER_BATCH:
        for message in messages_of(record):
            names |= words_of(message.properties)
    real_topic = properties.value_of(stored, properties.REAL_TOPIC) if _REAL_TOPIC in stored else ""
    return real_topic or record.topic, names


def carries(record: Record, topic: str, key: str) -> bool:
    """Return whether a record is of `topic` and has that key or message id."""
    real_topic, names = names_of(record)
    return real_topic == topic and key in names


def messages_of(record: Record) -> list[Record]:
    """Return the messages of an inner batch, in order, as far as they can be read; else the record itself."""
    first = record.queue_offset
    messages: list[Record] = []
    with suppress(StoreDamaged, LibraryMissing):
        for queue_offset in range(first, first + inner_batch.message_count(record)):
            messages.append(inner_batch.pick(record, queue_offset))
    return messages


def words_of_message(message: Message) -> Collection[str]:
    """Return what `words_of` reads from the stored properties of a message, without reading them."""
    if not message.keys:
        return (message.message_id,)
    if len(message.keys) == 1 and " " not in message.keys[0] and message.keys[0] != message.message_id:
        return message.keys[0], message.message_id
    return dict.fromkeys([*" ".join(message.keys).split(), message.message_id])


def words_of(stored: bytes) -> dict[str, None]:
    """Return the keys that stored properties are found by: the words of KEYS, and the message id."""
    words = properties.value_of(stored, properties.KEYS) if _KEYS in stored else ""
    names: dict[str, None] = dict.fromkeys(words.split()) if words else {}
    message_id = properties.value_of(stored, properties.MESSAGE_ID)
    if message_id:
        names[message_id] = None
    return names


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

    @property
    def file_bytes(self) -> int:
        """The length of the file."""
        return (1 + self.block_count) * BLOCK_BYTES

    def is_whole(self, disk: Disk) -> bool:
        """Return whether the file is there, as long as it must be, and has this head."""
        if disk.size(self.path) != self.file_bytes:
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
        """Return all entries, in order; raise `StoreDamaged`."""
        return sorted_runs.chunks(partial(self.blocks, disk), self.block_count)

    def blocks(self, disk: Disk, number: int, count: int) -> Entries:
        """Return the entries of `count` blocks from block `number` on; raise `StoreDamaged`."""
        content = sorted_runs.read_blocks(disk, self.path, number, count, _ADVICE)
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


def files_named(frozen: Any) -> Iterator[tuple[str, int]]:
    """Yield (path, length in bytes) of the files that a snapshot's part (`KeysWritten.freeze`) names."""
    for fields in frozen or ():
        run = Run(*fields)
        yield run.path, run.file_bytes


def holds_what_was_written(disk: Disk, path: str) -> bool:
    """Return whether a run's blocks match their CRCs, whatever its path; `is_whole` looks at the head."""
    block_count = disk.size(path) // BLOCK_BYTES - 1
    try:
        for number in range(0, block_count, sorted_runs.READ_BLOCKS):
            count = min(sorted_runs.READ_BLOCKS, block_count - number)
            sorted_runs.read_blocks(disk, path, number, count, _ADVICE)
    except StoreDamaged:
        return False
    return True


def bounds(entries: Entries, key_hash: int) -> tuple[int, int]:
    """Return the range [first, end) of the entries, which are in order, that have the hash."""
    hashes, wanted = entries["hash"], np.uint64(key_hash)
    first = int(hashes.searchsorted(wanted))
    if first == len(hashes) or hashes[first] != wanted:
        return first, first
    return first, int(hashes.searchsorted(wanted, side="right"))


def write_run(disk: Disk, chunks: Iterable[Entries]) -> Run | None:
    """Make a durable run of entries that come in order; return None, and make no file, if none come."""
    disk.delete(_UNFINISHED)
    first_offset, end_offset, entry_count, block_count, last_hash = -1, 0, 0, 0, 0
    for whole in sorted_runs.in_whole_blocks(chunks, ENTRY):
        assert last_hash <= whole["hash"][0] <= whole["hash"][-1], "entries do not come in order"
        last_hash = whole["hash"][-1]
        offsets = whole["physical_offset"]
        least = int(offsets.min())
        first_offset = least if first_offset < 0 else min(first_offset, least)
        end_offset = max(end_offset, int(offsets.max()) + 1)
        encoded = sorted_runs.encode_blocks(whole, block_count)
        disk.write(_UNFINISHED, (1 + block_count) * BLOCK_BYTES, encoded)
        block_count += len(encoded) // BLOCK_BYTES
        entry_count += len(whole)
    if entry_count == 0:
        return None
    run = Run(first_offset, end_offset, entry_count)
    assert run.block_count == block_count, "a block before the last is not full"
    sorted_runs.finish(disk, _UNFINISHED, run.path, _head(run))
    return run


def _head(run: Run) -> bytes:
    return sorted_runs.head(_MAGIC, run.first_offset, run.end_offset, run.entry_count)


def merged(sources: Iterable[Iterator[Entries]], first_offset: int) -> Iterator[Entries]:
    """Yield all entries of records at or above `first_offset`, in order, in chunks."""
    for gathered in sorted_runs.passes(sources, "hash", "physical_offset"):
        yield in_order(gathered[gathered["physical_offset"] >= first_offset])


def in_order(entries: Entries) -> Entries:
    """Return the entries by hash; equal hashes keep their order, which is that of the log."""
    return entries[np.argsort(entries["hash"], kind="stable")]


@dataclass(slots=True, frozen=True)
class KeysWritten:
    """What a checkpoint made of the index: its runs now, and the number of batches that went into them."""

    runs: tuple[Run, ...]
    batch_count: int
    damage: str

    def freeze(self) -> Any:
        """Return what a snapshot keeps: the runs; None if one is damaged, so that a start makes them anew."""
        if self.damage:
            return None
        return [[run.first_offset, run.end_offset, run.entry_count] for run in self.runs]


@dataclass(slots=True, eq=False)
class KeysToWrite:
    """The index at one moment, for a checkpoint: batches that never change, and the runs before them."""

    runs: tuple[Run, ...]
    batches: tuple[Entries, ...]
    first_offset: int
    damage: str
    named: frozenset[str] = frozenset()
    """The files that a snapshot on disk may name."""
    written: KeysWritten | None = None

    def write(self, disk: Disk) -> KeysWritten:
        """Make one durable run of the batches and of older runs that it is time to merge.

        A run that is found damaged is left alone and told of. Raise OSError.
        """
        runs = [run for run in self.runs if run.end_offset > self.first_offset]
        kept = sorted_runs.kept_count(runs, sum(map(len, self.batches))) if self.batches else len(runs)
        damage = self.damage
        try:
            new = self._merge(disk, runs[kept:])
        except StoreDamaged as error:
            # The new entries must not wait for a start that makes the index anew: they become a run alone.
            kept, damage = len(runs), str(error)
            new = self._merge(disk, [])
        self.written = KeysWritten((*runs[:kept], *new), len(self.batches), damage)
        return self.written

    def tidy(self, disk: Disk) -> None:
        """Delete the files that neither the new snapshot nor the one before it names."""
        assert self.written is not None, "tidied before it was written"
        sorted_runs.delete_all_but(
            disk, KEYINDEX, self.named | file_names(self.runs) | file_names(self.written.runs)
        )

    def _merge(self, disk: Disk, runs: list[Run]) -> list[Run]:
        sources = [run.chunks(disk) for run in runs] + [iter((batch,)) for batch in self.batches]
        new = write_run(disk, merged(sources, self.first_offset))
        return [] if new is None else [new]


class KeyIndex:
    """The key index of a store; empty until runs are adopted or records are put."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._clear()

    def _clear(self) -> None:
        self._hashes, self._offsets = array("Q"), array("Q")
        self._batches: list[Entries] = []
        self._batched_count = 0
        self._unnamed_count = 0
        self._spill_count = UNSAVED_MAX
        self._runs: tuple[Run, ...] = ()
        self._named: frozenset[str] = frozenset()
        self._damage = ""

    @property
    def is_full(self) -> bool:
        """Whether so much is in memory, or in runs that no snapshot names, that a checkpoint is due."""
        return self._batched_count + self._unnamed_count >= UNSAVED_MAX

    @property
    def runs(self) -> tuple[Run, ...]:
        """The files as they are between checkpoints."""
        return self._runs

    @property
    def damage(self) -> str:
        """What is known to be unreadable, in words; empty if nothing is."""
        return self._damage

    def found_damaged(self, what: str) -> None:
        """Note that a damaged file was read: the next start makes the index anew."""
        self._damage = self._damage or what

    def put(self, record: Record) -> None:
        """Index one durable record; records come in log order."""
        topic, names = names_of(record)
        self.put_names([(topic, name, record.physical_offset) for name in names])

    def put_names(self, names: Collection[tuple[str, str, int]]) -> None:
        """Index durable records, in log order, by what they are found under: (topic, name, log offset)."""
        self._hashes.frombytes(digests_of(((topic, name) for topic, name, _ in names), HASH_BYTES))
        self._offsets.extend([physical_offset for _, _, physical_offset in names])
        if len(self._hashes) >= BATCH_ENTRIES:
            self._close_batch()

    def put_many(self, hashes: Hashes, offsets: Hashes) -> None:
        """Index many durable records, an entry each by the hash of a name, both uint64; offsets ascend."""
        self._hashes.frombytes(hashes.tobytes())
        self._offsets.frombytes(offsets.tobytes())
        if len(self._hashes) >= BATCH_ENTRIES:
            self._close_batch()

    def spill(self, first_offset: int) -> None:
        """Write a run now if memory is full: for a start, which puts more than a checkpoint's worth.

        On a full disk what is new waits in memory, and is tried again when there is as much again.
        """
        if self._batched_count >= self._spill_count:
            try:
                done = self.to_write(first_offset).write(self._disk)
            except OSError:
                self._spill_count += UNSAVED_MAX
                return
            self._unnamed_count += self._batched_count
            self._take_over(done)
            self._spill_count = UNSAVED_MAX

    def offsets(self, topic: str, key: str, first_offset: int) -> Iterator[int]:
        """Yield where records lie that may carry the key, newest first, none below `first_offset`.

        Raise `StoreDamaged` where the index cannot be read.
        """
        # The three cover ascending parts of the log and each is read backwards, so nothing is sorted, and a
        # caller that wants only the newest reads no run.
        key_hash = hash_of(topic, key)
        yield from _at_least(first_offset, self._recent(key_hash))
        for batch in reversed(self._batches):
            first, end = bounds(batch, key_hash)
            yield from _at_least(first_offset, reversed(batch["physical_offset"][first:end].tolist()))
        for run in reversed(self._runs):
            if run.end_offset > first_offset:
                yield from _at_least(first_offset, self._offsets_in(run, key_hash))

    def to_write(self, first_offset: int) -> KeysToWrite:
        """Return everything that a checkpoint needs, which may be written by another thread.

        Tell what became of it by `written` or `failed`; until then nothing in memory is let go.
        """
        self._close_batch()
        return KeysToWrite(self._runs, tuple(self._batches), first_offset, self._damage, self._named)

    def written(self, done: KeysToWrite) -> None:
        """Let the runs of a checkpoint that is durable take the place of what they were made from."""
        assert done.written is not None, "nothing was written"
        self._take_over(done.written)
        self._named, self._unnamed_count = file_names(self._runs), 0

    def failed(self, done: KeysToWrite) -> None:
        """Keep what a failed checkpoint has written: perhaps its snapshot was there already and names it."""
        if done.written is not None:
            self._named |= file_names(done.written.runs)

    def adopt(self, frozen: Any, others: Iterable[Any] = ()) -> str:
        """Take over the runs that a snapshot names; if they are not whole, take none and return why.

        The files of the runs that this snapshot and `others` name stay, whether they are whole or not.
        """
        self._clear()
        runs = tuple(Run(*fields) for fields in frozen or ())
        kept = [Run(*fields) for other in others for fields in other or ()]
        self._named = file_names(runs)
        sorted_runs.delete_all_but(self._disk, KEYINDEX, self._named | file_names(kept))
        torn = [run.path for run in runs if not run.is_whole(self._disk)]
        if frozen is None or torn:
            return f"{torn[0]} is missing or damaged" if torn else "the snapshot names no sound files"
        self._runs = runs
        return ""

    def drop(self) -> None:
        """Delete the index, to be made anew from the log."""
        self._clear()
        self._disk.delete(KEYINDEX)

    def _take_over(self, done: KeysWritten) -> None:
        assert done.batch_count <= len(self._batches), "batches of a checkpoint are gone"
        self._runs = done.runs
        self._damage = self._damage or done.damage
        del self._batches[: done.batch_count]
        self._batched_count = sum(map(len, self._batches))

    def _close_batch(self) -> None:
        assert len(self._hashes) == len(self._offsets), "a hash without its offset"
        if self._hashes:
            assert self._offsets[0] <= self._offsets[-1], "records do not come in log order"
            batch = np.empty(len(self._hashes), ENTRY)
            batch["hash"], batch["physical_offset"] = self._hashes, self._offsets
            self._batches.append(in_order(batch))
            self._batched_count += len(batch)
            self._hashes, self._offsets = array("Q"), array("Q")

    def _recent(self, key_hash: int) -> Iterator[int]:
        places = np.flatnonzero(np.asarray(self._hashes) == np.uint64(key_hash))
        return reversed([self._offsets[place] for place in places])

    def _offsets_in(self, run: Run, key_hash: int) -> Iterator[int]:
        try:
            yield from run.offsets(self._disk, key_hash)
        except StoreDamaged as error:
            self._damage = str(error)
            raise


def _at_least(first_offset: int, offsets: Iterator[int]) -> Iterator[int]:
    return (offset for offset in offsets if offset >= first_offset)
