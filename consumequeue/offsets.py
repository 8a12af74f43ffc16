"""The durable offsets of one group on one queue: finished messages, failed attempts, and FIFO leases.

    ... done ...|committed_offset ... done, tried, leased with a record, or untouched ...

Every offset below `committed_offset` is done. Above `committed_offset`, the offsets that are done are stored
as ranges. For offsets that are not done, the failed attempts are stored (`attempts.py`) and, for message
groups and lite topics, the current leases.

`GroupOffsets` contains all durable state of a group on a queue, which only records change. A verb that
decides a change calls the same function that recovery calls with the content of the record:

    finish      acknowledged, skipped, or moved to the dead letters        `acks.py`
    take        a lease began or ended                                     `lease_records.py`
    reopen      finished messages will be delivered again                  `services.broker.groups.groups`
    skip_to     the log below was deleted                                  `services.broker.groups.groups`

A lease of a message without a message group is not recorded, and is only in `in_flight.py`.

Memory: the attempts of messages that are not done, and one range per hole between messages that are done.
Weak spot: one message that is never acknowledged blocks the committed offset. In this case, the messages done
above the committed offset take one range per hole, and `tried` and a long `finish` read all attempts.
"""

from __future__ import annotations

from typing import Any

from commitlog.facts.lease_records import Kind, LeaseEntry
from consumequeue.attempts import NEVER, Attempts, Failure
from consumequeue.offset_ranges import OffsetRanges


class GroupOffsets:
    """The offsets of a group on one queue, initially with all messages below `committed_offset` done."""

    def __init__(self, committed_offset: int = 0) -> None:
        self.committed_offset = committed_offset
        self.leases: dict[int, LeaseEntry] = {}
        """The current FIFO leases, by queue offset. Each leased offset also has attempts."""
        self._done = OffsetRanges()
        self._attempts: dict[int, Attempts] = {}

    @property
    def is_untouched(self) -> bool:
        """Whether the group has no state on the queue."""
        return not (self.committed_offset or self._done.count or self._attempts)

    @property
    def done_above_count(self) -> int:
        """The number of finished messages above the committed offset."""
        return self._done.count

    @property
    def done_until(self) -> int:
        """The end offset of the last message that is done."""
        return self._done.end or self.committed_offset

    def is_done(self, offset: int) -> bool:
        """Return whether a message is done."""
        return offset < self.committed_offset or offset in self._done

    def open_from(self, offset: int) -> int:
        """Return the first offset at or above `offset` that is not done."""
        return self._done.behind(max(offset, self.committed_offset))

    def open_count(self, min_offset: int, end_offset: int) -> int:
        """Return the number of unfinished offsets from `min_offset` up to `end_offset`, exclusive."""
        first = max(min_offset, self.committed_offset)
        done = (max(0, min(at + count, end_offset) - max(at, first)) for at, count in self._done)
        return max(0, end_offset - first - sum(done))

    def attempts(self, offset: int) -> Attempts:
        """Return the recorded attempts of a message, including the attempt of a FIFO lease."""
        return self._attempts.get(offset, NEVER)

    def was_given(self, offset: int) -> bool:
        """Return whether a message is not done and, according to records, was delivered before."""
        return offset in self._attempts

    def tried(self, attempts_max: int) -> list[int]:
        """Return the ascending offsets of unfinished messages that have had `attempts_max` attempts."""
        return sorted(at for at, one in self._attempts.items() if one.made >= attempts_max)

    def finish(self, first: int, end: int) -> None:
        """Finish the messages from `first` up to `end`, exclusive, and drop their attempts and leases."""
        if self._attempts:  # Every lease has attempts.
            self._forget(first, end)
        if first > self.committed_offset:
            self._done.add(first, end)
        elif end > self.committed_offset:
            self._rise(end)

    def take(self, entry: LeaseEntry) -> None:
        """Apply the start or the end of a lease, except a new lease of a message that is done."""
        offset, known = entry.queue_offset, self.attempts(entry.queue_offset)
        if entry.kind is Kind.LEASED:
            # An existing lease of a message that is done is renewed, because the message was deleted
            # (`skip_to`) but the consumer still has the message.
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
        """Finish all messages below `queue_offset`, which were deleted. Leases remain until they end."""
        if queue_offset <= self.committed_offset:
            return
        self._done.cut(queue_offset)
        self._attempts = {
            at: one for at, one in self._attempts.items() if at >= queue_offset or at in self.leases
        }
        self._rise(queue_offset)
        assert self.committed_offset <= self.done_until, "more is committed than is done"

    def reopen(self, offsets: list[int]) -> None:
        """Reopen offsets that are done, given as an ascending list, for queues of lite topics."""
        # The committed offsets become a range of done offsets, from which the reopened offsets are removed.
        if offsets[0] < self.committed_offset:
            self._done.add(offsets[0], self.committed_offset)
            self.committed_offset = offsets[0]
        self._done.take_out(offsets)
        self._rise(self.committed_offset)
        assert self.committed_offset <= offsets[0], "what was taken back is committed again"

    def freeze(self) -> Any:
        """Return the state for a snapshot: offsets, later done ranges, attempts, and FIFO leases.

        Leases that a takeover has extended are in a separate field, which older programs ignore.
        """
        return kept(self.taken())

    def taken(self) -> int | dict[str, Any]:
        """Return the current state, which `kept` converts to the row of a snapshot.

        For most queues, the committed offset is the whole state and is returned alone, so that a checkpoint
        of many queues takes little time of the event loop. The result is 0 for an untouched queue.
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
        """Return the offsets of a group from the row of a snapshot."""
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
        # The shorter of two loops is used. A call has few acknowledgements, but a filter skips up to 8,192
        # messages at once, few of which have attempts.
        known = self._attempts
        is_short = end - first <= len(known)
        for offset in range(first, end) if is_short else [at for at in known if first <= at < end]:
            known.pop(offset, None)
            self.leases.pop(offset, None)
        assert len(self.leases) <= len(known), "a lease without attempts"

    def _rise(self, committed_offset: int) -> None:
        """Raise the committed offset to `committed_offset`, and past directly following finished messages."""
        assert committed_offset >= self.committed_offset, "only `reopen` takes the committed offset back"
        self.committed_offset = committed_offset
        if self._done.count:
            self.committed_offset = self._done.behind(committed_offset)
            self._done.cut(self.committed_offset)


def kept(taken: int | dict[str, Any]) -> dict[str, Any]:
    """Return the row of a snapshot for the result of `taken`. The function is thread-safe."""
    if isinstance(taken, dict):
        return taken
    return {"low": taken, "done": [], "attempts": [], "leases": []}


def _frozen(one: LeaseEntry) -> list[Any]:
    _, _, _, offset, generation, visible_ms, leased_ms, consumer, is_renewed, *others, attempt_id, _ = one
    renewed_for = consumer if is_renewed else ""
    return [generation, offset, visible_ms, renewed_for, consumer, *others, attempt_id, leased_ms]


def _thawed(frozen: list[Any], made: int) -> LeaseEntry:
    """Return the lease entry of a lease in a snapshot."""
    generation, offset, visible_ms, renewed_for, consumer, message_group, *others, leased_ms = frozen
    is_changed, is_suspended, attempt_id = others
    when, whose = (generation, visible_ms, leased_ms), (consumer, bool(renewed_for), message_group)
    return LeaseEntry(Kind.LEASED, 0, made, offset, *when, *whose, is_changed, is_suspended, attempt_id)
