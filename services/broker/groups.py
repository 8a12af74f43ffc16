"""How far each group is on each queue, and the records that say so.

Acknowledgements of one turn of the loop are written as one record (`consumequeue.acks`) when the next
flush is taken; so `log.end_offset + 1`, read when something is finished, is durable exactly when that is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Final, NamedTuple

from commitlog.record import TYPE_SYSTEM, Record
from consumequeue import acks
from consumequeue.acks import Acknowledged
from consumequeue.offsets import Progress
from services.broker.store import Store

ACK_TOPIC: Final = "TW_SYS_ACK"


class GroupQueue(NamedTuple):
    """One queue as one group sees it."""

    group: str
    topic: str
    queue_id: int


class Groups:
    """The progress of all groups."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._progress: dict[GroupQueue, Progress] = {}
        self._unwritten: defaultdict[GroupQueue, list[int]] = defaultdict(list)

    def progress(self, key: GroupQueue) -> Progress:
        """The group's progress on a queue; a group that is new to it starts at the earliest message."""
        progress = self._progress.get(key)
        if progress is None:
            progress = self._progress[key] = Progress()
        return progress

    def finish(self, key: GroupQueue, queue_offset: int) -> int:
        """The group is done with a message; returns what must be durable before anyone is told."""
        self.progress(key).finish(queue_offset)
        self._unwritten[key].append(queue_offset)
        return self._store.log.end_offset + 1

    def write_acks(self) -> None:
        """Appends what was finished since the last call as one record."""
        if self._unwritten:
            done = [Acknowledged(*key, acks.ranges_of(offsets)) for key, offsets in self._unwritten.items()]
            self._unwritten.clear()
            record = Record(topic=ACK_TOPIC, body=acks.encode(done), sys_flag=TYPE_SYSTEM)
            self._store.append(record, self._store.last_store_ms)

    def recovered_acks(self, record: Record) -> None:
        """Takes over acknowledgements from their record."""
        for group, topic, queue_id, ranges in acks.decode(record.body):
            progress = self.progress(GroupQueue(group, topic, queue_id))
            for first, count in ranges:
                for queue_offset in range(first, first + count):
                    progress.finish(queue_offset)
                self._store.used(topic, queue_id, first + count - 1)

    def in_flight(self) -> dict[tuple[str, str], int]:
        """How many messages are leased, by topic and group."""
        return self._sums(lambda key, progress: progress.in_flight_count)

    def lag(self) -> dict[tuple[str, str], int]:
        """How many messages lie above the low-water marks, by topic and group, untouched queues included."""
        finished = self._sums(lambda key, progress: progress.low_offset)
        sizes: Counter[str] = Counter()
        for topic, next_offset in self._store.dispatch.sizes():
            sizes[topic] += next_offset
        return {(topic, group): sizes[topic] - low for (topic, group), low in finished.items()}

    def _sums(self, count: Callable[[GroupQueue, Progress], int]) -> dict[tuple[str, str], int]:
        sums: Counter[tuple[str, str]] = Counter()
        for key, progress in self._progress.items():
            sums[(key.topic, key.group)] += count(key, progress)
        return dict(sums)
