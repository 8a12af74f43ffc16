"""A group's durable offsets on a queue, including its failed attempts and FIFO leases.

    ... done ...|committed_offset ... done, tried, leased with a record, or untouched ...

All messages below `committed_offset` are done. Above it, the offsets of finished messages are stored as
ranges. The failed attempts for each unfinished message are also stored (`attempts.py`). For message groups
and lite topics, the current leases are stored as well.

`GroupOffsets` is the entire durable state of a group on a queue. The log records every change. Normal
operation and recovery apply changes through these functions:

    finish      acknowledged, skipped, or moved to the dead letters        `acks.py`
    take        a lease began or ended                                     `lease_records.py`
    reopen      finished messages must be delivered again                  `services.broker.groups.groups`
    skip_to     the log below was deleted                                  `services.broker.groups.groups`

Leases on messages without a message group are not recorded. They exist only in memory (`in_flight.py`).

Cost: one entry for each attempted message that is not done, and one range for each hole between finished
messages. Limitation: the committed offset cannot pass a message that is never acknowledged. Each hole above
it then requires a range, and `find_exhausted` and long `finish` calls visit all attempts.
"""

from __future__ import annotations

from typing import Any

from commitlog.facts.lease_records import Kind, LeaseEntry
from consumequeue.groups.attempts import NEVER, Attempts, Failure
from consumequeue.groups.offset_ranges import OffsetRanges


class GroupOffsets:
    """A group's durable offsets on a queue.

    Initially, all messages below `committed_offset` are done.
    """

    def __init__(self, committed_offset: int = 0) -> None:
        self.committed_offset = committed_offset
        self.leases: dict[int, LeaseEntry] = {}
        """Current FIFO leases by queue offset. Each leased offset is also in `_attempts`."""
        self._done = OffsetRanges()
        self._attempts: dict[int, Attempts] = {}

    @property
    def is_untouched(self) -> bool:
        """Whether the group has no state for the queue."""
        return not (self.committed_offset or self._done.count or self._attempts)

    @property
    def done_above_count(self) -> int:
        """Number of finished messages above the committed offset."""
        return self._done.count

    @property
    def done_until(self) -> int:
        """Offset after the last finished message."""
        return self._done.end or self.committed_offset

    def is_done(self, offset: int) -> bool:
        """Return whether a message is done."""
        return offset < self.committed_offset or offset in self._done

    def open_from(self, offset: int) -> int:
        """Return the first offset at or after `offset` that is not done."""
        return self._done.behind(max(offset, self.committed_offset))

    def open_count(self, min_offset: int, end_offset: int) -> int:
        """Return the number of offsets from `min_offset` to `end_offset` (exclusive) that are not done."""
        first = max(min_offset, self.committed_offset)
        done = (max(0, min(at + count, end_offset) - max(at, first)) for at, count in self._done)
        return max(0, end_offset - first - sum(done))

    def attempts(self, offset: int) -> Attempts:
        """Return the recorded attempts for a message, including that of a current FIFO lease."""
        return self._attempts.get(offset, NEVER)

    def has_attempt(self, offset: int) -> bool:
        """Return whether a message is not done and has a recorded attempt."""
        return offset in self._attempts

    def find_exhausted(self, attempts_max: int) -> list[int]:
        """Return, in ascending order, the offsets of messages not done after `attempts_max` attempts."""
        return sorted(at for at, one in self._attempts.items() if one.made >= attempts_max)

    def finish(self, first: int, end: int) -> None:
        """Mark the messages from `first` to `end` (exclusive) as done.

        Drop their attempts and leases.
        """
        if self._attempts:  # Every lease has attempts.
            self._forget(first, end)
        if first > self.committed_offset:
            self._done.add(first, end)
        elif end > self.committed_offset:
            self._advance(end)

    def take(self, entry: LeaseEntry) -> None:
        """Apply the start or end of a lease. A new lease on a finished message is ignored."""
        offset, known = entry.queue_offset, self.attempts(entry.queue_offset)
        if entry.kind is Kind.LEASED:
            # An existing lease on a finished message is updated, because the message was deleted (`skip_to`)
            # while the consumer was still processing it.
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
        """Mark all messages below `queue_offset` as done, because they were deleted.

        Their leases remain until they end.
        """
        if queue_offset <= self.committed_offset:
            return
        self._done.cut(queue_offset)
        self._attempts = {
            at: one for at, one in self._attempts.items() if at >= queue_offset or at in self.leases
        }
        self._advance(queue_offset)
        assert self.committed_offset <= self.done_until, "more is committed than is done"

    def reopen(self, offsets: list[int]) -> None:
        """Mark messages, given in ascending offset order, as not done.

        This is for lite topic queues.
        """
        # Committed offsets are converted to a range of finished offsets, so that the reopened offsets can be
        # removed from this range.
        if offsets[0] < self.committed_offset:
            self._done.add(offsets[0], self.committed_offset)
            self.committed_offset = offsets[0]
        self._done.take_out(offsets)
        self._advance(self.committed_offset)
        assert self.committed_offset <= offsets[0], "what was taken back is committed again"

    def freeze(self) -> Any:
        """Return the state for a snapshot: offsets, ranges, attempts, and FIFO leases.

        Leases extended by a takeover are stored in a separate field, which older programs ignore.
        """
        return kept(self.taken())

    def taken(self) -> int | dict[str, Any]:
        """Return the current state. `kept` converts it to a snapshot row.

        For most queues, it is just the committed offset (0 if untouched). A checkpoint of many queues thus
        blocks the event loop only briefly.
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
        """Restore a group's offsets from a snapshot row."""
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
        # The shorter of two loops is used. A call acknowledges few messages, whereas a filter may skip up to
        # 8,192 messages at once, few of which have attempts.
        known = self._attempts
        is_short = end - first <= len(known)
        for offset in range(first, end) if is_short else [at for at in known if first <= at < end]:
            known.pop(offset, None)
            self.leases.pop(offset, None)
        assert len(self.leases) <= len(known), "a lease without attempts"

    def _advance(self, committed_offset: int) -> None:
        """Advance to `committed_offset`, and then past any finished messages that follow it."""
        assert committed_offset >= self.committed_offset, "only `reopen` takes the committed offset back"
        self.committed_offset = committed_offset
        if self._done.count:
            self.committed_offset = self._done.behind(committed_offset)
            self._done.cut(self.committed_offset)


def kept(taken: int | dict[str, Any]) -> dict[str, Any]:
    """Convert the output of `taken` to a snapshot row. Thread-safe."""
    if isinstance(taken, dict):
        return taken
    return {"low": taken, "done": [], "attempts": [], "leases": []}


def _frozen(one: LeaseEntry) -> list[Any]:
    _, _, _, offset, generation, visible_ms, leased_ms, consumer, is_renewed, *others, attempt_id, _ = one
    renewed_for = consumer if is_renewed else ""
    return [generation, offset, visible_ms, renewed_for, consumer, *others, attempt_id, leased_ms]


def _thawed(frozen: list[Any], made: int) -> LeaseEntry:
    """Return the lease entry for a lease stored in a snapshot row."""
    generation, offset, visible_ms, renewed_for, consumer, message_group, *others, leased_ms = frozen
    is_changed, is_suspended, attempt_id = others
    when, whose = (generation, visible_ms, leased_ms), (consumer, bool(renewed_for), message_group)
    return LeaseEntry(Kind.LEASED, 0, made, offset, *when, *whose, is_changed, is_suspended, attempt_id)
