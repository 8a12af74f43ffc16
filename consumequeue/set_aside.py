"""Messages of one queue that wait for another filter of their consumer group.

A receive comes to a message that its own filter does not match and another filter of the group does. The
message is set aside, and a later receive with a matching filter takes it, lowest offset first.

Filters are bits of a mask, `wanted_by`. Messages with equal masks share one heap, so a message is in one heap
whatever the number of filters, and the next message of a filter is the least head of the heaps whose mask has
its bit. A change of the group's filters changes what the bits mean: then `take_all` empties the structure in
one go, and every message is judged again. A receive can cause such a change, so nothing here is done once a
message but what a message costs anyway.

Memory: a dictionary entry and a heap entry a message, `PARKED_PER_QUEUE_MAX` of them at most
(`consumequeue.in_flight`). Cost: one heap operation to put or take; `first` looks at the heads of at most
2**FILTERS_PER_GROUP_MAX - 1 heaps, in practice one or two. Weak spot: a message that is finished from outside
(retention, an operator) leaves its heap entry behind until that reaches the head.
"""

from __future__ import annotations

import heapq
from collections import Counter


class SetAside:
    """Offsets that wait, by the filters that match them."""

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
        """Return the lowest offset that waits for a filter; None if there is none."""
        heads = [self._head(mask) for mask in list(self._heaps) if mask & filter_bit]
        return min((one for one in heads if one is not None), default=None)

    def take(self, offset: int) -> bool:
        """Take an offset out; return False if it is not here."""
        mask = self._wanted_by.pop(offset, None)
        if mask is None:
            return False
        self._counts[mask] -= 1
        if self._head(mask) is None:
            assert not self._counts[mask], "offsets are counted that are not set aside"
            del self._counts[mask]
        return True

    def take_all(self) -> list[int]:
        """Take out every offset; return them in order."""
        taken = sorted(self._wanted_by)
        self._wanted_by, self._heaps, self._counts = {}, {}, Counter()
        return taken

    def take_below(self, below: int) -> None:
        """Take out the offsets below `below`."""
        for offset in [one for one in self._wanted_by if one < below]:
            self.take(offset)

    def counts(self) -> Counter[int]:
        """Return how many offsets wait for each filter, by its bit; an offset counts for each."""
        counts: Counter[int] = Counter()
        for mask, count in self._counts.items():
            while mask:
                counts[mask & -mask] += count
                mask &= mask - 1
        return counts

    def _head(self, mask: int) -> int | None:
        """Return the lowest offset of a heap, without those that were taken; drop an empty heap."""
        heap = self._heaps[mask]
        while heap and self._wanted_by.get(heap[0]) != mask:
            heapq.heappop(heap)
        if heap:
            return heap[0]
        del self._heaps[mask]
        return None
