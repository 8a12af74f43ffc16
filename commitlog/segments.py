"""Which segment a log offset lies in: found by the segments' names, never by dividing.

A segment begins at the log offset that is its name and ends where the next one begins; the last one has the
size that the file `format` says, written once when the store was made. So a store whose segments have
different sizes is read like any other. Version 1 guessed the size from the files, and a kill at the wrong
moment could leave some of other sizes; in what it wrote then, a record that did not fit a segment may also
reach beyond the next one's beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from commitlog import layout
from commitlog.disk import Disk
from commitlog.errors import StoreDamaged


class Segments:
    """The segments of a log by their first offsets; the last one has room for `segment_bytes`."""

    def __init__(self, first_offsets: Iterable[int], segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self._firsts = list(first_offsets)

    @classmethod
    def of(cls, disk: Disk, segment_bytes: int) -> Segments:
        """Return the segments whose files are on disk; raise `StoreError` on any other name."""
        return cls(layout.segment_offsets(disk), segment_bytes)

    def look_again(self, disk: Disk, end_offset: int) -> None:
        """Take over the segments that are on disk now and begin before the log's end.

        Behind it may lie a tail that was not cut (`LogScan.keep_tail`). Raise `StoreError` on any other name.
        """
        self._firsts = [first for first in layout.segment_offsets(disk) if first < end_offset]

    @property
    def first_offsets(self) -> list[int]:
        """The log offsets where segments begin, ascending."""
        return self._firsts

    @property
    def end_offset(self) -> int:
        """The log offset where the last segment ends; 0 if there is none."""
        return self._firsts[-1] + self.segment_bytes if self._firsts else 0

    def first_of(self, offset: int) -> int:
        """Return the first offset of the segment in which a log offset lies."""
        firsts = self._firsts
        return firsts[max(0, bisect_right(firsts, offset) - 1)] if firsts else 0

    def end_of(self, offset: int) -> int:
        """Return where the segment ends in which a log offset lies."""
        firsts = self._firsts
        place = bisect_right(firsts, offset)
        return firsts[place] if place < len(firsts) else self.end_offset

    def place(self, offset: int) -> tuple[str, int]:
        """Return the file in which a log offset lies, and where in it, in bytes.

        Raise `StoreDamaged` if the log begins behind the offset: its segment was deleted.
        """
        first_offset = self.first_of(offset)
        if offset < first_offset:
            raise StoreDamaged(f"Log offset {offset} was deleted: the log begins at {first_offset}.")
        return layout.segment_path(first_offset), offset - first_offset

    def add(self, first_offset: int) -> None:
        """Add a segment behind the others."""
        assert not self._firsts or first_offset > self._firsts[-1], "segments come in order"
        self._firsts.append(first_offset)

    def cut(self, first_offset: int) -> None:
        """Leave out the segments that end at or before a log offset; the last one stays."""
        place = max(0, bisect_right(self._firsts, first_offset) - 1)
        self._firsts = self._firsts[place:]  # others may be looking in the old list

    def touched(self, first_offset: int, end_offset: int) -> list[int]:
        """Return the first offsets of the segments that have a byte between two log offsets."""
        place = max(0, bisect_right(self._firsts, first_offset) - 1)
        return [one for one in self._firsts[place:] if one < end_offset]

    def between(self, first_offset: int, end_offset: int) -> list[int]:
        """Return the first offsets of the segments that lie wholly between two log offsets."""
        ends = [*self._firsts[1:], self.end_offset]
        both = zip(self._firsts, ends, strict=False)
        return [first for first, end in both if first_offset <= first and end <= end_offset]

    @property
    def is_uniform(self) -> bool:
        """Whether all segments have one size."""
        return all(end - first == self.segment_bytes for first, end in pairwise(self._firsts))
