"""Defines protocol-independent messages, as sent by producers and received by consumers.

A `Message` is the form of a message that clients use, and a `commitlog.record.Record` is the form that is
stored on disk. `commitlog.properties` converts between the two forms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

Host = tuple[str, int]
"""A network address, which consists of an IP address in text form and a port number."""


class MessageType(Enum):
    """The type of the messages that a topic accepts.

    A topic of type MIXED accepts all types except PRIORITY and LITE. The member values are the names used by
    RocketMQ. In a topic of type PRIORITY, each queue corresponds to a priority, and messages with a higher
    priority are delivered first. In topics of other types, the queues are read in rotation, so that a
    priority would have no effect. A topic of type LITE contains many lite topics. Each message in such a
    topic belongs to a lite topic, and is delivered to the subscribers of that lite topic.
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
    true if the body is transmitted in gzip format. `check_immunity_ms` is the time before the first
    transaction check-back for a half message, or None to use the topic's default. `priority` is None if the
    message has no priority. The lowest priority is 0. `lite_topic` is the name of the lite topic to which the
    message belongs.
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

        The type is determined by the first of the following attributes that is present: transaction, delay,
        FIFO, priority, and lite.
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
