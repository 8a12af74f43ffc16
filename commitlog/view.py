"""A view of a file like a memory map, but with reads, so that an I/O error raises OSError.

If a page of a mapped file cannot be read from the disk, or was truncated meanwhile, SIGBUS ends the process.
Therefore no file of a store is mapped. Slices are read on demand, through a window of `WINDOW_BYTES` that
moves forward, so a scan takes one read of the file and the memory of one window.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from typing import Final

WINDOW_BYTES: Final = 1024 * 1024
Read = Callable[[int, int], bytes]
"""A function that returns `length` bytes from `position`, or fewer at the end of the file."""


class View:
    """A view of the first `length` bytes of a file that the function `read` reads."""

    __slots__ = ("_length", "_read", "_start", "_window", "_window_bytes")

    def __init__(self, read: Read, length: int, window_bytes: int = WINDOW_BYTES) -> None:
        self._read, self._length, self._window_bytes = read, length, window_bytes
        self._start, self._window = 0, memoryview(b"")

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return bytes(self[0 : self._length])

    def __getitem__(self, part: slice) -> memoryview:
        """Return the bytes of a slice up to the view's end, or raise OSError, also for a truncated file."""
        start, stop = part.start or 0, self._length if part.stop is None else min(part.stop, self._length)
        assert start >= 0
        assert stop >= 0
        if stop <= start:
            return self._window[:0]
        at = start - self._start
        if at < 0 or stop > self._start + len(self._window):
            self._move(start, stop)
            at = 0
        return self._window[at : at + stop - start]

    def upto(self, end: int) -> View:
        """Return a view of the same file up to `end`."""
        return View(self._read, min(self._length, max(0, end)), self._window_bytes)

    def by(self, window_bytes: int) -> View:
        """Return a view of the same bytes with a window of another size, for many small views."""
        return View(self._read, self._length, window_bytes)

    def find(self, pattern: re.Pattern[bytes], position: int, match_bytes: int) -> Iterator[int]:
        """Yield the positions of matches of a pattern, each of `match_bytes` bytes, from a position on."""
        while position < self._length:
            end = min(position + self._window_bytes, self._length)
            for match in pattern.finditer(bytes(self[position:end])):
                yield position + match.start()
            # The windows overlap by `match_bytes - 1` bytes, so that a match across two windows is found
            # once.
            position = end - match_bytes + 1 if end < self._length else end

    def _move(self, start: int, stop: int) -> None:
        wanted = min(max(stop - start, self._window_bytes), self._length - start)
        self._start, self._window = start, memoryview(self._read(start, wanted))
        if len(self._window) < stop - start:
            raise OSError(errno.EIO, f"the file ends at {start + len(self._window)}, not at {self._length}")


def whole(content: bytes) -> View:
    """Return a view of the given bytes in memory."""
    return View(lambda position, length: content[position : position + length], len(content))
