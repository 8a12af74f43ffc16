"""The messages of one queue that are set aside for another filter of the consumer group.

If a message does not match the filter of a receive but matches another filter of the group, the message is
set aside. A later receive with a matching filter takes the messages that are set aside, lowest offset first.

Each filter is a bit of a mask, `wanted_by`. Messages with equal masks share one heap, so a message is in one
heap regardless of the number of filters. The next message of a filter is the lowest head of the heaps whose
mask contains the bit of the filter. A change of the filters of the group changes the meaning of the bits. In
this case, `take_all` empties the structure in one step, and every message is checked again. A receive can
cause a change of filters, so the cost per message must not exceed the usual cost of a message.

Memory: one dictionary entry and one heap entry per message, for up to `PARKED_PER_QUEUE_MAX` messages
(`consumequeue.in_flight`). Cost: one heap operation to put or take a message. `first` reads the heads of at
most 2**FILTERS_PER_GROUP_MAX - 1 heaps, usually one or two. Weak spot: if retention or an operator finishes a
message, the heap entry remains until it reaches the head.
"""

from __future__ import annotations

import heapq
from collections import Counter


class SetAside:
    """The offsets of messages that are set aside, by the filters that match the messages."""

    def __init__(self) -> None:
        self._wanted_by: dict[int, int] = {}
        self._heaps: dict[int, list[int]] = {}
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._wanted_by)

    def __contains__(self, offset: int) -> bool:
        return offset in self._wanted_by

    def put(self, offset: int, wanted_by: int) -> None:
        """Add an offset for the filters of a mask."""
        assert wanted_by > 0, f"{offset} waits for no filter"
        assert offset not in self._wanted_by, f"{offset} is set aside twice"
        self._wanted_by[offset] = wanted_by
        self._counts[wanted_by] += 1
        heapq.heappush(self._heaps.setdefault(wanted_by, []), offset)

    def first(self, filter_bit: int) -> int | None:
        """Return the lowest offset for a filter, or None."""
        heads = [self._head(mask) for mask in list(self._heaps) if mask & filter_bit]
        return min((one for one in heads if one is not None), default=None)

    def take(self, offset: int) -> bool:
        """Remove an offset, and return whether the offset was set aside."""
        mask = self._wanted_by.pop(offset, None)
        if mask is None:
            return False
        self._counts[mask] -= 1
        if self._head(mask) is None:
            assert not self._counts[mask], "offsets are counted that are not set aside"
            del self._counts[mask]
        return True

    def take_all(self) -> list[int]:
        """Remove and return all offsets, in ascending order."""
        taken = sorted(self._wanted_by)
        self._wanted_by, self._heaps, self._counts = {}, {}, Counter()
        return taken

    def take_below(self, below: int) -> None:
        """Remove the offsets below `below`."""
        for offset in [one for one in self._wanted_by if one < below]:
            self.take(offset)

    def counts(self) -> Counter[int]:
        """Return the number of offsets for each filter, by the bit of the filter."""
        counts: Counter[int] = Counter()
        for mask, count in self._counts.items():
            while mask:
                counts[mask & -mask] += count
                mask &= mask - 1
        return counts

    def _head(self, mask: int) -> int | None:
        """Return the lowest valid offset of a heap, or drop an empty heap and return None."""
        heap = self._heaps[mask]
        while heap and self._wanted_by.get(heap[0]) != mask:
            heapq.heappop(heap)
        if heap:
            return heap[0]
        del self._heaps[mask]
        return None
