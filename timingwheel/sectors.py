"""Files of timers on a disk with bad sectors: what cannot be read is zeros, which match no CRC.

    read 8 MiB --> EIO --> halves --> ... --> one block of 4 KiB --> EIO: zeros, noted in `unread`

So a bad sector is damage as a flipped bit is, and costs what it holds, not what lies behind it. Linux returns
what lies before a page that it cannot read, then fails: a read that comes short is read on from there.

Only EIO of a read counts. Whether the sector can be read again later matters not: what was noted as damage is
accounted for as if it could not (`services.broker.timers.mending`). Weak spot: where most of a large file
cannot be read, each of its blocks is tried, and a drive may take seconds for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from errno import EIO
from itertools import islice
from typing import Final

from commitlog.disk import Disk

_BLOCK_BYTES: Final = 4096
_TRIED_MAX: Final = 16
"""How many files are tried: a drive may take seconds to say that it cannot read one."""

Extent = tuple[int, int]
"""Bytes of a file from the first up to the second."""


def read(disk: Disk, path: str, position: int, length: int, unread: list[Extent]) -> bytes:
    """Return up to `length` bytes, fewer at the file's end; add to `unread` what of them cannot be read.

    Of a block that cannot be read it is not known whether the file ends in it: its zeros come in full. Raise
    OSError of anything but EIO.
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
            break  # the file ends before
        found.append(content)
        if len(content) < end - first:
            left.append((first + len(content), end))
    return b"".join(found)


def read_many(disk: Disk, path: str, spans: list[tuple[int, int]], unread: list[Extent]) -> bytes:
    """Return spans (position, length) of a file back to back, each in full: zeros behind the file's end.

    Raise OSError of anything but EIO.
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
    """Raise OSError (EIO) where of several files the disk can read not one's first byte.

    What such a disk cannot read says nothing of the files: nobody is to take them for damaged.
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
    """Return in words that the disk cannot read bytes of a file."""
    return (
        f"The disk cannot read {path} between byte {position} and {end} (EIO): "
        "look at the kernel's log, and replace the disk."
    )


def _add(unread: list[Extent], first: int, end: int) -> None:
    """Add an extent, joined with the last one where that ends here."""
    if unread and unread[-1][1] == first:
        first, _ = unread.pop()
    unread.append((first, end))


def _middle(first: int, end: int) -> int | None:
    """Return the boundary of blocks nearest before the middle; None if all lies in one block."""
    next_block = (first // _BLOCK_BYTES + 1) * _BLOCK_BYTES
    if end <= next_block:
        return None
    return max(next_block, (first + end) // 2 // _BLOCK_BYTES * _BLOCK_BYTES)
