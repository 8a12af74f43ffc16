"""Every lease by its generation, so that it can end by time, by answer, or with its client.

Leases live in memory: after a restart, what was not acknowledged is given out again. Generations begin
anew above all earlier ones at each start, since they grow from the clock.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from commitlog import limits
from consumequeue.offsets import Lease
from services.broker.agenda import Agenda, Purpose
from services.broker.groups import GroupQueue

_GENERATIONS_PER_MS: Final = 1 << 16


class Leases:
    """All leases of a broker that starts at `now_ms`."""

    def __init__(self, agenda: Agenda, now_ms: int) -> None:
        self._agenda = agenda
        self._generation = now_ms * _GENERATIONS_PER_MS
        self._leases: dict[int, tuple[GroupQueue, Lease]] = {}
        self._generations_of: defaultdict[str, set[int]] = defaultdict(set)

    def grant(self, key: GroupQueue, queue_offset: int, visible_ms: int, client_id: str) -> Lease:
        """A new lease; with a `client_id` it lasts as long as that client is heard from."""
        self._generation += 1
        renewed_until_ms = visible_ms + limits.AUTO_RENEW_MS_MAX
        lease = Lease(self._generation, queue_offset, visible_ms, client_id, renewed_until_ms)
        self._leases[lease.generation] = (key, lease)
        self._agenda.place(Purpose.LEASE, lease.generation, visible_ms)
        if client_id:
            self._generations_of[client_id].add(lease.generation)
        return lease

    def end(self, generation: int) -> tuple[GroupQueue, Lease]:
        """The lease is over; returns what it was."""
        key, lease = self._leases.pop(generation)
        self._agenda.cancel(Purpose.LEASE, generation)
        if lease.client_id:
            self._generations_of[lease.client_id].discard(generation)
            if not self._generations_of[lease.client_id]:
                del self._generations_of[lease.client_id]
        return key, lease

    def extend(self, client_id: str, visible_ms: int) -> None:
        """Moves the end of all leases kept for a client, but never beyond what a lease may last."""
        for generation in self._generations_of.get(client_id, ()):
            lease = self._leases[generation][1]
            lease.visible_ms = min(visible_ms, lease.renewed_until_ms)
            self._agenda.place(Purpose.LEASE, generation, lease.visible_ms)
