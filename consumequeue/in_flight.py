"""What a group has out of one queue: what is leased, what waits to be given out again, what comes next.

    ... known to `GroupOffsets` ...|next_offset ... never given out since the start ...

A message on its way through a group; `offsets.py` keeps what of it is durable:

    now      event                                            then
    fresh    a receive comes to it, nothing holds it          leased
    fresh    a receive comes to it, its message group is out  parked
    fresh    the filter does not want it, or it is damaged    done
    leased   acknowledged, or given up                        done
    leased   its lease ended, without a message group         ready
    leased   its lease ended, in a message group              parked, before the later ones
    parked   its message group has nothing leased: its turn   ready
    ready    a receive takes it, lowest first, before fresh   leased

Below `next_offset` each offset that is not done is leased to a consumer until `visible_ms`, ready, or parked.
A lease is known by its generation, which is never used twice.

Message groups. One that has nothing leased and nothing waiting is not known here at all:

    free ---- a message is leased ----> closed ---- the last lease ended ----> its lowest message has the turn
     ^                                    ^                                          |            |
     +------ nothing of it waits ---------|------------------------------------------+            |
                                          +------------------ it is leased -----------------------+

- One that is closed or has the turn holds the later ones of its messages back: they are parked.
- Only the message that has the turn is given out, and behind it, in the same receive, as many more as a run
  may have (`services.broker.leases`).

Nothing of this is durable. It is derived from the offsets: at a start only the leases that are records stand,
and everything else that is not done is fresh. Whatever finishes a message or ends a lease changes the offsets
first, then this.

A queue of lite topics is not read in order: messages are found by their lite topics (`lite_index.py`). There
`next_offset` stays at the committed offset, nothing is ready or parked, and a lite topic is a message group
whose next message is looked for when the lease on the last one has ended.

Memory: what is leased, ready or parked, each of which has a limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from commitlog import limits
from consumequeue.attempts import Attempts
from consumequeue.lease_records import LeaseEntry
from consumequeue.offsets import GroupOffsets


@dataclass(slots=True)
class Lease:
    """One message in a consumer's hands.

    `client_id` is set when the broker renews the lease for that client; it does so until `renewed_until_ms`.
    `consumer` is who has it, in any case; `is_gone`: it left. `is_changed`: it asked for another time;
    `is_suspended`: this attempt is not to be counted. `attempt_id` is what the receive that leased it called
    itself: a receive of the same name has not heard of the lease. `handle` is what its consumer was given, if
    that is known: of a lease of before a restart it is not.
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


class InFlight:
    """What is out of a queue whose offsets are these."""

    def __init__(self, offsets: GroupOffsets) -> None:
        self.offsets = offsets
        self.next_offset = offsets.committed_offset
        self._ready: list[int] = []
        self._leases: dict[int, Lease] = {}
        self.message_groups = MessageGroups()
        for entry in offsets.leases.values():
            self._hold(_lease(entry))
        self._restored_until = max(self._leases, default=-1) + 1  # below it, what is fresh may be leased

    @property
    def leased_count(self) -> int:
        """How many messages are leased."""
        return len(self._leases)

    @property
    def waiting_count(self) -> int:
        """How many messages are ready to be given out again or parked."""
        return len(self._ready) + self.message_groups.parked_count

    @property
    def is_crowded(self) -> bool:
        """Whether so much is leased or waits that nothing fresh may be given out."""
        return (
            len(self._leases) + len(self._ready) >= limits.IN_FLIGHT_PER_QUEUE_MAX
            or self.message_groups.parked_count >= limits.PARKED_PER_QUEUE_MAX
        )

    @property
    def fresh_room(self) -> int:
        """How many may be given out from the next offset on; none where some behind are done or leased."""
        if self.next_offset < max(self._restored_until, self.offsets.done_until):
            return 0
        return limits.IN_FLIGHT_PER_QUEUE_MAX - len(self._leases) - len(self._ready)

    @property
    def has_ready(self) -> bool:
        """Whether something is to be given out again, or has its turn."""
        return bool(self._ready)

    def leases(self) -> Iterator[Lease]:
        """Everything that is leased."""
        return iter(self._leases.values())

    def attempts(self, offset: int) -> Attempts:
        """How often the message was given out so far, the attempt under way included, and how that failed."""
        known = self.offsets.attempts(offset)
        is_under_way = offset in self._leases and offset not in self.offsets.leases
        return known._replace(made=known.made + 1) if is_under_way else known

    def is_used_up(self, offset: int, attempts_max: int) -> bool:
        """Whether a message had so many attempts, and is neither leased nor done."""
        has_had_them = self.offsets.attempts(offset).made >= attempts_max
        return has_had_them and offset not in self._leases and not self.offsets.is_done(offset)

    def candidate(self, end_offset: int) -> int | None:
        """The offset to look at next, of a queue that ends at `end_offset`; None if there is none."""
        while self._ready and self.offsets.is_done(self._ready[0]):
            heapq.heappop(self._ready)
        if self._ready:
            return self._ready[0]
        if self.is_crowded:
            return None
        self._skip_known()
        return self.next_offset if self.next_offset < end_offset else None

    def unleased_until(self, first: int, end: int) -> int:
        """How far from `first` on, up to `end`, fresh messages are leased to nobody."""
        if first >= self._restored_until:
            return end
        return min((leased for leased in self._leases if first <= leased < end), default=end)

    def park(self, offset: int, message_group: str) -> None:
        """The candidate waits for its message group."""
        assert offset == self.next_offset, f"{offset} is not fresh"
        self.next_offset += 1
        self.message_groups.park(message_group, offset)

    def lease(self, lease: Lease) -> None:
        """Gives out the candidate, or the next of a run."""
        offset = lease.queue_offset
        if offset == self.next_offset:
            self.next_offset += 1
        elif self._ready and self._ready[0] == offset:
            heapq.heappop(self._ready)
        else:
            assert offset < self.next_offset, f"{offset} is not the next to give out"
        self._hold(lease)

    def lease_run(self, leases: Sequence[Lease]) -> None:
        """Gives out fresh messages, each behind the other, from the candidate on; none of a message group."""
        self._leases.update({lease.queue_offset: lease for lease in leases})
        self.next_offset += len(leases)

    def lease_found(self, lease: Lease) -> None:
        """Gives out a message that was found by its lite topic, whatever lies before it."""
        self._hold(lease)

    def replace(self, lease: Lease) -> None:
        """A standing lease on the same message gives way to `lease`; it is the same attempt."""
        assert lease.queue_offset in self._leases
        self._leases[lease.queue_offset] = lease

    def withdraw(self, offset: int, message_group: str) -> None:
        """Takes a message that is not leased from its place among those that wait, to be finished next."""
        assert offset not in self._leases
        if offset >= self.next_offset:
            return
        if offset in self._ready:
            self._ready.remove(offset)
            heapq.heapify(self._ready)
        else:
            self.message_groups.unpark(message_group, offset)

    def finished(self, offsets: Iterable[int]) -> None:
        """Messages, leased or candidates, are done; perhaps fresh ones behind them are, too."""
        self.next_offset = max(self.next_offset, self.offsets.committed_offset)
        for offset in offsets:
            lease = self._leases.pop(offset, None)
            if lease is None:
                if self._ready and self._ready[0] == offset:
                    heapq.heappop(self._ready)
                self._give_turn(self.message_groups.passed(offset))
            elif lease.message_group:
                self._give_turn(self.message_groups.done(lease.message_group))

    def skipped_to(self, queue_offset: int) -> None:
        """Everything below is gone, and waits no more; a lease stands until it ends."""
        self.next_offset = max(self.next_offset, self.offsets.committed_offset)
        self._ready = sorted(offset for offset in self._ready if offset >= queue_offset)
        for turn in self.message_groups.cut(queue_offset):
            self._give_turn(turn)

    def reopened(self) -> None:
        """Messages of lite topics are to come again, perhaps from further back."""
        self.next_offset = self.offsets.committed_offset

    def give_back(self, offset: int) -> None:
        """The lease ended without an acknowledgement: the message will be given out again."""
        lease = self._leases.pop(offset)
        if self.offsets.is_done(offset) or offset >= self.next_offset:
            # It is gone, or still to be come upon after a restart.
            if lease.message_group:
                self._give_turn(self.message_groups.done(lease.message_group))
        elif lease.message_group:
            self._give_turn(self.message_groups.returned(lease.message_group, offset))
        else:
            heapq.heappush(self._ready, offset)

    def _skip_known(self) -> None:
        """Moves the next offset over what is done, or leased since before a restart."""
        while True:
            self.next_offset = self.offsets.open_from(self.next_offset)
            if self.next_offset not in self._leases:
                return
            self.next_offset += 1

    def _hold(self, lease: Lease) -> None:
        self._leases[lease.queue_offset] = lease
        if lease.message_group:
            self.message_groups.leased(lease.message_group, lease.queue_offset)

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
    )


@dataclass(slots=True)
class MessageGroup:
    """One message group: how many of its messages are leased, and which wait."""

    in_flight: int = 0
    waiting: list[int] = field(default_factory=list)


class MessageGroups:
    """All message groups that are not free."""

    def __init__(self) -> None:
        self._groups: dict[str, MessageGroup] = {}
        self._turns: dict[int, str] = {}
        self.parked_count = 0
        """How many messages wait without having the turn."""

    def is_free(self, name: str, offset: int) -> bool:
        """Whether a candidate may be leased: nothing of its message group is, or comes before it."""
        return name not in self._groups or offset in self._turns

    def next_parked(self, name: str) -> int | None:
        """The lowest message of a message group that is parked: the next of a run."""
        group = self._groups.get(name)
        return group.waiting[0] if group and group.waiting else None

    def park(self, name: str, offset: int) -> None:
        """A message waits for its message group."""
        heapq.heappush(self._groups[name].waiting, offset)
        self.parked_count += 1

    def unpark(self, name: str, offset: int) -> None:
        """A message that waits without having the turn no longer does; costs a look at all that wait."""
        waiting = self._groups[name].waiting
        waiting.remove(offset)
        heapq.heapify(waiting)
        self.parked_count -= 1

    def leased(self, name: str, offset: int) -> None:
        """A message is in a consumer's hands."""
        group = self._groups.setdefault(name, MessageGroup())
        group.in_flight += 1
        self._turns.pop(offset, None)
        if group.waiting and group.waiting[0] == offset:
            heapq.heappop(group.waiting)
            self.parked_count -= 1

    def returned(self, name: str, offset: int) -> int | None:
        """A lease ended without acknowledgement; what has the turn now, None while others are leased."""
        self.park(name, offset)
        return self.done(name)

    def done(self, name: str) -> int | None:
        """A lease has ended; the offset that has the turn now, None if none has."""
        group = self._groups[name]
        group.in_flight -= 1
        return self._next_turn(name, group)

    def passed(self, offset: int) -> int | None:
        """A message is not given out at all; if it had the turn, the offset that has it now."""
        name = self._turns.pop(offset, None)
        return None if name is None else self._next_turn(name, self._groups[name])

    def cut(self, offset: int) -> list[int]:
        """Forgets the messages below `offset` that wait; returns the offsets that have the turn for that."""
        for group in self._groups.values():
            left = sorted(one for one in group.waiting if one >= offset)
            self.parked_count -= len(group.waiting) - len(left)
            group.waiting = left
        turns = [self.passed(turn) for turn in list(self._turns) if turn < offset]
        return [turn for turn in turns if turn is not None]

    def _next_turn(self, name: str, group: MessageGroup) -> int | None:
        if group.in_flight:
            return None
        if not group.waiting:
            del self._groups[name]
            return None
        self.parked_count -= 1
        turn = heapq.heappop(group.waiting)
        self._turns[turn] = name
        return turn
