"""Client subscriptions to lite topics (SyncLiteSubscription in RocketMQ).

A subscription to a lite topic also subscribes the group of the client to the LITE topic. A subscription may
specify a new position for the group in the added lite topics (`LiteStart`). Without a new position, an
existing group keeps its position, and a new group begins at the configured start. A move to a later position
acknowledges the skipped messages. A move to an earlier position appends a record that lists the reopened
messages.

A TAIL position is a number of messages before the position of the group, as in RocketMQ. An OFFSET position
is a queue offset, which consumers can read from delivered messages.

Cost: a start position other than LAST requires a scan of all messages in the lite topic. A move affects at
most `LITE_MOVED_MAX` messages, and writes one record for the reopened messages and one range per skipped
message.

Limitation: a position belongs to the group, not to the client. A subscription with a position moves the whole
group in the lite topic, and ends the leases of the group on messages of the lite topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from commitlog import limits
from commitlog.records import properties
from commitlog.records.message import MessageType
from commitlog.records.record import Record
from consumequeue.entry import hash_lite_topic
from consumequeue.groups.offsets import GroupOffsets
from consumequeue.lite_index import LiteIndex
from services.broker.groups.group_values import GroupQueue
from services.broker.groups.groups import Groups
from services.broker.groups.lite_receiving import next_open_offset
from services.broker.groups.lite_subscriptions import LiteSubscriptions
from services.broker.groups.lite_topics import LiteTopics, queue_of
from services.broker.groups.receiving import MessageReceiver
from services.broker.spine.errors import MessageTypeConflict
from services.broker.spine.reading import MessageReader
from services.broker.spine.topics import Topics, check_group_name
from services.broker.spine.values import Subscriber, Topic, WakeUpKey
from tidewheel import property_names
from tidewheel.errors import ClientMistake


class LiteStartPosition(Enum):
    """The kinds of start positions in a lite topic."""

    LAST = "last"
    MIN = "min"
    MAX = "max"
    OFFSET = "offset"
    TAIL = "tail"
    TIME = "time"


@dataclass(slots=True, frozen=True)
class LiteStart:
    """A start position in a lite topic.

    Depending on `kind`, `at` is a queue offset, a number of messages, or a store time in milliseconds.
    """

    kind: LiteStartPosition = LiteStartPosition.LAST
    at: int = 0


@dataclass(slots=True, frozen=True)
class SubscriptionResult:
    """The result of a subscription change.

    `lost` contains one (client id, lite topic) pair for each lite topic that a client has lost.
    """

    lost: list[tuple[str, str]]
    durable_at: int


class LiteSubscribing:
    """Operations on lite topic subscriptions."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        lite_topics: LiteTopics,
        subscriptions: LiteSubscriptions,
        receiving: MessageReceiver,
        reading: MessageReader,
    ) -> None:
        self._topics, self._groups, self._lite_topics = topics, groups, lite_topics
        self._subscriptions, self._receiving, self._reading = subscriptions, receiving, reading

    def subscribe(
        self, subscriber: Subscriber, lite_topics: list[str], start: LiteStart, now_ms: int
    ) -> SubscriptionResult:
        """Add lite topics to a subscription.

        In an exclusive group, other clients lose the added lite topics. Raise `TopicNotFound`,
        `IllegalGroup`, `MessageTypeConflict`, `IllegalLiteTopic`, `TooManyLiteSubscriptions`, or
        `ClientMistake`.
        """
        topic = self._check_topic(subscriber, lite_topics, now_ms)
        others = self._other_subscribers(subscriber, lite_topics)
        self._subscriptions.add_lite_topics(subscriber, lite_topics, now_ms)
        for other, lite_topic in others:
            self._subscriptions.remove_lite_topics(other, [lite_topic])
        durable_at = self._receiving.join(subscriber.group, subscriber.topic, now_ms)
        if start.kind is not LiteStartPosition.LAST:
            for lite_topic in lite_topics:
                durable_at = self._move_group(subscriber, topic, lite_topic, start, now_ms)
            self._subscriptions.mark_all_ready(subscriber.group, subscriber.topic)
        return SubscriptionResult([(other.client_id, lite_topic) for other, lite_topic in others], durable_at)

    def check(self, subscriber: Subscriber, lite_topics: list[str], now_ms: int) -> SubscriptionResult:
        """Check a subscription without changing it. Raise the same errors as `subscribe`."""
        self._check_topic(subscriber, lite_topics, now_ms)
        self._subscriptions.check(subscriber, lite_topics)
        return SubscriptionResult([], 0)

    def unsubscribe(self, subscriber: Subscriber, lite_topics: list[str], now_ms: int) -> SubscriptionResult:
        """Remove lite topics from a subscription. Leases on messages of these lite topics stay valid."""
        self._check_topic(subscriber, (), now_ms)
        self._subscriptions.remove_lite_topics(subscriber, lite_topics)
        return SubscriptionResult([], 0)

    def replace(self, subscriber: Subscriber, lite_topics: list[str], now_ms: int) -> SubscriptionResult:
        """Replace the lite topics of a client. Raise the same errors as `subscribe`.

        In an exclusive group, lite topics to which other clients are subscribed are excluded and returned in
        `lost`.
        """
        self._check_topic(subscriber, lite_topics, now_ms)
        lost = dict.fromkeys(lite_topic for _, lite_topic in self._other_subscribers(subscriber, lite_topics))
        self._subscriptions.set_lite_topics(
            subscriber, [one for one in lite_topics if one not in lost], now_ms
        )
        durable_at = self._receiving.join(subscriber.group, subscriber.topic, now_ms)
        return SubscriptionResult([(subscriber.client_id, lite_topic) for lite_topic in lost], durable_at)

    def remove_all(self, subscriber: Subscriber, now_ms: int) -> SubscriptionResult:
        """Remove all subscriptions of a client under a topic."""
        self._subscriptions.remove_all(subscriber)
        return SubscriptionResult([], 0)

    def remove_client(self, client_id: str, now_ms: int) -> None:
        """Remove the subscriptions of a terminated client."""
        self._subscriptions.remove_client(client_id)

    def wake_up_key(self, group: str, topic: str, client_id: str) -> WakeUpKey:
        """Return the key under which a waiting receive of the client is woken."""
        return Subscriber(group, topic, client_id) if self.is_lite(topic) else topic

    def is_lite(self, topic: str) -> bool:
        """Return whether a topic is of type LITE."""
        return topic in self._topics and self._topics.get(topic).message_type is MessageType.LITE

    def lite_topics_of(self, subscriber: Subscriber) -> list[str]:
        """Return a subscriber's lite topics."""
        subscription = self._subscriptions.find(subscriber)
        return list(subscription.lite_topics) if subscription else []

    def count(self, topic: Topic) -> int:
        """Return the number of lite topics under a topic."""
        return self._lite_topics.count(topic)

    def mark_lite_topic_ready(self, record: Record) -> None:
        """Mark the lite topic of a newly visible message as ready."""
        lite_topic = properties.value_of(record.properties, property_names.LITE_TOPIC)
        if lite_topic:
            self._subscriptions.mark_ready(record.topic, lite_topic)

    def take_woken_subscribers(self) -> Iterable[Subscriber]:
        """Return the subscribers whose lite topics have become ready since the last call."""
        woken, self._subscriptions.woken = self._subscriptions.woken, {}
        return woken

    def run_maintenance(self, now_ms: int) -> None:
        """Remove the subscriptions of silent clients and the index entries for finished messages."""
        self._subscriptions.remove_silent_subscribers(now_ms)
        self._lite_topics.trim_indexes()

    def adopt_subscriptions(self, before: LiteSubscribing, by_ms: int = 0) -> None:
        """Adopt the subscriptions of the core that is being replaced.

        `by_ms` is the sum, in milliseconds, of the clock steps that occurred between the starts of the two
        cores.
        """
        self._subscriptions.adopt_subscriptions(before._subscriptions, by_ms)

    def _check_topic(self, subscriber: Subscriber, lite_topics: Iterable[str], now_ms: int) -> Topic:
        """Return the topic of a subscription. Raise the same errors as `subscribe`."""
        check_group_name(subscriber.group)
        topic = self._topics.get_or_create(subscriber.topic, now_ms)
        if topic.message_type is not MessageType.LITE:
            raise MessageTypeConflict(
                f"{topic.name!r} is of type {topic.message_type.value} and has no lite topics. "
                f"Create one that has: tidewheel topic create NAME --type lite"
            )
        for lite_topic in lite_topics:
            self._lite_topics.check_name(lite_topic)
        return topic

    def _other_subscribers(
        self, subscriber: Subscriber, lite_topics: list[str]
    ) -> list[tuple[Subscriber, str]]:
        """Return a (subscriber, lite topic) pair for each other subscriber to one of `lite_topics`.

        Return an empty list if the group is not exclusive.
        """
        if not self._groups.policy(subscriber.group).is_lite_exclusive:
            return []
        return [
            (other, lite_topic)
            for lite_topic in lite_topics
            for other in self._subscriptions.subscribers(subscriber.topic, lite_topic, subscriber.group)
            if other != subscriber
        ]

    def _move_group(
        self, subscriber: Subscriber, topic: Topic, lite_topic: str, start: LiteStart, now_ms: int
    ) -> int:
        """Move a group to a position in a lite topic.

        Return the offset up to which the log must be durable before a response is sent. Raise `ClientMistake`
        if the move affects more than `LITE_MOVED_MAX` messages.
        """
        key = GroupQueue(subscriber.group, subscriber.topic, queue_of(lite_topic, topic))
        wanted_from = self._first_offset(key, lite_topic, start)
        offsets, index = (
            self._groups.peek_in_flight(key).offsets,
            self._lite_topics.index(key.topic, key.queue_id),
        )
        code, durable_at = hash_lite_topic(lite_topic), 0
        to_come = index.between(code, wanted_from, index.read_offset)
        to_pass = index.between(code, 0, min(wanted_from, index.read_offset))
        again = [one for one in to_come if offsets.open_from(one) != one]
        passed = [one for one in to_pass if offsets.open_from(one) == one]
        assert not (again and passed) or passed[-1] < again[0], "a message is passed and comes again"
        if len(again) + len(passed) > limits.LITE_MOVED_MAX:
            raise ClientMistake(
                f"{len(again)} messages of {lite_topic!r} would come again and {len(passed)} would not, the "
                f"limit is {limits.LITE_MOVED_MAX}. Begin nearer to where the group is."
            )
        # All leases are ended before the move, because a remaining lease would block the lite topic and its
        # expiry would count as a failed attempt.
        self._receiving.end_group_leases(key, lite_topic, now_ms)
        if again:
            durable_at = self._groups.reopen_messages(key, again, now_ms)
        if passed:
            durable_at = self._groups.finish(key, passed, now_ms)
        return durable_at

    def _first_offset(self, key: GroupQueue, lite_topic: str, start: LiteStart) -> int:
        """Return the queue offset of the first message to deliver from a lite topic."""
        index, offsets = (
            self._lite_topics.index(key.topic, key.queue_id),
            self._groups.peek_in_flight(key).offsets,
        )
        index.reach(0)
        match start.kind:
            case LiteStartPosition.MIN:
                return 0
            case LiteStartPosition.OFFSET:
                return start.at
            case LiteStartPosition.TIME:
                return self._reading.offset_at(key.topic, key.queue_id, start.at)
            case LiteStartPosition.TAIL:
                return _tail_offset(index, offsets, hash_lite_topic(lite_topic), start.at)
            case LiteStartPosition.LAST | LiteStartPosition.MAX:
                return index.read_offset


def _tail_offset(index: LiteIndex, offsets: GroupOffsets, code: int, count: int) -> int:
    """Return the queue offset of the message `count` messages before the first unfinished one.

    Only messages of the lite topic with the hash `code` are counted.
    """
    here = next_open_offset(index, offsets, code, 0)
    here = index.read_offset if here is None else here
    before = index.between(code, 0, here)[-count:] if count > 0 else ()
    return before[0] if before else here
