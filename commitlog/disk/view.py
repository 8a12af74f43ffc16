"""File views, which are like memory maps but raise OSError on I/O errors.

If a page of a memory-mapped file cannot be read or has been truncated, the process is killed by SIGBUS. The
files of a store are therefore never mapped. A view reads slices on demand through a forward-moving window of
`WINDOW_BYTES`. A scan thus reads the file once, with one window in memory.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from typing import Final

WINDOW_BYTES: Final = 1024 * 1024
Read = Callable[[int, int], bytes]
"""Returns `length` bytes from `position`, or fewer at the end of the file."""


class View:
    """The first `length` bytes of a file. `read` reads them."""

    __slots__ = ("_length", "_read", "_start", "_window", "_window_bytes")

    def __init__(self, read: Read, length: int, window_bytes: int = WINDOW_BYTES) -> None:
        self._read, self._length, self._window_bytes = read, length, window_bytes
        self._start, self._window = 0, memoryview(b"")

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return bytes(self[0 : self._length])

    def __getitem__(self, part: slice) -> memoryview:
        """Return the bytes of a slice, which may extend beyond the view.

        Raise OSError if a read fails or the file is truncated.
        """
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
        """Return a view of the same file that ends at or before `end`."""
        return View(self._read, min(self._length, max(0, end)), self._window_bytes)

    def by(self, window_bytes: int) -> View:
        """Return a view of the same bytes with a different window size.

        A small window saves memory if there are many views.
        """
        return View(self._read, self._length, window_bytes)

    def find(self, pattern: re.Pattern[bytes], position: int, match_bytes: int) -> Iterator[int]:
        """Yield the positions of all matches of a pattern at or after a position.

        Matches must be `match_bytes` bytes long.
        """
        while position < self._length:
            end = min(position + self._window_bytes, self._length)
            for match in pattern.finditer(bytes(self[position:end])):
                yield position + match.start()
            # The windows overlap by `match_bytes - 1` bytes, so that a match that spans two windows is found
            # exactly once.
            position = end - match_bytes + 1 if end < self._length else end

    def _move(self, start: int, stop: int) -> None:
        wanted = min(max(stop - start, self._window_bytes), self._length - start)
        self._start, self._window = start, memoryview(self._read(start, wanted))
        if len(self._window) < stop - start:
            raise OSError(errno.EIO, f"the file ends at {start + len(self._window)}, not at {self._length}")


def whole(content: bytes) -> View:
    """Return a view of a bytes object in memory."""
    return View(lambda position, length: content[position : position + length], len(content))
