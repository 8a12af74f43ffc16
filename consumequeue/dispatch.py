"""Every record of the log to its queue: the one rule by which the queues are made and made again.

Records of transaction type none or commit get an entry (RocketMQ `DefaultMessageStore`); our own system
records (type 12) get none.
"""

from __future__ import annotations

from collections.abc import Iterator

from commitlog import properties
from commitlog.disk import Disk
from commitlog.layout import CONSUMEQUEUE
from commitlog.record import TYPE_COMMIT, TYPE_NORMAL, Record
from consumequeue.entry import Entry, tags_code
from consumequeue.queue import ConsumeQueue


class Dispatch:
    """All queues of a store. Starts empty: files of an earlier run are deleted and made anew from the log."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._changed: set[ConsumeQueue] = set()
        disk.delete(CONSUMEQUEUE)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The index of one queue; made empty on first use."""
        key = (topic, queue_id)
        if key not in self._queues:
            self._queues[key] = ConsumeQueue(self._disk, topic, queue_id)
        return self._queues[key]

    def dispatch(self, record: Record, record_bytes: int) -> bool:
        """Indexes one durable record; False if its kind is not indexed."""
        if record.type not in (TYPE_NORMAL, TYPE_COMMIT):
            return False
        queue = self.queue(record.topic, record.queue_id)
        tag = properties.value_of(record.properties, properties.TAG)
        queue.put(record.queue_offset, Entry(record.physical_offset, record_bytes, tags_code(tag)))
        self._changed.add(queue)
        return True

    def sizes(self) -> Iterator[tuple[str, int]]:
        """(topic, next offset) of every queue."""
        return ((topic, queue.next_offset) for (topic, _), queue in self._queues.items())

    def write(self) -> None:
        """Writes the new entries of all queues to their files."""
        for queue in self._changed:
            queue.write()
        self._changed.clear()
