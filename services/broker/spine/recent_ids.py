"""A table of recent message ids with the log offsets of the corresponding messages.

    put --> `newest` (a dictionary of about NEWEST_COUNT ids) --batch of columns--> table
                                                   columns of the key index (startup) --^

    64-bit hash of (topic, id)   the tag is the high 24 bits; the bucket number starts at bit 27 and
                                 overlaps the low bits of the tag if the table has more than 2^13 buckets
    bucket                       four slots of 64 bits
    slot                         log offset minus the table's origin (40 bits), tag (24 bits); 0: neither this
                                 slot nor any later slot of the bucket has been used

The table uses the same hash as the key index (`keyindex.hash_of`). For this reason, the table can be filled
with columns of the key index at startup, and only one hash is computed per send.

Rules
1. A slot is live as long as its offset is at or above `since`, and dead afterwards. Slots are overwritten
   only if they are dead.
2. The table has 2^13 buckets at startup. The number of buckets is doubled before it is exceeded by the number
   of live ids, up to a maximum of 2^19 buckets. When the number of live ids exceeds half the number of
   buckets, the process begins to initialize the memory of the next table in small pieces. When the table is
   doubled, the hash bit by which a bucket is split is taken from the tags in the slots. The size of the table
   is never reduced.
3. If all four slots in the bucket of an id are live, the id is stored in the dictionary `_overflow`, which is
   keyed by hash and contains at most RECENT_IDS_SPILLED_MAX ids. Beyond this limit, durable ids are dropped,
   and `is_incomplete` is true until `since` is above the offsets of the dropped ids. Lookups must also read
   the key index as long as `is_incomplete` is true.
4. A lookup returns all matching offsets, but may also return offsets that do not match. A non-matching offset
   belongs to a different id with the same bucket and tag (one in 65,000 probes of a full table), to a message
   key, or to a record that was created by the broker. The caller must read the records and compare their
   contents.

Cost: the size of the table is initially 256 KiB and at most 16 MiB. A probe takes 0.2 us, and an insertion
takes 0.1 us. Half of the insertion time is spent on inserting ids into the table in batches. When ids were
inserted into the table individually, an insertion took 0.5 to 0.9 us. With an initial size of 16 MiB, each
send took 0.4 us longer, because the probes caused processor cache misses. At a rate of 1,000 messages per
second, the table requires 2 MiB for the ids of 40 s. At a rate of 16,000 messages per second, the largest
table is one third full, and 0.5 % of the ids are spilled. At startup, it takes 0.15 s to load 500,000 ids
from 10 million index entries. Weak spots: at a rate of 43,000 messages per second, `_overflow` is full (60
MiB) after 40 s, and the key index must be read for each probe that finds no match. When the table is doubled
to its maximum size, the event loop is blocked for about 8 ms. Slots can represent log offsets of up to 1 TiB
above the origin. For this reason, `expire_before` adjusts all slots each time 512 GiB have been written,
which takes about 10 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from commitlog.bulk import Integers
from commitlog.limits import RECENT_IDS_SPILLED_MAX
from consumequeue.sorted_runs import Entries

BUCKET_BITS_MIN: Final = 13
BUCKET_BITS_MAX: Final = 19
SLOTS_PER_BUCKET: Final = 4
NEWEST_COUNT: Final = 4096
_int_of: Final = int.from_bytes
_TAG_BITS: Final = 24
_TAG_MASK: Final = (1 << _TAG_BITS) - 1
_TAG_SHIFT: Final = 64 - _TAG_BITS
_SPLIT_AT_ONCE: Final = 2_048
_SLOTS_INITIALIZED_AT_ONCE: Final = 32_768
_DEAD: Final = 1
"""The value of a used slot that is dead for every value of `since`."""
_SHIFT_ABOVE: Final = 1 << 39
"""The distance in bytes between the origin and `since` above which the origin is moved."""


Hashes = np.ndarray[Any, np.dtype[np.uint64]]
"""An array of 64-bit hashes."""


class RecentIds:
    """The message ids of the records at or above a log offset."""

    def __init__(self, since_offset: int, durable_offset: Callable[[], int]) -> None:
        self._durable_offset = durable_offset
        self._first_bit = _TAG_SHIFT - BUCKET_BITS_MIN
        """The lowest bit of the bucket number in a hash, whose highest 24 bits are the tag."""
        self._bits = BUCKET_BITS_MIN
        # The array is initialized by writing to it, because the first insertions would otherwise cause page
        # faults (2 us each).
        self._use(np.full(SLOTS_PER_BUCKET << self._bits, 0, np.uint64))
        self._count = 0
        """An upper bound for the number of live ids, including spilled ids."""
        self._origin = since_offset - 1
        self._since = 1 << _TAG_BITS
        self.newest: dict[bytes, int] = {}
        """The log offsets of ids that have not been added to the table yet, keyed by id digest.

        The ids are added to the table by `flush_newest`.
        """
        self._overflow: dict[int, list[int]] = {}
        self._overflow_count = 0
        self._incomplete_below = 0
        self.is_incomplete = False
        """Whether recent ids may be missing from the table, so that the key index must be read as well."""

    def _use(self, array: Hashes) -> None:
        self._array, self._slots = array, memoryview(array.data)
        # `_slot_shift` and `_slot_mask` are used to extract the number of the first slot of a bucket from a
        # hash.
        self._slot_shift, self._slot_mask = self._first_bit - 2, len(array) - SLOTS_PER_BUCKET
        self._next_table, self._initialized_slots = array[:0], 0
        """The array for the next table, and the number of slots in it that have been initialized."""

    @property
    def since_offset(self) -> int:
        """The log offset at or above which the ids of records are live."""
        return self._origin + (self._since >> _TAG_BITS)

    @property
    def overflow_count(self) -> int:
        """The number of ids in `_overflow`, which contains the ids whose buckets were full."""
        return self._overflow_count

    def mark_incomplete_below(self, offset: int) -> None:
        """Record that the ids of records below a log offset may be missing from the table."""
        self._incomplete_below = max(self._incomplete_below, offset)
        self.is_incomplete = self._incomplete_below > self.since_offset

    def may_hold(self, id_digest: bytes) -> bool:
        """Return whether the table may contain a message id.

        False positives are rare, and false negatives do not occur.
        """
        if id_digest in self.newest:
            return True
        id_hash = _int_of(id_digest, "little")
        slots, at = self._slots, id_hash >> self._slot_shift & self._slot_mask
        if not (one := slots[at]):
            return self.is_incomplete
        tag = id_hash >> _TAG_SHIFT
        return (
            one & _TAG_MASK == tag
            or slots[at + 1] & _TAG_MASK == tag
            or slots[at + 2] & _TAG_MASK == tag
            or slots[at + 3] & _TAG_MASK == tag
            or id_hash in self._overflow
            or self.is_incomplete
        )

    def put(self, id_digest: bytes, offset: int) -> None:
        """Add the id of a record that was appended at a log offset."""
        if id_digest in self.newest:
            self.flush_newest()
        self.newest[id_digest] = offset

    def offsets(self, id_digest: bytes) -> list[int]:
        """Return the log offsets of live records that may have this id, newest first."""
        id_hash = _int_of(id_digest, "little")
        tag, since, origin = id_hash >> _TAG_SHIFT, self._since, self._origin
        at = id_hash >> self._slot_shift & self._slot_mask
        slots = self._slots[at : at + SLOTS_PER_BUCKET].tolist()
        found = [origin + (one >> _TAG_BITS) for one in slots if one & _TAG_MASK == tag and one >= since]
        found += self._overflow.get(id_hash, ())
        if id_digest in self.newest:
            found.append(self.newest[id_digest])
        return sorted((one for one in found if one >= self.since_offset), reverse=True)

    def flush_newest(self) -> None:
        """Move all ids in `newest` to the table."""
        newest = self.newest
        hashes = np.frombuffer(b"".join(newest), np.uint64)
        self._insert(hashes, np.fromiter(newest.values(), np.int64, len(newest)))
        newest.clear()

    def fill(self, chunks: Iterable[Entries]) -> None:
        """Add durable key index entries, or raise `StoreDamaged` if an entry cannot be read."""
        for entries in chunks:
            self._insert(entries["key"], entries["offset"].astype(np.int64))

    def expire_before(self, since_offset: int) -> None:
        """Mark the ids of all records below a log offset as dead."""
        assert since_offset >= self.since_offset, "ids that are dead cannot live again"
        self._since = (since_offset - self._origin) << _TAG_BITS
        if self._overflow:
            kept = {
                id_hash: live
                for id_hash, offsets in self._overflow.items()
                if (live := [one for one in offsets if one >= since_offset])
            }
            self._overflow, self._overflow_count = kept, sum(map(len, kept.values()))
        self._count = self._overflow_count + int(np.count_nonzero(self._array >= np.uint64(self._since)))
        self.is_incomplete = self._incomplete_below > since_offset
        if since_offset - self._origin > _SHIFT_ABOVE:
            self._move_origin(since_offset)

    def _move_origin(self, since_offset: int) -> None:
        """Move the origin to the offset immediately below `since_offset`."""
        by = np.uint64((since_offset - 1 - self._origin) << _TAG_BITS)
        is_live = self._array >= np.uint64(self._since)
        self._array[:] = np.where(is_live, self._array - by, np.minimum(self._array, np.uint64(_DEAD)))
        self._origin, self._since = since_offset - 1, 1 << _TAG_BITS

    def _double_table(self) -> None:
        """Double the number of buckets, which moves some slots from each bucket to a new bucket.

        Buckets are split in batches that fit into the processor caches.
        """
        count, array = 1 << self._bits, self._array.reshape(-1, SLOTS_PER_BUCKET)
        since, upper_bit = np.uint64(self._since), np.uint64(1 << self._first_bit + self._bits - _TAG_SHIFT)
        while self._initialized_slots < len(array) * 2 * SLOTS_PER_BUCKET:
            self._prepare_next_table()
        new = self._next_table.reshape(-1, SLOTS_PER_BUCKET)
        for first in range(0, count, _SPLIT_AT_ONCE):
            old = array[first : first + _SPLIT_AT_ONCE]
            is_live, is_upper = old >= since, (old & upper_bit) != 0
            for begin, is_its in ((first, is_live & ~is_upper), (count + first, is_live & is_upper)):
                is_used = is_its[:, 0] | is_its[:, 1] | is_its[:, 2] | is_its[:, 3]
                # In a bucket with used slots, unused slots are marked as dead, because a 0 would end the
                # search in the bucket.
                part = np.where(is_its, old, is_used[:, np.newaxis].astype(np.uint64) * np.uint64(_DEAD))
                new[begin : begin + len(old)] = part
        self._bits += 1
        self._use(self._next_table)

    def _prepare_next_table(self) -> None:
        """Initialize a piece of the next table, because initializing all 16 MiB at once takes 30 ms."""
        if not self._initialized_slots:
            self._next_table = np.empty(2 * len(self._array), np.uint64)
        end = self._initialized_slots + max(_SLOTS_INITIALIZED_AT_ONCE, len(self._next_table) // 16)
        self._next_table[self._initialized_slots : end] = 0
        self._initialized_slots = min(end, len(self._next_table))

    def _insert(self, hashes: Hashes, offsets: Integers) -> None:
        """Insert ids into dead slots of their buckets, or into `_overflow` if the bucket of an id is full."""
        self._count += len(hashes)
        if 1 << self._bits < 2 * self._count and self._bits < BUCKET_BITS_MAX:
            self._prepare_next_table()
        if self._count > 1 << self._bits and self._bits < BUCKET_BITS_MAX:
            spilled = [(one, offset) for one, offsets in self._overflow.items() for offset in offsets]
            self._overflow, self._overflow_count = {}, 0
            while self._count > 1 << self._bits and self._bits < BUCKET_BITS_MAX:
                self._double_table()
            hashes = np.append(np.array([one for one, _ in spilled], np.uint64), hashes)
            offsets = np.append(np.array([offset for _, offset in spilled], np.int64), offsets)
        buckets = (hashes >> np.uint64(self._first_bit)).astype(np.int64) & (1 << self._bits) - 1
        first_slots = buckets * SLOTS_PER_BUCKET
        new = (offsets - self._origin).astype(np.uint64) << np.uint64(_TAG_BITS)
        new |= hashes >> np.uint64(_TAG_SHIFT)
        # The ids are written in reverse order, so that the oldest of several ids for the same slot remains in
        # the slot. The remaining ids are then inserted into the next dead slot.
        left = np.arange(len(hashes))[::-1]
        while len(left):
            slots = np.full(len(left), -1)
            for number in reversed(range(SLOTS_PER_BUCKET)):
                slot = first_slots[left] + number
                np.copyto(slots, slot, where=self._array[slot] < np.uint64(self._since))
            fits = slots >= 0
            if not fits.all():
                self._add_to_overflow(hashes[left[~fits]], offsets[left[~fits]])
                left, slots = left[fits], slots[fits]
            self._array[slots] = new[left]
            left = left[self._array[slots] != new[left]]

    def _add_to_overflow(self, hashes: Hashes, offsets: Integers) -> None:
        """Add ids to `_overflow`. Beyond the limit, only ids that are not durable yet are added."""
        room = RECENT_IDS_SPILLED_MAX - self._overflow_count
        is_kept = (np.arange(len(offsets)) < room) | (offsets >= self._durable_offset())
        for id_hash, offset in zip(hashes[is_kept].tolist(), offsets[is_kept].tolist(), strict=True):
            self._overflow.setdefault(id_hash, []).append(offset)
        self._overflow_count += int(np.count_nonzero(is_kept))
        if not is_kept.all():
            self.mark_incomplete_below(int(offsets[~is_kept].max()) + 1)
