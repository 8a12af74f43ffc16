"""The tails of queues: the newest entries, kept in memory so that small queues need few file writes.

The tail of a queue is kept in memory, and in snapshots, until it has `limits.TAIL_ENTRIES_MAX` entries.
Afterwards a worker writes the tail to the file of the queue. If the tails take too much memory in total, the
largest tails are written earlier.

    class     0         1          ...  4           5
    entries   8 to 15   16 to 31   ...  128 to 255  256 and more: must be written

Rules:
- A queue is checked when its tail has 8 entries, and whenever the tail has doubled, so that an entry costs
  one comparison. A smaller tail is in no class, because it takes less than a third of the other memory of a
  queue, and its 160 bytes would take 4 KiB in a file.
- `bytes` is the sum of the tail sizes at their last checks, so the total size of all checked tails is at most
  twice `bytes`. If `bytes` exceeds half of `limits.TAILS_BYTES_MAX`, the largest tails are written until
  `bytes` is three eighths of the limit. The limit bounds the memory of all tails, and their part of a
  snapshot.
- A queue whose file the disk refuses or cannot create is in no class and not in `bytes`, so that other queues
  are still written. Refused queues are tried again after the others, eight at a time. The memory of refused
  tails is also bounded. A refused tail of 256 KiB is dropped. If refused tails take more than an eighth of
  `limits.TAILS_BYTES_MAX`, the tails with the oldest attempts are dropped (`to_let_go`), up to 2,000 at a
  time, in 4 ms.
- A write has at most 500 queues and 100,000 entries (`consumequeue.dispatch`), which block the event loop for
  some ms before and after the write.

Cost: six checks until a tail is written. Weak spot: entries may be evenly distributed over so many queues
that the tails never fill (80,000 queues of 20 entries take 32 MiB). In this case, each write adds few entries
to a file, and a checkpoint must sync many files.
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
    """The queues with entries in memory, by the number of entries."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        least_entries = min(_LEAST_ENTRIES, entries_max)
        self.least_bytes = least_entries * ENTRY_BYTES
        """The size in bytes below which a tail is not checked."""
        self._before_first = least_entries.bit_length()
        self._full = entries_max.bit_length() - self._before_first
        self._noted_max, self._refused_max = bytes_max // 2, bytes_max // 8
        self._is_spilling = False
        self.bytes = 0
        """The total size of the tails at their last checks, except for refused tails."""
        self.refused_bytes = 0
        """The total size of the refused tails at their last checks."""
        # Dictionaries serve as ordered sets, so that a simulation seed reproduces a run.
        self._classes: list[dict[ConsumeQueue, None]] = [{} for _ in range(self._full + 1)]
        self._refused: dict[ConsumeQueue, None] = {}
        """The refused queues, in the order of the last attempts."""
        self._too_long: dict[ConsumeQueue, None] = {}

    def look(self, queue: ConsumeQueue) -> None:
        """Update the recorded size of a queue's tail."""
        now_bytes = queue.tail_bytes
        self._note(queue, now_bytes if now_bytes >= self.least_bytes else 0)
        if not queue.noted_bytes:
            self._refused.pop(queue, None)

    def refuse(self, queue: ConsumeQueue) -> bool:
        """Mark a queue as refused, as the last queue to be tried again.

        Return whether the queue was not refused before.
        """
        is_new = queue not in self._refused
        self._note(queue, 0)
        self._refused.pop(queue, None)
        self._refused[queue] = None
        self.look(queue)
        return is_new

    def is_refused(self, queue: ConsumeQueue) -> bool:
        """Return whether a queue is refused: the disk refused its file and has accepted no write since."""
        return queue in self._refused

    def accept(self, queue: ConsumeQueue) -> None:
        """Mark a queue as no longer refused after a successful write."""
        if queue in self._refused:
            self._note(queue, 0)
            del self._refused[queue]
        self.look(queue)

    def to_let_go(self) -> list[ConsumeQueue]:
        """Return some refused queues whose tails exceed the memory limits."""
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
        """Return the next queues to write: full tails or, above the total limit, the largest tails."""
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
        """Assign a queue to the class of its tail size, or to no class for size 0."""
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
