"""The offsets of one group on one queue: what is done, what failed before, what a FIFO lease holds.

    ... done ...|committed_offset ... done, tried, held by a lease that is a record, or untouched ...

Every offset below `committed_offset` is done; above it the done ones are ranges. Of those that are not done
the offsets know the attempts that ended (`attempts.py`) and, of message groups and lite topics, the leases
that stand.

This is all of it that is durable. It changes by what records say and by nothing else: whoever decides
something calls the same function that a start calls with what it reads from the record:

    finish      acknowledged, passed over, or moved to the dead letters    `acks.py`
    take        a lease began or ended                                     `lease_records.py`
    reopen      some are to come again after all                           `services.broker.groups`
    skip_to     the log below was deleted                                  likewise

A message whose lease is no record (those without a message group) may be out nevertheless: `in_flight.py`.

Memory: the attempts at what is not done, and the holes between what is done.
"""

from __future__ import annotations

from typing import Any

from consumequeue.attempts import NEVER, Attempts, Failure
from consumequeue.lease_records import Kind, LeaseEntry
from consumequeue.offset_ranges import OffsetRanges


class GroupOffsets:
    """The offsets of a group that starts at `committed_offset`."""

    def __init__(self, committed_offset: int = 0) -> None:
        self.committed_offset = committed_offset
        self.leases: dict[int, LeaseEntry] = {}
        """The FIFO leases that stand, by queue offset; each has attempts, too."""
        self._done = OffsetRanges()
        self._attempts: dict[int, Attempts] = {}

    @property
    def is_untouched(self) -> bool:
        """Whether it says nothing: it is as good as not there."""
        return not (self.committed_offset or self._done.count or self._attempts)

    @property
    def done_above_count(self) -> int:
        """How many messages above the committed offset are done."""
        return self._done.count

    @property
    def done_until(self) -> int:
        """From there on nothing is done."""
        return self._done.end or self.committed_offset

    def is_done(self, offset: int) -> bool:
        """Whether a message is done."""
        return offset < self.committed_offset or offset in self._done

    def open_from(self, offset: int) -> int:
        """The first offset at or above `offset` that is not done."""
        return self._done.behind(max(offset, self.committed_offset))

    def open_count(self, min_offset: int, end_offset: int) -> int:
        """How many offsets of a queue are not done; what lies below `min_offset` is gone, done or not."""
        first = max(min_offset, self.committed_offset)
        done = (max(0, at + count - max(at, first)) for at, count in self._done)
        return end_offset - first - sum(done)

    def attempts(self, offset: int) -> Attempts:
        """The attempts at a message as records tell them: those that ended, and that of a FIFO lease."""
        return self._attempts.get(offset, NEVER)

    def was_given(self, offset: int) -> bool:
        """Whether records tell that the message was given out before, and it is not done."""
        return offset in self._attempts

    def tried(self, attempts_max: int) -> list[int]:
        """Messages that had so many attempts and are not done, ascending."""
        return sorted(at for at, one in self._attempts.items() if one.made >= attempts_max)

    def finish(self, first: int, end: int) -> None:
        """The messages from `first` up to before `end` are done; nothing more is known of them."""
        if self._attempts:
            self._forget(first, end)
        if first > self.committed_offset:
            self._done.add(first, end)
        elif end > self.committed_offset:
            self._rise(end)

    def take(self, entry: LeaseEntry) -> None:
        """A lease began to stand, or ended; nothing comes of one on a message that is done."""
        offset, known = entry.queue_offset, self.attempts(entry.queue_offset)
        if entry.kind is Kind.LEASED:
            if offset in self.leases or not self.is_done(offset):
                self.leases[offset] = entry
                self._attempts[offset] = known._replace(made=entry.attempts)
            return
        self.leases.pop(offset, None)
        if self.is_done(offset):
            self._attempts.pop(offset, None)
            return
        failure = Failure(entry.at_ms, entry.cause, entry.client_id) if entry.cause else None
        self._attempts[offset] = Attempts(entry.attempts, known.first, known.last).failed(failure)

    def open_count_below(self, queue_offset: int) -> int:
        """How many offsets below this one are not done."""
        done = (min(at + count, queue_offset) - at for at, count in self._done if at < queue_offset)
        return max(0, queue_offset - self.committed_offset - sum(done))

    def skip_to(self, queue_offset: int) -> None:
        """Everything below is done with, because it is gone; a lease on what is gone stands until it ends."""
        if queue_offset <= self.committed_offset:
            return
        self._done.cut(queue_offset)
        self._attempts = {
            at: one for at, one in self._attempts.items() if at >= queue_offset or at in self.leases
        }
        self._rise(queue_offset)

    def reopen(self, offsets: list[int]) -> None:
        """These, ascending, are not done after all, of a queue that is read by lite topics."""
        if offsets[0] < self.committed_offset:
            self._done.add(offsets[0], self.committed_offset)
            self.committed_offset = offsets[0]
        self._done.take_out(offsets)
        self._rise(self.committed_offset)

    def freeze(self) -> Any:
        """What a snapshot keeps: the committed offset, what is done above it, attempts, and FIFO leases."""
        attempts = [[offset, *one] for offset, one in sorted(self._attempts.items())]
        leases = [_frozen(one) for one in self.leases.values()]
        done = list(self._done)
        return {"low": self.committed_offset, "done": done, "attempts": attempts, "leases": leases}

    @classmethod
    def thaw(cls, frozen: Any) -> GroupOffsets:
        """The offsets that were frozen, by older versions, too."""
        offsets = cls(frozen["low"])
        offsets._done = OffsetRanges(frozen["done"])
        for offset, count, first, last in frozen.get("attempts", ()):
            first, last = (Failure(*one) if one else None for one in (first, last))
            offsets._attempts[offset] = Attempts(count, first, last)
        for one in frozen.get("leases", ()):
            offsets.leases[one[1]] = _thawed(one, offsets.attempts(one[1]).made)
            offsets._attempts.setdefault(one[1], NEVER)
        return offsets

    def _forget(self, first: int, end: int) -> None:
        known = self._attempts
        is_short = end - first <= len(known)
        for offset in range(first, end) if is_short else [at for at in known if first <= at < end]:
            known.pop(offset, None)
            self.leases.pop(offset, None)

    def _rise(self, committed_offset: int) -> None:
        """Lets the committed offset rise to there, and over what is done behind."""
        self.committed_offset = committed_offset
        if self._done.count:
            self.committed_offset = self._done.behind(committed_offset)
            self._done.cut(self.committed_offset)


def _frozen(one: LeaseEntry) -> list[Any]:
    _, _, _, offset, generation, visible_ms, leased_ms, consumer, is_renewed, *others, attempt_id = one
    renewed_for = consumer if is_renewed else ""
    return [generation, offset, visible_ms, renewed_for, consumer, *others, attempt_id, leased_ms]


def _thawed(frozen: list[Any], made: int) -> LeaseEntry:
    """Older snapshots lack the last of these."""
    generation, offset, visible_ms, renewed_for, consumer, message_group = frozen[:6]
    later: list[Any] = [False, False, "", 0]
    later[: len(frozen) - 6] = frozen[6:]
    is_changed, is_suspended, attempt_id, leased_ms = later
    when, whose = (generation, visible_ms, leased_ms), (consumer, bool(renewed_for), message_group)
    return LeaseEntry(Kind.LEASED, 0, made, offset, *when, *whose, is_changed, is_suspended, attempt_id)
