"""Look up messages by key or message id, and verify each match of the index against the log.

A lookup returns all records with the given key. A delayed message has two records: the timer and the
delivery. A transactional message also has two records: the half message and the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.record import Record
from consumequeue.indexes import keyindex
from services.broker.spine import verb_properties
from services.broker.spine.errors import TopicNotFound
from services.broker.spine.reading import ArrivedMessages, MessageReader, bytes_of, to_readable_record
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics
from services.broker.spine.values import Delivery


class FoundMessages(NamedTuple):
    """The result of a message lookup.

    If `is_cut` is true, further matches were omitted to limit the total size.
    """

    messages: list[Delivery]
    is_cut: bool


class MessageLookup:
    """Read messages by key, message id, or queue offset, without leasing them."""

    def __init__(self, store: Store, topics: Topics, reading: MessageReader) -> None:
        self._store, self._topics, self._reading = store, topics, reading

    def find(self, topic: str, key: str, count_max: int) -> FoundMessages:
        """Return up to `count_max` durable messages of a topic with a given key or id, newest first.

        Fewer messages are returned if their total size exceeds the limit. Damaged records are omitted. Raise
        `StoreDamaged` if the index is damaged.
        """
        found: list[Delivery] = []
        looked_bytes = 0
        for record in self._records(topic, key):
            one = Delivery(to_readable_record(record))
            looked_bytes += bytes_of(record, one.record)
            if found and looked_bytes > limits.QUERY_BYTES_MAX:
                return FoundMessages(found, True)
            found.append(one)
            if len(found) == count_max:
                break
        return FoundMessages(found, False)

    def read(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[Delivery]:
        """Return up to `count` messages of a queue, starting at `queue_offset`. Raise `TopicNotFound`."""
        self._check_queue(topic, queue_id)
        return self._reading.read(topic, queue_id, queue_offset, count)

    def read_after(self, topic: str, places: Mapping[int, int], count: int) -> ArrivedMessages:
        """Return up to `count` messages from several queues, in log order. Raise `TopicNotFound`.

        `places` maps each queue id to the first queue offset to read.
        """
        for queue_id in places:
            self._check_queue(topic, queue_id)
        return self._reading.read_after(topic, places, count)

    def newest(self, topic: str, queue_id: int, count: int) -> list[tuple[int, int]]:
        """Return (log offset, queue offset) pairs for the last `count` entries of a queue, oldest first.

        Raise `TopicNotFound` if the topic or the queue does not exist.
        """
        self._check_queue(topic, queue_id)
        queue = self._store.dispatch.find_queue(topic, queue_id)
        at, found = max(queue.min_offset, queue.end_offset - count), list[tuple[int, int]]()
        while at < queue.end_offset and (entries := queue.get(at, queue.end_offset - at)):
            found += ((entry.physical_offset, at + number) for number, entry in enumerate(entries))
            at += len(entries)
        return found

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first offset and the end offset of a queue. Raise `TopicNotFound`."""
        self._check_queue(topic, queue_id)
        queue = self._store.dispatch.find_queue(topic, queue_id)
        return queue.min_offset, queue.end_offset

    def is_discarded(self, one: Record) -> bool:
        """Return whether a record is below the first offset of its queue and is therefore not delivered.

        Such a record may remain in the log after a purge, a deletion, a move, or the expiry of its retention.
        """
        return one.queue_offset < self._store.dispatch.find_queue(one.topic, one.queue_id).min_offset

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """Return the queue offset of the first message stored at or after `store_ms`.

        If there is no such message, return the end offset of the queue. `store_ms` is in milliseconds since
        the Unix epoch. Raise `TopicNotFound` if the topic or the queue does not exist.
        """
        self._check_queue(topic, queue_id)
        return self._reading.offset_at(topic, queue_id, store_ms)

    def verdict(self, physical_offset: int) -> str:
        """Return the result of the timer operation in a message, or "" for a message without an operation."""
        stored = self._store.read(physical_offset).properties
        return properties.value_of(stored, verb_properties.VERDICT)

    def ending(self, physical_offset: int) -> Record | None:
        """Return the record at a log offset, or None if it is deleted, damaged, or not durable.

        The record sets or ends a timer.
        """
        log = self._store.log
        if not log.first_offset <= physical_offset < log.durable_offset:
            return None
        try:
            return self._store.read(physical_offset)
        except StoreDamaged:
            return None

    def _check_queue(self, topic: str, queue_id: int) -> None:
        queue_count = self._topics.get(topic).queue_count
        if not 0 <= queue_id < queue_count:
            raise TopicNotFound(f"{topic!r} has queues 0 to {queue_count - 1}, there is no {queue_id}.")

    def _records(self, topic: str, key: str) -> Iterator[Record]:
        store = self._store
        for physical_offset in store.offsets_by_key_or_id(topic, key, store.log.first_offset):
            try:
                record = store.read(physical_offset)
            except StoreDamaged:
                continue
            messages = reversed(keyindex.messages_of(record))
            yield from (one for one in messages if keyindex.carries(one, topic, key))
