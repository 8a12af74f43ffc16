"""What groups decide between two flushes, gathered into one record of leases and one of what is finished.

    decided --> applied to the group's offsets and added here ... --close--> appended, with the next flush

Thousands of acknowledgements a second would be as many records; so they share one, in which neighbours are
one range. An entry is applied when it is decided, by the function that a start calls with the record's fact.
Closing therefore changes no state: the records that it appends are not applied again. Among the records of
one turn the leases come first. That changes nothing either: a lease that ended is followed by the message's
end, never the other way round. Whatever else changes a group's offsets (a record of a group, or of retention)
closes these first.

The next flush takes whole what was appended before it, and closes first. So whoever added something waits
for the log to be durable beyond its present end (`durable_at`), be it one record or several.

Cost: per acknowledgement an end of a range moved; per flush two records, of `OPEN_RECORD_BYTES_MAX` at most
each or else several.

Weak spot: what is added is applied and not yet in the log, so a snapshot must not be taken in between:
`is_empty` is a part of `Broker.is_quiet`. And `durable_at` holds only for who has added something.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from commitlog import limits
from commitlog.facts import acks, lease_records
from commitlog.facts.acks import Finished
from commitlog.facts.lease_records import Key, LeaseEntry
from commitlog.kinds import ACK_TOPIC, LEASE_TOPIC
from commitlog.record import TYPE_SYSTEM, Record
from consumequeue.offset_ranges import OffsetRanges
from services.broker.spine.appended import Decided
from services.broker.spine.store import Store


class OpenRecords:
    """The records that the next flush takes along."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._acknowledged: defaultdict[Key, OffsetRanges] = defaultdict(OffsetRanges)
        self._passed: defaultdict[Key, OffsetRanges] = defaultdict(OffsetRanges)
        self._leases: defaultdict[Key, list[LeaseEntry]] = defaultdict(list)
        self._newest_ms = 0

    @property
    def durable_at(self) -> int:
        """The log offset that must be durable before anyone is told of what was added."""
        return self._store.log.end_offset + 1

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added since the records were closed."""
        return not (self._acknowledged or self._passed or self._leases)

    def acknowledge(self, key: Key, ranges: Iterable[tuple[int, int]], now_ms: int) -> None:
        """Add messages, as ranges (first, count), that were acknowledged, or moved to the dead letters."""
        self._newest_ms = max(self._newest_ms, now_ms)
        for first, count in ranges:
            self._acknowledged[key].add(first, first + count)

    def pass_over(self, key: Key, first: int, end: int, now_ms: int) -> None:
        """Add messages from `first` up to before `end` that will not be given out."""
        self._newest_ms = max(self._newest_ms, now_ms)
        self._passed[key].add(first, end)

    def take_lease(self, key: Key, entry: LeaseEntry, now_ms: int) -> None:
        """Add what became of a lease."""
        self._newest_ms = max(self._newest_ms, now_ms)
        self._leases[key].append(entry)

    def close(self) -> None:
        """Append what was added, stamped with the newest time of it."""
        if self.is_empty:
            return
        finished = [Finished(*key, list(ranges)) for key, ranges in self._acknowledged.items()]
        finished += [Finished(*key, list(ranges), is_passed=True) for key, ranges in self._passed.items()]
        self._append(LEASE_TOPIC, lease_records.encoded_parts(self._leases.items()))
        self._append(ACK_TOPIC, acks.encoded_parts(finished))
        self._acknowledged.clear()
        self._passed.clear()
        self._leases.clear()
        self._newest_ms = 0

    def _append(self, topic: str, parts: Iterable[bytes]) -> None:
        for body in _bodies(parts):
            record = Record(topic=topic, body=body, sys_flag=TYPE_SYSTEM)
            self._store.append(Decided(record), self._newest_ms)


def _bodies(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts joined, as many to a body as it may have bytes; one in any case."""
    body = bytearray()
    for part in parts:
        if body and len(body) + len(part) > limits.OPEN_RECORD_BYTES_MAX:
            yield bytes(body)
            body.clear()
        body += part
    if body:
        yield bytes(body)
