"""Encoded records on their way into the log, many at a time: the deliveries of a crowded moment.

A copy is the record as it will lie in its queue, except for the fields that `commitlog.bulk` stamps. Beside
the bytes goes, as arrays, what the record says: its queue, its tag, the hashes of its names, what of which
timer. So a run is one fact of columns, `TimersDelivered`, in place of a `TimerEnded` and a topic for each.
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
"""In place of a name's hash where a record has no such name."""


class ByQueue(NamedTuple):
    """Records by queue: those of queue `codes[n]` are `places[begins[n]:begins[n + 1]]`, ascending."""

    codes: list[int]
    places: Integers
    begins: Integers


@dataclass(slots=True, eq=False)
class Copies:
    """Records back to back in `content`, `record_bytes` long each, for `queues[queue]`.

    All of them are deliveries, each of the timer `ended`. Columns have one row a record.
    """

    content: bytearray
    record_bytes: Integers
    queues: list[tuple[str, int]]
    queue: Integers
    tags_code: Integers
    name_hashes: Hashes
    """(records, names): the hashes of the names a record is found by, `NO_HASH` where it has fewer."""
    due_ms: Integers
    """The due times of the timers, ms since 1970."""
    ended: Integers
    """The offsets of the timers."""

    def __post_init__(self) -> None:
        count = len(self.record_bytes)
        assert len(self.queue) == len(self.tags_code) == len(self.name_hashes) == count, "columns differ"
        assert len(self.due_ms) == len(self.ended) == count, "a delivery ends one timer"

    def __len__(self) -> int:
        return len(self.record_bytes)

    def queues_used(self) -> list[tuple[str, int]]:
        """Return the queues that have a record here."""
        return [self.queues[code] for code in np.unique(self.queue).tolist()]

    def by_queue(self) -> ByQueue:
        """Return the records by queue."""
        places = np.argsort(self.queue, kind="stable")
        codes = self.queue[places]
        firsts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
        return ByQueue(codes[firsts].tolist(), places, np.append(firsts, len(codes)))

    def part(self, first: int, end: int) -> Copies:
        """Return the records from number `first` up to `end`."""
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
    """The fact of a run of copies: their places in log and queues, of one segment, and their store time."""

    copies: Copies
    physical_offsets: Integers
    queue_offsets: Integers
    store_ms: int

    def __post_init__(self) -> None:
        count = len(self.copies)
        assert len(self.physical_offsets) == len(self.queue_offsets) == count > 0, "a copy without a place"

    def entries(self) -> list[tuple[tuple[str, int], int, bytes]]:
        """Return the index entries by queue: its (topic, queue id), the first queue offset, the entries."""
        entries = np.empty(len(self.copies), ENTRY)
        entries["physical_offset"] = self.physical_offsets
        entries["record_bytes"] = self.copies.record_bytes
        entries["tags_code"] = self.copies.tags_code
        codes, places, begins = self.copies.by_queue()
        keys = [self.copies.queues[code] for code in codes]
        firsts = self.queue_offsets[places[begins[:-1]]].tolist()
        encoded, bounds = entries[places].tobytes(), (begins * ENTRY_BYTES).tolist()
        parts = [encoded[start:end] for start, end in pairwise(bounds)]
        return [*zip(keys, firsts, parts, strict=True)]

    def names(self) -> tuple[Hashes, Hashes]:
        """Return two u64 columns, the hash and the physical offset of every name, in log order."""
        hashes = self.copies.name_hashes
        offsets = np.repeat(self.physical_offsets.astype(np.uint64), hashes.shape[1])
        named = hashes.ravel() != NO_HASH
        return hashes.ravel()[named], offsets[named]
