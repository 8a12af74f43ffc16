"""What a producer hands in and a consumer gets back, free of any protocol.

A `Message` is the user's view; `commitlog.record.Record` is the same thing on disk.
`commitlog.properties` translates between the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

Host = tuple[str, int]
"""An address as (IP text, port)."""


class MessageType(Enum):
    """What a topic takes; MIXED takes all but PRIORITY and LITE. The values are RocketMQ's names.

    In a topic of type PRIORITY a queue is a priority, and what lies in a higher queue goes out first; in any
    other every queue has its turn, so that a priority there would be a promise that nobody keeps. A topic of
    type LITE holds many lite topics: each of its messages names one, and goes to who subscribed to that.
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

    `delivery_ms` is wall time in milliseconds since 1970 (None: at once);
    `gzip` says that the body is transported compressed; `check_immunity_ms` is how long a half message
    is left alone before its first check-back (None: the topic's default); `priority` counts from 0, the
    lowest (None: the message has none); `lite_topic` is the one that it belongs to under its topic.
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
        """The type that its attributes give it: transaction, delay, FIFO, priority, lite, in this order."""
        if self.transactional:
            return MessageType.TRANSACTION
        if self.delivery_ms is not None:
            return MessageType.DELAY
        if self.message_group:
            return MessageType.FIFO
        if self.priority is not None:
            return MessageType.PRIORITY
        return MessageType.LITE if self.lite_topic else MessageType.NORMAL
