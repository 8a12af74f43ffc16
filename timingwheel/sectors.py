"""Reads timer files. Bad sectors read as zeros, which match no CRC.

    read 8 MiB --> EIO --> halves --> ... --> one block of 4 KiB --> EIO: zeros, noted in `unread`

A bad sector is thus handled like a flipped bit, and no other bytes are lost. Linux returns the bytes before
an unreadable page, and reports the error on the next read. After a short read, reading therefore continues at
the end of the returned bytes.

Only EIO indicates a bad sector. A bad sector that becomes readable again is still treated as unreadable
(`services.broker.timers.timer_repair`). Limitation: if most of a large file is unreadable, every block is
tried, and each may take the drive several seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from errno import EIO
from itertools import islice
from typing import Final

from commitlog.disk.disk import Disk

_BLOCK_BYTES: Final = 4096
_TRIED_MAX: Final = 16
"""Maximum number of files to try. A drive may take seconds to report a read error."""

Extent = tuple[int, int]
"""Byte range in a file. The end is exclusive."""


def read(disk: Disk, path: str, position: int, length: int, unread: list[Extent]) -> bytes:
    """Return `length` bytes, or fewer at the end of the file. Add unreadable ranges to `unread`.

    An unreadable block is returned as a full block of zeros, even at the end of the file. Raise OSError for
    any error other than EIO.
    """
    found: list[bytes] = []
    left = [(position, position + length)]
    while left:
        first, end = left.pop()
        if first == end:
            break
        try:
            content = disk.read(path, first, end - first)
        except OSError as error:
            if error.errno != EIO:
                raise
            if (middle := _middle(first, end)) is None:
                _add(unread, first, end)
                found.append(bytes(end - first))
            else:
                left += [(middle, end), (first, middle)]
            continue
        if not content:
            break  # The file ends here.
        found.append(content)
        if len(content) < end - first:
            left.append((first + len(content), end))
    return b"".join(found)


def read_many(disk: Disk, path: str, spans: list[tuple[int, int]], unread: list[Extent]) -> bytes:
    """Return the concatenated contents of several (position, length) ranges of a file.

    Bytes past the end of the file are returned as zeros. Raise OSError for any error other than EIO.
    """
    try:
        content = disk.read_many(path, spans)
    except OSError as error:
        if error.errno != EIO:
            raise
    else:
        if len(content) == sum(length for _, length in spans):
            return content
    return b"".join([read(disk, path, *span, unread).ljust(span[1], b"\0") for span in spans])


def require_reading(disk: Disk, paths: Iterable[str]) -> None:
    """Raise OSError (EIO) if the first byte of each of these files is unreadable.

    If no file can be read at all, read errors do not indicate damaged files.
    """
    failed: OSError | None = None
    for path in islice(paths, _TRIED_MAX):
        try:
            if disk.read(path, 0, 1):
                return
        except OSError as error:
            failed = error if error.errno == EIO else failed
    if failed is not None:
        raise failed


def sentence(path: str, position: int, end: int) -> str:
    """Return a message about unreadable bytes in a file."""
    return (
        f"The disk cannot read {path} between byte {position} and {end} (EIO): "
        "look at the kernel's log, and replace the disk."
    )


def _add(unread: list[Extent], first: int, end: int) -> None:
    """Add a byte range. Merge the range with the last one if they are adjacent."""
    if unread and unread[-1][1] == first:
        first, _ = unread.pop()
    unread.append((first, end))


def _middle(first: int, end: int) -> int | None:
    """Return a block boundary near the middle of a byte range, or None if it is within one block."""
    next_block = (first // _BLOCK_BYTES + 1) * _BLOCK_BYTES
    if end <= next_block:
        return None
    return max(next_block, (first + end) // 2 // _BLOCK_BYTES * _BLOCK_BYTES)
