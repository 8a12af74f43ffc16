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
thousands, none in a cycle: a look at 1,000 costs a quarter of a millisecond. The survivors are examined a
second time with those of the next look, and a third time after `LOOKS_FOR_CYCLES`. Then they are frozen, and
no further look examines them, however large the heap is. Without freezing each third look examined all
objects since the start (measured: 150,000 objects 28 to 34 ms, one in the middle of a call):

    at the third look    longest look of 256 calls with 1,024 messages each
    nothing frozen       22 to 34 ms, growing with the heap
    survivors frozen     2 to 7 ms, however large the heap, where it comes to some 16,000 objects

A slower machine took 14 ms for those, so a look begins after half as many new objects as it did then: 8,000
objects took that machine 8 ms, and all calls together no longer.

What is frozen is freed as ever when nothing refers to it. Only a cycle that was alive at a third look and
became garbage later stays, until `WholeLooks` comes to it: a look at all objects (0.1 to 0.4 us each), when
the process has been calm for a while and there are a quarter more of them, or, calm or not, when they have
doubled at two counts in a row. So such cycles hold no more than all the rest, and `WHOLE_OBJECTS_MIN`. Counts
know nothing of bytes: who lets go of few objects that hold much, as a core that a node has replaced, says so
(`look_soon`).

Weak spot: a look at all of them holds the loop, 300,000 objects for 50 to 130 ms, and beside a process
that is never calm it comes while calls wait. It comes to one with no new cycles only as the heap grows.

Python counts new objects less those that were freed. So objects that take the place of frozen ones are not
counted, and the next look, whenever it comes, examines all of them: 40,000 took 18 to 26 ms. What is read
ahead of each queue is kept as bytes for that reason (`ConsumeQueue.entry`).
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
"""Parameters of `mallopt`, as glibc's <malloc.h> numbers them."""

MAPPED_BYTES_MIN: Final = 8 * 1024 * 1024
"""Blocks from this size on are mapped apart: rows read ahead are, what a tick or a flush takes is not."""
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""How much that is free may stay at the end of the heap."""
LOOKS_FOR_CYCLES: Final = 1_000, 1, 3
"""After how many new objects Python looks at them, and after how many looks a second and a third time."""
WHOLE_SECONDS: Final = 120.0
"""How often it is considered to look at all objects."""
WHOLE_OBJECTS_MIN: Final = 100_000
"""No look at all objects for fewer than so many more of them; counting them takes 15 ns each."""
SOON_SECONDS: Final = 5.0
"""How long a look waits that was asked for: it serves all who ask meanwhile."""
_CALM_PART: Final = 0.05
_GROWN_CALM: Final = 1.25
_GROWN: Final = 2.0


def keep_little() -> None:
    """Set it up for the life of the process; call it before threads begin. Only glibc is told anything."""
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
    """Let no further look come to what has outlived its third."""
    if phase == "stop" and look["generation"] == 2:
        gc.freeze()


class WholeLooks:
    """Looks at all objects, which free cycles of frozen ones: seldom, and better when the process is calm.

    `call_later` takes seconds; `processor_seconds` is what the process has used.
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
        """Look at all objects now, freeze what is left, and plan to consider it again."""
        self._look()
        self._plan()

    def look_soon(self) -> None:
        """Look at all objects in a while: something was let go that holds much, and may be in cycles."""
        if not self._is_asked:
            self._is_asked = True
            self._call_later(SOON_SECONDS, self._look)

    def _look(self) -> None:
        self._is_asked = False
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # Python takes a third look only at a quarter of what the last one left: let it have left nothing.
        gc.collect()
        self._left_count, self._was_doubled = gc.get_freeze_count(), False

    def consider(self) -> None:
        """Look at all objects if there are so many more of them."""
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
