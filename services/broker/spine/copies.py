"""Encoded records that are appended in batches, to deliver many timers that are due together.

A copy is a record in its stored form, except for the fields that `commitlog.bulk` stamps. Columns hold the
contents of the records in addition to the bytes: the queue, the tag, the hashes of the names, and the offset
and the due time of the timer. Therefore a run of copies has a single fact with columns, `TimersDelivered`,
instead of one `TimerEnded` for each record.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.bulk import Integers
from consumequeue.entry import ENTRY, ENTRY_BYTES

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
NO_HASH: Final = 0
"""The padding in `name_hashes` for records with fewer names than columns."""


class ByQueue(NamedTuple):
    """Record numbers by queue: queue `codes[n]` has the ascending `places[begins[n]:begins[n + 1]]`."""

    codes: list[int]
    places: Integers
    begins: Integers


@dataclass(slots=True, eq=False)
class Copies:
    """Contiguous encoded records in `content`, with their sizes in bytes, their queues, and their timers.

    Each column has one row per record. The record in row n has `record_bytes[n]` bytes, belongs to queue
    `queues[queue[n]]`, and is the delivery of the timer at log offset `ended[n]`.
    """

    content: bytearray
    record_bytes: Integers
    queues: list[tuple[str, int]]
    queue: Integers
    tags_code: Integers
    name_hashes: Hashes
    """The name hashes of each record for the key index, padded with `NO_HASH`, in shape (records, names)."""
    due_ms: Integers
    """The due times of the timers, in ms since 1970."""
    ended: Integers
    """The log offsets of the timers."""

    def __post_init__(self) -> None:
        count = len(self.record_bytes)
        assert len(self.queue) == len(self.tags_code) == len(self.name_hashes) == count, "columns differ"
        assert len(self.due_ms) == len(self.ended) == count, "a delivery ends one timer"

    def __len__(self) -> int:
        return len(self.record_bytes)

    def list_used_queues(self) -> list[tuple[str, int]]:
        """Return the queues that have at least one of these records."""
        return [self.queues[code] for code in np.unique(self.queue).tolist()]

    def group_by_queue(self) -> ByQueue:
        """Return the records grouped by queue."""
        places = np.argsort(self.queue, kind="stable")
        codes = self.queue[places]
        firsts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
        return ByQueue(codes[firsts].tolist(), places, np.append(firsts, len(codes)))

    def slice_rows(self, first: int, end: int) -> Copies:
        """Return the records in the rows from `first` up to but excluding `end`."""
        if first == 0 and end == len(self):
            return self
        bounds = np.concatenate(([0], np.cumsum(self.record_bytes)))
        return Copies(
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
    """The fact of a run of copies in one segment: the store time, and the log and queue offsets."""

    copies: Copies
    physical_offsets: Integers
    queue_offsets: Integers
    store_ms: int

    def __post_init__(self) -> None:
        count = len(self.copies)
        assert len(self.physical_offsets) == len(self.queue_offsets) == count > 0, "a copy without a place"

    def entries(self) -> list[tuple[tuple[str, int], int, bytes]]:
        """Return the entries of each queue as ((topic, queue id), first queue offset, encoded entries)."""
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
        """Return the hash and the physical offset of every name as two columns of u64, in log order."""
        hashes = self.copies.name_hashes
        offsets = np.repeat(self.physical_offsets.astype(np.uint64), hashes.shape[1])
        named = hashes.ravel() != NO_HASH
        return hashes.ravel()[named], offsets[named]
