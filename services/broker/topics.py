"""The topics of a broker, as records of the log: created by hand or by the first message.

The body of a `TW_SYS_TOPIC` record is JSON: {"name", "message_type", "queue_count"}.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from commitlog import limits
from commitlog.errors import ClientMistake, IllegalGroup, IllegalTopic, TopicExists, TopicNotFound
from commitlog.message import MessageType
from commitlog.record import TYPE_SYSTEM, Record
from services.broker.settings import BrokerSettings
from services.broker.store import Store
from services.broker.values import Topic

TOPIC_TOPIC: Final = "TW_SYS_TOPIC"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_SYSTEM_PREFIXES: Final = ("TW_SYS_", "RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_", "%RETRY%", "TBW102")


def is_system(name: str) -> bool:
    """Whether the topic is the broker's own: clients neither write nor receive it."""
    return name.startswith(_SYSTEM_PREFIXES)


def check_topic_name(name: str) -> None:
    """Raises `IllegalTopic` unless clients may use this name."""
    if not _NAME.fullmatch(name):
        raise IllegalTopic(f"{name!r} may hold only letters, digits, '_', '-', '%' and '|'.")
    if len(name) > limits.TOPIC_CHARACTERS_MAX:
        raise IllegalTopic(f"It has {len(name)} characters, the limit is {limits.TOPIC_CHARACTERS_MAX}.")
    if is_system(name):
        raise IllegalTopic(f"{name!r} is one of the broker's own topics. Choose another name.")


def check_receivable(name: str) -> None:
    """Raises `IllegalTopic` for the broker's own topics, which nobody receives."""
    if is_system(name):
        raise IllegalTopic(f"{name!r} is one of the broker's own topics. Receive from a topic of yours.")


def check_group_name(name: str) -> None:
    """Raises `IllegalGroup` unless a consumer group may have this name."""
    if not _NAME.fullmatch(name) or len(name) > limits.GROUP_CHARACTERS_MAX:
        raise IllegalGroup(
            f"{name!r} must have 1 to {limits.GROUP_CHARACTERS_MAX} letters, digits, '_', '-', '%' or '|'."
        )


class Topics:
    """All topics by name."""

    def __init__(self, store: Store, settings: BrokerSettings) -> None:
        self._store = store
        self._settings = settings
        self._topics: dict[str, Topic] = {}

    def all(self) -> list[Topic]:
        """Every topic, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def get(self, name: str) -> Topic:
        """The topic; raises `TopicNotFound`."""
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(f"There is no {name!r}. Create it: tidewheel topic create {name}")
        return topic

    def route(self, name: str, now_ms: int) -> Topic:
        """The topic, created for all message types if that is allowed; else raises `TopicNotFound`."""
        if name not in self._topics and self._settings.auto_create_topics:
            return self.create(name, MessageType.MIXED, self._settings.queue_count, now_ms)
        return self.get(name)

    def create(self, name: str, message_type: MessageType, queue_count: int, now_ms: int) -> Topic:
        """Creates a topic, or finds it with just these settings; raises `TopicExists` for others."""
        check_topic_name(name)
        if not 1 <= queue_count <= limits.QUEUE_COUNT_MAX:
            raise ClientMistake(f"A topic has 1 to {limits.QUEUE_COUNT_MAX} queues, not {queue_count}.")
        known = self._topics.get(name)
        if known is None:
            return self._add(name, message_type, queue_count, now_ms)
        if (known.message_type, known.queue_count) != (message_type, queue_count):
            raise TopicExists(
                f"{name!r} takes {known.message_type.value} and has {known.queue_count} queues.",
                durable_at=known.durable_at,
            )
        return known

    def dead_letters(self, group: str, now_ms: int) -> Topic:
        """The dead-letter topic of a group, one queue, created on first use."""
        name = DEAD_LETTER_PREFIX + group
        return self._topics.get(name) or self._add(name, MessageType.NORMAL, 1, now_ms)

    def recovered(self, record: Record) -> None:
        """Takes over a topic from its record."""
        stored = json.loads(record.body)
        self._topics[stored["name"]] = Topic(
            stored["name"], MessageType(stored["message_type"]), stored["queue_count"]
        )

    def seen(self, name: str, queue_id: int) -> None:
        """Takes over a topic from a message, as far as that tells: damage may have hit its own record."""
        known = self._topics.get(name)
        if not is_system(name) and (known is None or known.queue_count <= queue_id):
            message_type = known.message_type if known else MessageType.MIXED
            self._topics[name] = Topic(name, message_type, queue_id + 1)

    def freeze(self) -> Any:
        """What a snapshot keeps: every topic."""
        return [[topic.name, topic.message_type.value, topic.queue_count] for topic in self._topics.values()]

    def thaw(self, frozen: Any) -> None:
        """Takes a snapshot's part over."""
        for name, message_type, queue_count in frozen:
            self._topics[name] = Topic(name, MessageType(message_type), queue_count)

    def _add(self, name: str, message_type: MessageType, queue_count: int, now_ms: int) -> Topic:
        body = json.dumps({"name": name, "message_type": message_type.value, "queue_count": queue_count})
        record = Record(topic=TOPIC_TOPIC, body=body.encode(), sys_flag=TYPE_SYSTEM)
        durable_at = self._store.append(record, now_ms)
        self._topics[name] = Topic(name, message_type, queue_count, durable_at)
        return self._topics[name]
