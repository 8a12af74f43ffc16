"""In-flight messages of a consumer group on one queue, and the next message to deliver.

    ... known to `GroupOffsets` ...|next_offset ... never delivered since startup ...

States of a message in a group. `offsets.py` holds the durable part:

    state    event                                            next state
    fresh    a receive reads it, its message group is free    leased
    fresh    a receive reads it, its message group is closed  parked
    fresh    no filter matches it, or it is damaged           done
    leased   acknowledged, or given up                        done
    leased   its lease ended, without a message group         ready
    leased   its lease ended, in a message group              parked, before later messages
    parked   it gets the turn of its message group            ready
    fresh    only other filters of the group match it         set aside
    ready    only other filters of the group match it         set aside
    aside    a receive with a matching filter takes it        leased
    aside    the filters of the group have changed            ready
    ready    a receive takes it, lowest first, before fresh   leased

Each message below `next_offset` is done, leased, ready, parked, or set aside
(`consumequeue.groups.set_aside`). Each lease has a generation number, which is never reused.

A message group without leased or waiting messages is free and has no entry. States of a message group:

    free ---- a message is leased ----> closed ---- the last lease ended ----> its lowest message has the turn
     ^                                    ^                                          |            |
     +------ no message of it waits ------|------------------------------------------+            |
                                          +------------------ it is leased -----------------------+

- While a message group is closed or one of its messages has the turn, its remaining messages are parked.
- A message that is set aside keeps the turn, so its message group stays closed to others.
- Only the message with the turn can be delivered. The same receive may also deliver subsequent messages as a
  run (`services.broker.groups.message_leasing`).

The in-flight state is not durable. It is derived from the durable offsets. At startup, messages with recorded
leases are leased, and all other messages that are not done are fresh. An operation that finishes a message or
ends a lease updates the offsets first.

A queue of lite topics is not read in order, because messages are looked up by lite topic (`lite_index.py`).
For such a queue, `next_offset` is always the committed offset, and no message is ready or parked. Each lite
topic is a message group. Its next message is looked up after the lease on the previous one has ended.

Cost: one entry per message that is leased, ready, parked, or set aside, with a limit for each state. Starting
a lease, ending it, and passing on a turn each require one heap operation. Limitations: `withdraw`,
`skipped_to`, `reevaluate_filters`, and `MessageGroups.cut` visit all waiting messages. After a restart,
`unleased_until` visits all leases until it has passed all messages with recorded leases.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from commitlog import limits
from commitlog.facts.lease_records import LeaseEntry
from consumequeue.groups.attempts import Attempts
from consumequeue.groups.offsets import GroupOffsets
from consumequeue.groups.set_aside import SetAsideOffsets

ANY_FILTER = 1
"""Filter bit of a group with a single filter."""


@dataclass(slots=True)
class Lease:
    """A consumer's lease on a message.

    If `client_id` is set, the broker renews the lease for this client until `renewed_until_ms`. `consumer` is
    the ID of the client that received the message. `is_gone`: the consumer has disconnected. `is_changed`:
    the consumer has changed the lease time. `is_suspended`: the attempt is not counted. `attempt_id`
    identifies the receive. A receive with the same ID is a retry by a client that did not receive the
    response. `is_lengthened`: a takeover has changed the end of the lease, and the consumer has not made a
    call for that lease since. `is_failed`: the consumer has reported a failure, so the remaining lease time
    is the delay before the next attempt. A restart resets `is_failed`. `handle` is the consumer's receipt
    handle, or an empty string if the lease was granted before a restart.

    `visible_ms` and `renewed_until_ms` are in elapsed time (`services.broker.spine.lease_clock`), and
    `leased_ms` is in the broker's time. In a lease that recovery has read from the log, `visible_ms` is in
    the broker's time until the lease is restored.
    """

    generation: int
    queue_offset: int
    visible_ms: int
    client_id: str = ""
    renewed_until_ms: int = 0
    consumer: str = ""
    message_group: str = ""
    is_gone: bool = False
    is_changed: bool = False
    is_suspended: bool = False
    attempt_id: str = ""
    leased_ms: int = 0
    handle: str = ""
    is_lengthened: bool = False
    is_failed: bool = False


class InFlight:
    """In-flight messages of a group on one queue, derived from the group's offsets."""

    def __init__(self, offsets: GroupOffsets) -> None:
        self.offsets = offsets
        self.next_offset = offsets.committed_offset
        self._ready: list[int] = []
        self._leases: dict[int, Lease] = {}
        self._aside = SetAsideOffsets()
        self.message_groups = MessageGroups()
        for entry in offsets.leases.values():
            self._hold(_lease(entry))
        # Recorded leases are restored before any message is read. Therefore, messages below this offset are
        # checked individually, because they may already be leased (`fresh_room`).
        self._restored_until = max(self._leases, default=-1) + 1

    @property
    def leased_count(self) -> int:
        """Number of leased messages."""
        return len(self._leases)

    @property
    def held_count(self) -> int:
        """The number of messages that are leased and not discarded.

        A lease on a message that was discarded remains valid until its consumer acknowledges the message or
        the lease ends. The time required is linear in the number of leases.
        """
        committed_offset = self.offsets.committed_offset
        return sum(offset >= committed_offset for offset in self._leases)

    @property
    def waiting_count(self) -> int:
        """Number of messages that are ready, parked, or set aside."""
        return len(self._ready) + self.message_groups.parked_count + len(self._aside)

    @property
    def aside_count(self) -> int:
        """Number of messages set aside for other filters of the group."""
        return len(self._aside)

    def aside_counts(self) -> Counter[int]:
        """Return the number of messages set aside for each filter, by filter bit."""
        return self._aside.counts()

    @property
    def is_crowded(self) -> bool:
        """Whether leased and waiting messages prevent the delivery of fresh ones."""
        return (
            len(self._leases) + len(self._ready) >= limits.IN_FLIGHT_PER_QUEUE_MAX
            or self.message_groups.parked_count + len(self._aside) >= limits.PARKED_PER_QUEUE_MAX
        )

    @property
    def fresh_room(self) -> int:
        """Maximum number of messages for `lease_run`.

        It is 0 if some of the next messages may be done or leased.
        """
        if self.next_offset < max(self._restored_until, self.offsets.done_until):
            return 0
        return limits.IN_FLIGHT_PER_QUEUE_MAX - len(self._leases) - len(self._ready)

    @property
    def has_ready(self) -> bool:
        """Whether a message is ready or has the turn of its message group."""
        return bool(self._ready)

    def leases(self) -> Iterator[Lease]:
        """Return all leases."""
        return iter(self._leases.values())

    def is_leased(self, offset: int) -> bool:
        """Return whether a message is leased."""
        return offset in self._leases

    def is_held(self, offset: int, message_group: str) -> bool:
        """Return whether a consumer holds a message or another message in the same message group.

        After a failed attempt, the lease only delays the next attempt, so no consumer holds the message. If
        the message group has a lease, the time required is linear in the number of leases.
        """
        if self.message_groups.has_lease(message_group):
            group = (one for one in self._leases.values() if one.message_group == message_group)
            return any(not one.is_failed for one in group)
        lease = self._leases.get(offset)
        return lease is not None and not lease.is_failed

    def attempts(self, offset: int) -> Attempts:
        """Return the delivery attempts for a message, including the current one."""
        known = self.offsets.attempts(offset)
        is_under_way = offset in self._leases and offset not in self.offsets.leases
        return known._replace(made=known.made + 1) if is_under_way else known

    def is_exhausted(self, offset: int, attempts_max: int) -> bool:
        """Return whether a message has had `attempts_max` attempts and is neither leased nor done."""
        has_had_them = self.offsets.attempts(offset).made >= attempts_max
        return has_had_them and offset not in self._leases and not self.offsets.is_done(offset)

    def candidate(self, end_offset: int, filter_bit: int = ANY_FILTER) -> int | None:
        """Return the next offset that a receive with this filter must check, or None.

        `end_offset` is the end of the queue.
        """
        # A message that was finished after it became ready may still be in the heap. Removing the message
        # earlier would require a search of the heap, whereas removing it from the top requires only one pop.
        while self._ready and self.offsets.is_done(self._ready[0]):
            heapq.heappop(self._ready)
        aside = self._aside.first(filter_bit) if self._aside else None
        if self._ready:
            assert self._ready[0] not in self._leases, f"{self._ready[0]} is both leased and ready"
            return self._ready[0] if aside is None else min(self._ready[0], aside)
        if aside is not None:
            return aside
        if self.is_crowded:
            return None
        self._skip_known()
        return self.next_offset if self.next_offset < end_offset else None

    def begin_at(self, queue_offset: int) -> None:
        """Skip fresh messages below `queue_offset`, because the log has been deleted up to that point.

        Call this before `skipped_to`.
        """
        self.next_offset = max(self.next_offset, queue_offset)

    def unleased_until(self, first: int, end: int) -> int:
        """Return the first leased offset from `first` to `end` (exclusive).

        If there is none, return `end`.
        """
        if first >= self._restored_until:
            return end
        return min((leased for leased in self._leases if first <= leased < end), default=end)

    def park(self, offset: int, message_group: str) -> None:
        """Park the candidate until it is its turn in the message group.

        The candidate must be fresh.
        """
        assert offset == self.next_offset, f"{offset} is not fresh"
        self.next_offset += 1
        self.message_groups.park(message_group, offset)

    def set_aside(self, offset: int, wanted_by: int, message_group: str) -> None:
        """Set the candidate aside for the filters in a bit mask.

        Its message group stays closed until the message is delivered or finished.
        """
        if offset == self.next_offset:
            self.next_offset += 1
        else:
            assert self._ready[:1] == [offset], f"{offset} is not the candidate"
            heapq.heappop(self._ready)
        self._aside.put(offset, wanted_by)
        if message_group:
            self.message_groups.keep_turn(message_group, offset)

    def reevaluate_filters(self) -> None:
        """Make all messages that were set aside ready, because the group's filters have changed."""
        self._ready = sorted([*self._ready, *self._aside.take_all()])  # A sorted list is a valid heap.

    def lease(self, lease: Lease) -> None:
        """Lease the candidate or the next message in a run."""
        offset = lease.queue_offset
        # If none of these cases applies, the message is the next message of a run. Such a message was parked
        # at an offset below the next offset, and `_hold` removes the message from its message group.
        if offset == self.next_offset:
            self.next_offset += 1
        elif self._ready and self._ready[0] == offset:
            heapq.heappop(self._ready)
        elif not self._aside.take(offset):
            assert offset < self.next_offset, f"{offset} is not the next to give out"
        self._hold(lease)

    def lease_run(self, leases: Sequence[Lease]) -> None:
        """Lease adjacent fresh messages without a message group, starting with the candidate."""
        assert not leases or leases[-1].queue_offset == self.next_offset + len(leases) - 1, "a run has a hole"
        self._leases.update({lease.queue_offset: lease for lease in leases})
        self.next_offset += len(leases)

    def lease_found(self, lease: Lease) -> None:
        """Lease a message found by its lite topic, even if it is not the candidate."""
        self._hold(lease)

    def replace(self, lease: Lease) -> Lease:
        """Replace the lease on a message within the same attempt. Return the old lease."""
        before = self._leases.get(lease.queue_offset)
        assert before is not None, f"{lease.queue_offset} is leased to nobody"
        assert before.message_group == lease.message_group, "a lease changes its message group"
        self._leases[lease.queue_offset] = lease
        return before

    def withdraw(self, offset: int, message_group: str) -> None:
        """Remove an unleased message from the waiting messages.

        The caller must mark it as finished afterwards.
        """
        assert offset not in self._leases, f"{offset} is leased"
        if offset >= self.next_offset:
            return
        if offset in self._ready:
            self._ready.remove(offset)
            heapq.heapify(self._ready)
        # A message that is set aside is later removed by `finished`, which also passes on the delivery turn.
        elif offset not in self._aside:
            self.message_groups.unpark(message_group, offset)

    def finished(self, offsets: Iterable[int]) -> list[Lease]:
        """Remove messages that are done. Return the leases that have ended.

        Each message may be leased, a candidate, or a later fresh message.
        """
        self.next_offset = max(self.next_offset, self.offsets.committed_offset)
        ended: list[Lease] = []
        for offset in offsets:
            lease = self._leases.pop(offset, None)
            if lease is None:
                if self._ready and self._ready[0] == offset:
                    heapq.heappop(self._ready)
                else:
                    self._aside.take(offset)
                self._give_turn(self.message_groups.passed(offset))
                continue
            ended.append(lease)
            if lease.message_group:
                self._give_turn(self.message_groups.done(lease.message_group))
        return ended

    def skipped_to(self, queue_offset: int) -> None:
        """Remove waiting messages below `queue_offset`, whose records were deleted.

        Leases stay.
        """
        self.next_offset = max(self.next_offset, self.offsets.committed_offset)
        self._ready = sorted(offset for offset in self._ready if offset >= queue_offset)
        self._aside.take_below(queue_offset)
        for turn in self.message_groups.cut(queue_offset):
            self._give_turn(turn)

    def reopened(self) -> None:
        """Reset the next offset to the committed offset.

        Call this method when messages from lite topics must be redelivered.
        """
        self.next_offset = self.offsets.committed_offset

    def return_message(self, offset: int) -> Lease:
        """End and return the lease on an unacknowledged message so that it can be redelivered."""
        lease = self._leases.pop(offset)
        if self.offsets.is_done(offset) or offset >= self.next_offset:
            # Either the message was deleted by retention, or its offset is at or above the next offset. The
            # latter occurs for lite topics and for messages leased before a restart. Such a message is fresh,
            # and would be delivered twice if it were also marked as ready.
            if lease.message_group:
                self._give_turn(self.message_groups.done(lease.message_group))
        elif lease.message_group:
            self._give_turn(self.message_groups.returned(lease.message_group, offset))
        else:
            heapq.heappush(self._ready, offset)
        return lease

    def _skip_known(self) -> None:
        """Advance the next offset past messages that are done or leased."""
        while True:
            self.next_offset = self.offsets.open_from(self.next_offset)
            if self.next_offset not in self._leases:
                return
            self.next_offset += 1

    def _hold(self, lease: Lease) -> None:
        assert lease.queue_offset not in self._leases, f"{lease.queue_offset} is leased already"
        self._leases[lease.queue_offset] = lease
        if lease.message_group:
            self.message_groups.leased(lease.message_group, lease.queue_offset, lease.leased_ms)

    def _give_turn(self, offset: int | None) -> None:
        if offset is not None:
            heapq.heappush(self._ready, offset)


def _lease(entry: LeaseEntry) -> Lease:
    return Lease(
        entry.generation,
        entry.queue_offset,
        entry.at_ms,
        client_id=entry.client_id if entry.is_renewed else "",
        consumer=entry.client_id,
        message_group=entry.message_group,
        is_changed=entry.is_changed,
        is_suspended=entry.is_suspended,
        attempt_id=entry.attempt_id,
        leased_ms=entry.leased_ms,
        is_lengthened=entry.is_lengthened,
    )


@dataclass(slots=True)
class MessageGroup:
    """State of a message group: the number of leased messages and a heap of waiting offsets.

    `given_ms` is the time of the last delivery, or 0 if unknown.
    """

    in_flight: int = 0
    waiting: list[int] = field(default_factory=list)
    given_ms: int = 0


class MessageGroups:
    """The message groups of a queue that are not free."""

    def __init__(self) -> None:
        self._groups: dict[str, MessageGroup] = {}
        self._turns: dict[int, str] = {}
        self.parked_count = 0
        """Number of waiting messages without the turn of their message group."""

    def is_free(self, name: str, offset: int) -> bool:
        """Return whether a message group is free or `offset` has its turn."""
        return name not in self._groups or offset in self._turns

    def has_lease(self, name: str) -> bool:
        """Return whether any message in a message group is leased."""
        group = self._groups.get(name)
        return group is not None and group.in_flight > 0

    def next_parked(self, name: str) -> int | None:
        """Return the lowest parked offset in a message group, or None.

        A run may continue there.
        """
        group = self._groups.get(name)
        return group.waiting[0] if group and group.waiting else None

    def park(self, name: str, offset: int) -> None:
        """Park a message whose message group is not free."""
        heapq.heappush(self._groups[name].waiting, offset)
        self.parked_count += 1

    def keep_turn(self, name: str, offset: int) -> None:
        """Close the message group of a set-aside message. The message keeps its turn."""
        assert self.is_free(name, offset), f"{offset} is set aside, and {name} is not free"
        self._groups.setdefault(name, MessageGroup())
        self._turns[offset] = name

    def unpark(self, name: str, offset: int) -> None:
        """Remove a parked message. This takes time linear in the number of waiting messages."""
        waiting = self._groups[name].waiting
        waiting.remove(offset)
        heapq.heapify(waiting)
        self.parked_count -= 1
        assert self.parked_count >= len(waiting), "fewer are parked than in one message group"

    def waiting_since(self) -> list[int]:
        """Return the last delivery time, in milliseconds, for each message group with waiting messages.

        Groups whose time is unknown are omitted.
        """
        has_turn = set(self._turns.values())
        return [
            one.given_ms
            for name, one in self._groups.items()
            if one.given_ms and (one.waiting or name in has_turn)
        ]

    def leased(self, name: str, offset: int, leased_ms: int) -> None:
        """Record a lease, and remove its message from the waiting messages."""
        group = self._groups.setdefault(name, MessageGroup())
        group.in_flight += 1
        group.given_ms = leased_ms
        self._turns.pop(offset, None)
        if group.waiting and group.waiting[0] == offset:
            heapq.heappop(group.waiting)
            self.parked_count -= 1

    def returned(self, name: str, offset: int) -> int | None:
        """Park a message whose lease has ended. Return the offset that now has the turn, or None."""
        self.park(name, offset)
        return self.done(name)

    def done(self, name: str) -> int | None:
        """Record the end of a lease. Return the offset that now has the turn, or None."""
        group = self._groups[name]
        group.in_flight -= 1
        assert group.in_flight >= 0, "a message group ends more leases than it has"
        return self._next_turn(name, group)

    def passed(self, offset: int) -> int | None:
        """Revoke a message's turn. Return the offset that now has the turn, or None."""
        name = self._turns.pop(offset, None)
        return None if name is None else self._next_turn(name, self._groups[name])

    def cut(self, offset: int) -> list[int]:
        """Remove the waiting messages below `offset`. Return the offsets that now have the turn."""
        for group in self._groups.values():
            left = sorted(one for one in group.waiting if one >= offset)  # A sorted list is a valid heap.
            self.parked_count -= len(group.waiting) - len(left)
            group.waiting = left
        # Delivery turns are passed after all removals, so that no message below `offset` gets a turn.
        turns = [self.passed(turn) for turn in list(self._turns) if turn < offset]
        return [turn for turn in turns if turn is not None]

    def _next_turn(self, name: str, group: MessageGroup) -> int | None:
        # The delivery turn is passed on when the last lease of a run ends. If the delivery turn were passed
        # on earlier, a later message could be delivered before leased messages of the run that may have to be
        # redelivered.
        if group.in_flight:
            return None
        if not group.waiting:
            del self._groups[name]
            return None
        turn = heapq.heappop(group.waiting)
        self.parked_count -= 1
        assert self.parked_count >= len(group.waiting), "fewer are parked than in one message group"
        assert turn not in self._turns, f"{turn} has the turn twice"
        self._turns[turn] = name
        return turn
