"""The offsets of one group on one queue: what is done, what failed before, what a FIFO lease holds.

    ... done ...|committed_offset ... done, tried, held by a lease that is a record, or untouched ...

Every offset below `committed_offset` is done; above it the done ones are ranges. Of those that are not done
the offsets know the attempts that ended (`attempts.py`) and, of message groups and lite topics, the leases
that stand.

This is all of it that is durable. It changes by what records say and by nothing else: whoever decides
something calls the same function that a start calls with what it reads from the record:

    finish      acknowledged, passed over, or moved to the dead letters    `acks.py`
    take        a lease began or ended                                     `lease_records.py`
    reopen      some are to come again after all                           `services.broker.groups.groups`
    skip_to     the log below was deleted                                  likewise

A message whose lease is no record (those without a message group) may be out nevertheless: `in_flight.py`.

Memory: the attempts at what is not done, and the holes between what is done. Weak spot: one message that is
never acknowledged holds the committed offset; what is done above it costs a range for each hole, and `tried`
and a long `finish` look at all attempts.
"""

from __future__ import annotations

from typing import Any

from commitlog.facts.lease_records import Kind, LeaseEntry
from consumequeue.attempts import NEVER, Attempts, Failure
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
        """Whether the offsets say nothing: they are as good as not there."""
        return not (self.committed_offset or self._done.count or self._attempts)

    @property
    def done_above_count(self) -> int:
        """The number of messages above the committed offset that are done."""
        return self._done.count

    @property
    def done_until(self) -> int:
        """The offset from which on nothing is done."""
        return self._done.end or self.committed_offset

    def is_done(self, offset: int) -> bool:
        """Return whether a message is done."""
        return offset < self.committed_offset or offset in self._done

    def open_from(self, offset: int) -> int:
        """Return the first offset at or above `offset` that is not done."""
        return self._done.behind(max(offset, self.committed_offset))

    def open_count(self, min_offset: int, end_offset: int) -> int:
        """Return how many offsets from `min_offset` up to before `end_offset` are not done."""
        first = max(min_offset, self.committed_offset)
        done = (max(0, min(at + count, end_offset) - max(at, first)) for at, count in self._done)
        return max(0, end_offset - first - sum(done))

    def attempts(self, offset: int) -> Attempts:
        """Return the attempts that records tell of: those that ended, and that of a FIFO lease."""
        return self._attempts.get(offset, NEVER)

    def was_given(self, offset: int) -> bool:
        """Return whether records tell that a message was given out before, and it is not done."""
        return offset in self._attempts

    def tried(self, attempts_max: int) -> list[int]:
        """Return the offsets, ascending, that had `attempts_max` attempts and are not done."""
        return sorted(at for at, one in self._attempts.items() if one.made >= attempts_max)

    def finish(self, first: int, end: int) -> None:
        """Finish the messages from `first` up to before `end`; nothing more is known of them."""
        if self._attempts:  # of which leases are a part
            self._forget(first, end)
        if first > self.committed_offset:
            self._done.add(first, end)
        elif end > self.committed_offset:
            self._rise(end)

    def take(self, entry: LeaseEntry) -> None:
        """Take in that a lease stands, or ended; nothing comes of a lease on a message that is done."""
        offset, known = entry.queue_offset, self.attempts(entry.queue_offset)
        if entry.kind is Kind.LEASED:
            # On what is done only a lease that stands is renewed: its message is gone (`skip_to`), and its
            # consumer still has it.
            if offset in self.leases or not self.is_done(offset):
                self.leases[offset] = entry
                self._attempts[offset] = known._replace(made=entry.attempts)
            assert len(self.leases) <= len(self._attempts), "a lease without attempts"
            return
        self.leases.pop(offset, None)
        if self.is_done(offset):
            self._attempts.pop(offset, None)
            return
        failure = Failure(entry.at_ms, entry.cause, entry.client_id) if entry.cause else None
        self._attempts[offset] = Attempts(entry.attempts, known.first, known.last).failed(failure)

    def skip_to(self, queue_offset: int) -> None:
        """Finish everything below `queue_offset`, which is gone; a lease on it stands until it ends."""
        if queue_offset <= self.committed_offset:
            return
        self._done.cut(queue_offset)
        self._attempts = {
            at: one for at, one in self._attempts.items() if at >= queue_offset or at in self.leases
        }
        self._rise(queue_offset)
        assert self.committed_offset <= self.done_until, "more is committed than is done"

    def reopen(self, offsets: list[int]) -> None:
        """Take back that offsets, ascending, at least one, are done; for queues read by lite topics."""
        # What was committed becomes a range of what is done, of which the offsets can be taken out.
        if offsets[0] < self.committed_offset:
            self._done.add(offsets[0], self.committed_offset)
            self.committed_offset = offsets[0]
        self._done.take_out(offsets)
        self._rise(self.committed_offset)
        assert self.committed_offset <= offsets[0], "what was taken back is committed again"

    def freeze(self) -> Any:
        """Return what a snapshot keeps: committed offset, what is done above it, attempts, FIFO leases.

        Which leases a takeover has lengthened is said apart: programs that do not know of it pass over it.
        """
        return kept(self.taken())

    def taken(self) -> int | dict[str, Any]:
        """Return the offsets at this moment, of which `kept` makes what a snapshot keeps.

        The committed offset where that says all, as of most queues: so a checkpoint of many takes little time
        of the loop. 0 of untouched ones.
        """
        if not (self._done.count or self._attempts):
            return self.committed_offset
        attempts = [[offset, *one] for offset, one in sorted(self._attempts.items())]
        leases = [_frozen(one) for one in self.leases.values()]
        done = list(self._done)
        lengthened = [offset for offset, one in self.leases.items() if one.is_lengthened]
        frozen = {"low": self.committed_offset, "done": done, "attempts": attempts, "leases": leases}
        return frozen | ({"lengthened": lengthened} if lengthened else {})

    @classmethod
    def thaw(cls, frozen: Any) -> GroupOffsets:
        """Return the offsets that were frozen."""
        offsets = cls(frozen["low"])
        offsets._done = OffsetRanges(frozen["done"])
        for offset, count, first, last in frozen["attempts"]:
            first, last = (Failure(*one) if one else None for one in (first, last))
            offsets._attempts[offset] = Attempts(count, first, last)
        for one in frozen["leases"]:
            offsets.leases[one[1]] = _thawed(one, offsets.attempts(one[1]).made)
            offsets._attempts.setdefault(one[1], NEVER)
        for offset in frozen.get("lengthened", ()):
            offsets.leases[offset] = offsets.leases[offset]._replace(is_lengthened=True)
        return offsets

    def _forget(self, first: int, end: int) -> None:
        # The shorter of two ways: acknowledgements are few at a time, but a filter passes over up to 8,192
        # messages at once, of which hardly any was tried.
        known = self._attempts
        is_short = end - first <= len(known)
        for offset in range(first, end) if is_short else [at for at in known if first <= at < end]:
            known.pop(offset, None)
            self.leases.pop(offset, None)
        assert len(self.leases) <= len(known), "a lease without attempts"

    def _rise(self, committed_offset: int) -> None:
        """Let the committed offset rise to `committed_offset`, and over what is done behind."""
        assert committed_offset >= self.committed_offset, "only `reopen` takes the committed offset back"
        self.committed_offset = committed_offset
        if self._done.count:
            self.committed_offset = self._done.behind(committed_offset)
            self._done.cut(self.committed_offset)


def kept(taken: int | dict[str, Any]) -> dict[str, Any]:
    """Return what a snapshot keeps of offsets that were taken; in any thread."""
    if isinstance(taken, dict):
        return taken
    return {"low": taken, "done": [], "attempts": [], "leases": []}


def _frozen(one: LeaseEntry) -> list[Any]:
    _, _, _, offset, generation, visible_ms, leased_ms, consumer, is_renewed, *others, attempt_id, _ = one
    renewed_for = consumer if is_renewed else ""
    return [generation, offset, visible_ms, renewed_for, consumer, *others, attempt_id, leased_ms]


def _thawed(frozen: list[Any], made: int) -> LeaseEntry:
    """Return the lease entry of a snapshot."""
    generation, offset, visible_ms, renewed_for, consumer, message_group, *others, leased_ms = frozen
    is_changed, is_suspended, attempt_id = others
    when, whose = (generation, visible_ms, leased_ms), (consumer, bool(renewed_for), message_group)
    return LeaseEntry(Kind.LEASED, 0, made, offset, *when, *whose, is_changed, is_suspended, attempt_id)
