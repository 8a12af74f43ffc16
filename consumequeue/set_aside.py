"""Messages of one queue that wait for another filter of their consumer group.

If a message does not match the filter of a receive but matches another filter of the group, the message is
set aside. A later receive with a matching filter takes the messages that are set aside, lowest offset first.

Filters are bits of a mask, `wanted_by`. Messages with equal masks share one heap, so a message is in one heap
for any number of filters, and the next message of a filter is the lowest head of the heaps whose mask has the
filter's bit. A change of the group's filters changes the meaning of the bits. `take_all` then empties the
structure in one step, and every message is checked again. A receive can cause such a change, so its cost for
each message is no more than the usual cost of a message.

Memory: a dictionary entry and a heap entry for each message, and at most `PARKED_PER_QUEUE_MAX` messages
(`consumequeue.in_flight`). Cost: one heap operation to put or take a message. `first` reads the heads of at
most 2**FILTERS_PER_GROUP_MAX - 1 heaps, in practice one or two. Weak spot: if a message is finished by
retention or an operator, its heap entry remains until the entry reaches the head.
"""

from __future__ import annotations

import heapq
from collections import Counter


class SetAside:
    """Waiting offsets, by the filters that match their messages."""

    def __init__(self) -> None:
        self._wanted_by: dict[int, int] = {}
        self._heaps: dict[int, list[int]] = {}
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._wanted_by)

    def __contains__(self, offset: int) -> bool:
        return offset in self._wanted_by

    def put(self, offset: int, wanted_by: int) -> None:
        """Let an offset wait for the filters of a mask."""
        assert wanted_by > 0, f"{offset} waits for no filter"
        assert offset not in self._wanted_by, f"{offset} is set aside twice"
        self._wanted_by[offset] = wanted_by
        self._counts[wanted_by] += 1
        heapq.heappush(self._heaps.setdefault(wanted_by, []), offset)

    def first(self, filter_bit: int) -> int | None:
        """Return the lowest offset that waits for a filter, or None if no offset waits."""
        heads = [self._head(mask) for mask in list(self._heaps) if mask & filter_bit]
        return min((one for one in heads if one is not None), default=None)

    def take(self, offset: int) -> bool:
        """Remove an offset. Return False if the offset is not set aside."""
        mask = self._wanted_by.pop(offset, None)
        if mask is None:
            return False
        self._counts[mask] -= 1
        if self._head(mask) is None:
            assert not self._counts[mask], "offsets are counted that are not set aside"
            del self._counts[mask]
        return True

    def take_all(self) -> list[int]:
        """Remove all offsets, and return them in order."""
        taken = sorted(self._wanted_by)
        self._wanted_by, self._heaps, self._counts = {}, {}, Counter()
        return taken

    def take_below(self, below: int) -> None:
        """Remove the offsets below `below`."""
        for offset in [one for one in self._wanted_by if one < below]:
            self.take(offset)

    def counts(self) -> Counter[int]:
        """Return the number of offsets that wait for each filter, by the bit of the filter."""
        counts: Counter[int] = Counter()
        for mask, count in self._counts.items():
            while mask:
                counts[mask & -mask] += count
                mask &= mask - 1
        return counts

    def _head(self, mask: int) -> int | None:
        """Return the lowest offset of a heap that was not removed. Drop an empty heap."""
        heap = self._heaps[mask]
        while heap and self._wanted_by.get(heap[0]) != mask:
            heapq.heappop(heap)
        if heap:
            return heap[0]
        del self._heaps[mask]
        return None
