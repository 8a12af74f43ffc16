"""Messages go out under leases and are done when acknowledged.

A receive takes from all queues of a topic in turn. What it gives out is leased until `visible_ms`; a lease
that ends without an acknowledgement makes its message available again, up to `attempts_max` attempts, then
it goes to the group's dead letters. Push consumers' leases last as long as their client is heard from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from commitlog import inner_batch, limits, properties
from commitlog.errors import IllegalInvisibleTime, InvalidReceiptHandle, StoreDamaged
from commitlog.record import COMPRESSION, Record
from consumequeue import filter as filters
from consumequeue import receipts
from consumequeue.entry import Entry
from consumequeue.filter import TagFilter
from consumequeue.offsets import Progress
from consumequeue.receipts import Receipt
from services.broker.groups import GroupQueue, Groups
from services.broker.leases import Leases
from services.broker.settings import BrokerSettings
from services.broker.statistics import Statistics
from services.broker.store import Store
from services.broker.topics import Topics, check_group_name, check_receivable
from services.broker.values import Delivery

_NEVER_MS: Final = 1 << 62


@dataclass(slots=True, frozen=True)
class Wanted:
    """What a receive asks for; `client_id` is set when the broker keeps the leases for that client."""

    group: str
    topic: str
    filter: TagFilter
    invisible_ms: int
    client_id: str


class Receiving:
    """The way out."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        leases: Leases,
        settings: BrokerSettings,
        statistics: Statistics,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._leases = leases
        self._settings = settings
        self._statistics = statistics
        self._turns: Counter[tuple[str, str]] = Counter()

    def receive(
        self,
        group: str,
        topic: str,
        tag_expression: str,
        batch_size: int,
        invisible_ms: int,
        client_id: str,
        auto_renew: bool,
        now_ms: int,
    ) -> list[Delivery]:
        """Leases up to `batch_size` messages; none if there are none now."""
        check_group_name(group)
        check_receivable(topic)
        wanted = Wanted(
            group,
            topic,
            filters.parse(tag_expression),
            self._lease_ms(invisible_ms, auto_renew),
            client_id if auto_renew else "",
        )
        queue_count = self._topics.route(topic, now_ms).queue_count
        self._groups.join(group, topic, now_ms)
        return self._take(wanted, queue_count, min(batch_size, limits.RECEIVE_BATCH_MAX), now_ms)

    def ack(self, group: str, topic: str, handle: str) -> int:
        """Marks a leased message as done; returns what must be durable before the consumer is told."""
        receipt, key, _ = self._held(group, topic, handle)
        self._leases.end(receipt.generation)
        self._statistics.acknowledged[(topic, group)] += 1
        return self._groups.finish(key, receipt.queue_offset)

    def change_invisible(self, group: str, topic: str, handle: str, invisible_ms: int, now_ms: int) -> str:
        """Lets the lease end `invisible_ms` from now; returns its new handle, the old one is void."""
        if not 0 <= invisible_ms <= limits.INVISIBLE_MS_MAX:
            raise IllegalInvisibleTime(f"{invisible_ms} ms is not from 0 to {limits.INVISIBLE_MS_MAX} ms.")
        receipt, key, progress = self._held(group, topic, handle)
        self._leases.end(receipt.generation)
        lease = self._leases.grant(key, receipt.queue_offset, now_ms + invisible_ms, "")
        progress.replace(lease)
        renewed = receipt._replace(leased_ms=now_ms, invisible_ms=invisible_ms, generation=lease.generation)
        return receipts.encode(renewed, self._settings.broker_name)

    def forward_to_dead_letter(self, group: str, topic: str, handle: str, now_ms: int) -> int:
        """Moves a leased message to the group's dead letters; returns what must be durable first."""
        receipt, key, _ = self._held(group, topic, handle)
        self._leases.end(receipt.generation)
        record = inner_batch.pick(self._store.log.read(receipt.physical_offset), receipt.queue_offset)
        return self._bury(key, record, now_ms)

    def client_alive(self, client_id: str, now_ms: int) -> None:
        """Renews the leases that the broker keeps for this client."""
        self._leases.extend(client_id, now_ms + self._settings.auto_renew_lease_ms)

    def client_gone(self, client_id: str, now_ms: int) -> None:
        """Ends those leases with the next tick."""
        self._leases.extend(client_id, now_ms)

    def expire(self, generation: int) -> str:
        """A lease has run out: its message will be given out again. Returns the topic."""
        key, lease = self._leases.end(generation)
        self._groups.progress(key).give_back(lease.queue_offset)
        return key.topic

    def read(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[Delivery]:
        """Up to `count` messages from `queue_offset` on, without leasing them; damaged ones are left out."""
        entries = self._store.dispatch.queue(topic, queue_id).get(queue_offset, count)
        records = (self._read(entry, queue_offset + at) for at, entry in enumerate(entries))
        return [delivery(record, 0, "", 0) for record in records if record is not None]

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """The first queue offset stored at or after a time; the queue's end if there is none.

        Store times never go back, so a binary search over the entries finds it, one record read a probe.
        """
        queue = self._store.dispatch.queue(topic, queue_id)

        def store_ms_from(queue_offset: int) -> int:
            following = range(queue_offset, queue.next_offset)
            records = (self._read(queue.entry(offset), offset) for offset in following)
            return next((record.store_ms for record in records if record is not None), _NEVER_MS)

        return bisect_left(range(queue.next_offset), store_ms, lo=queue.min_offset, key=store_ms_from)

    def _take(self, wanted: Wanted, queue_count: int, batch_size: int, now_ms: int) -> list[Delivery]:
        taken: list[Delivery] = []
        for queue_id in self._rotation(wanted, queue_count):
            key = GroupQueue(wanted.group, wanted.topic, queue_id)
            while len(taken) < batch_size and (leased := self._lease_next(key, wanted, now_ms)):
                taken.append(leased)
        if taken:
            label = (wanted.topic, wanted.group)
            self._statistics.messages_out[label] += len(taken)
            self._statistics.bytes_out[label] += sum(len(one.message.body) for one in taken)
        return taken

    def _rotation(self, wanted: Wanted, queue_count: int) -> Iterator[int]:
        """Every queue once, each time beginning with the next one, so that none starves."""
        label = (wanted.topic, wanted.group)
        self._turns[label] += 1
        return ((self._turns[label] + step) % queue_count for step in range(queue_count))

    def _lease_next(self, key: GroupQueue, wanted: Wanted, now_ms: int) -> Delivery | None:
        queue = self._store.dispatch.queue(key.topic, key.queue_id)
        progress = self._groups.progress(key)
        while (offset := progress.candidate(queue.next_offset)) is not None:
            record = self._read_wanted(queue.entry(offset), offset, wanted.filter)
            if record is None:
                progress.finish(offset)
            elif progress.attempts(offset) >= self._settings.attempts_max:
                self._bury(key, record, now_ms)
            else:
                return self._lease(key, progress, record, wanted, now_ms)
        return None

    def _read_wanted(self, entry: Entry, queue_offset: int, wanted: TagFilter) -> Record | None:
        record = self._read(entry, queue_offset) if wanted.may_match(entry.tags_code) else None
        if record is None or not wanted.matches(properties.value_of(record.properties, properties.TAG)):
            return None
        return record

    def _read(self, entry: Entry, queue_offset: int) -> Record | None:
        """The record of an entry; None for a gap left by damage, and for one deleted or damaged since."""
        if entry.record_bytes == 0 or entry.physical_offset < self._store.log.first_offset:
            return None
        try:
            return self._read_at(entry, queue_offset)
        except StoreDamaged:
            self._statistics.unreadable_records += 1
            return None

    def _read_at(self, entry: Entry, queue_offset: int) -> Record:
        """The record of an entry, which may have been damaged on disk since the queue was opened."""
        log = self._store.log
        if entry.physical_offset >= log.durable_offset or not 0 < entry.record_bytes <= log.segment_bytes:
            raise StoreDamaged(f"The entry at queue offset {queue_offset} leads nowhere.")
        record = inner_batch.pick(log.read(entry.physical_offset, entry.record_bytes), queue_offset)
        if record.queue_offset != queue_offset:
            raise StoreDamaged(f"The entry at queue offset {queue_offset} leads to another record.")
        return record

    def _lease(
        self, key: GroupQueue, progress: Progress, record: Record, wanted: Wanted, now_ms: int
    ) -> Delivery:
        visible_ms = now_ms + wanted.invisible_ms
        lease = self._leases.grant(key, record.queue_offset, visible_ms, wanted.client_id)
        receipt = Receipt(
            queue_id=key.queue_id,
            queue_offset=record.queue_offset,
            physical_offset=record.physical_offset,
            leased_ms=now_ms,
            invisible_ms=wanted.invisible_ms,
            generation=lease.generation,
        )
        handle = receipts.encode(receipt, self._settings.broker_name)
        return delivery(record, progress.lease(lease), handle, visible_ms)

    def _bury(self, key: GroupQueue, record: Record, now_ms: int) -> int:
        topic = self._topics.dead_letters(key.group, now_ms)
        self._store.append(dead_letter_record(record, topic.name), now_ms)
        self._statistics.dead_letters[(key.topic, key.group)] += 1
        return self._groups.finish(key, record.queue_offset)

    def _held(self, group: str, topic: str, handle: str) -> tuple[Receipt, GroupQueue, Progress]:
        receipt = receipts.decode(handle)
        key = GroupQueue(group, topic, receipt.queue_id)
        progress = self._groups.progress(key)
        if progress.held(receipt.queue_offset, receipt.generation) is None:
            raise InvalidReceiptHandle(
                f"The lease on {topic} queue {receipt.queue_id} offset {receipt.queue_offset} has run out or "
                "was answered. The message comes again if it was not acknowledged."
            )
        return receipt, key, progress

    def _lease_ms(self, invisible_ms: int, auto_renew: bool) -> int:
        if auto_renew:
            return self._settings.auto_renew_lease_ms
        low_ms, high_ms = self._settings.invisible_ms_min, limits.INVISIBLE_MS_MAX
        if not low_ms <= invisible_ms <= high_ms:
            raise IllegalInvisibleTime(f"{invisible_ms} ms is not from {low_ms} to {high_ms} ms.")
        return invisible_ms


def delivery(record: Record, attempt: int, receipt_handle: str, visible_ms: int) -> Delivery:
    """A record as it is given to a consumer."""
    return Delivery(
        message=properties.to_message(record),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        store_ms=record.store_ms,
        attempt=attempt,
        receipt_handle=receipt_handle,
        visible_ms=visible_ms,
    )


def dead_letter_record(record: Record, dead_letter_topic: str) -> Record:
    """A message for a group's dead letters, naming where it came from."""
    stored = properties.decode(record.properties)
    for done in (properties.TIMER_OFFSET, properties.CANCELS, properties.CANCELS_TOPIC):
        stored.pop(done, None)
    marks = {
        properties.DEAD_LETTER_TOPIC: record.topic,
        properties.DEAD_LETTER_MESSAGE_ID: stored.get(properties.MESSAGE_ID, ""),
    }
    return Record(
        topic=dead_letter_topic,
        body=record.body,
        properties=properties.encode(stored | marks),
        sys_flag=record.sys_flag & COMPRESSION,
        born_ms=record.born_ms,
        born_host=record.born_host,
    )
