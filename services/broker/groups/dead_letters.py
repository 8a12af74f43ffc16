"""Dead letters, which are stored with failure reasons and errors in the topic `%DLQ%<group>`.

A dead letter is a message that a consumer group has failed to process. A dead letter stays open until an
operator redrives or purges it. A redrive or purge is recorded as an acknowledgement by the group `OPERATORS`
on the dead-letter topic.

A message redriven to its original topic is delivered only to the group that failed to process it, because the
other groups have already received the message. A message redriven to another topic is delivered to all groups
that receive the topic. A redriven message keeps its id.

Limitation: the copy of a message and the record that finishes the original are two records of one flush. If a
crash tears the flush between them, the message is moved again after the restart, and there are two copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from commitlog import limits
from commitlog.records import properties
from commitlog.records.kinds import DEAD_LETTER_PREFIX, OPERATORS
from commitlog.records.message import MessageType
from commitlog.records.record import COMPRESSION, Record
from consumequeue.entry import hash_lite_topic, tags_code
from consumequeue.groups.attempts import Attempts
from services.broker.groups.group_values import DeadLetter, DeadLetterCount, DeadLetterPage, GroupQueue
from services.broker.groups.groups import Groups
from services.broker.spine.errors import MessageNotFound, MessageTypeConflict
from services.broker.spine.reading import MessageReader
from services.broker.spine.statistics import Statistics
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics, check_group_name, check_topic_name
from services.broker.spine.values import Topic
from tidewheel import property_names

_MARKS: Final = (
    property_names.DEAD_LETTER_TOPIC,
    property_names.DEAD_LETTER_MESSAGE_ID,
    property_names.DEAD_REASON,
    property_names.DEAD_ATTEMPTS,
    property_names.DEAD_FIRST_ERROR,
    property_names.DEAD_LAST_ERROR,
)
_DONE: Final = (
    property_names.TIMER_OFFSET,
    property_names.VERB,
    property_names.REASON,
    property_names.CANCELS,
    property_names.CANCELS_TOPIC,
    property_names.FOR_GROUP,
)


class DeadLetters:
    """The dead letters of all consumer groups."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        reading: MessageReader,
        statistics: Statistics,
        refuse_new: Callable[[], None],
    ) -> None:
        """`refuse_new` raises `DiskFull` if the disk has no space for new messages."""
        self._store, self._topics, self._groups = store, topics, groups
        self._reading, self._statistics, self._refuse_new = reading, statistics, refuse_new

    def move_message(
        self, key: GroupQueue, record: Record, attempts: Attempts, reason: str, now_ms: int
    ) -> int:
        """Move a message to the dead-letter topic of a group.

        The dead letter contains the number of attempts and the first and the last error.

        Return the offset up to which the log must be durable before a response is sent.
        """
        marks = {
            property_names.DEAD_LETTER_TOPIC: record.topic,
            property_names.DEAD_LETTER_MESSAGE_ID: properties.value_of(
                record.properties, property_names.MESSAGE_ID
            ),
            property_names.DEAD_REASON: reason,
            property_names.DEAD_ATTEMPTS: str(attempts.made),
            property_names.DEAD_FIRST_ERROR: str(attempts.first or ""),
            property_names.DEAD_LAST_ERROR: str(attempts.last or ""),
        }
        topic = self._topics.dead_letters(key.group, now_ms)
        self._store.append(copy_of(record, topic.name, marks), now_ms)
        self._statistics.dead_letters[(key.topic, key.group)] += 1
        return self._groups.finish(key, [record.queue_offset], now_ms)

    def read_page(self, group: str, after: int | None, count_max: int) -> DeadLetterPage:
        """Return up to `count_max` open dead letters of a group, oldest first.

        The total size of the bodies in a page is at most `QUERY_BYTES_MAX` bytes, unless the page contains
        only one dead letter.
        """
        key = _key(group)
        queue, offsets = (
            self._store.dispatch.find_queue(key.topic, 0),
            self._groups.peek_in_flight(key).offsets,
        )
        offset = max(0 if after is None else after + 1, queue.min_offset)
        dead_letters: list[DeadLetter] = []
        body_bytes = 0
        while (offset := offsets.open_from(offset)) < queue.end_offset:
            if len(dead_letters) == count_max:
                return DeadLetterPage(dead_letters, dead_letters[-1].queue_offset)
            entry = queue.entry(offset)
            record = self._reading.record(queue, offset, entry)
            if record is not None:
                body_bytes += len(record.body)
                if dead_letters and body_bytes > limits.QUERY_BYTES_MAX:
                    return DeadLetterPage(dead_letters, dead_letters[-1].queue_offset)
                dead_letters.append(_dead_letter(record))
            offset = self._reading.next_offset(queue, offset, entry)
        return DeadLetterPage(dead_letters, None)

    def group_names(self) -> list[str]:
        """Return the names of all groups that have ever had dead letters, in any order."""
        names = [name for name in self._topics.names() if name.startswith(DEAD_LETTER_PREFIX)]
        return [name.removeprefix(DEAD_LETTER_PREFIX) for name in names]

    def count_open_dead_letters(self, group: str) -> DeadLetterCount:
        """Count the open dead letters of a group."""
        key = _key(group)
        if key.topic not in self._topics:
            return DeadLetterCount(group, 0, 0)
        queue = self._store.dispatch.find_queue(key.topic, 0)
        count = self._groups.peek_in_flight(key).offsets.open_count(queue.min_offset, queue.end_offset)
        return DeadLetterCount(group, count, queue.end_offset)

    def redrive(self, group: str, queue_offset: int, target: str, now_ms: int) -> int:
        """Resend a dead letter to the topic `target`, or to its original topic if `target` is empty.

        A message sent to its original topic is delivered only to the group that failed to process it. Return
        the offset up to which the log must be durable before a response is sent. Raise `DiskFull`,
        `MessageNotFound`, `IllegalTopic`, `MessageTypeConflict`, or `TopicNotFound`.
        """
        self._refuse_new()
        key, record = self._find_open_dead_letter(group, queue_offset)
        origin = properties.value_of(record.properties, property_names.DEAD_LETTER_TOPIC)
        if target:
            check_topic_name(target)
        topic = self._topics.get_or_create(target or origin, now_ms)
        marks = {property_names.REDRIVE_OF: f"{key.topic}:{queue_offset}"}
        if topic.name == origin:
            marks[property_names.FOR_GROUP] = group
        else:  # Pass the name of the original topic to the consumers.
            sent_to = properties.value_of(record.properties, property_names.ORIGIN_TOPIC)
            marks[property_names.ORIGIN_TOPIC] = sent_to or origin
        again = copy_of(record, topic.name, marks)
        again.queue_id = queue_number(record, topic, queue_offset) % topic.queue_count
        self._store.append(again, now_ms)
        return self._groups.finish(key, [queue_offset], now_ms)

    def purge(self, group: str, queue_offset: int, now_ms: int) -> int:
        """Discard a dead letter. Raise `MessageNotFound` if the dead letter is not open.

        Return the offset up to which the log must be durable before a response is sent.
        """
        key, _ = self._find_open_dead_letter(group, queue_offset)
        return self._groups.finish(key, [queue_offset], now_ms)

    def _find_open_dead_letter(self, group: str, queue_offset: int) -> tuple[GroupQueue, Record]:
        """Return the queue key and record of an open dead letter, or raise `MessageNotFound`."""
        key = _key(group)
        queue, offsets = (
            self._store.dispatch.find_queue(key.topic, 0),
            self._groups.peek_in_flight(key).offsets,
        )
        is_kept = queue.min_offset <= queue_offset < queue.end_offset
        is_there = is_kept and offsets.open_from(queue_offset) == queue_offset
        record = self._reading.record(queue, queue_offset, queue.entry(queue_offset)) if is_there else None
        if record is None:
            raise MessageNotFound(
                f"{key.topic} has no open dead letter at offset {queue_offset}: it was redriven or purged, "
                f"or never was. List what is open: tidewheel dlq ls {group}"
            )
        return key, record


def queue_number(record: Record, topic: Topic, queue_offset: int) -> int:
    """Return the number that determines the queue of a copied message.

    The number is derived from the lite topic, the message group, or the queue offset. Raise
    `MessageTypeConflict` if a lite message is copied to a topic of another type, or any other message to a
    LITE topic.
    """
    lite_topic = properties.value_of(record.properties, property_names.LITE_TOPIC)
    if (topic.message_type is MessageType.LITE) != bool(lite_topic):
        which = f"of the lite topic {lite_topic!r}" if lite_topic else "of no lite topic"
        raise MessageTypeConflict(
            f"{topic.name!r} takes {topic.message_type.value} messages, this one is {which}. Name another."
        )
    message_group = properties.value_of(record.properties, property_names.MESSAGE_GROUP)
    if lite_topic:
        return hash_lite_topic(lite_topic)
    return tags_code(message_group) if message_group else queue_offset


def _key(group: str) -> GroupQueue:
    check_group_name(group)
    return GroupQueue(OPERATORS, DEAD_LETTER_PREFIX + group, 0)


def copy_of(record: Record, topic: str, marks: dict[str, str]) -> Record:
    """Return a copy of a message for `topic`, without the properties that earlier deliveries added."""
    stored = properties.decode(record.properties)
    for done in (*_DONE, *_MARKS):
        stored.pop(done, None)
    return Record(
        topic=topic,
        body=record.body,
        properties=properties.encode(stored | marks),
        sys_flag=record.sys_flag & COMPRESSION,
        born_ms=record.born_ms,
        born_host=record.born_host,
    )


def _dead_letter(record: Record) -> DeadLetter:
    stored = properties.decode(record.properties)
    return DeadLetter(
        queue_offset=record.queue_offset,
        message=properties.to_message(record),
        store_ms=record.store_ms,
        topic=stored.get(property_names.DEAD_LETTER_TOPIC, ""),
        reason=stored.get(property_names.DEAD_REASON, ""),
        attempts=int(stored.get(property_names.DEAD_ATTEMPTS, 0)),
        first_error=stored.get(property_names.DEAD_FIRST_ERROR, ""),
        last_error=stored.get(property_names.DEAD_LAST_ERROR, ""),
    )
