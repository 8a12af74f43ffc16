"""How the process keeps memory: freed arrays go back to the system, and cycles are looked for seldom.

glibc maps large blocks apart and unmaps them when they are freed; but each one freed raises the size from
which it does so, up to 32 MiB, and from then on arrays as large come from heaps, one for each thread, which
shrink only from their end. A crowd of timers, read ahead in one thread and written from another, so left
hundreds of megabytes behind that nothing used. A size once set is not raised.

Measured, 3 million timers due within 18 s, from their reading to the last delivery:

    peak RSS  page faults  processor
    313 MiB   51,000       19.2 s     as glibc comes
    190       54,000       18.4       one heap for all threads, 8 MiB mapped apart, 32 MiB kept
    177       275,000      20.4       one heap, 1 MiB, 4 MiB: what each tick and flush uses is faulted in anew

Python looks for cycles each 700 objects that are new and still held, of which a batch of messages makes
thousands, none in a cycle: a look at 2,000 costs half a millisecond. What outlives it is looked at once more
with that of other looks (Python: ten), and what outlives that, in the end, with everything. The second look
is the one that callers feel: it goes through one batch more than said here (60,000 halves and timers, mixed
load):

    looked at each   look p50, p99   second look p50, p99   in all
    5,000 x 10       1.4, 9.5 ms     12, 22 ms              470 ms in 36 s
    2,000 x 4        0.3, 4.7        2.2, 16                560

Beside a million timers, for ten minutes, five second looks at 2,000 x 4 took 16 to 24 ms: so it is x 1.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Parameters of `mallopt`, as glibc's <malloc.h> numbers them."""

MAPPED_BYTES_MIN: Final = 8 * 1024 * 1024
"""Blocks from this size on are mapped apart: rows read ahead are, what a tick or a flush takes is not."""
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""How much that is free may stay at the end of the heap."""
LOOKS_FOR_CYCLES: Final = 2_000, 1, 150
"""After how many new objects Python looks at them, after how many looks once more, and then at everything."""


def keep_little() -> None:
    """Set it up for the life of the process; call it before threads begin. Only glibc is told anything."""
    gc.set_threshold(*LOOKS_FOR_CYCLES)
    if sys.platform == "linux":
        with suppress(AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_ARENA_MAX, 1)
            mallopt(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
            mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
