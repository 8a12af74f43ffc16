"""Topic retention, which advances the first offset of each queue past expired messages.

    `begin` (every `housekeeping_ms`) -> batch of queues -> `LogCut` of expired messages -> next tick -> ...

1. A topic retention shorter than the log retention frees no disk space, because all topics share the log.
   Expired messages are no longer delivered, but queries by id can still find them until log retention deletes
   the segments. A topic retention longer than the log retention has no effect.
2. The age of a message is measured from its store time. A message is discarded within `housekeeping_ms`
   milliseconds after its age exceeds the retention, and never before.
3. Messages expire even if groups have not finished them. The `LogCut` record contains the number of
   unfinished messages of each group, which are counted as missed (`services.broker.groups.missed_messages`).

Cost: one record is read per queue of a topic with a retention, and about 20 more records if messages have
expired. Each tick checks up to `QUEUES_MAX` queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from commitlog.errors import StoreDamaged
from services.broker.groups.group_values import GroupQueue
from services.broker.groups.groups import Groups
from services.broker.housekeeping import Housekeeping
from services.broker.spine.reading import MessageReader
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics
from services.broker.spine.values import Topic

QUEUES_MAX: Final = 10
"""Maximum number of queues checked per tick."""


class ExpiredMessages(NamedTuple):
    """The numbers of messages older than a retention.

    `unfinished` counts a message once per group that has not finished it.
    """

    messages: int
    unfinished: int


class QueueAdvance(NamedTuple):
    """A queue whose first offset advances from `first` to `offset`."""

    topic: str
    queue_id: int
    first: int
    offset: int


class TopicRetention:
    """The retention of topics, as opposed to that of the log (`services.broker.housekeeping`)."""

    def __init__(
        self, store: Store, topics: Topics, groups: Groups, reading: MessageReader, housekeeping: Housekeeping
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._reading, self._housekeeping = reading, housekeeping
        self._remaining: deque[tuple[str, int]] = deque()

    @property
    def has_more(self) -> bool:
        """Whether queues remain to be checked."""
        return bool(self._remaining)

    def begin(self) -> None:
        """Begin a check of all topics with a retention, unless a check is running."""
        if self._remaining:
            return
        for name in self._topics.with_retention:
            topic = self._topics.get(name)
            queues = self._store.dispatch.queues_of(name, topic.queue_count)
            self._remaining += ((name, queue_id) for queue_id, _ in queues)

    def advance(self, now_ms: int) -> None:
        """Check up to `QUEUES_MAX` queues. Append a `LogCut` record if any first offset advances."""
        rises = list[QueueAdvance]()
        for _ in range(min(QUEUES_MAX, len(self._remaining))):
            name, queue_id = self._remaining.popleft()
            if name in self._topics.with_retention:  # The retention may have been removed.
                rises += self._find_queue_advances(self._topics.get(name), [queue_id], now_ms)
        self.cut(rises, now_ms)

    def find_expired(self, topic: Topic, now_ms: int) -> list[QueueAdvance]:
        """Return the queues whose first offsets advance because of the retention of a topic."""
        queues = self._store.dispatch.queues_of(topic.name, topic.queue_count)
        return list(self._find_queue_advances(topic, [queue_id for queue_id, _ in queues], now_ms))

    def count(self, rises: Iterable[QueueAdvance]) -> ExpiredMessages:
        """Count the messages that are discarded when the first offsets of queues advance."""
        messages = unfinished = 0
        for topic, queue_id, first, offset in rises:
            messages += offset - first
            groups = self._groups.groups_of(topic)
            keys = (GroupQueue(group, topic, queue_id) for group in groups)
            counts = [self._groups.unfinished_count(key, first, offset) for key in keys]
            unfinished += sum(counts) if groups else offset - first
        return ExpiredMessages(messages, unfinished)

    def cut(self, rises: Iterable[QueueAdvance], now_ms: int) -> int:
        """Append a `LogCut` record that advances the first offsets of queues.

        Return the log offset that must be durable, or 0 if there are no queues.
        """
        queues, places = list[tuple[str, int, int]](), list[int]()
        for topic, queue_id, _, offset in rises:
            queues.append((topic, queue_id, offset))
            places.append(self._store.dispatch.find_queue(topic, queue_id).place(offset))
        return self._housekeeping.advance_queues(queues, places, now_ms) if queues else 0

    def _find_queue_advances(
        self, topic: Topic, queue_ids: Iterable[int], now_ms: int
    ) -> Iterator[QueueAdvance]:
        """Yield the queues whose first offsets advance.

        A queue with a damaged file is skipped until the queue is rebuilt and its first offset is recorded.
        """
        since_ms = now_ms - topic.retention_ms
        for queue_id in queue_ids if topic.retention_ms else ():
            if self._store.dispatch.is_unrecorded(topic.name, queue_id):
                continue
            with suppress(StoreDamaged):
                first = self._store.dispatch.find_queue(topic.name, queue_id).min_offset
                oldest_ms = self._reading.store_ms(topic.name, queue_id, first)
                if oldest_ms is None or oldest_ms >= since_ms:
                    continue
                offset = self._reading.offset_at(topic.name, queue_id, since_ms)
                if offset > first:
                    yield QueueAdvance(topic.name, queue_id, first, offset)
