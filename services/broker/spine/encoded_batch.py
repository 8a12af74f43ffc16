"""Define batches of encoded records that deliver many due timers at once.

A copy is an encoded record without its offsets and store time, which `commitlog.records.bulk` sets. The
columns of a batch contain the queue, tag, and name hashes of each record, and the offset and due time of each
timer. A batch therefore has a single columnar fact, `TimersDelivered`, instead of one `TimerEnded` fact for
each record.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.records.bulk import Integers
from consumequeue.entry import ENTRY, ENTRY_BYTES

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
NO_HASH: Final = 0
"""The padding in `name_hashes` for a record with fewer names than columns."""


class RowsByQueue(NamedTuple):
    """The row numbers of a batch, grouped by queue.

    The rows of queue `codes[n]` are `places[begins[n]:begins[n + 1]]`, in ascending order.
    """

    codes: list[int]
    places: Integers
    begins: Integers


@dataclass(slots=True, eq=False)
class EncodedBatch:
    """Contiguous encoded records, with columns for record sizes, queues, and timers.

    Each column has one row per record. The record in row n has `record_bytes[n]` bytes, belongs to the queue
    `queues[queue[n]]`, and delivers the timer at log offset `ended[n]`.
    """

    content: bytearray
    record_bytes: Integers
    queues: list[tuple[str, int]]
    queue: Integers
    tags_code: Integers
    name_hashes: Hashes
    """The name hashes for the key index: an array of shape (records, names), padded with `NO_HASH`."""
    due_ms: Integers
    """The due times of the timers, in milliseconds since the Unix epoch."""
    ended: Integers
    """The log offsets of the timers."""

    def __post_init__(self) -> None:
        count = len(self.record_bytes)
        assert len(self.queue) == len(self.tags_code) == len(self.name_hashes) == count, "columns differ"
        assert len(self.due_ms) == len(self.ended) == count, "a delivery ends one timer"

    def __len__(self) -> int:
        return len(self.record_bytes)

    def list_used_queues(self) -> list[tuple[str, int]]:
        """Return the queues that have at least one record, as (topic, queue id) pairs."""
        return [self.queues[code] for code in np.unique(self.queue).tolist()]

    def group_by_queue(self) -> RowsByQueue:
        """Return the row numbers grouped by queue."""
        places = np.argsort(self.queue, kind="stable")
        codes = self.queue[places]
        firsts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
        return RowsByQueue(codes[firsts].tolist(), places, np.append(firsts, len(codes)))

    def slice_rows(self, first: int, end: int) -> EncodedBatch:
        """Return a batch of the rows from `first` (inclusive) to `end` (exclusive)."""
        if first == 0 and end == len(self):
            return self
        bounds = np.concatenate(([0], np.cumsum(self.record_bytes)))
        return EncodedBatch(
            self.content[bounds[first] : bounds[end]],
            self.record_bytes[first:end],
            self.queues,
            self.queue[first:end],
            self.tags_code[first:end],
            self.name_hashes[first:end],
            self.due_ms[first:end],
            self.ended[first:end],
        )


@dataclass(slots=True, eq=False)
class TimersDelivered:
    """A batch that was appended to a segment, with the offsets and the store time of the records."""

    copies: EncodedBatch
    physical_offsets: Integers
    queue_offsets: Integers
    store_ms: int

    def __post_init__(self) -> None:
        count = len(self.copies)
        assert len(self.physical_offsets) == len(self.queue_offsets) == count > 0, "a copy without a place"

    def entries(self) -> list[tuple[tuple[str, int], int, bytes]]:
        """Return ((topic, queue id), first queue offset, encoded entries) for each queue of the batch."""
        entries = np.empty(len(self.copies), ENTRY)
        entries["physical_offset"] = self.physical_offsets
        entries["record_bytes"] = self.copies.record_bytes
        entries["tags_code"] = self.copies.tags_code
        codes, places, begins = self.copies.group_by_queue()
        keys = [self.copies.queues[code] for code in codes]
        firsts = self.queue_offsets[places[begins[:-1]]].tolist()
        encoded, bounds = entries[places].tobytes(), (begins * ENTRY_BYTES).tolist()
        parts = [encoded[start:end] for start, end in pairwise(bounds)]
        return [*zip(keys, firsts, parts, strict=True)]

    def names(self) -> tuple[Hashes, Hashes]:
        """Return the hashes and the log offsets of all names, as two u64 columns in log order."""
        hashes = self.copies.name_hashes
        offsets = np.repeat(self.physical_offsets.astype(np.uint64), hashes.shape[1])
        named = hashes.ravel() != NO_HASH
        return hashes.ravel()[named], offsets[named]
