"""Leases: a message belongs to a consumer for a limited time.

    receive --> `Lending.lease` --> valid until `visible_ms` --> acknowledged: done
                                        ^        |           --> expires: a failed attempt
                                        +--------+           --> released, undelivered: no attempt
                          renewed by heartbeats of its client, or set to another time by its consumer

Each lease has a generation as its key, so that it can end by time, by answer, or with its client. Most leases
are only in memory: after a restart, messages that were not acknowledged are delivered again. Leases on
messages of a message group are also records (`commitlog.facts.lease_records`), and are restored by a start. A
start numbers generations from its clock, above those of earlier starts. If two starts overlap (a clock that
stopped, a node that followed for long), handles still differ by message, times and epoch.

A takeover lengthens leases that would end before their consumers can acknowledge, once: it marks them in
records. The next takeover skips marked leases, unless a heartbeat of the consumer was recorded since.

Lease times are elapsed time (`services.broker.spine.lease_clock`): steps of the clock neither end nor prolong
leases.

Only `Groups` begins, replaces and ends leases, because `InFlight` and `GroupOffsets` hold parts of each. All
other callers look up leases here and change their end times.

Cost: a lease is one object, one dict entry here and one in `InFlight`, and a timer of the wheel.

Weak spot: a timer that fires leaves its lease without one. Either `Receiving.expire` ends the lease, or the
message waits for its burial (`burying.py`), which ends it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from commitlog import limits
from commitlog.facts import acks
from consumequeue.attempts import Cause, Failure
from consumequeue.in_flight import Lease
from services.broker.groups.group_values import GroupQueue
from services.broker.groups.lite_subscriptions import LiteSubscriptions
from services.broker.spine.lease_clock import LeaseClock
from services.broker.spine.scheduler import Purpose, Scheduler

_GENERATIONS_PER_MS: Final = 1 << 16
"""The first generation of a start is its time in ms times this, so no start repeats one up to this rate."""


class Leases:
    """All leases of a broker, with generations numbered from its start at `now_ms`."""

    def __init__(
        self, scheduler: Scheduler, clock: LeaseClock, subscriptions: LiteSubscriptions, now_ms: int
    ) -> None:
        self._scheduler, self.clock, self._subscriptions = scheduler, clock, subscriptions
        self._generation = now_ms * _GENERATIONS_PER_MS
        self._leases: dict[int, tuple[GroupQueue, Lease]] = {}
        self._generations_of: defaultdict[str, set[int]] = defaultdict(set)
        self._restored: defaultdict[tuple[str, str], list[int]] = defaultdict(list)

    def begin_above(self, store_ms: int, now_ms: int) -> None:
        """Set the first generation above those of earlier starts, even if the clock was set back.

        Store times do not advance then. Several starts in that time get distant first generations.
        """
        assert not self._leases, "leases stand already, of generations that would be given again"
        if now_ms <= store_ms:
            self._generation = (store_ms + 1 + now_ms % _GENERATIONS_PER_MS) * _GENERATIONS_PER_MS

    def next_generation(self) -> int:
        """Return the generation of a new lease."""
        self._generation += 1
        return self._generation

    def begin(self, leases: Sequence[tuple[GroupQueue, Lease]]) -> None:
        """Begin at least one lease; all end together and belong to one client.

        Leases with a `client_id` are valid as long as that client sends heartbeats.
        """
        count, (_, first) = len(self._leases) + len(leases), leases[0]
        generations = [lease.generation for _, lease in leases]
        self._leases.update(zip(generations, leases, strict=True))
        assert len(self._leases) == count, "a generation is used twice"
        self._scheduler.schedule_many(Purpose.LEASE, generations, first.visible_ms)
        if first.client_id:
            self._generations_of[first.client_id].update(generations)

    def restore(
        self,
        key: GroupQueue,
        lease: Lease,
        now_ms: int,
        renewed_until_ms: int,
        until_ms: int = 0,
    ) -> None:
        """Restore a lease from before a restart; a renewed lease until its consumer can send a heartbeat.

        All times are in the broker's time, also the recorded end, as a restart has no elapsed time. The lease
        ends no earlier than `until_ms`. A lease that a takeover has already lengthened keeps its recorded
        end: otherwise the lease of a lost consumer would never end while leaders change more often than every
        30 s. A takeover sets `until_ms`, and marks the leases that it lengthens.
        """
        self._generation = max(self._generation, lease.generation)
        if lease.is_lengthened:
            # Recorded by the clock of the leader that lengthened it, which may have been ahead.
            lease.visible_ms = min(lease.visible_ms, max(renewed_until_ms, until_ms))
        else:
            _lengthen(lease, now_ms, renewed_until_ms, until_ms)
        lease.visible_ms = self.clock.elapsed(lease.visible_ms)
        if lease.client_id:
            lease.renewed_until_ms = lease.visible_ms + limits.AUTO_RENEW_MS_MAX
        if lease.attempt_id:
            self._restored[lease.consumer, lease.attempt_id].append(lease.generation)
        self.begin([(key, lease)])

    def take_restored(self, consumer: str, attempt_id: str) -> list[tuple[GroupQueue, Lease]]:
        """Return the valid leases that a receive with this attempt id got before a restart."""
        generations = self._restored.pop((consumer, attempt_id), ()) if attempt_id else ()
        return [self._leases[generation] for generation in generations if generation in self._leases]

    def find(self, generation: int) -> tuple[GroupQueue, Lease] | None:
        """Return the lease with this generation, if it is still valid."""
        return self._leases.get(generation)

    def standing(self) -> Collection[tuple[GroupQueue, Lease]]:
        """Return all leases."""
        return self._leases.values()

    def end_pause(self, lease: Lease, now_ms: int) -> None:
        """End a pause: a lease with a failed attempt expires with the next tick."""
        lease.visible_ms = min(lease.visible_ms, self.clock.elapsed(now_ms))
        self._scheduler.schedule(Purpose.LEASE, lease.generation, lease.visible_ms)

    def run_out_again(self, generation: int) -> None:
        """Let the next tick expire a lease left for its burial by an earlier tick, if its time is over."""
        self._scheduler.schedule(Purpose.LEASE, generation, self._leases[generation][1].visible_ms)

    def replace(self, held: Lease, lease: Lease) -> None:
        """Replace a valid lease."""
        assert lease.generation > held.generation, "generations ascend, or an old handle would be good again"
        key, standing = self._leases.pop(held.generation)
        assert standing is held, "another lease has this generation"
        if held.client_id:
            self._forget_client(held)
        self._scheduler.cancel(Purpose.LEASE, held.generation)
        self.begin([(key, lease)])

    def end(self, leases: Sequence[Lease]) -> None:
        """End leases; mark the lite topics of their messages as ready."""
        ended: list[int] = []
        for lease in leases:
            key, standing = self._leases.pop(lease.generation)
            assert standing is lease, "another lease has this generation"
            ended.append(lease.generation)
            if lease.client_id:
                self._forget_client(lease)
            if lease.message_group:
                self._subscriptions.mark_ready(key.topic, lease.message_group, key.group)
        if ended:
            self._scheduler.cancel_many(Purpose.LEASE, ended)

    def _forget_client(self, lease: Lease) -> None:
        self._generations_of[lease.client_id].discard(lease.generation)
        if not self._generations_of[lease.client_id]:
            del self._generations_of[lease.client_id]

    def has_run_out(self, lease: Lease, now_ms: int) -> bool:
        """Return whether a lease has expired."""
        return lease.visible_ms <= self.clock.elapsed(now_ms)

    def extend(self, client_id: str, until_ms: int) -> list[tuple[GroupQueue, Lease]]:
        """Set the end of all renewed leases of a client to `until_ms`, within the maximum lease time.

        Return those that a takeover had lengthened: their consumer is alive, so the next one may, too.
        """
        self._move(client_id, until_ms, is_gone=False)
        held = [self._leases[generation] for generation in self._generations_of.get(client_id, ())]
        heard = [one for one in held if one[1].is_lengthened]
        for _, lease in heard:
            lease.is_lengthened = False
        return heard

    def expire_client_leases(self, client_id: str, now_ms: int) -> None:
        """End all renewed leases of a lost client with the next tick."""
        self._move(client_id, now_ms, is_gone=True)

    def _move(self, client_id: str, until_ms: int, *, is_gone: bool) -> None:
        visible_ms = self.clock.elapsed(until_ms)
        for generation in self._generations_of.get(client_id, ()):
            lease = self._leases[generation][1]
            lease.is_gone = is_gone
            lease.visible_ms = min(visible_ms, lease.renewed_until_ms)
            self._scheduler.schedule(Purpose.LEASE, generation, lease.visible_ms)


def _lengthen(lease: Lease, now_ms: int, renewed_until_ms: int, until_ms: int) -> None:
    """Extend a lease from before a restart to `until_ms`, or a renewed one to `renewed_until_ms`."""
    _last_no_longer_than_given(lease, now_ms)
    least_ms = max(renewed_until_ms, until_ms) if lease.client_id else until_ms
    stands_ms = 0 if lease.client_id and lease.leased_ms > now_ms else lease.visible_ms
    lease.is_lengthened = until_ms > 0 and stands_ms < least_ms
    lease.visible_ms = max(stands_ms, least_ms)


def _last_no_longer_than_given(lease: Lease, now_ms: int) -> None:
    """Shorten a lease from before a restart that was given by a clock ahead of this one.

    `leased_ms` is part of the handle and does not change; the end of a renewed lease depends on it.
    """
    if lease.leased_ms > now_ms and not lease.client_id:
        lease.visible_ms = now_ms + lease.visible_ms - lease.leased_ms


def failure_of(lease: Lease, now_ms: int) -> Failure | None:
    """Return the failure of an expired lease's attempt; None if the attempt does not count."""
    if lease.is_suspended:
        return None
    cause = Cause.GONE if lease.is_gone else Cause.SET_ASIDE if lease.is_changed else Cause.EXPIRED
    return Failure(now_ms, cause, acks.clipped(lease.consumer))
