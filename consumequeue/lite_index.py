"""The lite index, which finds the messages of each lite topic in a queue.

The index identifies lite topics by their codes.

    ... only the last offset of each lite topic ...|floor ... every offset ...|read_offset ... unknown ...

The queue entries contain the codes (`consumequeue.entry.hash_lite_topic`), so the index is not stored on
disk. At startup, it is rebuilt at a few million entries per second. Each query first indexes new entries in
the queue. No group has unfinished messages below the floor, where the index contains only the last offset of
each lite topic. If a group is reset to an offset below the floor, the index is rebuilt with a lower floor.
Two lite topics may have the same code, so a message's lite topic is verified before delivery.

Cost: 8 bytes per message above the floor, and about 200 bytes per lite topic. Each lookup is a binary search.
Limitations: the slowest group sets the floor for all groups. If given an offset below the floor, `reach`
reads the whole queue in one step. If a queue file is damaged, the index stays empty until retention has
deleted the entries in that file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

import numpy as np

from consumequeue.entry import Entries
from consumequeue.queue import ConsumeQueue

_READ_AT_ONCE: Final = 262_144
_TRIM_EVERY: Final = 65_536


class LiteIndex:
    """The lite index of a queue."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self._queue = queue
        self._offsets: dict[int, array[int]] = {}
        self._floor = queue.min_offset
        self.read_offset = queue.min_offset
        """Queue offset up to which entries are in the index."""
        self._trimmed_at = self.read_offset

    def __len__(self) -> int:
        """Return the number of lite topics with messages."""
        self.read_on()
        return len(self._offsets)

    @property
    def known_count(self) -> int:
        """Number of lite topics in the index."""
        return len(self._offsets)

    def __contains__(self, code: int) -> bool:
        return code in self._offsets

    @property
    def is_long(self) -> bool:
        """Whether many entries have been added since the last `trim`."""
        return self.read_offset - self._trimmed_at >= _TRIM_EVERY

    def next(self, code: int, offset: int) -> int | None:
        """Return a lite topic's first indexed offset at or after `offset`, or None."""
        self.read_on()
        offsets = self._offsets.get(code, ())
        at = bisect_left(offsets, offset)
        return offsets[at] if at < len(offsets) else None

    def between(self, code: int, first: int, end: int) -> array[int]:
        """Return the offsets of a lite topic from `first` to `end` (exclusive).

        Offsets below the floor are included.
        """
        first = max(first, self._queue.min_offset)
        self.reach(first)
        offsets = self._offsets.get(code, array("q"))
        return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]

    def reach(self, offset: int) -> None:
        """If the floor is above `offset`, lower it to `offset` by reading the queue again."""
        offset = max(offset, self._queue.min_offset)
        if offset < self._floor:
            # Offsets can only be appended to the arrays, so the queue must be read again to add lower
            # offsets.
            self._offsets.clear()
            self._floor = self.read_offset = self._trimmed_at = offset
            for code, last in self._lasts_below(offset):
                self._offsets[code] = array("q", (last,))
        self.read_on()

    def trim(self, floor: int) -> None:
        """Remove empty lite topics and the offsets below `floor`, which all groups have finished."""
        self._floor, self._trimmed_at = max(self._floor, floor), self.read_offset
        for code, offsets in list(self._offsets.items()):
            # The last offset of a lite topic is kept until retention has deleted the entry, even if the
            # offset is below the floor.
            del offsets[: min(bisect_left(offsets, self._floor), len(offsets) - 1)]
            if offsets[-1] < self._queue.min_offset:
                del self._offsets[code]

    def read_on(self) -> None:
        """Index the queue's new entries, except those already removed."""
        self.read_offset = max(self.read_offset, self._queue.min_offset)
        while self.read_offset < self._queue.end_offset:
            rows = self._queue.rows(self.read_offset, _READ_AT_ONCE)
            for code, places in _by_code(rows):
                offsets = (places + self.read_offset).astype(np.int64).tobytes()
                self._offsets.setdefault(code, array("q")).frombytes(offsets)
            self.read_offset += len(rows)
        assert self.read_offset == self._queue.end_offset, "the queue was cut behind its index"

    def _lasts_below(self, end: int) -> Iterator[tuple[int, int]]:
        offset = self._queue.min_offset
        while offset < end:
            rows = self._queue.rows(offset, min(_READ_AT_ONCE, end - offset))
            for code, places in _by_code(rows):
                yield code, offset + int(places[-1])
            offset += len(rows)


def _by_code(rows: Entries) -> Iterator[tuple[int, np.ndarray[tuple[int], np.dtype[np.intp]]]]:
    """Yield each code in `rows` with a sorted array of its positions.

    Gap entries have the code 0.
    """
    codes = rows["tags_code"].astype(np.int64)
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    for places in np.split(order, bounds):
        yield int(codes[places[0]]), places
