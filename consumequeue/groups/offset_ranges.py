"""A set of queue offsets, stored as ranges.

Memory use grows with the number of holes, not of offsets. Two sorted lists hold the starts and the exclusive
ends of the ranges. Ranges are never adjacent. Acknowledgements usually extend the last range by changing only
its end. Any other addition requires a binary search and shifts all subsequent items. Limitations: `take_out`
rewrites both lists. If only every other message is acknowledged, each of these messages needs its own range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence


class OffsetRanges:
    """A set of offsets, built from (first, count) ranges."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self.count = 0
        """Number of offsets in the set."""
        for first, count in ranges:
            self.add(first, first + count)

    @property
    def end(self) -> int:
        """Offset after the last one in the set, or 0 if the set is empty."""
        return self._ends[-1] if self._ends else 0

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the (first, count) ranges in ascending order."""
        return ((first, end - first) for first, end in zip(self._firsts, self._ends, strict=True))

    def add(self, first: int, end: int) -> None:
        """Add the offsets from `first` to `end` (exclusive)."""
        last = self._ends[-1] if self._ends else -1
        if first > last:
            self._append(first, end)
            return
        if first == last:
            self._ends[-1] = max(end, last)
            self.count += self._ends[-1] - last
            return
        # Ranges that are adjacent to the new range are also merged (`left` is used for the ends, and `right`
        # for the starts). Without merging, `behind` could return an offset that is in the set.
        low = bisect_left(self._ends, first)
        high = bisect_right(self._firsts, end)
        swallowed = sum(map(int.__sub__, self._ends[low:high], self._firsts[low:high]))
        if low < high:
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._firsts[low:high], self._ends[low:high] = [first], [end]
        self.count += end - first - swallowed
        assert self.count >= end - first, "fewer offsets than were just added"

    def take_out(self, offsets: Sequence[int]) -> None:
        """Remove a sorted list of offsets in one pass over all ranges."""
        left, at = OffsetRanges(), 0
        for first, count in self:
            end = first + count
            at = bisect_left(offsets, first, at)
            while at < len(offsets) and offsets[at] < end:
                left._append(first, offsets[at])
                first, at = offsets[at] + 1, at + 1
            left._append(first, end)
        assert left.count >= self.count - len(offsets), "more went than was to go"
        self._firsts, self._ends, self.count = left._firsts, left._ends, left.count

    def behind(self, offset: int) -> int:
        """Return the first offset at or after `offset` that is not in the set."""
        at = bisect_right(self._firsts, offset) - 1
        return self._ends[at] if at >= 0 and offset < self._ends[at] else offset

    def cut(self, offset: int) -> None:
        """Remove all offsets below `offset`."""
        whole = bisect_right(self._ends, offset)
        self.count -= sum(map(int.__sub__, self._ends[:whole], self._firsts[:whole]))
        del self._firsts[:whole], self._ends[:whole]
        if self._firsts and self._firsts[0] < offset:
            self.count -= offset - self._firsts[0]
            self._firsts[0] = offset
        assert (self.count > 0) == bool(self._firsts), "the count is of other ranges"

    def _append(self, first: int, end: int) -> None:
        if first < end:
            self._firsts.append(first)
            self._ends.append(end)
            self.count += end - first
