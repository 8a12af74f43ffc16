"""Where the messages of each lite topic lie in one queue: their queue offsets, by the lite topic's code.

    ... only the last offset of each lite topic ...|floor ... every offset ...|read_offset ... unknown ...

A pure function of the queue, whose entries carry the code (`consumequeue.entry.lite_code`); so it is not on
disk and is made anew by a start from the entries alone, a few million a second. It reads on by itself
when it is asked. Below the floor, under which no group has anything left to do, it keeps of each lite
topic only that there is one. A group that goes back there lets it be made from further below.

Two lite topics may have one code, so a message found is looked at before it is given out.

Cost: 8 bytes a message above the floor, some 200 for each lite topic; a look is a binary search. Weak spots:
one slow group holds the floor for all; `reach` below the floor reads the whole queue in one go; a damaged
file keeps the index from what comes after it until a cut has passed that file.
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
    """The lite topics of one queue."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self._queue = queue
        self._offsets: dict[int, array[int]] = {}
        self._floor = queue.min_offset
        self.read_offset = queue.min_offset
        """The queue offset up to which the queue was taken in."""
        self._trimmed_at = self.read_offset

    def __len__(self) -> int:
        """Return the number of lite topics that have messages."""
        self.read_on()
        return len(self._offsets)

    @property
    def known_count(self) -> int:
        """The number of lite topics whose messages were taken in so far."""
        return len(self._offsets)

    def __contains__(self, code: int) -> bool:
        return code in self._offsets

    @property
    def is_long(self) -> bool:
        """Whether much was taken in since it was trimmed."""
        return self.read_offset - self._trimmed_at >= _TRIM_EVERY

    def next(self, code: int, offset: int) -> int | None:
        """Return the first offset of a lite topic at or above `offset`, not below the floor; else None."""
        self.read_on()
        offsets = self._offsets.get(code, ())
        at = bisect_left(offsets, offset)
        return offsets[at] if at < len(offsets) else None

    def between(self, code: int, first: int, end: int) -> array[int]:
        """Return the offsets of a lite topic from `first` up to before `end`, also below the floor."""
        first = max(first, self._queue.min_offset)
        self.reach(first)
        offsets = self._offsets.get(code, array("q"))
        return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]

    def reach(self, offset: int) -> None:
        """Let the floor be no higher than `offset`, taking in the queue again if it is."""
        offset = max(offset, self._queue.min_offset)
        if offset < self._floor:
            # The arrays only grow at their ends: what lies further below cannot be put before, so all is read
            # anew.
            self._offsets.clear()
            self._floor = self.read_offset = self._trimmed_at = offset
            for code, last in self._lasts_below(offset):
                self._offsets[code] = array("q", (last,))
        self.read_on()

    def trim(self, floor: int) -> None:
        """Forget what lies below `floor`, where no group has anything to do, and empty lite topics."""
        self._floor, self._trimmed_at = max(self._floor, floor), self.read_offset
        for code, offsets in list(self._offsets.items()):
            # The last one stays, even below the floor: by it the lite topic is known, and is dropped when
            # retention has passed it.
            del offsets[: min(bisect_left(offsets, self._floor), len(offsets) - 1)]
            if offsets[-1] < self._queue.min_offset:
                del self._offsets[code]

    def read_on(self) -> None:
        """Take in what has come to the queue, but for what was cut off before it could be read."""
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
    """Yield each code of `rows` and its places there, ascending; a gap left by damage has code 0."""
    codes = rows["tags_code"].astype(np.int64)
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    for places in np.split(order, bounds):
        yield int(codes[places[0]]), places
