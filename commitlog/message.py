"""Messages in the form of producers and consumers, independent of the protocol.

A `Message` is the user's view of a message, and a `commitlog.record.Record` is the form of a message on disk.
`commitlog.properties` converts between messages and records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

Host = tuple[str, int]
"""An address as a pair of IP text and port."""


class MessageType(Enum):
    """The type of messages that a topic accepts. MIXED accepts all types except PRIORITY and LITE.

    The values of the members are RocketMQ's names. In a topic of type PRIORITY, each queue is a priority, and
    messages of a higher queue are delivered first. In a topic of another type, queues are read in rotation,
    and a priority would have no effect. A topic of type LITE contains many lite topics. Each message of the
    topic names a lite topic, and is delivered to the subscribers of the lite topic.
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
    """One message.

    `delivery_ms` is the wall time of delivery in milliseconds since 1970, or None for immediate delivery.
    `gzip` is true if the body is compressed in transport. `check_immunity_ms` is the time before the first
    check-back of a half message, or None for the topic's default. `priority` is 0 for the lowest priority, or
    None without a priority. `lite_topic` is the lite topic of the message under its topic.
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
        """The type by the first attribute present: transaction, delay, FIFO, priority, or lite."""
        if self.transactional:
            return MessageType.TRANSACTION
        if self.delivery_ms is not None:
            return MessageType.DELAY
        if self.message_group:
            return MessageType.FIFO
        if self.priority is not None:
            return MessageType.PRIORITY
        return MessageType.LITE if self.lite_topic else MessageType.NORMAL
