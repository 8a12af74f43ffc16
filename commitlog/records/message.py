"""Protocol-independent messages, as sent by producers and received by consumers.

Clients use a `Message`, which is stored on disk as a `commitlog.records.record.Record`.
`commitlog.records.properties` converts between the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

Host = tuple[str, int]
"""IP address as text, and port."""


class MessageType(Enum):
    """The types of messages that a topic accepts, with RocketMQ's names.

    MIXED accepts all types except PRIORITY and LITE. In a PRIORITY topic, each queue has a priority, and
    higher priorities are delivered first. Other topics read their queues in rotation, so a priority would
    have no effect. A LITE topic contains many lite topics. Each message belongs to one lite topic and is
    delivered to its subscribers.
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

    `delivery_ms` is the delivery time in milliseconds since the Unix epoch, or None for immediate delivery.
    `gzip` indicates whether the body is sent as gzip. `check_immunity_ms` is the time before the first
    check-back for a half message, or None for the topic's default. `priority` is None if not set, and 0 is
    the lowest.
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
        """Type of the message.

        The first attribute that is set determines the type: transaction, delay, FIFO, priority, lite.
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
