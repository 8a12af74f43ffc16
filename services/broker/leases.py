"""Every lease by its generation, so that it can end by time, by answer, or with its client.

Most leases live in memory: after a restart, what was not acknowledged is given out again. Those on messages
of a message group are records, too (`consumequeue.lease_records`), and stand again after a restart.
Generations begin anew above all earlier ones at each start, since they grow from the clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from commitlog import limits
from consumequeue.attempts import Cause, Failure
from consumequeue.in_flight import Lease
from services.broker.groups import GroupQueue
from services.broker.scheduler import Purpose, Scheduler

_GENERATIONS_PER_MS: Final = 1 << 16


class Leases:
    """All leases of a broker that starts at `now_ms`."""

    def __init__(self, scheduler: Scheduler, now_ms: int) -> None:
        self._scheduler = scheduler
        self._generation = now_ms * _GENERATIONS_PER_MS
        self._leases: dict[int, tuple[GroupQueue, Lease]] = {}
        self._generations_of: defaultdict[str, set[int]] = defaultdict(set)
        self._restored: defaultdict[tuple[str, str], list[int]] = defaultdict(list)

    def begin_above(self, store_ms: int, now_ms: int) -> None:
        """Generations are others than before, also if the clock was set back, behind the last store time.

        Then store times stand still; so that several starts in that time have generations of their own, they
        begin far apart.
        """
        if now_ms <= store_ms:
            self._generation = (store_ms + 1 + now_ms % _GENERATIONS_PER_MS) * _GENERATIONS_PER_MS

    def next_generation(self) -> int:
        """What a new lease is known by."""
        self._generation += 1
        return self._generation

    def add(self, leases: list[tuple[GroupQueue, Lease]]) -> None:
        """Leases stand that end together; those with a `client_id` as long as that client is heard from."""
        generations = [lease.generation for _, lease in leases]
        self._leases.update(zip(generations, leases, strict=True))
        if leases:
            _, first = leases[0]
            self._scheduler.schedule_many(Purpose.LEASE, generations, first.visible_ms)
            if first.client_id:
                self._generations_of[first.client_id].update(generations)

    def restore(self, key: GroupQueue, lease: Lease, renewed_until_ms: int) -> None:
        """A lease of before a restart stands again; a renewed one until its consumer can be heard."""
        self._generation = max(self._generation, lease.generation)
        if lease.client_id:
            lease.visible_ms = max(lease.visible_ms, renewed_until_ms)
            lease.renewed_until_ms = lease.visible_ms + limits.AUTO_RENEW_MS_MAX
        if lease.attempt_id:
            self._restored[lease.consumer, lease.attempt_id].append(lease.generation)
        self.add([(key, lease)])

    def take_restored(self, consumer: str, attempt_id: str) -> list[tuple[GroupQueue, Lease]]:
        """The leases of before a restart that a receive of this name was to get, if they still stand."""
        generations = self._restored.pop((consumer, attempt_id), ()) if attempt_id else ()
        return [self._leases[generation] for generation in generations if generation in self._leases]

    def find(self, generation: int) -> tuple[GroupQueue, Lease] | None:
        """The lease of a generation, if it still stands."""
        return self._leases.get(generation)

    def run_out_again(self, generation: int) -> None:
        """The lease ends with the next tick, if its time is over, though an earlier tick let it stand."""
        self._scheduler.schedule(Purpose.LEASE, generation, self._leases[generation][1].visible_ms)

    def end(self, generation: int) -> tuple[GroupQueue, Lease]:
        """The lease is over; returns what it was."""
        ended = self._leases[generation]
        self.take(ended[1])
        self.unplan([generation])
        return ended

    def take(self, lease: Lease) -> None:
        """The lease is over; its timer is to be forgotten with those of others, by `unplan`."""
        del self._leases[lease.generation]
        if lease.client_id:
            self._generations_of[lease.client_id].discard(lease.generation)
            if not self._generations_of[lease.client_id]:
                del self._generations_of[lease.client_id]

    def unplan(self, generations: Iterable[int]) -> None:
        """Leases that are over do not run out."""
        self._scheduler.cancel_many(Purpose.LEASE, generations)

    def extend(self, client_id: str, visible_ms: int) -> None:
        """Moves the end of all leases kept for a client, but never beyond what a lease may last."""
        self._move(client_id, visible_ms, is_gone=False)

    def forsake(self, client_id: str, now_ms: int) -> None:
        """The client is gone: all leases kept for it end with the next tick."""
        self._move(client_id, now_ms, is_gone=True)

    def _move(self, client_id: str, visible_ms: int, *, is_gone: bool) -> None:
        for generation in self._generations_of.get(client_id, ()):
            lease = self._leases[generation][1]
            lease.is_gone = is_gone
            lease.visible_ms = min(visible_ms, lease.renewed_until_ms)
            self._scheduler.schedule(Purpose.LEASE, generation, lease.visible_ms)


def failure_of(lease: Lease, now_ms: int) -> Failure | None:
    """How an attempt failed whose lease has run out; None if it is not to be counted."""
    if lease.is_suspended:
        return None
    cause = Cause.GONE if lease.is_gone else Cause.SET_ASIDE if lease.is_changed else Cause.EXPIRED
    return Failure(now_ms, cause, lease.consumer)
