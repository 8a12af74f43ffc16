"""Leases, each of which assigns a message to a consumer for a limited time.

    receive --> `MessageLeasing.lease` --> valid until `visible_ms` --> acknowledged: message finished
                                        ^        |           --> expired: a failed attempt
                                        +--------+           --> released undelivered: no attempt
                          extended by heartbeats of the client, or changed by the consumer

A lease is identified by its generation, which ensures that an old receipt handle does not match a later lease
on the same message. Most leases exist only in memory, and their messages are redelivered after a restart.
Leases on messages in a message group are recorded (`commitlog.facts.lease_records`) and restored at startup.

The generation counter is initialized from the startup time, and new generations therefore exceed those of
earlier broker runs. Generations may overlap if the clock has stopped or if the node has been a follower for a
long time. Receipt handles still differ, because they also contain the message offset, the times, and the
epoch.

A new leader extends all leases that would end before the consumers can acknowledge messages. Each extension
is recorded in the log. A later takeover does not extend the same lease again unless a consumer heartbeat has
been recorded since then.

Leases are measured in elapsed time (`services.broker.spine.lease_clock`). Clock steps therefore neither end
nor extend leases.

Only `Groups` creates, replaces, and ends leases, because part of the state of a lease is stored in `InFlight`
and `GroupOffsets`. All other callers only look up leases or change their end times.

Cost: each lease requires one object, two dict entries (in `Leases` and in `InFlight`), and one timer in the
timing wheel.

Limitation: the timer of a lease is not set again after it has fired. The lease must then be ended by
`MessageReceiver.expire_lease` or by the move of its message to the dead-letter topic
(`exhausted_messages.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from commitlog import limits
from commitlog.facts import acks
from consumequeue.groups.attempts import Cause, Failure
from consumequeue.groups.in_flight import Lease
from services.broker.groups.group_values import GroupQueue
from services.broker.groups.lite_subscriptions import LiteSubscriptions
from services.broker.spine.lease_clock import LeaseClock
from services.broker.spine.scheduler import Purpose, Scheduler

_GENERATIONS_PER_MS: Final = 1 << 16
"""Maximum number of leases per millisecond for which generations are unique across restarts."""


class Leases:
    """All valid leases of a broker. `now_ms` is the startup time."""

    def __init__(
        self, scheduler: Scheduler, clock: LeaseClock, subscriptions: LiteSubscriptions, now_ms: int
    ) -> None:
        self._scheduler, self.clock, self._subscriptions = scheduler, clock, subscriptions
        self._generation = now_ms * _GENERATIONS_PER_MS
        self._leases: dict[int, tuple[GroupQueue, Lease]] = {}
        self._generations_of: defaultdict[str, set[int]] = defaultdict(set)
        self._restored: defaultdict[tuple[str, str], list[int]] = defaultdict(list)

    def set_first_generation(self, store_ms: int, now_ms: int) -> None:
        """Set the generation counter to a value above all generations of earlier broker runs.

        After the clock has been set back, store times do not advance until the clock reaches the last store
        time. Several runs may then start with the same store time, and the startup time keeps their first
        generations far apart.
        """
        assert not self._leases, "leases stand already, of generations that would be given again"
        if now_ms <= store_ms:
            self._generation = (store_ms + 1 + now_ms % _GENERATIONS_PER_MS) * _GENERATIONS_PER_MS

    def next_generation(self) -> int:
        """Return the next unused generation, for a new lease."""
        self._generation += 1
        return self._generation

    def begin(self, leases: Sequence[tuple[GroupQueue, Lease]]) -> None:
        """Begin one or more leases that belong to the same client and have the same end time.

        Leases with a `client_id` stay valid while the client sends heartbeats, up to the maximum lease time.
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
        """Restore a recorded lease, and extend it to give its consumer time for a renewal.

        All times, including the recorded end, are times of the broker clock, because elapsed time is lost on
        restart. The lease ends no earlier than `until_ms`, which is set only during a takeover. A lease
        extended by an earlier takeover keeps its recorded end. If such leases were extended again, the lease
        of a lost consumer would never end when the leader changes more often than every 30 s.
        """
        self._generation = max(self._generation, lease.generation)
        if lease.is_lengthened:
            # The recorded end time is based on the clock of the leader that extended the lease. The clock of
            # that leader may have been ahead of the clock of this node.
            lease.visible_ms = min(lease.visible_ms, max(renewed_until_ms, until_ms))
        else:
            _extend_lease(lease, now_ms, renewed_until_ms, until_ms)
        lease.visible_ms = self.clock.to_elapsed_time(lease.visible_ms)
        if lease.client_id:
            lease.renewed_until_ms = lease.visible_ms + limits.AUTO_RENEW_MS_MAX
        if lease.attempt_id:
            self._restored[lease.consumer, lease.attempt_id].append(lease.generation)
        self.begin([(key, lease)])

    def take_restored_leases(self, consumer: str, attempt_id: str) -> list[tuple[GroupQueue, Lease]]:
        """Return the valid leases that a receive with the given attempt id obtained before a restart.

        Each lease is returned only once.
        """
        generations = self._restored.pop((consumer, attempt_id), ()) if attempt_id else ()
        return [self._leases[generation] for generation in generations if generation in self._leases]

    def find_lease(self, generation: int) -> tuple[GroupQueue, Lease] | None:
        """Return the valid lease with the given generation and its queue key, or None."""
        return self._leases.get(generation)

    def all_leases(self) -> Collection[tuple[GroupQueue, Lease]]:
        """Return all valid leases."""
        return self._leases.values()

    def end_pause(self, lease: Lease, now_ms: int) -> None:
        """End the pause after a failed attempt, which makes the lease expire at the next tick."""
        lease.visible_ms = min(lease.visible_ms, self.clock.to_elapsed_time(now_ms))
        self._scheduler.schedule(Purpose.LEASE, lease.generation, lease.visible_ms)

    def reschedule_expiry(self, generation: int) -> None:
        """Reschedule the expiry of a lease whose message was queued for the dead-letter topic."""
        self._scheduler.schedule(Purpose.LEASE, generation, self._leases[generation][1].visible_ms)

    def replace(self, held: Lease, lease: Lease) -> None:
        """Replace a valid lease with a newer lease on the same message."""
        assert lease.generation > held.generation, "generations ascend, or an old handle would be good again"
        key, standing = self._leases.pop(held.generation)
        assert standing is held, "another lease has this generation"
        if held.client_id:
            self._forget_client(held)
        self._scheduler.cancel(Purpose.LEASE, held.generation)
        self.begin([(key, lease)])

    def end(self, leases: Sequence[Lease]) -> None:
        """End leases, and mark their lite topics as ready."""
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

    def has_expired(self, lease: Lease, now_ms: int) -> bool:
        """Return whether a lease has expired."""
        return lease.visible_ms <= self.clock.to_elapsed_time(now_ms)

    def renew_client_leases(self, client_id: str, until_ms: int) -> list[tuple[GroupQueue, Lease]]:
        """Set the end of the auto-renewed leases of a client to `until_ms`, up to the maximum lease time.

        Return the renewed leases that a takeover had extended. The next takeover may extend them again.
        """
        self._set_client_end(client_id, until_ms, is_gone=False)
        held = [self._leases[generation] for generation in self._generations_of.get(client_id, ())]
        heard = [one for one in held if one[1].is_lengthened]
        for _, lease in heard:
            lease.is_lengthened = False
        return heard

    def expire_client_leases(self, client_id: str, now_ms: int) -> None:
        """Make the auto-renewed leases of a lost client expire at the next tick."""
        self._set_client_end(client_id, now_ms, is_gone=True)

    def _set_client_end(self, client_id: str, until_ms: int, *, is_gone: bool) -> None:
        visible_ms = self.clock.to_elapsed_time(until_ms)
        for generation in self._generations_of.get(client_id, ()):
            lease = self._leases[generation][1]
            lease.is_gone = is_gone
            lease.visible_ms = min(visible_ms, lease.renewed_until_ms)
            self._scheduler.schedule(Purpose.LEASE, generation, lease.visible_ms)


def _extend_lease(lease: Lease, now_ms: int, renewed_until_ms: int, until_ms: int) -> None:
    """Extend a restored lease to `until_ms` or later.

    An auto-renewed lease is extended to `renewed_until_ms` or later.
    """
    _shorten_if_clock_ahead(lease, now_ms)
    least_ms = max(renewed_until_ms, until_ms) if lease.client_id else until_ms
    stands_ms = 0 if lease.client_id and lease.leased_ms > now_ms else lease.visible_ms
    lease.is_lengthened = until_ms > 0 and stands_ms < least_ms
    lease.visible_ms = max(stands_ms, least_ms)


def _shorten_if_clock_ahead(lease: Lease, now_ms: int) -> None:
    """Shorten a restored lease whose start time is in the future.

    `leased_ms` is part of the receipt handle and stays unchanged. The end of an auto-renewed lease is
    computed by the caller.
    """
    if lease.leased_ms > now_ms and not lease.client_id:
        lease.visible_ms = now_ms + lease.visible_ms - lease.leased_ms


def failure_of(lease: Lease, now_ms: int) -> Failure | None:
    """Return the failure that an expired lease represents, or None if its attempt is not counted."""
    if lease.is_suspended:
        return None
    cause = Cause.GONE if lease.is_gone else Cause.SET_ASIDE if lease.is_changed else Cause.EXPIRED
    return Failure(now_ms, cause, acks.clip(lease.consumer))
