"""Which groups there are, how far each is on each queue, and the records that say so.

A group is known from its first receive of a topic on (a `TW_SYS_GROUP` record, JSON {"group", "topic"}), and
begins at the topic's earliest message.

Acknowledgements of one turn of the loop are written as one record (`consumequeue.acks`) when the next
flush is taken; so `log.end_offset + 1`, read when something is finished, is durable exactly when that is.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from commitlog.record import TYPE_SYSTEM, Record
from commitlog.retention import SegmentAge
from consumequeue import acks
from consumequeue.acks import Acknowledged
from consumequeue.offsets import Progress
from consumequeue.queue import ConsumeQueue
from services.broker.store import Store

ACK_TOPIC: Final = "TW_SYS_ACK"
GROUP_TOPIC: Final = "TW_SYS_GROUP"


class GroupQueue(NamedTuple):
    """One queue as one group sees it."""

    group: str
    topic: str
    queue_id: int


class Groups:
    """The progress of all groups."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._members: dict[str, dict[str, None]] = {}
        self._progress: dict[GroupQueue, Progress] = {}
        self._unwritten: defaultdict[GroupQueue, list[int]] = defaultdict(list)

    def join(self, group: str, topic: str, now_ms: int) -> None:
        """The group receives the topic; the first time that becomes a record."""
        if group not in self._members.get(topic, ()):
            self._add(group, topic)
            body = json.dumps({"group": group, "topic": topic}).encode()
            self._store.append(Record(topic=GROUP_TOPIC, body=body, sys_flag=TYPE_SYSTEM), now_ms)

    def recovered_group(self, record: Record) -> None:
        """Takes over a group from its record."""
        stored = json.loads(record.body)
        self._add(stored["group"], stored["topic"])

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

    def skip(self) -> list[list[Any]]:
        """Moves every group up to the first offset that its queues still have.

        Returns [group, topic, queue, count] where a group had still wanted some of what is gone.
        """
        skipped = []
        for key, queue, _ in self._standings():
            count = self.progress(key).skip_to(queue.min_offset) if queue.min_offset else 0
            if count:
                skipped.append([*key, count])
        return skipped

    def lowest_wanted_offset(self, young_from_ms: int, ages: list[SegmentAge]) -> int | None:
        """The lowest log offset that a lagging group waits for, of those in segments young enough."""
        young_offset = next((one.first_offset for one in ages if one.last_store_ms >= young_from_ms), None)
        if young_offset is None:
            return None
        wanted = (self._wanted_offset(queue, low_offset) for _, queue, low_offset in self._standings())
        pinning = [offset for offset in wanted if offset is not None and offset >= young_offset]
        return min(pinning, default=None)

    def _wanted_offset(self, queue: ConsumeQueue, low_offset: int) -> int | None:
        return queue.entry(low_offset).physical_offset if low_offset < queue.next_offset else None

    def _standings(self) -> Iterator[tuple[GroupQueue, ConsumeQueue, int]]:
        """Every queue of every topic that a group receives, with the group's low offset there."""
        for topic, queue_id, queue in self._store.dispatch.queues():
            for group in self._members.get(topic, ()):
                key = GroupQueue(group, topic, queue_id)
                progress = self._progress.get(key)
                yield key, queue, max(progress.low_offset if progress else 0, queue.min_offset)

    def freeze(self) -> Any:
        """What a snapshot keeps: the groups of each topic, and the progress of each on each queue."""
        progress = [[*key, progress.freeze()] for key, progress in self._progress.items()]
        return {
            "members": {topic: list(groups) for topic, groups in self._members.items()},
            "progress": progress,
        }

    def thaw(self, frozen: Any) -> None:
        """Takes a snapshot's part over."""
        for topic, groups in frozen["members"].items():
            for group in groups:
                self._add(group, topic)
        for group, topic, queue_id, progress in frozen["progress"]:
            self._progress[GroupQueue(group, topic, queue_id)] = Progress.thaw(progress)

    def in_flight(self) -> dict[tuple[str, str], int]:
        """How many messages are leased, by topic and group."""
        return self._sums(lambda key, progress: progress.in_flight_count)

    def lag(self) -> dict[tuple[str, str], int]:
        """How many messages lie above the low-water marks, by topic and group, untouched queues included."""
        lag: Counter[tuple[str, str]] = Counter()
        for key, queue, low_offset in self._standings():
            lag[(key.topic, key.group)] += queue.next_offset - low_offset
        return dict(lag)

    def _add(self, group: str, topic: str) -> None:
        self._members.setdefault(topic, {})[group] = None

    def _sums(self, count: Callable[[GroupQueue, Progress], int]) -> dict[tuple[str, str], int]:
        sums: Counter[tuple[str, str]] = Counter()
        for key, progress in self._progress.items():
            sums[(key.topic, key.group)] += count(key, progress)
        return dict(sums)
