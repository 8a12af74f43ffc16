"""Open records, which combine the group changes between two flushes into one record per kind.

    change --> applied to the offsets of the group, and added here --close--> appended with the next flush

There are two kinds: lease records and records of finished messages. A group may acknowledge thousands of
messages per second. The acknowledgements between two flushes therefore share one record, in which adjacent
messages form a range. Each change is applied immediately, by the same function that applies records at
startup. Closing the open records therefore does not change the state. Lease changes are appended before
finished messages, which has the same effect as the original order, because no lease ends after its message
has been finished. The open records are also closed before a group record or a `LogCut` record changes the
offsets of a group.

A flush first closes the open records and then writes all appended records. The response to a change must
therefore wait until the log is durable beyond the end offset at the time of the change (`durable_at`).

Cost: each acknowledgement extends a range. Each flush writes up to two additional records, or more if a body
would exceed `OPEN_RECORD_BYTES_MAX`.

Limitation: changes are applied before they are appended to the log, and a snapshot must therefore wait until
the open records are closed (`Broker.is_quiet`). `durable_at` is valid only after a change has been added.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from commitlog import limits
from commitlog.facts import acks, lease_records
from commitlog.facts.acks import MessagesFinished
from commitlog.facts.lease_records import Key, LeaseEntry
from commitlog.records.kinds import ACK_TOPIC, LEASE_TOPIC
from commitlog.records.record import TYPE_SYSTEM, Record
from consumequeue.groups.offset_ranges import OffsetRanges
from services.broker.spine.appended import AppliedRecord
from services.broker.spine.store import Store


class OpenRecords:
    """The changes that are appended at the beginning of the next flush."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._acknowledged: defaultdict[Key, OffsetRanges] = defaultdict(OffsetRanges)
        self._passed: defaultdict[Key, OffsetRanges] = defaultdict(OffsetRanges)
        self._leases: defaultdict[Key, list[LeaseEntry]] = defaultdict(list)
        self._newest_ms = 0

    @property
    def durable_at(self) -> int:
        """The log offset that must be durable before responses to the added changes are sent."""
        return self._store.log.end_offset + 1

    @property
    def is_empty(self) -> bool:
        """Whether no changes have been added since the last `close`."""
        return not (self._acknowledged or self._passed or self._leases)

    def add_finished(self, key: Key, ranges: Iterable[tuple[int, int]], now_ms: int) -> None:
        """Add (first, count) ranges of acknowledged or dead-lettered messages."""
        self._newest_ms = max(self._newest_ms, now_ms)
        for first, count in ranges:
            self._acknowledged[key].add(first, first + count)

    def add_skipped(self, key: Key, first: int, end: int, now_ms: int) -> None:
        """Add the messages from `first` to `end` (exclusive), which will not be delivered."""
        self._newest_ms = max(self._newest_ms, now_ms)
        self._passed[key].add(first, end)

    def add_lease(self, key: Key, entry: LeaseEntry, now_ms: int) -> None:
        """Add a lease change."""
        self._newest_ms = max(self._newest_ms, now_ms)
        self._leases[key].append(entry)

    def close(self) -> None:
        """Append the records of all added changes. The store time is that of the newest change."""
        if self.is_empty:
            return
        finished = [MessagesFinished(*key, list(ranges)) for key, ranges in self._acknowledged.items()]
        finished += [
            MessagesFinished(*key, list(ranges), is_passed=True) for key, ranges in self._passed.items()
        ]
        self._append(LEASE_TOPIC, lease_records.encoded_parts(self._leases.items()))
        self._append(ACK_TOPIC, acks.encoded_parts(finished))
        self._acknowledged.clear()
        self._passed.clear()
        self._leases.clear()
        self._newest_ms = 0

    def _append(self, topic: str, parts: Iterable[bytes]) -> None:
        for body in _bodies(parts):
            record = Record(topic=topic, body=body, sys_flag=TYPE_SYSTEM)
            self._store.append(AppliedRecord(record), self._newest_ms)


def _bodies(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Combine parts into record bodies within the size limit, with at least one part in each body."""
    body = bytearray()
    for part in parts:
        if body and len(body) + len(part) > limits.OPEN_RECORD_BYTES_MAX:
            yield bytes(body)
            body.clear()
        body += part
    if body:
        yield bytes(body)
