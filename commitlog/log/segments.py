"""The segments of a log.

The file names determine which segment contains a log offset, without any division.

A segment begins at the log offset in its file name and ends where the next one begins. The file `format`,
which is written when the store is created, contains the size of the last segment. The segments of a store may
have different sizes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged


class Segments:
    """A log's segments, keyed by first offset. The size of the last segment is `segment_bytes`."""

    def __init__(self, first_offsets: Iterable[int], segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self._firsts = list(first_offsets)

    @classmethod
    def of(cls, disk: Disk, segment_bytes: int) -> Segments:
        """Return the segments on a disk. Raise `StoreError` if the folder contains any other file."""
        return cls(layout.segment_offsets(disk), segment_bytes)

    def look_again(self, disk: Disk, end_offset: int) -> None:
        """Reload the segments, except those at or after the end of the log.

        These may contain a tail that was kept (`LogScan.keep_tail`). Raise `StoreError` if the folder
        contains any other file.
        """
        self._firsts = [first for first in layout.segment_offsets(disk) if first < end_offset]

    @property
    def first_offsets(self) -> list[int]:
        """First offsets of the segments in ascending order."""
        return self._firsts

    @property
    def end_offset(self) -> int:
        """Log offset where the last segment ends, or 0 if there are no segments."""
        return self._firsts[-1] + self.segment_bytes if self._firsts else 0

    def first_of(self, offset: int) -> int:
        """Return the first offset of the segment that contains a log offset."""
        firsts = self._firsts
        return firsts[max(0, bisect_right(firsts, offset) - 1)] if firsts else 0

    def end_of(self, offset: int) -> int:
        """Return the end offset of the segment that contains a log offset."""
        firsts = self._firsts
        place = bisect_right(firsts, offset)
        return firsts[place] if place < len(firsts) else self.end_offset

    def place(self, offset: int) -> tuple[str, int]:
        """Return the file path and byte position for a log offset.

        Raise `StoreDamaged` if its segment was deleted.
        """
        first_offset = self.first_of(offset)
        if offset < first_offset:
            raise StoreDamaged(f"Log offset {offset} was deleted: the log begins at {first_offset}.")
        return layout.segment_path(first_offset), offset - first_offset

    def add(self, first_offset: int) -> None:
        """Append a segment."""
        assert not self._firsts or first_offset > self._firsts[-1], "segments come in order"
        self._firsts.append(first_offset)

    def cut(self, first_offset: int) -> None:
        """Remove the segments that end at or before a log offset. The last segment stays."""
        place = max(0, bisect_right(self._firsts, first_offset) - 1)
        self._firsts = self._firsts[place:]  # Other threads may be reading the old list.

    def touched(self, first_offset: int, end_offset: int) -> list[int]:
        """Return the first offsets of the segments that overlap a range of the log."""
        place = max(0, bisect_right(self._firsts, first_offset) - 1)
        return [one for one in self._firsts[place:] if one < end_offset]

    def between(self, first_offset: int, end_offset: int) -> list[int]:
        """Return the first offsets of the segments entirely within a range of the log."""
        ends = [*self._firsts[1:], self.end_offset]
        both = zip(self._firsts, ends, strict=False)
        return [first for first, end in both if first_offset <= first and end <= end_offset]

    @property
    def is_uniform(self) -> bool:
        """Whether all segments have the same size."""
        return all(end - first == self.segment_bytes for first, end in pairwise(self._firsts))
