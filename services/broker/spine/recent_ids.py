"""Map recent message ids to log offsets in a hash table.

    put --> `newest` (a dictionary of about NEWEST_COUNT ids) --batch of columns--> table
                                                   columns of the key index (startup) --^

    64-bit hash of (topic, id)   the tag is the high 24 bits; the bucket number starts at bit 27 and
                                 overlaps the low bits of the tag if the table has more than 2^13 buckets
    bucket                       four slots of 64 bits
    slot                         log offset minus the origin of the table (40 bits), tag (24 bits); 0 if this
                                 slot and all later slots of the bucket are unused

The table uses the same hash as the key index (`keyindex.hash_of`). At startup, the table can therefore be
filled from columns of the key index, and a send computes only one hash.

Rules
1. A slot is live if its offset is at or above `since`, and dead otherwise. Only dead slots are overwritten.
2. The table starts with 2^13 buckets. It doubles before the live ids outnumber the buckets, up to 2^19
   buckets. Once there are more than half as many live ids as buckets, the memory of the next table is
   initialized in small pieces. The tag in a slot contains the hash bit that splits the bucket. The table
   never shrinks.
3. If all four slots in a bucket are live, the id is added to the dictionary `_overflow`, which is keyed by
   hash and contains at most RECENT_IDS_SPILLED_MAX ids. Beyond this limit, durable ids are discarded. Until
   `since` is above the offsets of the discarded ids, `is_incomplete` is true, and lookups must also read the
   key index.
4. A lookup returns all matching offsets, and possibly some false matches. A false match belongs to another id
   with the same bucket and tag (one in 65,000 probes of a full table), to a message key, or to a broker
   record. The caller must read and compare the records.

Cost: the table requires 256 KiB initially, and at most 16 MiB. A probe takes 0.2 us, and an insertion takes
0.1 us, including a share of 0.05 us for the batch insertion into the table. Individual insertions took 0.5 to
0.9 us. With an initial size of 16 MiB, each send took 0.4 us longer because of processor cache misses. At
1,000 messages per second, the ids of 40 s require 2 MiB. At 16,000 messages per second, the largest table is
one third full, and 0.5% of the ids are spilled. At startup, loading 500,000 ids from 10 million index entries
takes 0.15 s.

Limitations: at 43,000 messages per second, `_overflow` is full (60 MiB) after 40 s, and each probe without a
match reads the key index. Doubling to the maximum size blocks the event loop for about 8 ms. Slots represent
log offsets up to 1 TiB above the origin. `expire_before` therefore adjusts all slots after every 512 GiB of
log data, which takes about 10 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from commitlog.limits import RECENT_IDS_SPILLED_MAX
from commitlog.records.bulk import Integers
from consumequeue.runs.sorted_runs import Entries

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
        """The lowest bit of the bucket number in a hash."""
        self._bits = BUCKET_BITS_MIN
        # `np.full` writes to the whole array, so that the first insertions cause no page faults (2 us each).
        self._use(np.full(SLOTS_PER_BUCKET << self._bits, 0, np.uint64))
        self._count = 0
        """An upper bound on the number of live ids, including spilled ids."""
        self._origin = since_offset - 1
        self._since = 1 << _TAG_BITS
        self.newest: dict[bytes, int] = {}
        """The log offsets of ids that are not in the table yet, by id digest.

        `flush_newest_ids` adds these ids to the table.
        """
        self._overflow: dict[int, list[int]] = {}
        self._overflow_count = 0
        self._incomplete_below = 0
        self.is_incomplete = False
        """Whether recent ids may be missing. If true, lookups must also read the key index."""

    def _use(self, array: Hashes) -> None:
        self._array, self._slots = array, memoryview(array.data)
        # `_slot_shift` and `_slot_mask` extract the number of the first slot of a bucket from a hash.
        self._slot_shift, self._slot_mask = self._first_bit - 2, len(array) - SLOTS_PER_BUCKET
        self._next_table, self._initialized_slots = array[:0], 0
        """The number of initialized slots in `_next_table`, the array of the next table."""

    @property
    def since_offset(self) -> int:
        """The lowest log offset at which an id is live."""
        return self._origin + (self._since >> _TAG_BITS)

    @property
    def overflow_count(self) -> int:
        """The number of ids in `_overflow`."""
        return self._overflow_count

    def mark_incomplete_below(self, offset: int) -> None:
        """Mark the table as possibly incomplete for ids below a log offset."""
        self._incomplete_below = max(self._incomplete_below, offset)
        self.is_incomplete = self._incomplete_below > self.since_offset

    def may_hold(self, id_digest: bytes) -> bool:
        """Return whether the table may contain a message id.

        False positives are rare. There are no false negatives.
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
        """Add the message id of the record at log offset `offset`."""
        if id_digest in self.newest:
            self.flush_newest_ids()
        self.newest[id_digest] = offset

    def offsets(self, id_digest: bytes) -> list[int]:
        """Return the log offsets of live records that may have the given message id, newest first."""
        id_hash = _int_of(id_digest, "little")
        tag, since, origin = id_hash >> _TAG_SHIFT, self._since, self._origin
        at = id_hash >> self._slot_shift & self._slot_mask
        slots = self._slots[at : at + SLOTS_PER_BUCKET].tolist()
        found = [origin + (one >> _TAG_BITS) for one in slots if one & _TAG_MASK == tag and one >= since]
        found += self._overflow.get(id_hash, ())
        if id_digest in self.newest:
            found.append(self.newest[id_digest])
        return sorted((one for one in found if one >= self.since_offset), reverse=True)

    def flush_newest_ids(self) -> None:
        """Move all ids in `newest` to the table."""
        newest = self.newest
        hashes = np.frombuffer(b"".join(newest), np.uint64)
        self._insert(hashes, np.fromiter(newest.values(), np.int64, len(newest)))
        newest.clear()

    def fill(self, chunks: Iterable[Entries]) -> None:
        """Add entries of the durable key index. Raise `StoreDamaged` if an entry cannot be read."""
        for entries in chunks:
            self._insert(entries["key"], entries["offset"].astype(np.int64))

    def expire_before(self, since_offset: int) -> None:
        """Expire the ids of all records below a log offset."""
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
        """Move the origin to `since_offset - 1`, and adjust all slots."""
        by = np.uint64((since_offset - 1 - self._origin) << _TAG_BITS)
        is_live = self._array >= np.uint64(self._since)
        self._array[:] = np.where(is_live, self._array - by, np.minimum(self._array, np.uint64(_DEAD)))
        self._origin, self._since = since_offset - 1, 1 << _TAG_BITS

    def _double_table(self) -> None:
        """Double the number of buckets, and move some slots of each bucket to a new bucket.

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
                # In a bucket with used slots, the unused slots are marked as dead, because a slot value of 0
                # would end the search in the bucket.
                part = np.where(is_its, old, is_used[:, np.newaxis].astype(np.uint64) * np.uint64(_DEAD))
                new[begin : begin + len(old)] = part
        self._bits += 1
        self._use(self._next_table)

    def _prepare_next_table(self) -> None:
        """Initialize part of the next table. Initializing all 16 MiB at once would take 30 ms."""
        if not self._initialized_slots:
            self._next_table = np.empty(2 * len(self._array), np.uint64)
        end = self._initialized_slots + max(_SLOTS_INITIALIZED_AT_ONCE, len(self._next_table) // 16)
        self._next_table[self._initialized_slots : end] = 0
        self._initialized_slots = min(end, len(self._next_table))

    def _insert(self, hashes: Hashes, offsets: Integers) -> None:
        """Insert ids into dead slots of their buckets, or into `_overflow` if a bucket is full."""
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
        # The ids are written in reverse order. If several ids share a slot, the oldest id is written last and
        # remains in the slot. The other ids are then inserted into the next dead slot.
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
        """Add ids to `_overflow`. Beyond the size limit, add only ids that are not durable yet."""
        room = RECENT_IDS_SPILLED_MAX - self._overflow_count
        is_kept = (np.arange(len(offsets)) < room) | (offsets >= self._durable_offset())
        for id_hash, offset in zip(hashes[is_kept].tolist(), offsets[is_kept].tolist(), strict=True):
            self._overflow.setdefault(id_hash, []).append(offset)
        self._overflow_count += int(np.count_nonzero(is_kept))
        if not is_kept.all():
            self.mark_incomplete_below(int(offsets[~is_kept].max()) + 1)
