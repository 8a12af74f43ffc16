"""The progress of one group on one queue: what is done, what is leased, what comes next.

    ... done ...|low_offset ... done, leased, waiting, mixed ...|fresh_offset ... never given out ...

Every offset below `low_offset` is done. Between it and `fresh_offset` each one is done, leased to a
consumer until `visible_ms`, ready (its lease ended without an acknowledgement, or its message group's turn
has come) and given out before anything fresh, lowest first, or parked behind its message group
(`consumequeue.message_groups`). A lease is known by its generation, which is never used twice.

A queue of lite topics is not read in order: messages are found by their lite topics (`lite_index.py`). There
`fresh_offset` stays at `low_offset`, nothing is ready or parked, and a lite topic is a message group whose
next message is looked for when the lease on the last one has ended.

Memory: what is leased, ready or parked, each of which has a limit, and the holes between what is done.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from commitlog import limits
from consumequeue.attempts import Attempts, Failure
from consumequeue.message_groups import MessageGroups
from consumequeue.offset_ranges import OffsetRanges

_NEVER = Attempts()


@dataclass(slots=True)
class Lease:
    """One message in a consumer's hands.

    `client_id` is set when the broker renews the lease for that client; it does so until `renewed_until_ms`.
    `consumer` is who has it, in any case; `is_gone`: it left. `is_changed`: it asked for another time;
    `is_suspended`: this attempt is not to be counted. `attempt_id` is what the receive that leased it called
    itself: a receive of the same name has not heard of the lease.
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


class Progress:
    """The progress of a group that starts at queue offset `low_offset`."""

    def __init__(self, low_offset: int = 0) -> None:
        self.low_offset = low_offset
        self.fresh_offset = low_offset
        self._done = OffsetRanges()
        self._ready: list[int] = []
        self._leases: dict[int, Lease] = {}
        self._attempts: dict[int, Attempts] = {}
        self._message_groups = MessageGroups()
        self._restored_until = 0  # up to here, what is fresh may have been leased before a restart

    @property
    def in_flight_count(self) -> int:
        """How many messages are leased."""
        return len(self._leases)

    @property
    def waiting_count(self) -> int:
        """How many messages are ready to be given out again or parked."""
        return len(self._ready) + self._message_groups.parked_count

    @property
    def done_above_count(self) -> int:
        """How many messages above the low-water mark are done."""
        return self._done.count

    @property
    def is_crowded(self) -> bool:
        """Whether so much is leased or waits that nothing fresh may be given out."""
        return (
            len(self._leases) + len(self._ready) >= limits.IN_FLIGHT_PER_QUEUE_MAX
            or self._message_groups.parked_count >= limits.PARKED_PER_QUEUE_MAX
        )

    @property
    def has_ready(self) -> bool:
        """Whether something is to be given out again, or has its turn."""
        return bool(self._ready)

    def leases(self) -> Iterator[Lease]:
        """Everything that is leased."""
        return iter(self._leases.values())

    def open_from(self, offset: int) -> int:
        """The first offset at or above `offset` that is not done."""
        return self._done.behind(max(offset, self.low_offset))

    def open_count(self, min_offset: int, next_offset: int) -> int:
        """How many offsets of a queue are not done; what lies below `min_offset` is gone, done or not."""
        first = max(min_offset, self.low_offset)
        done = (max(0, at + count - max(at, first)) for at, count in self._done)
        return next_offset - first - sum(done)

    def candidate(self, next_offset: int) -> int | None:
        """The offset to look at next, of a queue that ends at `next_offset`; None if there is none."""
        while self._ready and self._is_done(self._ready[0]):
            heapq.heappop(self._ready)
        if self._ready:
            return self._ready[0]
        if self.is_crowded:
            return None
        self._skip_known()
        return self.fresh_offset if self.fresh_offset < next_offset else None

    def is_free(self, offset: int, message_group: str) -> bool:
        """Whether a candidate may be leased: nothing of its message group is, or comes before it."""
        return self._message_groups.is_free(message_group, offset)

    def park(self, offset: int, message_group: str) -> None:
        """The candidate waits for its message group."""
        assert offset == self.fresh_offset, f"{offset} is not fresh"
        self.fresh_offset += 1
        self._message_groups.park(message_group, offset)

    def next_parked(self, message_group: str) -> int | None:
        """The lowest message of a message group that is parked: the next of a run."""
        return self._message_groups.next_parked(message_group)

    def lease(self, lease: Lease) -> int:
        """Gives out the candidate, or the next of a run; returns which attempt this is, from 1."""
        self._take(lease.queue_offset)
        return self.lease_found(lease)

    def lease_found(self, lease: Lease) -> int:
        """Gives out a message that was found by its lite topic, whatever lies before it; likewise."""
        offset = lease.queue_offset
        self._hold(lease)
        attempts = self._attempts.setdefault(offset, Attempts())
        attempts.count += 1
        return attempts.count

    def attempts(self, offset: int) -> Attempts:
        """How often the message was given out so far, and how that failed."""
        return self._attempts.get(offset, _NEVER)

    def was_given(self, offset: int) -> bool:
        """Whether the message was given out before, and is not done."""
        return offset in self._attempts

    def used_up(self, attempts_max: int) -> list[int]:
        """Messages that had so many attempts, ascending, and are neither leased nor done."""
        return sorted(
            offset
            for offset, attempts in self._attempts.items()
            if attempts.count >= attempts_max and self.is_used_up(offset, attempts_max)
        )

    def is_used_up(self, offset: int, attempts_max: int) -> bool:
        """Whether a message had so many attempts, and is neither leased nor done."""
        has_had_them = self.attempts(offset).count >= attempts_max
        return has_had_them and offset not in self._leases and not self._is_done(offset)

    def withdraw(self, offset: int, message_group: str) -> None:
        """Takes a message that is not leased from its place among those that wait, to be finished next."""
        assert offset not in self._leases
        if offset >= self.fresh_offset:
            return
        if self._ready and self._ready[0] == offset:
            heapq.heappop(self._ready)
        elif offset in self._ready:
            self._ready.remove(offset)
            heapq.heapify(self._ready)
        else:
            self._message_groups.unpark(message_group, offset)

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
        lease = self._leases.pop(offset, None)
        self._attempts.pop(offset, None)
        self.finish_many(offset, offset + 1)
        if lease is None:
            if self._ready and self._ready[0] == offset:
                heapq.heappop(self._ready)
            self._give_turn(self._message_groups.passed(offset))
        elif lease.message_group:
            self._give_turn(self._message_groups.done(lease.message_group))

    def finish_many(self, first: int, end: int) -> None:
        """The messages from `first` up to before `end`, none of them leased or waiting, are done."""
        if end > self.low_offset:
            self._done.add(max(first, self.low_offset), end)
            self._rise(self._done.behind(self.low_offset))

    def skip_unwanted(self, first: int, end: int) -> None:
        """Fresh messages from `first` up to before `end` are not wanted; a leased one is where it stops."""
        if first < self._restored_until:
            end = min(end, min((leased for leased in self._leases if leased >= first), default=end))
        self.finish_many(first, end)
        if 0 < self._restored_until <= end:
            self._restored_until = 0
            self._attempts = {at: one for at, one in self._attempts.items() if not self._is_over(at)}

    def open_count_below(self, queue_offset: int) -> int:
        """How many offsets below this one are not done."""
        done = (min(at + count, queue_offset) - at for at, count in self._done if at < queue_offset)
        return max(0, queue_offset - self.low_offset - sum(done))

    def skip_to(self, queue_offset: int) -> None:
        """Everything below is done with, because it is gone."""
        if queue_offset <= self.low_offset:
            return
        self._done.cut(queue_offset)
        self._rise(self._done.behind(queue_offset))
        self._attempts = {
            offset: one
            for offset, one in self._attempts.items()
            if offset >= queue_offset or offset in self._leases
        }
        self._ready = sorted(offset for offset in self._ready if offset >= queue_offset)
        for turn in self._message_groups.cut(queue_offset):
            self._give_turn(turn)

    def reopen(self, offsets: list[int]) -> None:
        """These, ascending, are not done after all, of a queue that is read by lite topics."""
        if offsets[0] < self.low_offset:
            self._done.add(offsets[0], self.low_offset)
            self.low_offset = self.fresh_offset = offsets[0]
        self._done.take_out(offsets)
        self._rise(self._done.behind(self.low_offset))

    def give_back(self, offset: int, failure: Failure | None) -> None:
        """The lease ended without an acknowledgement: the message will be given out again.

        Without a `failure` the attempt does not count.
        """
        lease = self._leases.pop(offset)
        attempts = self._attempts[offset]
        if failure is None:
            attempts.count -= 1
        else:
            attempts.failed(failure)
        if self._is_done(offset):
            self._attempts.pop(offset)
            self._let_go(lease)
        elif offset >= self.fresh_offset:
            self._let_go(lease)
        elif lease.message_group:
            self._give_turn(self._message_groups.returned(lease.message_group, offset))
        else:
            heapq.heappush(self._ready, offset)

    def restore_lease(self, lease: Lease, attempt_count: int) -> None:
        """A lease of before a restart stands again, unless its message is done."""
        if lease.queue_offset in self._leases:
            self.replace(lease)
        elif self._is_done(lease.queue_offset):
            return
        else:
            self._hold(lease)
        self._attempts.setdefault(lease.queue_offset, Attempts()).count = attempt_count
        self._restored_until = max(self._restored_until, lease.queue_offset + 1)

    def restore_end(self, offset: int, attempt_count: int, failure: Failure | None) -> None:
        """A lease of before a restart had ended without acknowledgement."""
        if offset in self._leases:
            self.give_back(offset, None)
        if self._is_done(offset):
            return
        self._restored_until = max(self._restored_until, offset + 1)
        attempts = self._attempts.setdefault(offset, Attempts())
        attempts.count = attempt_count
        if failure is not None:
            attempts.failed(failure)

    def freeze(self) -> Any:
        """The low-water mark, what is done above it, the attempts, and the leases that outlive a restart.

        An attempt under way whose lease does not outlive it is not counted, as it is in no record. That a
        message was given out is kept also where no attempt counts: its run comes again alone.
        """
        leases = [one for one in self._leases.values() if one.message_group]
        passing = self._leases.keys() - {one.queue_offset for one in leases}
        attempts = [
            [offset, one.count - (offset in passing), one.first, one.last]
            for offset, one in sorted(self._attempts.items())
            if offset not in passing or (one.count > 1 and not self._is_done(offset))
        ]
        return {
            "low": self.low_offset,
            "done": list(self._done),
            "attempts": attempts,
            "leases": [_frozen(one) for one in leases],
        }

    @classmethod
    def thaw(cls, frozen: Any) -> Progress:
        """The progress that was frozen; what was leased without a message group is given out again."""
        progress = cls(frozen["low"])
        progress._done = OffsetRanges(frozen["done"])
        for offset, count, first, last in frozen.get("attempts", ()):
            progress._attempts[offset] = Attempts(
                count, Failure(*first) if first else None, Failure(*last) if last else None
            )
            progress._restored_until = max(progress._restored_until, offset + 1)
        for one in frozen.get("leases", ()):
            lease = _thawed(*one)
            progress._hold(lease)
            progress._restored_until = max(progress._restored_until, lease.queue_offset + 1)
        return progress

    def _is_done(self, offset: int) -> bool:
        return offset < self.low_offset or offset in self._done

    def _is_over(self, offset: int) -> bool:
        return self._is_done(offset) and offset not in self._leases

    def _skip_known(self) -> None:
        """Moves the fresh offset over what is done, or leased since before a restart."""
        while True:
            self.fresh_offset = self._done.behind(self.fresh_offset)
            if self.fresh_offset not in self._leases:
                return
            self.fresh_offset += 1

    def _rise(self, low_offset: int) -> None:
        self.low_offset = low_offset
        self.fresh_offset = max(self.fresh_offset, low_offset)
        self._done.cut(low_offset)

    def _take(self, offset: int) -> None:
        if self._ready and self._ready[0] == offset:
            heapq.heappop(self._ready)
        elif offset == self.fresh_offset:
            self.fresh_offset += 1
        else:
            assert offset < self.fresh_offset, f"{offset} is not the next to give out"

    def _hold(self, lease: Lease) -> None:
        self._leases[lease.queue_offset] = lease
        if lease.message_group:
            self._message_groups.leased(lease.message_group, lease.queue_offset)

    def _let_go(self, lease: Lease) -> None:
        """A lease has ended on a message that is gone, or that is still to be come upon after a restart."""
        if lease.message_group:
            self._give_turn(self._message_groups.done(lease.message_group))

    def _give_turn(self, offset: int | None) -> None:
        if offset is not None:
            heapq.heappush(self._ready, offset)


def _frozen(lease: Lease) -> list[Any]:
    return [
        lease.generation,
        lease.queue_offset,
        lease.visible_ms,
        lease.client_id,
        lease.consumer,
        lease.message_group,
        lease.is_changed,
        lease.is_suspended,
        lease.attempt_id,
        lease.leased_ms,
    ]


def _thawed(
    generation: int,
    offset: int,
    visible_ms: int,
    client_id: str,
    consumer: str,
    message_group: str,
    is_changed: bool = False,
    is_suspended: bool = False,
    attempt_id: str = "",
    leased_ms: int = 0,
) -> Lease:
    return Lease(
        generation,
        offset,
        visible_ms,
        client_id,
        consumer=consumer,
        message_group=message_group,
        is_changed=is_changed,
        is_suspended=is_suspended,
        attempt_id=attempt_id,
        leased_ms=leased_ms,
    )
