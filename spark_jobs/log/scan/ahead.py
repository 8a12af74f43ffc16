"""Reads a log segment ahead of a walk, so that the walk does not wait for the disk.

A walk (`walk`) steps through megabytes with many walkers at once, and then reads them. The kernel treats this
as random access and reads ahead little. The pages are therefore requested with `madvise`, in steps of 1 MiB,
because the kernel limits the number of bytes that it reads per call.
"""

from __future__ import annotations

import mmap
from typing import Final

from spark_jobs.log.columns.ragged import Bytes

_AHEAD_BYTES: Final = 32 * 1024 * 1024
_STEP_BYTES: Final = 1024 * 1024


class ReadAhead:
    """Read-ahead of a mapped file up to byte `until`.

    It has no effect on bytes that are not mapped, or on systems without `madvise`.
    """

    def __init__(self, data: Bytes, until: int) -> None:
        mapped = getattr(data.base, "obj", None)
        can_advise = isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_WILLNEED")
        self._mapped = mapped if can_advise else None
        self._until = until
        self._asked = 0

    def reached(self, position: int) -> None:
        """Request the next `_AHEAD_BYTES` after `position`, the current position of the walk."""
        if self._mapped is None:
            return
        self._asked = max(self._asked, position // _STEP_BYTES * _STEP_BYTES)
        while self._asked < min(position + _AHEAD_BYTES, self._until):
            self._mapped.madvise(mmap.MADV_WILLNEED, self._asked, _STEP_BYTES)
            self._asked += _STEP_BYTES
