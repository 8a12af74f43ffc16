"""Changes of groups between two flushes, collected into one record of leases and one of finished messages.

    decided --> applied to the group's offsets and added here ... --close--> appended, with the next flush

Thousands of acknowledgements a second would be as many records; so they share one record, in which adjacent
messages form a range. An entry is applied when it is decided, by the function that a start calls with the
record's fact. Closing changes no state: the records that it appends are not applied again. It appends leases
before finished messages, which is equivalent: a lease may end before its message, never the reverse. Any
other change of a group's offsets (by a record of a group, or of retention) closes these records first.

The next flush takes all records appended before it, and closes these first. So the answer to an added change
waits until the log is durable beyond its current end (`durable_at`), whatever the number of records.

Cost: per acknowledgement a range is extended; per flush two records are written, or more above
`OPEN_RECORD_BYTES_MAX` bytes.

Weak spot: added changes are applied before they are in the log, so a snapshot must not be taken in between:
`is_empty` is part of `Broker.is_quiet`. And `durable_at` is valid only after an addition.
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
    """The records to append before the next flush."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._acknowledged: defaultdict[Key, OffsetRanges] = defaultdict(OffsetRanges)
        self._passed: defaultdict[Key, OffsetRanges] = defaultdict(OffsetRanges)
        self._leases: defaultdict[Key, list[LeaseEntry]] = defaultdict(list)
        self._newest_ms = 0

    @property
    def durable_at(self) -> int:
        """The log offset that must be durable before an answer about the added changes."""
        return self._store.log.end_offset + 1

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added since the records were closed."""
        return not (self._acknowledged or self._passed or self._leases)

    def acknowledge(self, key: Key, ranges: Iterable[tuple[int, int]], now_ms: int) -> None:
        """Add ranges (first, count) of messages that were acknowledged, or moved to the dead letters."""
        self._newest_ms = max(self._newest_ms, now_ms)
        for first, count in ranges:
            self._acknowledged[key].add(first, first + count)

    def pass_over(self, key: Key, first: int, end: int, now_ms: int) -> None:
        """Add messages from `first` to before `end` that will not be delivered."""
        self._newest_ms = max(self._newest_ms, now_ms)
        self._passed[key].add(first, end)

    def take_lease(self, key: Key, entry: LeaseEntry, now_ms: int) -> None:
        """Add a change of a lease."""
        self._newest_ms = max(self._newest_ms, now_ms)
        self._leases[key].append(entry)

    def close(self) -> None:
        """Append the added changes, stamped with their newest time."""
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
    """Yield the parts joined into bodies up to the size limit, with at least one part each."""
    body = bytearray()
    for part in parts:
        if body and len(body) + len(part) > limits.OPEN_RECORD_BYTES_MAX:
            yield bytes(body)
            body.clear()
        body += part
    if body:
        yield bytes(body)
