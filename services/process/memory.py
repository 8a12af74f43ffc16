"""Memory management of the process: freed arrays are returned to the system, and garbage collections are
rare.

glibc maps large blocks individually and unmaps them when they are freed. Each freed block raises the
threshold, up to 32 MiB. From then on, arrays of this size are allocated from heaps, one per thread, which
shrink only from their end. With many timers, which one thread reads ahead and another thread writes, hundreds
of megabytes of unused memory remained. If the threshold is set explicitly, it is not raised.

Measured with 3 million timers due within 18 s, from reading to the last delivery:

    peak RSS  page faults  CPU time
    313 MiB   51,000       19.2 s     glibc defaults
    190       54,000       18.4       one heap for all threads, 8 MiB mapping threshold, 32 MiB trim threshold
    177       275,000      20.4       one heap, 1 MiB and 4 MiB: page faults at every tick and flush

Python starts a garbage collection after 700 new objects that are still alive. A batch of messages creates
thousands, none of which is in a cycle. A collection of 1,000 objects takes a quarter of a millisecond.
Survivors are examined a second time in the next collection, and a third time after `LOOKS_FOR_CYCLES`. They
are then frozen and excluded from further collections, regardless of the size of the heap. Without freezing,
each third-generation collection examined all objects since the start (measured: 28 to 34 ms for 150,000
objects, in one case during a call):

    third collection     longest collection during 256 calls with 1,024 messages each
    nothing frozen       22 to 34 ms, increases with the heap size
    survivors frozen     2 to 7 ms for about 16,000 objects, independent of the heap size

A slower machine took 14 ms, so a collection now begins after half as many new objects: 8,000 objects took 8
ms on that machine, and the total time of all calls did not increase.

Frozen objects are freed normally when their reference count becomes zero. Only a cycle that was alive in a
third-generation collection and became garbage later remains, until `WholeLooks` collects it. A full
collection (0.1 to 0.4 us per object) runs if the number of objects has grown by a quarter and the process has
been mostly idle, or if the number has doubled in two consecutive counts. Such cycles therefore contain at
most as many objects as the rest of the heap plus `WHOLE_OBJECTS_MIN`. The counts do not consider sizes. Code
that drops a few large objects, such as a replaced core, requests a collection with `look_soon`.

Limitation: a full collection blocks the event loop, for 50 to 130 ms with 300,000 objects. In a process that
is never idle, it may delay calls. A process without new cycles runs it only when its heap grows.

Python counts new objects minus freed objects. Objects that replace frozen objects are therefore not counted,
and the next collection examines all of them: 40,000 objects took 18 to 26 ms. For this reason, the read-ahead
data of each queue is stored as bytes (`ConsumeQueue.entry`).
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Parameter numbers of `mallopt` from glibc's <malloc.h>."""

MAPPED_BYTES_MIN: Final = 8 * 1024 * 1024
"""Minimum size of individually mapped blocks.

Read-ahead rows are larger, and the memory of a tick or a flush is smaller.
"""
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum size of free memory at the end of the heap."""
LOOKS_FOR_CYCLES: Final = 1_000, 1, 3
"""Number of new objects that starts a collection, and number of collections before the second and third
generation.
"""
WHOLE_SECONDS: Final = 120.0
"""Interval in seconds between checks whether a full collection is necessary."""
WHOLE_OBJECTS_MIN: Final = 100_000
"""Minimum growth in objects for a full collection. Counting takes 15 ns per object."""
SOON_SECONDS: Final = 5.0
"""Delay of a requested collection in seconds, which combines several requests."""
_CALM_PART: Final = 0.05
_GROWN_CALM: Final = 1.25
_GROWN: Final = 2.0


def keep_little() -> None:
    """Configure the memory management of the process. Call this function before threads are started.

    `mallopt` is only available with glibc.
    """
    gc.set_threshold(*LOOKS_FOR_CYCLES)
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)
    if sys.platform == "linux":
        with suppress(AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_ARENA_MAX, 1)
            mallopt(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
            mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def _freeze_survivors(phase: str, look: dict[str, Any]) -> None:
    """Freeze the survivors of a third-generation collection."""
    if phase == "stop" and look["generation"] == 2:
        gc.freeze()


class WholeLooks:
    """Runs rare full garbage collections, which also free cycles of frozen objects, preferably when the
    process is idle.

    `call_later` takes seconds. `processor_seconds` returns the CPU time of the process.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        processor_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        self._call_later, self._processor_seconds = call_later, processor_seconds
        self._was_doubled = self._is_asked = False
        self.look()

    def look(self) -> None:
        """Run a full collection, freeze the survivors, and schedule the next check."""
        self._look()
        self._plan()

    def look_soon(self) -> None:
        """Schedule a full collection after large objects were dropped that may be in cycles."""
        if not self._is_asked:
            self._is_asked = True
            self._call_later(SOON_SECONDS, self._look)

    def _look(self) -> None:
        self._is_asked = False
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # Python runs a third-generation collection only if a quarter of the previous survivors are new, so
        # the previous count is set to zero.
        gc.collect()
        self._left_count, self._was_doubled = gc.get_freeze_count(), False

    def consider(self) -> None:
        """Run a full collection if the number of objects has grown enough."""
        count = gc.get_freeze_count()
        is_calm = self._processor_seconds() - self._began_seconds < _CALM_PART * WHOLE_SECONDS
        is_doubled = self._has_grown(count, _GROWN)
        if (is_doubled and self._was_doubled) or (is_calm and self._has_grown(count, _GROWN_CALM)):
            self.look()
            return
        self._was_doubled = is_doubled
        self._plan()

    def _has_grown(self, count: int, times: float) -> bool:
        return count >= max(times * self._left_count, self._left_count + WHOLE_OBJECTS_MIN)

    def _plan(self) -> None:
        self._began_seconds = self._processor_seconds()
        self._call_later(WHOLE_SECONDS, self.consider)
