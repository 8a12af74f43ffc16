"""Moves of single messages between topics, for an operator task (`live/bulk/move_tasks.py`).

    unfinished message --copy--> target --same call--> finish it for each group of the source topic
                                                       (no groups: advance the first offset of the queue)

1. A message is moved if a group that receives the source topic has not finished it, or if no group receives
   the source topic. Every group that receives the target topic then receives the copy, even if it has already
   finished the original message.
2. The copy has the same id, keys, tag, and properties as the original message. The property `TW_REDRIVE_OF`
   contains the topic, queue, and offset of the moved message, and `TW_ORIGIN_TOPIC` contains the name of the
   topic to which the message was originally sent.
3. The copy is appended to the log before the record that finishes the message. After a crash, the log may
   therefore contain only the copy. In this case, the next move finds the copy by its id and `TW_REDRIVE_OF`,
   and does not append a second copy. A second copy is also avoided if a moved message is unfinished for a new
   group of the source topic. Copies that are not durable yet, and thus not in the key index, are kept in a
   table.
4. A message is not moved if a consumer holds a lease on it or on another message in its message group
   (`LEASED`). A message that waits for redelivery after a failed attempt is moved, and its lease is ended.
   The messages in a message group are moved to a single queue, in order.

Cost: one key index lookup, one record read, and one append per move. Limitation: an existing copy is not
found if the message has no id, or if more than `SAME_ID_READ_MAX` later messages in the target topic have the
same id.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.message import Message, MessageType
from commitlog.records.record import Record
from consumequeue.queue import ConsumeQueue
from services.broker.groups.dead_letters import copy_of, queue_number
from services.broker.groups.group_values import GroupQueue
from services.broker.groups.groups import Groups
from services.broker.housekeeping import Housekeeping
from services.broker.spine.errors import MessageTypeConflict, TopicInUse
from services.broker.spine.reading import MessageReader
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics, require_alterable_topic
from services.broker.spine.values import Topic
from tidewheel import property_names
from tidewheel.errors import ClientMistake

MOVED: Final = "MOVED"
LEASED: Final = "LEASED"
FINISHED: Final = "FINISHED"
UNREADABLE: Final = "UNREADABLE"
WHY_LEFT: Final = {
    LEASED: "a consumer holds the message or another one of its message group; move again later",
    FINISHED: "every group finished the message before it could be moved",
    UNREADABLE: "the record of the message is damaged; tidewheel store verify",
}
"""The reasons why a message remains in the source topic, keyed by verdict."""
_APART: Final = (MessageType.LITE, MessageType.PRIORITY)
"""The topic types whose messages cannot be moved without losing their lite topic or priority.
"""


class MessageToMove(NamedTuple):
    """An unfinished message and its position."""

    queue_id: int
    queue_offset: int
    message: Message


class MovePage(NamedTuple):
    """A page of the unfinished messages in a queue, in offset order.

    `after` is the first queue offset of the next page, or None on the last page.
    """

    messages: list[MessageToMove]
    after: int | None


class MoveResult(NamedTuple):
    """The verdict on a message, and the log offset that must be durable."""

    verdict: str
    durable_at: int


class _Found(NamedTuple):
    """A movable message, and the keys of the groups that have not finished it."""

    record: Record
    message_group: str
    opened: list[GroupQueue]


class TopicMoves:
    """Moves of messages between topics."""

    def __init__(
        self, store: Store, topics: Topics, groups: Groups, reading: MessageReader, housekeeping: Housekeeping
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._reading, self._housekeeping = reading, housekeeping
        self._unflushed: OrderedDict[tuple[str, str], int] = OrderedDict()
        """The end offsets of copies that may not be durable yet, by target topic and source position."""

    def check(self, source: str, target: str, *, is_filtered: bool) -> None:
        """Raise `TopicNotFound`, `IllegalTopic`, `ClientMistake`, or `TopicInUse` if a move is impossible."""
        for name in (source, target):
            require_alterable_topic(name)
            if self._topics.get(name).message_type in _APART:
                raise ClientMistake(
                    f"{name!r} takes {self._topics.get(name).message_type.value}: messages are moved between "
                    "topics of the other types only."
                )
        if source == target:
            raise ClientMistake(f"{source!r} is the topic of the messages already: name another.")
        if is_filtered:
            self._check_groups(source)

    def read_page(self, source: str, queue_id: int, first: int, end_offset: int, count_max: int) -> MovePage:
        """Return unfinished messages of a queue, starting at the queue offset `first`.

        Messages at or above the log offset `end_offset` are excluded. The page has up to `count_max`
        messages, or fewer if the messages are large. Raise `StoreDamaged` if the queue is damaged.
        """
        queue, found, body_bytes = (
            self._store.dispatch.find_queue(source, queue_id),
            list[MessageToMove](),
            0,
        )
        offset = max(first, queue.min_offset)
        while (offset := self._find_open_offset(source, queue_id, offset, queue)) < queue.end_offset:
            entry = queue.entry(offset)
            if entry.physical_offset >= end_offset:
                break
            if len(found) == count_max or body_bytes > limits.QUERY_BYTES_MAX:
                return MovePage(found, offset)
            record = self._reading.record(queue, offset, entry)
            if record is not None:
                body_bytes += len(record.body)
                found.append(MessageToMove(queue_id, offset, properties.to_message(record)))
            offset = self._reading.next_offset(queue, offset, entry)
        return MovePage(found, None)

    def move(self, source: str, queue_id: int, queue_offset: int, target: str, now_ms: int) -> MoveResult:
        """Move an unfinished, unleased message to the end of a queue in `target`.

        Raise `DiskFull` if new messages are refused, `TopicNotFound` if a topic does not exist, `TopicInUse`
        if earlier messages must be moved first, or `MessageTypeConflict` if the target does not accept the
        message.
        """
        self._housekeeping.refuse_new()
        topic, queue = self._topics.get(target), self._store.dispatch.find_queue(source, queue_id)
        self._topics.get(source)
        has_groups = bool(self._groups.groups_of(source))
        if queue_offset >= queue.min_offset and not has_groups:
            self._check_prefix(source, queue, queue_offset)
        found = self._find(source, queue_id, queue_offset, topic)
        if isinstance(found, str):
            return MoveResult(found, 0)
        record, message_group, opened = found
        place = f"{source}:{queue_id}:{queue_offset}"
        durable_at = 0
        if not self._is_copied(record, target, place):
            durable_at = self._copy(record, topic, place, queue_offset, now_ms)
        for key in opened:
            if not (flight := self._groups.in_flight(key)).is_leased(queue_offset):
                flight.withdraw(queue_offset, message_group)
            durable_at = max(durable_at, self._groups.finish(key, [queue_offset], now_ms))
        if not has_groups:
            after = self._reading.next_offset(queue, queue_offset, queue.entry(queue_offset))
            rows, places = [(source, queue_id, after)], [queue.place(after)]
            durable_at = max(durable_at, self._housekeeping.advance_queues(rows, places, now_ms))
        return MoveResult(MOVED, durable_at)

    def verdict(self, source: str, queue_id: int, queue_offset: int, target: str, *, is_behind: bool) -> str:
        """Return the verdict for a move without moving the message. The arguments are those of `move`.

        `is_behind` specifies whether an earlier message remains in the queue. This method does not check
        whether the disk is almost full.
        """
        if is_behind and not self._groups.groups_of(source):
            raise _prefix_error(source)
        found = self._find(source, queue_id, queue_offset, self._topics.get(target))
        return found if isinstance(found, str) else MOVED

    def _find(self, source: str, queue_id: int, queue_offset: int, topic: Topic) -> _Found | str:
        """Return the message if it can be moved to `topic`. Otherwise, return the verdict."""
        queue = self._store.dispatch.find_queue(source, queue_id)
        keys = [GroupQueue(group, source, queue_id) for group in self._groups.groups_of(source)]
        opened = [key for key in keys if not self._groups.peek_in_flight(key).offsets.is_done(queue_offset)]
        if queue_offset < queue.min_offset or (keys and not opened):
            return FINISHED
        record = self._reading.record(queue, queue_offset, queue.entry(queue_offset))
        if record is None:
            return UNREADABLE
        message_group = properties.value_of(record.properties, property_names.MESSAGE_GROUP)
        _check_type(topic, message_group)
        if any(self._groups.peek_in_flight(key).is_held(queue_offset, message_group) for key in opened):
            return LEASED
        return _Found(record, message_group, opened)

    def _copy(self, record: Record, topic: Topic, place: str, queue_offset: int, now_ms: int) -> int:
        """Append a copy of a message. Return the offset up to which the log must be durable."""
        first_topic = properties.value_of(record.properties, property_names.ORIGIN_TOPIC) or record.topic
        marks = {property_names.REDRIVE_OF: place, property_names.ORIGIN_TOPIC: first_topic}
        if first_topic == topic.name:
            marks[property_names.ORIGIN_TOPIC] = ""
        copy = copy_of(record, topic.name, marks)
        copy.queue_id = queue_number(record, topic, queue_offset) % topic.queue_count
        end_offset = self._store.append(copy, now_ms).end_offset
        self._unflushed[topic.name, place] = end_offset
        return end_offset

    def _is_copied(self, record: Record, target: str, place: str) -> bool:
        """Return whether an earlier move has already copied the message to `target`."""
        durable_offset = self._store.log.durable_offset
        while self._unflushed and next(iter(self._unflushed.values())) <= durable_offset:
            self._unflushed.popitem(last=False)
        if (target, place) in self._unflushed:
            return True
        message_id = properties.value_of(record.properties, property_names.MESSAGE_ID)
        if not message_id:
            return False
        found = self._store.offsets_by_key_or_id(target, message_id, self._store.log.first_offset)
        for offset in islice(found, limits.SAME_ID_READ_MAX):
            with suppress(StoreDamaged):
                stored = self._store.read(offset)
                marks = properties.value_of(stored.properties, property_names.REDRIVE_OF)
                if stored.topic == target and marks == place:
                    return True
        return False

    def _find_open_offset(self, source: str, queue_id: int, offset: int, queue: ConsumeQueue) -> int:
        """Return the lowest offset at or above `offset` that at least one group has not finished.

        If there are no groups, every offset in the queue is unfinished.
        """
        keys = [GroupQueue(group, source, queue_id) for group in self._groups.groups_of(source)]
        opened = [self._groups.peek_in_flight(key).offsets.open_from(offset) for key in keys]
        return min(opened, default=max(offset, queue.min_offset))

    def _check_groups(self, source: str) -> None:
        """Raise `TopicInUse` if the topic has no groups, in which case a move cannot use a filter.

        The messages of a topic without groups must be moved in order, starting with the oldest.
        """
        if not self._groups.groups_of(source):
            raise TopicInUse(
                f"No group receives {source!r}, so its messages are moved from the oldest on, all of them: "
                f"leave the filter out, or create a group first: tidewheel group create GROUP {source}"
            )

    def _check_prefix(self, source: str, queue: ConsumeQueue, queue_offset: int) -> None:
        """Raise `TopicInUse` if moving the message would discard readable messages below `queue_offset`."""
        offset = queue.min_offset
        while offset < queue_offset:
            entry = queue.entry(offset)
            if self._reading.record(queue, offset, entry) is not None:
                raise _prefix_error(source)
            offset = self._reading.next_offset(queue, offset, entry)


def _prefix_error(source: str) -> TopicInUse:
    return TopicInUse(
        f"No group receives {source!r}, so its messages are moved from the oldest on, and an earlier message "
        f"stays: this move would discard it. Create a group first: tidewheel group create GROUP {source}"
    )


def _check_type(topic: Topic, message_group: str) -> None:
    """Raise `MessageTypeConflict` if a message group is missing or not allowed for the topic type."""
    name, taken = topic.name, topic.message_type
    if taken is not MessageType.MIXED and (taken is MessageType.FIFO) != bool(message_group):
        which = f"of the message group {message_group!r}" if message_group else "of no message group"
        raise MessageTypeConflict(f"{name!r} takes {taken.value}, this message is {which}.")
