"""The tails of queues.

A tail holds the newest entries of a queue in memory, so that small queues need fewer file writes. It stays in
memory and in snapshots until it contains `limits.TAIL_ENTRIES_MAX` entries. A worker then writes it to the
queue's file. If the total size of all tails is too large, the largest ones are written first.

    class     0         1          ...  4           5
    entries   8 to 15   16 to 31   ...  128 to 255  256 and more: must be written

Rules:
- A tail is checked when it reaches 8 entries, and then each time its size doubles. Adding an entry thus needs
  only one comparison. A tail with fewer than 8 entries is not classified, because it uses less than a third
  of the memory used for the queue's other data, and its 160 bytes would occupy 4 KiB in a file.
- `bytes` is the total size of all tails as last checked. The actual total size is at most twice this value.
  If `bytes` exceeds half of `limits.TAILS_BYTES_MAX`, the largest tails are written until it drops to three
  eighths of the limit. `limits.TAILS_BYTES_MAX` limits the tails in memory and in a snapshot.
- A queue is refused if its file cannot be written or created. A refused queue has no class and is not
  included in `bytes`, so that other queues are still written. Refused queues are retried after all other
  queues, up to eight at a time. A refused tail of 256 KiB is dropped. If the refused tails together exceed
  one eighth of `limits.TAILS_BYTES_MAX`, those with the oldest write attempts are dropped
  (`droppable_tails`). At most 2,000 are dropped at a time, which takes 4 ms.
- A write covers at most 500 queues and 100,000 entries (`consumequeue.dispatch`). It blocks the event loop
  for a few milliseconds before and after the disk access.

Cost: a tail is checked six times before it is written. Limitation: if entries are spread evenly over a very
large number of queues, tails do not fill up. For example, 80,000 queues with 20 entries each use 32 MB. Each
write then adds only a few entries to each file, and checkpoints must sync many files.
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
_DROPPED_AT_ONCE: Final = 2_000


class Tails:
    """Queues with entries in memory, classified by number of entries."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        least_entries = min(_LEAST_ENTRIES, entries_max)
        self.least_bytes = least_entries * ENTRY_BYTES
        """Size in bytes below which a tail is not checked."""
        self._before_first = least_entries.bit_length()
        self._full = entries_max.bit_length() - self._before_first
        self._noted_max, self._refused_max = bytes_max // 2, bytes_max // 8
        self._is_spilling = False
        self.bytes = 0
        """Size of all tails at their last checks, without refused ones."""
        self.refused_bytes = 0
        """Size of the refused tails at their last checks."""
        # Dictionaries are used as ordered sets, so that simulations are reproducible.
        self._classes: list[dict[ConsumeQueue, None]] = [{} for _ in range(self._full + 1)]
        self._refused: dict[ConsumeQueue, None] = {}
        """Refused queues, in the order of their last write attempts."""
        self._too_long: dict[ConsumeQueue, None] = {}

    def update_size(self, queue: ConsumeQueue) -> None:
        """Update the known size of a queue's tail."""
        now_bytes = queue.tail_bytes
        self._note(queue, now_bytes if now_bytes >= self.least_bytes else 0)
        if not queue.noted_bytes:
            self._refused.pop(queue, None)

    def refuse(self, queue: ConsumeQueue) -> bool:
        """Mark a queue as refused and move it to the end of the retry order.

        Return False if it was already refused.
        """
        is_new = queue not in self._refused
        self._note(queue, 0)
        self._refused.pop(queue, None)
        self._refused[queue] = None
        self.update_size(queue)
        return is_new

    def is_refused(self, queue: ConsumeQueue) -> bool:
        """Return whether the last write of a queue failed."""
        return queue in self._refused

    def accept(self, queue: ConsumeQueue) -> None:
        """Mark a queue as no longer refused after a successful write."""
        if queue in self._refused:
            self._note(queue, 0)
            del self._refused[queue]
        self.update_size(queue)

    def droppable_tails(self) -> list[ConsumeQueue]:
        """Return the refused queues whose tails must be dropped to stay within the memory limits."""
        chosen = dict.fromkeys(islice(self._too_long, _DROPPED_AT_ONCE))
        left_bytes = self.refused_bytes - sum(queue.noted_bytes for queue in chosen)
        for queue in self._refused:
            if left_bytes <= self._refused_max or len(chosen) >= _DROPPED_AT_ONCE:
                break
            if queue not in chosen:
                chosen[queue] = None
                left_bytes -= queue.noted_bytes
        return [*chosen]

    def to_write(self) -> list[ConsumeQueue]:
        """Return the queues whose tails should be written next.

        They have full tails or, if the limit is exceeded, the largest tails. If there are no such queues,
        return refused ones.
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
        """Assign a queue to the class for its tail size.

        A queue with an empty tail has no class.
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
