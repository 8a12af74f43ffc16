"""Lite topics, which are small topics that share the queues and files of a LITE topic.

The property `__LITE_TOPIC` contains the lite topic of a message, as in RocketMQ. All messages of a lite topic
are stored in order in a single queue, and the index of the queue contains their offsets
(`consumequeue.lite_index`). A lite topic exists from its first message until retention deletes its last
message.
"""

from __future__ import annotations

from contextlib import suppress

from commitlog.errors import StoreDamaged
from commitlog.records.message import Message, MessageType
from consumequeue.entry import hash_lite_topic
from consumequeue.lite_index import LiteIndex
from services.broker.groups.groups import Groups
from services.broker.spine.errors import TooManyLiteTopics
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics
from services.broker.spine.validation import check_lite_topic
from services.broker.spine.values import Topic


class LiteTopics:
    """The lite topics under all LITE topics."""

    def __init__(self, store: Store, topics: Topics, groups: Groups, settings: BrokerSettings) -> None:
        self._store, self._topics, self._groups, self._settings = store, topics, groups, settings
        self._indexes: dict[tuple[str, int], LiteIndex] = {}

    def check_name(self, lite_topic: str) -> None:
        """Raise `IllegalLiteTopic` if the name is illegal."""
        check_lite_topic(lite_topic, self._settings.lite_topic_bytes_max)

    def assign_queue(self, message: Message, topic: Topic) -> int:
        """Return the id of the queue for a lite message.

        Raise `IllegalLiteTopic` or `TooManyLiteTopics`.
        """
        self.check_name(message.lite_topic)
        queue_id = queue_of(message.lite_topic, topic)
        if hash_lite_topic(message.lite_topic) not in self.index(topic.name, queue_id):
            count = self.count(topic)
            if count >= self._settings.lite_topics_max:
                raise TooManyLiteTopics(
                    f"{topic.name!r} has {count}. One is gone when retention has deleted its last message. "
                    "Use another topic, or raise --lite-topics."
                )
        return queue_id

    def count(self, topic: Topic) -> int:
        """Count the lite topics under a topic.

        In a damaged queue, only the lite topics that are already indexed are counted.
        """
        if topic.message_type is not MessageType.LITE:
            return 0
        indexes = [self.index(topic.name, queue_id) for queue_id in range(topic.queue_count)]
        for index in indexes:
            with suppress(StoreDamaged):  # The lite topics of other queues are still counted.
                index.read_on()
        return sum(index.known_count for index in indexes)

    def index(self, topic: str, queue_id: int) -> LiteIndex:
        """Return the lite topic index of a queue, which contains the message offsets of each lite topic."""
        index = self._indexes.get((topic, queue_id))
        if index is None:
            queue = self._store.dispatch.queue(topic, queue_id)
            index = self._indexes[topic, queue_id] = LiteIndex(queue)
        return index

    def build_indexes(self) -> None:
        """Build all indexes before the first request."""
        for topic in self._topics.all():
            self.count(topic)
        self.trim_indexes()

    def trim_indexes(self) -> None:
        """Remove the messages that all groups have finished from long indexes."""
        for (topic, queue_id), index in self._indexes.items():
            with suppress(StoreDamaged):  # The damage is reported by the queue and by the next receive.
                index.read_on()
            if index.is_long:
                lowest = self._groups.lowest_open_offset(topic, queue_id)
                index.trim(
                    self._store.dispatch.queue(topic, queue_id).end_offset if lowest is None else lowest
                )


def queue_of(lite_topic: str, topic: Topic) -> int:
    """Return the id of the queue that contains all messages of a lite topic."""
    return hash_lite_topic(lite_topic) % topic.queue_count
