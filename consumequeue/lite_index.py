"""Where the messages of each lite topic lie in one queue: their queue offsets, by the lite topic's code.

    ... only the last offset of each lite topic ...|floor ... every offset ...|read_offset ... unknown ...

A pure function of the queue, whose entries carry the code (`consumequeue.entry.lite_code`); so it is not on
disk and is made anew by a start from the entries alone, a few million a second. It reads on by itself
when it is asked. Below the floor, under which nobody has anything left to do, it keeps of each lite
topic only that there is one. A group that goes back there lets it be made from further below.

Cost: 8 bytes a message above the floor, some 200 for each lite topic; a look is a binary search.
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
        """Up to here the queue was taken in."""
        self._trimmed_at = self.read_offset

    def __len__(self) -> int:
        """How many lite topics have messages."""
        self.read_on()
        return len(self._offsets)

    def __contains__(self, code: int) -> bool:
        return code in self._offsets

    @property
    def is_long(self) -> bool:
        """Whether much was taken in since it was trimmed."""
        return self.read_offset - self._trimmed_at >= _TRIM_EVERY

    def next(self, code: int, offset: int) -> int | None:
        """The first message of a lite topic at or above `offset`, which lies above the floor."""
        self.read_on()
        offsets = self._offsets.get(code, ())
        at = bisect_left(offsets, offset)
        return offsets[at] if at < len(offsets) else None

    def between(self, code: int, first: int, end: int) -> array[int]:
        """The messages of a lite topic from `first` up to before `end`, however far below the floor."""
        first = max(first, self._queue.min_offset)
        self.reach(first)
        offsets = self._offsets.get(code, array("q"))
        return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]

    def reach(self, offset: int) -> None:
        """Lets the floor be no higher than `offset`."""
        offset = max(offset, self._queue.min_offset)
        if offset < self._floor:
            self._offsets.clear()
            self._floor = self.read_offset = self._trimmed_at = offset
            for code, last in self._lasts_below(offset):
                self._offsets[code] = array("q", (last,))
        self.read_on()

    def trim(self, floor: int) -> None:
        """Nobody has anything left to do below `floor`: forgets it, and lite topics without messages."""
        self._floor, self._trimmed_at = max(self._floor, floor), self.read_offset
        for code, offsets in list(self._offsets.items()):
            del offsets[: min(bisect_left(offsets, self._floor), len(offsets) - 1)]
            if offsets[-1] < self._queue.min_offset:
                del self._offsets[code]

    def read_on(self) -> None:
        """Takes in what has come to the queue."""
        while self.read_offset < self._queue.end_offset:
            rows = self._queue.rows(self.read_offset, _READ_AT_ONCE)
            for code, places in _by_code(rows):
                offsets = (places + self.read_offset).astype(np.int64).tobytes()
                self._offsets.setdefault(code, array("q")).frombytes(offsets)
            self.read_offset += len(rows)

    def _lasts_below(self, end: int) -> Iterator[tuple[int, int]]:
        offset = self._queue.min_offset
        while offset < end:
            rows = self._queue.rows(offset, min(_READ_AT_ONCE, end - offset))
            for code, places in _by_code(rows):
                yield code, offset + int(places[-1])
            offset += len(rows)


def _by_code(rows: Entries) -> Iterator[tuple[int, np.ndarray[tuple[int], np.dtype[np.intp]]]]:
    """The places in `rows` of each code, ascending; a gap left by damage has code 0."""
    codes = rows["tags_code"].astype(np.int64)
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    for places in np.split(order, bounds):
        yield int(codes[places[0]]), places
