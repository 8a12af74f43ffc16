"""Has the disk read what a walk will come to, so that the walk need not wait for it.

A walk jumps: it steps through megabytes by many walkers at once, then reads them. The kernel takes that for
chance and reads ahead little. It is told instead, a step at a time, for it asks the disk for no more at once.
"""

from __future__ import annotations

import mmap
from typing import Final

from spark_jobs.log.ragged import Bytes

_AHEAD_BYTES: Final = 32 * 1024 * 1024
_STEP_BYTES: Final = 1024 * 1024


class ReadAhead:
    """The bytes of a mapped file up to `until`; nothing of other bytes, or where systems take no advice."""

    def __init__(self, data: Bytes, until: int) -> None:
        mapped = getattr(data.base, "obj", None)
        can_advise = isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_WILLNEED")
        self._mapped = mapped if can_advise else None
        self._until = until
        self._asked = 0

    def reached(self, position: int) -> None:
        """Ask the disk for the next `_AHEAD_BYTES` behind `position`, where the walk is now."""
        if self._mapped is None:
            return
        self._asked = max(self._asked, position // _STEP_BYTES * _STEP_BYTES)
        while self._asked < min(position + _AHEAD_BYTES, self._until):
            self._mapped.madvise(mmap.MADV_WILLNEED, self._asked, _STEP_BYTES)
            self._asked += _STEP_BYTES
