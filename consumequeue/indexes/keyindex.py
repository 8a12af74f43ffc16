"""The key index, which finds a topic's records by key or message ID, newest first.

    put ----> in log order (packed arrays) ----> batches (sorted, with filters) ----> runs (sorted files)
              16,384 entries                     in memory until a checkpoint

The key index is a run store (`consumequeue.runs.run_store`) with its own schema. It contains messages and
dead letters, as well as half messages and timers under their real topics. An entry consists of a 64-bit hash
and the record's physical offset. Hashes may collide, so the caller must read the record and compare the key
(`carries`).

1. Records are added in log order, so the runs, the batches, and the unbatched entries cover successive parts
   of the log. A lookup searches these parts from newest to oldest, so it may find the newest records without
   reading a run.
2. The key index is derived from the log. It is rebuilt if a run is missing or damaged.
3. Entries for records that retention has deleted are skipped. The next merge removes them.

Cost: adding a key takes 0.4 us, mostly for hashing. A lookup takes 5 us, plus 0.2 us for each batch or
filtered run and 10 us for each block read. A lookup reads one block from each run that contains the key or
has no filter. An unwritten entry takes up 18 bytes of memory. Runs of up to `FILTERED_MAX` entries take up 12
to 24 bits per entry, or about 10 MB in total. Larger runs take up 8 bytes per 255 entries. Limitation: if
many entries have the same hash, lookups read whole blocks in reverse order, even if only some entries are
needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import KEYINDEX
from commitlog.records import inner_batch, properties
from commitlog.records.message import Message
from commitlog.records.record import INNER_BATCH, Record
from consumequeue.indexes.name_hash import digest_of
from consumequeue.runs.bloom_filter import Filter, Mask, Probe, Words, probe_of
from consumequeue.runs.run_store import RunStore, RunsToWrite
from consumequeue.runs.sorted_runs import Entries, Run, Schema, bounds, order_of
from tidewheel import property_names
from tidewheel.errors import LibraryMissing

BATCH_ENTRIES: Final = 16_384
FILTERED_MAX: Final = 1 << 20
"""Maximum number of entries of a run with a filter. Its filter takes 1.5 to 3 MiB."""

_KEYS: Final = property_names.KEYS.encode()
_REAL_TOPIC: Final = property_names.REAL_TOPIC.encode()

ENTRY: Final = np.dtype([("key", "<u8"), ("offset", "<u8")])
"""Entry: 64-bit hash, and physical offset of the record."""


def in_order(entries: Entries) -> Entries:
    """Sort entries by hash. Entries with the same hash stay in log order."""
    ordered: Entries = entries[order_of(entries["key"])]
    return ordered


KEYS: Final = Schema(
    magic=b"TWKEYS02",
    entry=ENTRY,
    minor="offset",
    merged=in_order,
    newest_only=False,
    is_derived=True,
    filtered_max=FILTERED_MAX,
    advice="The key index is made anew from the log at the next start.",
)


def hash_of(topic: str, key: str) -> int:
    """Return the 64-bit hash of a key within a topic."""
    return int.from_bytes(digest_of(topic, key), "little")


def names_of(record: Record) -> tuple[str, dict[str, None]]:
    """Return the real topic and the names of a record.

    The names are its keys and message ID. For an inner batch, return the names of all messages.
    """
    stored = record.properties
    names = keys_of(stored)
    if record.sys_flag & INNER_BATCH:
        for message in messages_of(record):
            names |= keys_of(message.properties)
    real_topic = properties.value_of(stored, property_names.REAL_TOPIC) if _REAL_TOPIC in stored else ""
    return real_topic or record.topic, names


def carries(record: Record, topic: str, key: str) -> bool:
    """Return whether a record in `topic` has this key or message ID."""
    real_topic, names = names_of(record)
    return real_topic == topic and key in names


def messages_of(record: Record) -> list[Record]:
    """Return the readable messages in an inner batch in order.

    For any other record, return only that record.
    """
    first = record.queue_offset
    messages: list[Record] = []
    with suppress(StoreDamaged, LibraryMissing):
        for queue_offset in range(first, first + inner_batch.message_count(record)):
            messages.append(inner_batch.pick(record, queue_offset))
    return messages


def other_keys_of(message: Message) -> Collection[str]:
    """Return the keys of a message that differ from its message ID."""
    keys, message_id = message.keys, message.message_id
    if not keys:
        return ()
    if len(keys) == 1 and keys[0] != message_id:
        return keys
    return dict.fromkeys(key for key in keys if key != message_id)


def keys_of(stored: bytes) -> dict[str, None]:
    """Return the keys and the message ID found in stored properties."""
    joined = properties.value_of(stored, property_names.KEYS) if _KEYS in stored else ""
    names: dict[str, None] = {}
    if joined:
        names = dict.fromkeys(
            properties.keys_in(joined, properties.value_of(stored, property_names.KEY_LENGTHS))
        )
    message_id = properties.value_of(stored, property_names.MESSAGE_ID)
    if message_id:
        names[message_id] = None
    return names


def runs_named(frozen: Any) -> list[Run]:
    """Return the runs listed in a snapshot (`RunsToWrite.freeze`), without loading them."""
    return [Run(KEYS, KEYINDEX, *fields) for fields in frozen or ()]


def is_undamaged_run(disk: Disk, path: str) -> bool:
    """Return whether a file is an undamaged run of the key index."""
    with suppress(StoreDamaged):
        return Run.at(KEYS, disk, path).is_sound(disk)
    return False


class _Batch(NamedTuple):
    """A sorted batch: the columns of its entries, and a filter for their hashes."""

    hashes: Words
    offsets: Words
    filter: Filter


class RecentKeys:
    """Entries in memory.

    Entries arrive in log order, and the older ones are in sorted batches.
    """

    def __init__(self) -> None:
        self.hashes, self.offsets = array("Q"), array("Q")
        self._batches: list[_Batch] = []
        self._batched_count = 0

    def __len__(self) -> int:
        return self._batched_count + len(self.hashes)

    def close_batch(self) -> None:
        """Move all entries that are not yet in a batch into a new sorted batch."""
        assert len(self.hashes) == len(self.offsets), "a hash without its offset"
        assert self.offsets[0] <= self.offsets[-1], "records do not come in log order"
        hashes = np.frombuffer(self.hashes, np.uint64)
        order = order_of(hashes)
        batch = _Batch(
            hashes[order], np.frombuffer(self.offsets, np.uint64)[order], Filter.for_at_most(len(order))
        )
        batch.filter.add(batch.hashes)
        self._batches.append(batch)
        self._batched_count += len(order)
        self.hashes, self.offsets = array("Q"), array("Q")

    def find(self, key_hash: int, probe: Probe) -> Iterator[int]:
        """Yield the physical offsets of entries with this hash, newest first."""
        places = np.flatnonzero(np.asarray(self.hashes) == np.uint64(key_hash))
        yield from [self.offsets[place] for place in reversed(places)]
        for batch in reversed(self._batches):
            if batch.filter.may_hold(probe):
                first, end = bounds(batch.hashes, key_hash)
                yield from reversed(batch.offsets[first:end].tolist())

    def take(self, newer: RecentKeys) -> None:
        """Take over all entries from `newer`."""
        if newer._batches and self.hashes:
            self.close_batch()
        self._batches += newer._batches
        self._batched_count += newer._batched_count
        self.hashes += newer.hashes
        self.offsets += newer.offsets

    def chunks(self) -> Iterator[Entries]:
        """Yield all entries in order. Do not add entries during the iteration."""
        entries = np.empty(len(self), ENTRY)
        entries["key"] = np.concatenate([*(batch.hashes for batch in self._batches), self.hashes])
        entries["offset"] = np.concatenate([*(batch.offsets for batch in self._batches), self.offsets])
        entries = in_order(entries)
        for at in range(0, len(entries), BATCH_ENTRIES):
            yield entries[at : at + BATCH_ENTRIES]


class KeyIndex(RunStore[RecentKeys]):
    """The key index of a store."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk, KEYINDEX, KEYS, RecentKeys, _is_below)

    def put(self, record: Record) -> None:
        """Add a durable record. Records must be added in log order."""
        topic, names = names_of(record)
        self.put_digests([digest_of(topic, name) for name in names], [record.physical_offset] * len(names))

    def put_digests(self, digests: Collection[bytes], offsets: Collection[int]) -> None:
        """Add durable records in log order.

        `digests` and `offsets` contain one item per name.
        """
        assert len(digests) == len(offsets), "a name without its record"
        recent = self._recent
        recent.hashes.frombytes(b"".join(digests))
        recent.offsets.extend(offsets)
        if len(recent.hashes) >= BATCH_ENTRIES:
            recent.close_batch()

    def put_many(self, hashes: Words, offsets: Words) -> None:
        """Add many durable records.

        `hashes` contains the name hashes, and `offsets` the record offsets in ascending order.
        """
        recent = self._recent
        recent.hashes.frombytes(hashes.tobytes())
        recent.offsets.frombytes(offsets.tobytes())
        if len(recent.hashes) >= BATCH_ENTRIES:
            recent.close_batch()

    def offsets(self, topic: str, key: str, first_offset: int) -> Iterator[int]:
        """Yield the offsets of records that may have a key, in descending order down to `first_offset`.

        Raise `StoreDamaged` if the index cannot be read.
        """
        key_hash = hash_of(topic, key)
        probe = probe_of(key_hash)
        for recent in reversed(self.recents()):
            yield from _at_least(first_offset, recent.find(key_hash, probe))
        for run in reversed(self._runs):
            if run.end_offset > first_offset and run.may_hold(probe):
                yield from _at_least(first_offset, self._offsets_in(run, key_hash))

    def entries_from(self, first_offset: int) -> Iterator[Entries]:
        """Yield the entries of all records at or above a log offset, in unordered chunks.

        Raise `StoreDamaged` if the index cannot be read.
        """
        for recent in self.recents():
            yield from _from(first_offset, recent.chunks())
        for run in self._runs:
            if run.end_offset > first_offset:
                try:
                    yield from _from(first_offset, run.chunks(self._disk))
                except StoreDamaged:
                    self.found_damaged((run,))
                    raise

    def to_write(self, until: int) -> RunsToWrite:
        """Return the state for a checkpoint, as `RunStore.to_write` does.

        Runs whose entries are all below `until`, the first offset of the log, are dropped.
        """
        self._runs = tuple(run for run in self._runs if run.end_offset > until)
        return super().to_write(until)

    def _offsets_in(self, run: Run, key_hash: int) -> Iterator[int]:
        try:
            for entries in run.find(self._disk, key_hash):
                yield from reversed(entries["offset"].tolist())
        except StoreDamaged:
            self.found_damaged((run,))
            raise


def _is_below(entries: Entries, first_offset: int) -> Mask:
    is_below: Mask = entries["offset"] < np.uint64(first_offset)
    return is_below


def _at_least(first_offset: int, offsets: Iterator[int]) -> Iterator[int]:
    return (offset for offset in offsets if offset >= first_offset)


def _from(first_offset: int, chunks: Iterable[Entries]) -> Iterator[Entries]:
    return (chunk[~_is_below(chunk, first_offset)] for chunk in chunks)
