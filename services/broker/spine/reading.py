"""Read messages by queue offset. Damaged and deleted messages are skipped.

The first read of an entry in a queue file reads and verifies the whole file. A call that covers several
queues reads at least one whole file, and stops before the files exceed `QUEUE_FILES_COMPARED_BYTES` bytes in
total. Later calls read the remaining files (`ArrivedMessages.is_unfinished`). Each file is read in full only
once. Repeated calls therefore complete the operation.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.records.compression import to_client_format, unpacked_bytes
from commitlog.records.record import COMPRESSED, COMPRESSION, Record
from consumequeue.entry import Entry
from consumequeue.queue import ConsumeQueue
from services.broker.spine.store import Store
from services.broker.spine.values import Delivery

_NEVER_MS: Final = 1 << 62
_NEAR_BYTES_MAX: Final = 256 * 1024
_NEAR_PER_WANTED: Final = 16
"""The maximum ratio of bytes read to bytes requested when several records are read at once."""


_QueuedEntry = tuple[Entry, int, ConsumeQueue]
"""A queue entry, its queue offset, and its queue."""
_BY_PLACE: Final = itemgetter(0)


class ArrivedMessages(NamedTuple):
    """The result of a read from several queues.

    If `is_unfinished` is true, the caller must repeat the read to include further queue files.
    """

    messages: list[Delivery]
    is_unfinished: bool


class _ReadLimitError(Exception):
    """The call has reached the limit on the total size of queue files that are read in full."""


class _FileReadBudget:
    """The total size of the queue files that a call has read in full."""

    def __init__(self) -> None:
        self._read_bytes = 0
        self.is_exhausted = False

    def reserve_file(self, whole_bytes: int) -> None:
        """Add the size of a file. Raise `_ReadLimitError` if the total would exceed the limit.

        The first file is always accepted.
        """
        if self._read_bytes and self._read_bytes + whole_bytes > limits.QUEUE_FILES_COMPARED_BYTES:
            self.is_exhausted = True
            raise _ReadLimitError
        self._read_bytes += whole_bytes


class MessageReader:
    """Read messages without leasing them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(self, queue: ConsumeQueue, queue_offset: int, entry: Entry) -> Record | None:
        """Return the record of a queue entry, or None for a gap or for a deleted or damaged record.

        Report damage to the record, or a gap that no known damage explains.
        """
        if entry.record_bytes == 0:
            self._store.report_gap(queue, queue_offset, entry)
            return None
        if entry.physical_offset < self._store.log.first_offset:
            return None
        try:
            return self._store.read_entry(queue, queue_offset, entry)
        except StoreDamaged:
            return None

    def next_offset(self, queue: ConsumeQueue, queue_offset: int, entry: Entry) -> int:
        """Return the queue offset after an entry or, for an entry in a gap, the offset after the gap."""
        return queue_offset + 1 if entry.record_bytes else self._store.gap_end(queue, queue_offset, entry)

    def read_near(self, entries: Sequence[Entry]) -> dict[int, Record | None]:
        """Read the records of nearby entries at once, and stop at the first entry that is too far away.

        The entries must be in log order. Return the records, keyed by log offset. The value is None for an
        entry that the caller must read with `record`.
        """
        first, wanted_bytes, length, count = entries[0].physical_offset, 0, 0, 0
        for physical_offset, record_bytes, _ in entries:
            wanted_bytes += record_bytes
            end = physical_offset + record_bytes - first
            if not length < end <= min(_NEAR_BYTES_MAX, wanted_bytes * _NEAR_PER_WANTED):
                break
            length, count = end, count + 1
        found = self._store.log.read_near(entries[:count]) if count else ()
        return {entry.physical_offset: record for entry, record in zip(entries, found, strict=False)}

    def read(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[Delivery]:
        """Return the readable messages at the `count` queue offsets starting with `queue_offset`.

        Fewer messages are returned if their total size exceeds the limit.
        """
        queue = self._store.dispatch.find_queue(topic, queue_id)
        found = zip(queue.get(queue_offset, count), range(queue_offset, queue_offset + count), strict=False)
        return self._to_deliveries(((entry, offset, queue) for entry, offset in found), count)

    def read_after(self, topic: str, places: Mapping[int, int], count: int) -> ArrivedMessages:
        """Return up to `count` messages from several queues, in log order.

        `places` maps each queue id to the first queue offset to read.
        """
        reads = _FileReadBudget()
        queues = [
            self._iterate_entries(topic, queue_id, offset, reads) for queue_id, offset in places.items()
        ]
        shown = self._to_deliveries(_stop_at_limit(heapq.merge(*queues, key=_BY_PLACE)), count)
        return ArrivedMessages(shown, reads.is_exhausted)

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """Return the queue offset of the first message stored at or after `store_ms`.

        If there is no such message, return the end offset of the queue. The offset is found by binary search,
        because store times never decrease. Each probe reads one record, without verifying the CRC of the
        queue file. The entry found and the entry before it are therefore verified afterwards.
        """
        queue = self._store.dispatch.find_queue(topic, queue_id)
        offsets, first = range(queue.end_offset), queue.min_offset

        def store_ms_from(queue_offset: int) -> int:
            found = self.store_ms(topic, queue_id, queue_offset)
            return _NEVER_MS if found is None else found

        def probed_ms_from(queue_offset: int) -> int:
            found = self._store.probe(queue, queue_offset)
            return store_ms_from(queue_offset) if found is None else found.store_ms

        found = bisect_left(offsets, store_ms, lo=first, key=probed_ms_from)
        is_first = found == first or store_ms_from(found - 1) < store_ms
        if is_first and (found == queue.end_offset or store_ms_from(found) >= store_ms):
            return found
        return bisect_left(offsets, store_ms, lo=first, key=store_ms_from)

    def store_ms(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of the first readable message at or after `queue_offset`, or None.

        The time is in milliseconds since the Unix epoch.
        """
        queue = self._store.dispatch.find_queue(topic, queue_id)
        while queue_offset < queue.end_offset:
            entry = queue.entry(queue_offset)
            if (record := self.record(queue, queue_offset, entry)) is not None:
                return record.store_ms
            queue_offset = self.next_offset(queue, queue_offset, entry)
        return None

    def _iterate_entries(
        self, topic: str, queue_id: int, queue_offset: int, reads: _FileReadBudget
    ) -> Iterator[_QueuedEntry]:
        """Yield (entry, queue offset, queue) in queue order. May raise `_ReadLimitError`."""
        queue = self._store.dispatch.find_queue(topic, queue_id)
        offset = max(queue_offset, queue.min_offset)
        while offset < queue.end_offset:
            if whole_bytes := queue.whole_bytes(offset):
                reads.reserve_file(whole_bytes)
            entry = queue.entry(offset)
            yield entry, offset, queue
            offset = self.next_offset(queue, offset, entry)

    def _to_deliveries(self, found: Iterable[_QueuedEntry], count: int) -> list[Delivery]:
        records = (self.record(queue, offset, entry) for entry, offset, queue in found)
        shown, looked_bytes = list[Delivery](), 0
        for record in islice((one for one in records if one is not None), count):
            given = to_readable_record(record)
            looked_bytes += bytes_of(record, given)
            if shown and looked_bytes > limits.QUERY_BYTES_MAX:
                break
            shown.append(Delivery(given))
        return shown


def _stop_at_limit(found: Iterator[_QueuedEntry]) -> Iterator[_QueuedEntry]:
    """Yield entries until the call has reached the size limit for queue files."""
    with suppress(_ReadLimitError):
        yield from found


def limit_bytes(found: Iterable[Delivery], bytes_max: int) -> Iterator[Delivery]:
    """Yield messages while their bodies total at most `bytes_max` bytes. Yield at least one message."""
    left = bytes_max
    for number, one in enumerate(found):
        left -= len(one.record.body)
        if left < 0 and number:
            return
        yield one


def to_readable_record(record: Record) -> Record:
    """Return a record with a body that clients can read, either uncompressed or gzip-compressed.

    Decompress the body if necessary. Raise `LibraryMissing` if the decompression library is not installed.
    """
    if not record.sys_flag & COMPRESSED:
        return record
    body, is_gzip = to_client_format(record.body, record.sys_flag)
    return replace(record, body=body, sys_flag=record.sys_flag & ~COMPRESSION | is_gzip * COMPRESSED)


def bytes_of(record: Record, given: Record) -> int:
    """Return the size of the delivered body, or of the decompressed body if that is larger."""
    return len(given.body) if given is record else unpacked_bytes(record.body, given.body)
