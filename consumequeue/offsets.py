"""The progress of one group on one queue: what is done, what is leased, what comes next.

    ... done ...|low_offset ... done, leased or returned, mixed ...|fresh_offset ... never given out ...

Every offset below `low_offset` is done. Between it and `fresh_offset` each one is done, leased to a
consumer until `visible_ms`, or returned (its lease ended without an acknowledgement) and given out again
before anything fresh, lowest first. A lease is known by its generation, which is never used twice.
Memory: what lies between the two marks.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass(slots=True)
class Lease:
    """One message in a consumer's hands.

    `client_id` is set when the broker renews the lease for that client; it does so until `renewed_until_ms`.
    """

    generation: int
    queue_offset: int
    visible_ms: int
    client_id: str = ""
    renewed_until_ms: int = 0


class Progress:
    """The progress of a group that starts at queue offset `low_offset`."""

    def __init__(self, low_offset: int = 0) -> None:
        self.low_offset = low_offset
        self.fresh_offset = low_offset
        self._done: set[int] = set()
        self._returned: list[int] = []
        self._leases: dict[int, Lease] = {}
        self._attempts: dict[int, int] = {}

    @property
    def in_flight_count(self) -> int:
        """How many messages are leased."""
        return len(self._leases)

    def candidate(self, next_offset: int) -> int | None:
        """The offset to give out next, of a queue that ends at `next_offset`; None if there is none."""
        while self._returned and self._is_done(self._returned[0]):
            heapq.heappop(self._returned)
        if self._returned:
            return self._returned[0]
        while self.fresh_offset < next_offset and self._is_done(self.fresh_offset):
            self.fresh_offset += 1
        return self.fresh_offset if self.fresh_offset < next_offset else None

    def lease(self, lease: Lease) -> int:
        """Gives out the candidate under `lease`; returns which attempt this is, from 1."""
        offset = lease.queue_offset
        self._take(offset)
        self._leases[offset] = lease
        self._attempts[offset] = self._attempts.get(offset, 0) + 1
        return self._attempts[offset]

    def attempts(self, offset: int) -> int:
        """How often the message was given out so far."""
        return self._attempts.get(offset, 0)

    def held(self, offset: int, generation: int) -> Lease | None:
        """The lease of that generation if it still stands."""
        lease = self._leases.get(offset)
        return lease if lease is not None and lease.generation == generation else None

    def replace(self, lease: Lease) -> None:
        """A standing lease on the same message gives way to `lease`; it is the same attempt."""
        assert lease.queue_offset in self._leases
        self._leases[lease.queue_offset] = lease

    def finish(self, offset: int) -> None:
        """The message is done: acknowledged, filtered out, or moved to the dead letters."""
        self._leases.pop(offset, None)
        self._attempts.pop(offset, None)
        if not self._is_done(offset):
            self._done.add(offset)
        while self.low_offset in self._done:
            self._done.remove(self.low_offset)
            self.low_offset += 1
        self.fresh_offset = max(self.fresh_offset, self.low_offset)

    def skip_to(self, queue_offset: int) -> int:
        """Everything below is done with, because it is gone; returns how much of it was not done before."""
        if queue_offset <= self.low_offset:
            return 0
        done_count = sum(offset < queue_offset for offset in self._done)
        skipped_count = queue_offset - self.low_offset - done_count
        self._done = {offset for offset in self._done if offset >= queue_offset}
        self.low_offset = queue_offset
        self.fresh_offset = max(self.fresh_offset, queue_offset)
        return skipped_count

    def give_back(self, offset: int) -> None:
        """The lease ended without an acknowledgement: the message will be given out again."""
        del self._leases[offset]
        heapq.heappush(self._returned, offset)

    def freeze(self) -> list[int]:
        """The low-water mark, then every offset done above it."""
        return [self.low_offset, *sorted(self._done)]

    @classmethod
    def thaw(cls, frozen: list[int]) -> Progress:
        """The progress that was frozen; what was leased is given out again."""
        progress = cls(frozen[0])
        progress._done.update(frozen[1:])
        return progress

    def _is_done(self, offset: int) -> bool:
        return offset < self.low_offset or offset in self._done

    def _take(self, offset: int) -> None:
        if self._returned and self._returned[0] == offset:
            heapq.heappop(self._returned)
        else:
            assert offset == self.fresh_offset, f"{offset} is not the next to give out"
            self.fresh_offset += 1
