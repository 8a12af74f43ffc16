"""Represents messages as seen by producers and consumers, independent of the protocol.

A `Message` represents a message as seen by the user, and a `commitlog.record.Record` represents it as stored
on disk. `commitlog.properties` converts between the two forms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

Host = tuple[str, int]
"""An address, which consists of an IP address as text and a port."""


class MessageType(Enum):
    """The message type that a topic accepts. MIXED accepts all types except PRIORITY and LITE.

    The values of the members are the names used by RocketMQ. In a topic of type PRIORITY, each queue has a
    priority, and messages in a higher queue are delivered first. In topics of other types, the queues are
    read in rotation, so a priority would have no effect. A topic of type LITE contains many lite topics. Each
    message in the topic specifies a lite topic, and is delivered to the subscribers of that lite topic.
    """

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    PRIORITY = "PRIORITY"
    LITE = "LITE"
    MIXED = "MIXED"


@dataclass(slots=True, kw_only=True)
class Message:
    """A message as sent by a producer or received by a consumer.

    `delivery_ms` is the delivery time in milliseconds since 1970, or None for immediate delivery. `gzip` is
    true if the body is compressed during transport. `check_immunity_ms` is the time before the first
    check-back of a half message, or None to use the topic's default. `priority` is None if the message has no
    priority. The lowest priority is 0. `lite_topic` is the lite topic of the message within its topic.
    """

    topic: str
    body: bytes
    message_id: str
    tag: str = ""
    keys: tuple[str, ...] = ()
    message_group: str = ""
    delivery_ms: int | None = None
    transactional: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    born_ms: int = 0
    born_host: Host = ("127.0.0.1", 0)
    gzip: bool = False
    trace_context: str = ""
    check_immunity_ms: int | None = None
    priority: int | None = None
    lite_topic: str = ""

    @property
    def message_type(self) -> MessageType:
        """The type of the message.

        The type is determined by the first attribute that is present: transaction, delay, FIFO, priority, or
        lite.
        """
        if self.transactional:
            return MessageType.TRANSACTION
        if self.delivery_ms is not None:
            return MessageType.DELAY
        if self.message_group:
            return MessageType.FIFO
        if self.priority is not None:
            return MessageType.PRIORITY
        return MessageType.LITE if self.lite_topic else MessageType.NORMAL
