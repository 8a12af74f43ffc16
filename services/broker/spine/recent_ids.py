"""A table of recent message ids, with the log offsets of recently stored messages by id.

    put --> newest: a dictionary, some NEWEST_COUNT ids --all at once, as columns--> table
                                                     startup: columns of the key index --^

    64-bit hash of (topic, id)   tag: the high 24 bits; bucket: the bits from FIRST_BIT on, as many as the
                                 table has bits; the 14th and later are also the low bits of the tag
    bucket                       four slots of 64 bits
    slot                         log offset minus the table's origin (40 bits), tag (24 bits); 0: neither this
                                 slot nor any later slot of the bucket has been used

The table and the key index use the same hash (`keyindex.hash_of`). Therefore startup can fill the table with
columns of the key index, and a send computes one hash for both.

Rules
1. A slot is live while its offset is at or above `since`, and dead afterwards. Only dead slots are
   overwritten.
2. The table has 2^13 buckets at startup. The number of buckets is doubled, up to 2^19, before the number of
   live ids exceeds the number of buckets. When the number of live ids exceeds half the number of buckets, the
   memory of the next table is written piece by piece. The hash bit that splits a bucket is part of the tag of
   each slot. The table never shrinks.
3. If the bucket of an id has four live slots, the id is stored in `_spilled`, a dictionary by hash with at
   most RECENT_IDS_SPILLED_MAX ids. Further durable ids are dropped, and `is_incomplete` is true until `since`
   has passed the dropped ids. While `is_incomplete` is true, a look-up must also read the key index.
4. A look-up misses no offset but may return wrong offsets. A wrong offset belongs to another id with the same
   bucket and tag (one probe in 65,000 at full load), to a message key, or to a record that the broker
   created. The caller reads the records and compares their contents.

Cost: the table takes 256 KiB at first and 16 MiB at most. A probe takes 0.2 us and a put takes 0.1 us. Half
of the time of a put is its share of the batch insertion. Inserting the ids one by one took 0.5 to 0.9 us per
send. An initial size of 16 MiB made each send 0.4 us slower, because each probe missed the processor's
caches. At 1,000 messages per second, the ids of 40 s take 2 MiB in the table. At 16,000 messages per second,
the ids fill a third of the largest table, and 0.5 % of the ids are spilled. At startup, loading 500,000 ids
from 10 M entries of the index takes 0.15 s. Weak spots: after 40 s at 43,000 messages per second, `_spilled`
is full (60 MiB), and each probe without a match reads the key index. The last doubling of the table blocks
the event loop for about 8 ms. A slot can hold offsets of up to 1 TiB above the origin. Therefore
`expire_before` shifts all slots once per 512 GiB written, which takes about 10 ms.
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
_AHEAD_AT_ONCE: Final = 32_768
_DEAD: Final = 1
"""The value of a used slot that is dead regardless of `since`."""
_SHIFT_ABOVE: Final = 1 << 39
"""The distance, in bytes, between `since` and the origin above which the origin is moved."""


Hashes = np.ndarray[Any, np.dtype[np.uint64]]
"""A column of 64-bit hashes."""


class RecentIds:
    """The message ids of the records of a log at or above an offset."""

    def __init__(self, since_offset: int, durable_offset: Callable[[], int]) -> None:
        self._durable_offset = durable_offset
        self._first_bit = _TAG_SHIFT - BUCKET_BITS_MIN
        """The lowest bit of a hash that belongs to the bucket number. The 24 highest bits are the tag."""
        self._bits = BUCKET_BITS_MIN
        # The array is written at once, because otherwise the first ids would each cause a page fault (2 us).
        self._use(np.full(SLOTS_PER_BUCKET << self._bits, 0, np.uint64))
        self._count = 0
        """An upper bound of the number of live ids, including spilled ones."""
        self._origin = since_offset - 1
        self._since = 1 << _TAG_BITS
        self.newest: dict[bytes, int] = {}
        """Ids that are not yet in the table, with their log offsets.

        `flush_newest` moves the ids into the table.
        """
        self._spilled: dict[int, list[int]] = {}
        self._spilled_count = 0
        self._incomplete_below = 0
        self.is_incomplete = False
        """Whether the table may lack recent ids, in which case the key index must be read as well."""

    def _use(self, array: Hashes) -> None:
        self._array, self._slots = array, memoryview(array.data)
        # `_slot_shift` and `_slot_mask` extract the number of the first slot of a bucket from a hash.
        self._slot_shift, self._slot_mask = self._first_bit - 2, len(array) - SLOTS_PER_BUCKET
        self._ahead, self._made_ahead = array[:0], 0
        """The array of the next table, and the number of its slots that have been written."""

    @property
    def since_offset(self) -> int:
        """The lowest log offset of live ids."""
        return self._origin + (self._since >> _TAG_BITS)

    @property
    def spilled_count(self) -> int:
        """The number of ids in `_spilled`, whose buckets are full."""
        return self._spilled_count

    def mark_incomplete_below(self, offset: int) -> None:
        """Record that the table may lack ids of records below a log offset."""
        self._incomplete_below = max(self._incomplete_below, offset)
        self.is_incomplete = self._incomplete_below > self.since_offset

    def may_hold(self, id_digest: bytes) -> bool:
        """Return whether an id may be known. False positives are rare, and false negatives are impossible."""
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
            or id_hash in self._spilled
            or self.is_incomplete
        )

    def put(self, id_digest: bytes, offset: int) -> None:
        """Add the id of a record that was appended at a log offset."""
        if id_digest in self.newest:
            self.flush_newest()
        self.newest[id_digest] = offset

    def offsets(self, id_digest: bytes) -> list[int]:
        """Return the candidate offsets of live records with this id, newest first."""
        id_hash = _int_of(id_digest, "little")
        tag, since, origin = id_hash >> _TAG_SHIFT, self._since, self._origin
        at = id_hash >> self._slot_shift & self._slot_mask
        slots = self._slots[at : at + SLOTS_PER_BUCKET].tolist()
        found = [origin + (one >> _TAG_BITS) for one in slots if one & _TAG_MASK == tag and one >= since]
        found += self._spilled.get(id_hash, ())
        if id_digest in self.newest:
            found.append(self.newest[id_digest])
        return sorted((one for one in found if one >= self.since_offset), reverse=True)

    def flush_newest(self) -> None:
        """Move the newest ids into the table."""
        newest = self.newest
        hashes = np.frombuffer(b"".join(newest), np.uint64)
        self._insert(hashes, np.fromiter(newest.values(), np.int64, len(newest)))
        newest.clear()

    def fill(self, chunks: Iterable[Entries]) -> None:
        """Add durable entries of the key index, or raise `StoreDamaged` if an entry is unreadable."""
        for entries in chunks:
            self._insert(entries["key"], entries["offset"].astype(np.int64))

    def expire_before(self, since_offset: int) -> None:
        """Mark ids below a log offset as dead."""
        assert since_offset >= self.since_offset, "ids that are dead cannot live again"
        self._since = (since_offset - self._origin) << _TAG_BITS
        if self._spilled:
            kept = {
                id_hash: live
                for id_hash, offsets in self._spilled.items()
                if (live := [one for one in offsets if one >= since_offset])
            }
            self._spilled, self._spilled_count = kept, sum(map(len, kept.values()))
        self._count = self._spilled_count + int(np.count_nonzero(self._array >= np.uint64(self._since)))
        self.is_incomplete = self._incomplete_below > since_offset
        if since_offset - self._origin > _SHIFT_ABOVE:
            self._move_origin(since_offset)

    def _move_origin(self, since_offset: int) -> None:
        """Move the origin to just below `since_offset`."""
        by = np.uint64((since_offset - 1 - self._origin) << _TAG_BITS)
        is_live = self._array >= np.uint64(self._since)
        self._array[:] = np.where(is_live, self._array - by, np.minimum(self._array, np.uint64(_DEAD)))
        self._origin, self._since = since_offset - 1, 1 << _TAG_BITS

    def _double_table(self) -> None:
        """Double the number of buckets: a slot keeps its bucket or moves up by the old number of buckets.

        Buckets are split in batches that fit into the processor's caches.
        """
        count, array = 1 << self._bits, self._array.reshape(-1, SLOTS_PER_BUCKET)
        since, upper_bit = np.uint64(self._since), np.uint64(1 << self._first_bit + self._bits - _TAG_SHIFT)
        while self._made_ahead < len(array) * 2 * SLOTS_PER_BUCKET:
            self._prepare_next_table()
        new = self._ahead.reshape(-1, SLOTS_PER_BUCKET)
        for first in range(0, count, _SPLIT_AT_ONCE):
            old = array[first : first + _SPLIT_AT_ONCE]
            is_live, is_upper = old >= since, (old & upper_bit) != 0
            for begin, is_its in ((first, is_live & ~is_upper), (count + first, is_live & is_upper)):
                is_used = is_its[:, 0] | is_its[:, 1] | is_its[:, 2] | is_its[:, 3]
                # Unused slots of a used bucket are marked as dead, because a 0 would end the search in the
                # bucket.
                part = np.where(is_its, old, is_used[:, np.newaxis].astype(np.uint64) * np.uint64(_DEAD))
                new[begin : begin + len(old)] = part
        self._bits += 1
        self._use(self._ahead)

    def _prepare_next_table(self) -> None:
        """Write a piece of the next table, because writing all of its 16 MiB at once takes 30 ms."""
        if not self._made_ahead:
            self._ahead = np.empty(2 * len(self._array), np.uint64)
        end = self._made_ahead + max(_AHEAD_AT_ONCE, len(self._ahead) // 16)
        self._ahead[self._made_ahead : end] = 0
        self._made_ahead = min(end, len(self._ahead))

    def _insert(self, hashes: Hashes, offsets: Integers) -> None:
        """Insert ids into the first dead slots of their buckets, or into `_spilled` if a bucket is full."""
        self._count += len(hashes)
        if 1 << self._bits < 2 * self._count and self._bits < BUCKET_BITS_MAX:
            self._prepare_next_table()
        if self._count > 1 << self._bits and self._bits < BUCKET_BITS_MAX:
            spilled = [(one, offset) for one, offsets in self._spilled.items() for offset in offsets]
            self._spilled, self._spilled_count = {}, 0
            while self._count > 1 << self._bits and self._bits < BUCKET_BITS_MAX:
                self._double_table()
            hashes = np.append(np.array([one for one, _ in spilled], np.uint64), hashes)
            offsets = np.append(np.array([offset for _, offset in spilled], np.int64), offsets)
        buckets = (hashes >> np.uint64(self._first_bit)).astype(np.int64) & (1 << self._bits) - 1
        first_slots = buckets * SLOTS_PER_BUCKET
        new = (offsets - self._origin).astype(np.uint64) << np.uint64(_TAG_BITS)
        new |= hashes >> np.uint64(_TAG_SHIFT)
        # Ids are written in reverse order, so the oldest of several ids for one slot remains in the slot. The
        # other ids are inserted into the next dead slot.
        left = np.arange(len(hashes))[::-1]
        while len(left):
            slots = np.full(len(left), -1)
            for number in reversed(range(SLOTS_PER_BUCKET)):
                slot = first_slots[left] + number
                np.copyto(slots, slot, where=self._array[slot] < np.uint64(self._since))
            fits = slots >= 0
            if not fits.all():
                self._spill_ids(hashes[left[~fits]], offsets[left[~fits]])
                left, slots = left[fits], slots[fits]
            self._array[slots] = new[left]
            left = left[self._array[slots] != new[left]]

    def _spill_ids(self, hashes: Hashes, offsets: Integers) -> None:
        """Add ids to `_spilled` or, above the limit, only the ids that are not yet durable."""
        room = RECENT_IDS_SPILLED_MAX - self._spilled_count
        is_kept = (np.arange(len(offsets)) < room) | (offsets >= self._durable_offset())
        for id_hash, offset in zip(hashes[is_kept].tolist(), offsets[is_kept].tolist(), strict=True):
            self._spilled.setdefault(id_hash, []).append(offset)
        self._spilled_count += int(np.count_nonzero(is_kept))
        if not is_kept.all():
            self.mark_incomplete_below(int(offsets[~is_kept].max()) + 1)
