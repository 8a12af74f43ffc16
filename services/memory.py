"""How the C library keeps memory: what large arrays leave goes back to the system, not to its heap.

glibc maps large blocks apart and unmaps them when they are freed; but each one freed raises the size from
which it does so, up to 32 MiB, and from then on arrays as large come from heaps, one for each thread, which
shrink only from their end. A crowd of timers, read ahead in one thread and written from another, so left
hundreds of megabytes behind that nothing used. A size once set is not raised.

Measured, 3 million timers due within 18 s: peak RSS 353 MiB as glibc comes; 207 with one heap for all
threads, 213 with a fixed size, 175 with both; no difference in processor time.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Parameters of `mallopt`, as glibc's <malloc.h> numbers them."""

MAPPED_BYTES_MIN: Final = 1024 * 1024
"""Blocks from this size on are mapped apart."""
KEPT_BYTES_MAX: Final = 4 * 1024 * 1024
"""How much that is free may stay at the end of the heap."""


def give_back_freed() -> None:
    """Let glibc give back what is freed; call it before threads begin. Elsewhere nothing happens."""
    if sys.platform == "linux":
        with suppress(AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_ARENA_MAX, 1)
            mallopt(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
            mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
