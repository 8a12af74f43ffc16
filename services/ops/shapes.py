"""What goes over the HTTP interface: JSON shapes, checked on the way in.

64-bit numbers (offsets, times) go out as strings, because JavaScript's numbers cannot hold them. A body
that is UTF-8 text goes out as `body`, any other as `body_base64`.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from commitlog import limits
from commitlog.message import Message, MessageType
from services.broker.delays import dated
from services.broker.values import Delivery, SendReceipt, Topic
from services.live.clock import Clock
from services.live.errors import IllegalAdvance
from services.ops.answers import (
    BodyAnswer,
    ClockAnswer,
    ContentAnswer,
    FoundAnswer,
    MessageAnswer,
    QueueAnswer,
    ReceiptAnswer,
    TopicAnswer,
)
from services.ops.queries import Number, mistake
from services.times import durations
from tidewheel.errors import BodyTooLarge

Shape = TypeVar("Shape", bound=BaseModel)


class NewTopic(BaseModel):
    """A topic to create."""

    model_config = ConfigDict(extra="forbid")

    name: str
    message_type: MessageType = MessageType.MIXED
    queue_count: int | None = Field(None, ge=1)


class NewMessage(BaseModel):
    """A message to send: `in_ms` from now, `at_ms` in wall time, or at once.

    `timer_key` names the timer that it is until then; a pending one with that key is replaced, or with
    `unique` the message is refused.
    """

    model_config = ConfigDict(extra="forbid")

    topic: str
    body: str
    keys: list[str] = []
    tag: str = ""
    message_group: str = ""
    properties: dict[str, str] = {}
    in_ms: Number | None = None
    at_ms: Number | None = None
    timer_key: str = ""
    unique: bool = False
    priority: int | None = Field(None, ge=0, description="For a topic of type PRIORITY; 0 is the lowest.")
    lite_topic: str = Field("", description="For a topic of type LITE: the one that it belongs to.")

    def to_message(self, message_id: str, now_ms: int) -> Message:
        """Return the message as the core takes it; raises `IllegalDeliveryTime`."""
        message = Message(
            topic=self.topic,
            body=self.body.encode(),
            message_id=message_id,
            tag=self.tag,
            keys=tuple(self.keys),
            message_group=self.message_group,
            delivery_ms=self.at_ms if self.in_ms is None else now_ms + self.in_ms,
            properties=self.properties | self._timer_properties(),
            born_ms=now_ms,
            priority=self.priority,
            lite_topic=self.lite_topic,
        )
        return dated(message, now_ms)

    def _timer_properties(self) -> dict[str, str]:
        key = {"TW_TIMER_KEY": self.timer_key} if self.timer_key else {}
        return key | ({"TW_TIMER_UNIQUE": "true"} if self.unique else {})


class TimeToPass(BaseModel):
    """How far to advance a virtual clock: "500ms", "30s", "1h30m", "2d"."""

    model_config = ConfigDict(extra="forbid")

    by: str

    def by_ms(self) -> int:
        """Return the span in milliseconds; raises `IllegalAdvance` when it is none."""
        try:
            return durations.span_ms(self.by)
        except ValueError as error:
            raise IllegalAdvance(f"by is {self.by!r}: {error}.") from error


def parse(kind: type[Shape], body: bytes) -> Shape:
    """Read a request's body; raises `ClientMistake` naming the first field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise mistake(error, "the body") from error


async def body_of(request: Request) -> bytes:
    """Return a request's body; raises `BodyTooLarge`."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limits.HTTP_BODY_BYTES_MAX:
            raise BodyTooLarge(f"The request has more than {limits.HTTP_BODY_BYTES_MAX} bytes. Send several.")
        parts.append(part)
    return b"".join(parts)


def topic_shape(topic: Topic) -> TopicAnswer:
    """Return a topic as JSON has it."""
    return {
        "name": topic.name,
        "message_type": topic.message_type.value,
        "queue_count": topic.queue_count,
    }


def queue_shape(queue_id: int, offsets: tuple[int, int]) -> QueueAnswer:
    """Return a queue's first and next offset as JSON has them."""
    return {"queue_id": queue_id, "min_offset": str(offsets[0]), "end_offset": str(offsets[1])}


def receipt_shape(receipt: SendReceipt) -> ReceiptAnswer:
    """Return a stored message's place as JSON has it."""
    return {
        "message_id": receipt.message_id,
        "queue_offset": str(receipt.queue_offset),
        "physical_offset": str(receipt.physical_offset),
        "recall_handle": receipt.recall_handle,
    }


def clock_shape(clock: Clock) -> ClockAnswer:
    """Return a clock as JSON has it: the broker's time, and how far that is ahead of real time."""
    return {
        "kind": "virtual" if clock.is_virtual else "real",
        "now_ms": str(clock.now_ms()),
        "offset_ms": str(clock.offset_ms),
    }


def content_shape(message: Message) -> ContentAnswer:
    """Return what a message says as JSON has it."""
    return {
        "message_id": message.message_id,
        "topic": message.topic,
        "tag": message.tag,
        "keys": list(message.keys),
        "message_group": message.message_group,
        "priority": message.priority,
        "lite_topic": message.lite_topic,
        "properties": message.properties,
        "born_ms": str(message.born_ms),
        "delivery_ms": None if message.delivery_ms is None else str(message.delivery_ms),
        **body_shape(message.body),
    }


def message_shape(delivery: Delivery) -> MessageAnswer:
    """Return a stored message as JSON has it."""
    return {
        **content_shape(delivery.message),
        "queue_id": delivery.queue_id,
        "queue_offset": str(delivery.queue_offset),
        "physical_offset": str(delivery.physical_offset),
        "store_ms": str(delivery.store_ms),
    }


def found_shape(delivery: Delivery) -> FoundAnswer:
    """Return a message that was looked up as JSON has it."""
    return {**message_shape(delivery), "stored_topic": delivery.stored_topic}


def body_shape(body: bytes) -> BodyAnswer:
    """Return a body as text if it is text, else in base64."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}
