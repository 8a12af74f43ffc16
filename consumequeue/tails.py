"""Which queues hold many entries in memory, so that few bytes in many queues make few files.

A queue's tail is in memory, and in snapshots, until it has `limits.TAIL_ENTRIES_MAX` entries: then a worker
writes it to the queue's file. Where all tails together take too much, the largest are written before.

    class     0         1          ...  4           5
    entries   8 to 15   16 to 31   ...  128 to 255  256 and more: to be written

Rules:
- A queue is looked at when its tail has 8 entries, and when it has doubled, so an entry costs one comparison.
  A smaller one is in no class: it is less than a third of what else a queue takes in memory, and in a file
  160 bytes would have 4 KiB.
- `bytes` counts each tail as of its last look, so all tails have at most twice that, and the smaller ones.
  Above half of `limits.TAILS_BYTES_MAX` the largest are written until it is three eighths: that bounds the
  memory of all tails, and what a snapshot keeps of them.
- A queue whose file the disk refuses, or cannot make, is in no class, nor in `bytes`, so it keeps no other
  in memory. It is tried again behind the others, eight such queues in one go. The memory of these tails is
  bounded, too: a tail of 256 KiB is let go of, and above an eighth of `limits.TAILS_BYTES_MAX` those that
  were tried longest ago, each as of its last look (`to_let_go`), up to 2,000 in one go: 4 ms.
- At most 500 queues are written in one go, and 100,000 entries (`consumequeue.dispatch`), which holds the
  loop for some ms before and after.

Cost: six looks until a tail is written. Weak spot: where all queues get as much, and are so many that their
tails never fill (80,000 queues of 20 entries have 32 MiB), each write brings a file few entries, and a
checkpoint has many files to sync.
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
    """The queues that hold entries in memory, by how many."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        least_entries = min(_LEAST_ENTRIES, entries_max)
        self.least_bytes = least_entries * ENTRY_BYTES
        """A smaller tail is not looked at."""
        self._before_first = least_entries.bit_length()
        self._full = entries_max.bit_length() - self._before_first
        self._noted_max, self._refused_max = bytes_max // 2, bytes_max // 8
        self._is_spilling = False
        self.bytes = 0
        """The size of all tails as of the last look at each, without those of `refused_bytes`."""
        self.refused_bytes = 0
        """The size of the tails whose files the disk refuses, as of the last look at each."""
        # Dictionaries as ordered sets, so that a seed replays.
        self._classes: list[dict[ConsumeQueue, None]] = [{} for _ in range(self._full + 1)]
        self._refused: dict[ConsumeQueue, None] = {}
        """Those tried longest ago come first."""
        self._too_long: dict[ConsumeQueue, None] = {}

    def look(self, queue: ConsumeQueue) -> None:
        """Take in how large the tail of a queue is now."""
        now_bytes = queue.tail_bytes
        self._note(queue, now_bytes if now_bytes >= self.least_bytes else 0)
        if not queue.noted_bytes:
            self._refused.pop(queue, None)

    def refuse(self, queue: ConsumeQueue) -> bool:
        """Keep a queue whose file the disk refuses apart from the others, the last one to be tried again.

        Return whether it was with the others.
        """
        is_new = queue not in self._refused
        self._note(queue, 0)
        self._refused.pop(queue, None)
        self._refused[queue] = None
        self.look(queue)
        return is_new

    def is_refused(self, queue: ConsumeQueue) -> bool:
        """Return whether the disk has refused a queue's file, and not taken it since."""
        return queue in self._refused

    def accept(self, queue: ConsumeQueue) -> None:
        """Take a queue to the others, whose file the disk has taken."""
        if queue in self._refused:
            self._note(queue, 0)
            del self._refused[queue]
        self.look(queue)

    def to_let_go(self) -> list[ConsumeQueue]:
        """Return the refused queues for whose tails there is no room in memory, some of them."""
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
        """Return the next queues whose tails go to files: full ones, or the largest of too many bytes."""
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
        """Forget all queues."""
        self.bytes, self.refused_bytes, self._is_spilling = 0, 0, False
        for queues in (*self._classes, self._refused, self._too_long):
            queues.clear()

    def _note(self, queue: ConsumeQueue, now_bytes: int) -> None:
        """Put a queue where it belongs with a tail of so many bytes; 0: nowhere."""
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
