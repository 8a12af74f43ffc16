"""A lease: how a message becomes its consumer's for a time, and how that ends.

    receive --> `Lending.lease` --> stands until `visible_ms` --> acknowledged: done
                                        ^        |            --> runs out: an attempt that failed
                                        +--------+            --> released, unheard: no attempt
                          renewed while its client is heard from, or set to another time by its consumer

Every lease is known by its generation, so that it can end by time, by answer, or with its client. Most live
in memory: after a restart, what was not acknowledged is given out again. Those on messages of a message group
are records, too (`commitlog.facts.lease_records`), and stand again after a restart. Generations of a start
begin at its clock, above those of earlier starts. Where two overlap (a clock that stood still, a node that
followed for long), handles still differ: they name the message, the times and the epoch as well.

A takeover lengthens those that would end before anyone could acknowledge, once: it marks them in records, and
the next one lengthens none that is marked, unless its consumer was heard meanwhile, which is a record, too.

Spans of leases are elapsed time (`services.broker.spine.lease_clock`): no step of the clock ends or prolongs
one.

Only `Groups` begins, replaces and ends leases, because `InFlight` and `GroupOffsets` have a part of each. All
other callers find leases here and move their ends.

Cost: a lease is one object, one row of a dict here and one there (`InFlight`), and a timer of the wheel.

Weak spot: a timer that fires leaves the lease without one. `Receiving.expire` ends the lease, or the message
waits for its burial (`burying.py`), which ends it.
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
"""A start's generations begin at its time in ms, times this: with fewer leases a ms no start repeats any."""


class Leases:
    """All leases of a broker that starts at `now_ms`."""

    def __init__(
        self, scheduler: Scheduler, clock: LeaseClock, subscriptions: LiteSubscriptions, now_ms: int
    ) -> None:
        self._scheduler, self.clock, self._subscriptions = scheduler, clock, subscriptions
        self._generation = now_ms * _GENERATIONS_PER_MS
        self._leases: dict[int, tuple[GroupQueue, Lease]] = {}
        self._generations_of: defaultdict[str, set[int]] = defaultdict(set)
        self._restored: defaultdict[tuple[str, str], list[int]] = defaultdict(list)

    def begin_above(self, store_ms: int, now_ms: int) -> None:
        """Choose where generations begin, so that no earlier start had them, where the clock was set back.

        Store times stand still then. Several starts in that time begin far apart.
        """
        assert not self._leases, "leases stand already, of generations that would be given again"
        if now_ms <= store_ms:
            self._generation = (store_ms + 1 + now_ms % _GENERATIONS_PER_MS) * _GENERATIONS_PER_MS

    def next_generation(self) -> int:
        """Return what a new lease is known by."""
        self._generation += 1
        return self._generation

    def begin(self, leases: Sequence[tuple[GroupQueue, Lease]]) -> None:
        """Begin leases, at least one, that end together and are of one client.

        Those with a `client_id` stand as long as that client is heard from.
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
        """Let a lease of before a restart stand again; a renewed one until its consumer can be heard.

        All times given are the broker's, also the end that was recorded: a restart has no other.
        It runs out no earlier than `until_ms`, except a lease that a takeover has lengthened, which stands as
        recorded:
        lengthened by each takeover, the lease of a consumer that is gone would never end while leaders change
        more often than each 30 s. A takeover gives `until_ms`, and marks those that it lengthens.
        """
        self._generation = max(self._generation, lease.generation)
        if lease.is_lengthened:
            # Recorded in the time of the leader that lengthened it, whose clock may have been ahead.
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
        """Return the leases that a receive of this attempt id got before a restart, those that stand."""
        generations = self._restored.pop((consumer, attempt_id), ()) if attempt_id else ()
        return [self._leases[generation] for generation in generations if generation in self._leases]

    def find(self, generation: int) -> tuple[GroupQueue, Lease] | None:
        """Return the lease of a generation, if it still stands."""
        return self._leases.get(generation)

    def standing(self) -> Collection[tuple[GroupQueue, Lease]]:
        """Return all leases."""
        return self._leases.values()

    def end_pause(self, lease: Lease, now_ms: int) -> None:
        """End a pause: a lease on a message whose attempt has failed runs out with the next tick."""
        lease.visible_ms = min(lease.visible_ms, self.clock.elapsed(now_ms))
        self._scheduler.schedule(Purpose.LEASE, lease.generation, lease.visible_ms)

    def run_out_again(self, generation: int) -> None:
        """End a lease with the next tick, if its time is over, though an earlier tick let it stand."""
        self._scheduler.schedule(Purpose.LEASE, generation, self._leases[generation][1].visible_ms)

    def replace(self, held: Lease, lease: Lease) -> None:
        """Put a lease in the place of a standing one."""
        assert lease.generation > held.generation, "generations ascend, or an old handle would be good again"
        key, standing = self._leases.pop(held.generation)
        assert standing is held, "another lease has this generation"
        if held.client_id:
            self._forget_client(held)
        self._scheduler.cancel(Purpose.LEASE, held.generation)
        self.begin([(key, lease)])

    def end(self, leases: Sequence[Lease]) -> None:
        """End leases; the next message of a lite topic that one was on may go out."""
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
        """Return whether the time of a lease is over."""
        return lease.visible_ms <= self.clock.elapsed(now_ms)

    def extend(self, client_id: str, until_ms: int) -> list[tuple[GroupQueue, Lease]]:
        """Let all leases kept for a client end at `until_ms`, but never last longer than a lease may.

        Return those that a takeover had lengthened: their consumer is heard, so the next one may do so, too.
        """
        self._move(client_id, until_ms, is_gone=False)
        held = [self._leases[generation] for generation in self._generations_of.get(client_id, ())]
        heard = [one for one in held if one[1].is_lengthened]
        for _, lease in heard:
            lease.is_lengthened = False
        return heard

    def expire_client_leases(self, client_id: str, now_ms: int) -> None:
        """End all leases kept for a client that is gone, with the next tick."""
        self._move(client_id, now_ms, is_gone=True)

    def _move(self, client_id: str, until_ms: int, *, is_gone: bool) -> None:
        visible_ms = self.clock.elapsed(until_ms)
        for generation in self._generations_of.get(client_id, ()):
            lease = self._leases[generation][1]
            lease.is_gone = is_gone
            lease.visible_ms = min(visible_ms, lease.renewed_until_ms)
            self._scheduler.schedule(Purpose.LEASE, generation, lease.visible_ms)


def _lengthen(lease: Lease, now_ms: int, renewed_until_ms: int, until_ms: int) -> None:
    """Let a lease of before a restart last to `until_ms` at least, a renewed one to `renewed_until_ms`."""
    _last_no_longer_than_given(lease, now_ms)
    least_ms = max(renewed_until_ms, until_ms) if lease.client_id else until_ms
    stands_ms = 0 if lease.client_id and lease.leased_ms > now_ms else lease.visible_ms
    lease.is_lengthened = until_ms > 0 and stands_ms < least_ms
    lease.visible_ms = max(stands_ms, least_ms)


def _last_no_longer_than_given(lease: Lease, now_ms: int) -> None:
    """Shorten a lease that was given by a clock that was ahead of this one, before a restart.

    `leased_ms` stays: it is part of the handle. One that the broker renews ends by that.
    """
    if lease.leased_ms > now_ms and not lease.client_id:
        lease.visible_ms = now_ms + lease.visible_ms - lease.leased_ms


def failure_of(lease: Lease, now_ms: int) -> Failure | None:
    """Return how an attempt failed whose lease has run out; None if the attempt is not to be counted."""
    if lease.is_suspended:
        return None
    cause = Cause.GONE if lease.is_gone else Cause.SET_ASIDE if lease.is_changed else Cause.EXPIRED
    return Failure(now_ms, cause, acks.clipped(lease.consumer))
