"""Tracks a queue's messages that are set aside for a consumer group's other filters.

A message is set aside if it does not match the receive's filter but matches another filter of the group.
Receives with a matching filter return these messages in ascending offset order.

Each filter is a bit in the mask `wanted_by`. Messages with the same mask share a heap, so each message is in
exactly one heap, regardless of the number of filters. The next message for a filter is the lowest among the
heads of all heaps with its bit. If the group's filters change, the meanings of the bits change too.
`take_all` then removes all messages in one step, and each message is rechecked. Because a receive can change
a group's filters, this step must not cost more per message than normal processing.

Cost: one dictionary entry and one heap entry per message, for up to `PARKED_PER_QUEUE_MAX` messages
(`consumequeue.groups.in_flight`). Adding or removing a message requires one heap operation. `first` reads the
heads of at most 2**FILTERS_PER_GROUP_MAX - 1 heaps, usually one or two. Limitation: if retention or an
operator finishes a message, its entry remains in the heap until it reaches the head.
"""

from __future__ import annotations

import heapq
from collections import Counter


class SetAsideOffsets:
    """Offsets of set-aside messages, grouped by the filters they match."""

    def __init__(self) -> None:
        self._wanted_by: dict[int, int] = {}
        self._heaps: dict[int, list[int]] = {}
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._wanted_by)

    def __contains__(self, offset: int) -> bool:
        return offset in self._wanted_by

    def put(self, offset: int, wanted_by: int) -> None:
        """Add an offset for the filters in a bit mask."""
        assert wanted_by > 0, f"{offset} waits for no filter"
        assert offset not in self._wanted_by, f"{offset} is set aside twice"
        self._wanted_by[offset] = wanted_by
        self._counts[wanted_by] += 1
        heapq.heappush(self._heaps.setdefault(wanted_by, []), offset)

    def first(self, filter_bit: int) -> int | None:
        """Return the lowest offset set aside for a filter, or None."""
        heads = [self._head(mask) for mask in list(self._heaps) if mask & filter_bit]
        return min((one for one in heads if one is not None), default=None)

    def take(self, offset: int) -> bool:
        """Remove an offset. Return whether the offset was set aside."""
        mask = self._wanted_by.pop(offset, None)
        if mask is None:
            return False
        self._counts[mask] -= 1
        if self._head(mask) is None:
            assert not self._counts[mask], "offsets are counted that are not set aside"
            del self._counts[mask]
        return True

    def take_all(self) -> list[int]:
        """Remove all offsets. Return the offsets in ascending order."""
        taken = sorted(self._wanted_by)
        self._wanted_by, self._heaps, self._counts = {}, {}, Counter()
        return taken

    def take_below(self, below: int) -> None:
        """Remove all offsets below `below`."""
        for offset in [one for one in self._wanted_by if one < below]:
            self.take(offset)

    def counts(self) -> Counter[int]:
        """Return the number of offsets per filter, keyed by bit."""
        counts: Counter[int] = Counter()
        for mask, count in self._counts.items():
            while mask:
                counts[mask & -mask] += count
                mask &= mask - 1
        return counts

    def _head(self, mask: int) -> int | None:
        """Return the lowest valid offset in a heap. If there is none, drop the heap and return None."""
        heap = self._heaps[mask]
        while heap and self._wanted_by.get(heap[0]) != mask:
            heapq.heappop(heap)
        if heap:
            return heap[0]
        del self._heaps[mask]
        return None
