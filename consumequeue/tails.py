"""Manages the tails of queues.

A tail contains the newest entries of a queue, and is kept in memory to reduce the number of file writes for
small queues. A tail is kept in memory and in snapshots until it contains `limits.TAIL_ENTRIES_MAX` entries. A
worker then writes the tail to the file of the queue. If the total size of all tails is too large, the largest
tails are written earlier.

    class     0         1          ...  4           5
    entries   8 to 15   16 to 31   ...  128 to 255  256 and more: must be written

Rules:
- The size of a tail is checked when the tail reaches 8 entries, and then each time the tail doubles in size.
  As a result, adding an entry requires only one comparison. A tail with fewer than 8 entries does not belong
  to any class, because such a tail uses less than a third of the other memory used by the queue. If the 160
  bytes of such a tail were written to a file, they would occupy 4 KiB.
- `bytes` is the total size of the tails at their last checks. The actual total size of all checked tails is
  at most twice `bytes`. If `bytes` exceeds half of `limits.TAILS_BYTES_MAX`, the largest tails are written
  until `bytes` is three eighths of the limit. `limits.TAILS_BYTES_MAX` limits the memory usage of all tails,
  and also the size of all tails in a snapshot.
- A queue is called refused if its file cannot be written or created. A refused queue does not belong to any
  class, and is not included in `bytes`, so that other queues are still written. Refused queues are retried
  after the other queues. Up to eight refused queues are retried at a time. The memory used by refused tails
  is also limited. If the tail of a refused queue reaches 256 KiB, the tail is dropped. If the refused tails
  use more than one eighth of `limits.TAILS_BYTES_MAX`, the tails whose last write attempts are the oldest are
  dropped (`to_let_go`). Up to 2,000 tails are dropped at a time, which takes 4 ms.
- A write contains at most 500 queues and 100,000 entries (`consumequeue.dispatch`). A write blocks the event
  loop for a few milliseconds before and after the disk is accessed.

Cost: A tail is checked six times before it is written. Weak spot: If entries are evenly distributed over a
very large number of queues, the tails do not become full. For example, the tails of 80,000 queues with 20
entries each use 32 MiB. In this case, each write adds few entries to a file, and checkpoints must sync many
files.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Final

from commitlog import limits
from consumequeue.entry import ENTRY_BYTES
from consumequeue.queue import ConsumeQueue

_QUEUES_AT_ONCE: Final = 500
_LEAST_ENTRIES: Final = 8
_REFUSED_AT_ONCE: Final = 8
_LET_GO_AT_ONCE: Final = 2_000


class Tails:
    """The queues that have entries in memory, grouped into classes by the number of entries."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        least_entries = min(_LEAST_ENTRIES, entries_max)
        self.least_bytes = least_entries * ENTRY_BYTES
        """The size in bytes below which a tail is not checked."""
        self._before_first = least_entries.bit_length()
        self._full = entries_max.bit_length() - self._before_first
        self._noted_max, self._refused_max = bytes_max // 2, bytes_max // 8
        self._is_spilling = False
        self.bytes = 0
        """The total size of the tails at their last checks, excluding refused tails."""
        self.refused_bytes = 0
        """The total size of the refused tails at their last checks."""
        # Dictionaries are used as ordered sets, so that simulations are reproducible.
        self._classes: list[dict[ConsumeQueue, None]] = [{} for _ in range(self._full + 1)]
        self._refused: dict[ConsumeQueue, None] = {}
        """The refused queues, in the order of their last write attempts."""
        self._too_long: dict[ConsumeQueue, None] = {}

    def look(self, queue: ConsumeQueue) -> None:
        """Update the recorded size of the tail of a queue."""
        now_bytes = queue.tail_bytes
        self._note(queue, now_bytes if now_bytes >= self.least_bytes else 0)
        if not queue.noted_bytes:
            self._refused.pop(queue, None)

    def refuse(self, queue: ConsumeQueue) -> bool:
        """Mark a queue as refused, and move the queue to the end of the retry order.

        Return whether the queue was not already marked as refused.
        """
        is_new = queue not in self._refused
        self._note(queue, 0)
        self._refused.pop(queue, None)
        self._refused[queue] = None
        self.look(queue)
        return is_new

    def is_refused(self, queue: ConsumeQueue) -> bool:
        """Return whether a queue is marked as refused because its last write failed."""
        return queue in self._refused

    def accept(self, queue: ConsumeQueue) -> None:
        """Mark a queue as no longer refused after a successful write."""
        if queue in self._refused:
            self._note(queue, 0)
            del self._refused[queue]
        self.look(queue)

    def to_let_go(self) -> list[ConsumeQueue]:
        """Return refused queues whose tails must be dropped to comply with the memory limits."""
        chosen = dict.fromkeys(islice(self._too_long, _LET_GO_AT_ONCE))
        left_bytes = self.refused_bytes - sum(queue.noted_bytes for queue in chosen)
        for queue in self._refused:
            if left_bytes <= self._refused_max or len(chosen) >= _LET_GO_AT_ONCE:
                break
            if queue not in chosen:
                chosen[queue] = None
                left_bytes -= queue.noted_bytes
        return [*chosen]

    def to_write(self) -> list[ConsumeQueue]:
        """Return the queues whose tails must be written next.

        These are queues with full tails or, if the total size limit is exceeded, queues with the largest
        tails. If there are none, refused queues are returned.
        """
        if full := self._classes[self._full]:
            return [*islice(full, _QUEUES_AT_ONCE)]
        least_bytes = self._noted_max * 3 // 4
        self._is_spilling = self.bytes > (least_bytes if self._is_spilling else self._noted_max)
        if not self._is_spilling:
            return [*islice(self._refused, _REFUSED_AT_ONCE)]
        chosen, left_bytes = list[ConsumeQueue](), self.bytes
        for queue in islice(chain.from_iterable(reversed(self._classes)), _QUEUES_AT_ONCE):
            if left_bytes <= least_bytes:
                break
            chosen.append(queue)
            left_bytes -= queue.noted_bytes
        return chosen

    def clear(self) -> None:
        """Remove all queues."""
        self.bytes, self.refused_bytes, self._is_spilling = 0, 0, False
        for queues in (*self._classes, self._refused, self._too_long):
            queues.clear()

    def _note(self, queue: ConsumeQueue, now_bytes: int) -> None:
        """Assign a queue to the class that corresponds to the size of its tail.

        A queue with an empty tail is removed from all classes.
        """
        more_bytes = now_bytes - queue.noted_bytes
        if queue in self._refused:
            self.refused_bytes += more_bytes
            if now_bytes >= limits.REFUSED_TAIL_BYTES_MAX:
                self._too_long[queue] = None
            else:
                self._too_long.pop(queue, None)
        else:
            if queue.noted_bytes:
                self._classes[self._class_of(queue.noted_bytes)].pop(queue, None)
            if now_bytes:
                self._classes[self._class_of(now_bytes)][queue] = None
            self.bytes += more_bytes
        queue.noted_bytes = now_bytes
        assert min(self.bytes, self.refused_bytes) >= 0, "more tails have gone than came"

    def _class_of(self, tail_bytes: int) -> int:
        return min(self._full, (tail_bytes // ENTRY_BYTES).bit_length() - self._before_first)
