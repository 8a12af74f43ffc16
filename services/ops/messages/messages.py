"""Operations that read messages without leases, or find messages (`sending.py` sends messages).

    GET  /api/topics/TOPIC/messages   messages of a queue, starting at an offset: queue, offset, limit
    GET  /api/topics/TOPIC/arrivals   messages after the given positions, with a wait if there are none, and
                                      the next positions: after=0:12,1:7, limit, wait_ms
    GET  /api/topics/TOPIC/newest     the last messages of all queues, newest first, and the positions
                                      after these messages: limit, bytes_max
    GET  /api/messages                messages with a key or message id, newest first: topic, key, limit

A queue that is not listed in `after` starts at its end. `stored_topic` is the topic in which a message is
stored, because pending timers and open halves are stored in internal topics. `cut` is whether older messages
are omitted because of their size. Messages are read until there are `limit` messages, or their bodies have
`QUERY_BYTES_MAX` bytes, but at least one message is returned. The next request continues after these
messages.

A body in UTF-8 is returned as `body`, and any other body as `body_base64`. Timers, dead letters and halves
are also messages, so other files use the shapes of this file for their contents and positions.
"""

from __future__ import annotations

import asyncio
import heapq
from base64 import b64decode, b64encode
from typing import Any, Final, NotRequired

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from commitlog import limits
from commitlog.records.message import Message
from services.broker.spine.reading import limit_bytes
from services.broker.spine.values import Delivery, SendReceipt, Topic
from services.live.created_topics import CreatedTopics
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.ops.administration.topics import topic_of
from services.ops.messages.message_bodies import json_text_of
from services.ops.messages.message_states import StateAnswer, states_of
from services.ops.requests.answers import JsonText, written
from services.ops.requests.operation import Operation
from services.ops.requests.polls import CallerGone, HangUp, Polls
from services.ops.requests.request import LIMIT_DEFAULT, LIMIT_MAX, Nothing, Number, asked
from tidewheel.errors import ClientMistake, NotFound

WAIT_MS_MAX = 20_000
READ_AT_ONCE = 250
"""Messages of all queues of a topic that are read in a turn of the loop."""

Positions = dict[int, int]
"""For each queue id the next queue offset to look at."""


class MessagesQuery(Nothing):
    """The queue, the first offset, and the maximum number of messages."""

    queue: Number = 0
    offset: Number | None = Field(None, description="The first offset; default: the oldest stored offset.")
    limit: Number = Field(LIMIT_DEFAULT, description=f"How many; up to {LIMIT_MAX}.")


class ArrivalsQuery(Nothing):
    """The positions after which messages are returned, and the maximum wait."""

    after: str = Field("", description="QUEUE:OFFSET,...; other queues start at their end.")
    limit: Number = Field(LIMIT_DEFAULT, description=f"How many; up to {LIMIT_MAX}.")
    wait_ms: Number = Field(0, description=f"How long to wait if there is nothing; up to {WAIT_MS_MAX}.")


class NewestQuery(Nothing):
    """The maximum number of the newest messages."""

    limit: Number = Field(LIMIT_DEFAULT, description=f"How many; up to {LIMIT_MAX}.")
    bytes_max: Number = Field(
        limits.QUERY_BYTES_MAX, description="Bytes of all bodies; one message is shown in any case."
    )


class FindQuery(Nothing):
    """The topic and the key of the messages to find."""

    topic: str = Field(min_length=1)
    key: str = Field(min_length=1, description="A message key, or a message id.")
    limit: Number = Field(LIMIT_DEFAULT, description=f"How many; up to {LIMIT_MAX}.")


def body_bytes(body: str | None, body_base64: str | None) -> bytes:
    """Return the body of a message, which is given as text or in base64.

    Raise `ClientMistake` for other input.
    """
    if (body is None) == (body_base64 is None):
        raise ClientMistake("Give either body or body_base64.")
    try:
        return b64decode(body_base64 or "", validate=True) if body is None else body.encode()
    except ValueError as error:
        raise ClientMistake(f"{'body_base64' if body is None else 'body'}: {error}.") from error


def asked_positions(after: str) -> Positions:
    """Parse `after=0:12,1:7`. Raise `ClientMistake` for an invalid position."""
    pairs = [pair.partition(":") for pair in after.split(",") if pair]
    try:
        return {int(queue_id): int(offset) for queue_id, _, offset in pairs}
    except ValueError as error:
        raise ClientMistake("after must be QUEUE:OFFSET,QUEUE:OFFSET, such as after=0:12,1:7.") from error


def at_most(limit: int) -> int:
    """Return the number of messages to return for a given `limit`, which is 1 to `LIMIT_MAX`."""
    return max(1, min(limit, LIMIT_MAX))


class BodyAnswer(TypedDict):
    """A body, as text if it is UTF-8, or else in base64."""

    body: NotRequired[str]
    body_base64: NotRequired[str]


class ContentAnswer(BodyAnswer):
    """The content of a message with its properties."""

    message_id: str
    topic: str
    tag: str
    keys: list[str]
    message_group: str
    priority: int | None
    lite_topic: str
    properties: dict[str, str]
    born_ms: str
    delivery_ms: str | None


class TakenAnswer(ContentAnswer):
    """The content of a message for its consumer or producer. A declared JSON body is returned as JSON."""

    body_json: NotRequired[Any]


class MessageAnswer(ContentAnswer):
    """A stored message and its position."""

    queue_id: int
    queue_offset: str
    physical_offset: str
    store_ms: str


class MessagesAnswer(TypedDict):
    """Messages of a queue, oldest first."""

    messages: list[MessageAnswer]


class ArrivalsAnswer(MessagesAnswer):
    """New messages, oldest first, and the positions for the next request."""

    after: str


class NewestAnswer(MessagesAnswer):
    """The newest messages, newest first.

    `after` contains the ends of the queues for a request to `arrivals`.
    """

    after: str


class FoundAnswer(MessageAnswer, StateAnswer):
    """A message that was found. A pending timer or an open half is stored in an internal topic."""

    stored_topic: str


class FoundMessagesAnswer(TypedDict):
    """Messages that were found, newest first.

    `cut` is whether older messages are omitted because of their size.
    """

    messages: list[FoundAnswer]
    cut: bool


class CreatedTopicAnswer(TypedDict):
    """A topic that did not exist before the message, or before the receive."""

    name: str
    queue_count: int


class ReceiptAnswer(TypedDict):
    """A stored message.

    `recall_handle` is empty unless the message is delayed. `replaced_offset` is the log offset of the timer
    with the same key that the message replaced, or null. `created_topic` is null unless the message created
    its topic.
    """

    message_id: str
    queue_offset: str
    physical_offset: str
    recall_handle: str
    replaced_offset: str | None
    created_topic: CreatedTopicAnswer | None


def message_shape(delivery: Delivery) -> MessageAnswer:
    """Return a stored message in JSON form."""
    return {
        **content_shape(delivery.message),
        "queue_id": delivery.queue_id,
        "queue_offset": str(delivery.queue_offset),
        "physical_offset": str(delivery.physical_offset),
        "store_ms": str(delivery.store_ms),
    }


def found_shape(delivery: Delivery, state: StateAnswer) -> FoundAnswer:
    """Return a message that was found in JSON form."""
    return {**message_shape(delivery), "stored_topic": delivery.stored_topic, **state}


def content_shape(message: Message) -> ContentAnswer:
    """Return the content of a message in JSON form."""
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


def taken_shape(message: Message) -> dict[str, Any]:
    """Return the content of a message in JSON form, with a JSON body as JSON."""
    shape: dict[str, Any] = {**content_shape(message)}
    if (text := json_text_of(message)) is not None:
        del shape["body"]
        shape["body_json"] = JsonText(text)
    return shape


def body_shape(body: bytes) -> BodyAnswer:
    """Return a body as text if it is UTF-8, or else in base64."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


def created_topic_shape(topic: str, created: CreatedTopics) -> CreatedTopicAnswer | None:
    """Return a topic in JSON form, once, if `created` contains it."""
    queue_count = created.take(topic)
    return None if queue_count is None else {"name": topic, "queue_count": queue_count}


def receipt_shape(receipt: SendReceipt, topic: str, created: CreatedTopics) -> ReceiptAnswer:
    """Return the position of a stored message in JSON form, and its topic, if `created` contains it."""
    return {
        "message_id": receipt.message_id,
        "queue_offset": str(receipt.queue_offset),
        "physical_offset": str(receipt.physical_offset),
        "recall_handle": receipt.recall_handle,
        "replaced_offset": offset_or_none(receipt.replaced_offset),
        "created_topic": created_topic_shape(topic, created),
    }


def offset_or_none(offset: int) -> str | None:
    """Return a log offset in JSON form, or null for -1."""
    return str(offset) if offset >= 0 else None


class MessagesApi:
    """The handlers of operations that read or find messages."""

    def __init__(self, live: LiveBroker, polls: Polls) -> None:
        self._live, self._polls = live, polls

    async def messages(self, request: Request) -> Response:
        """Show messages of a queue."""
        topic, query = topic_of(self._live, request), asked(MessagesQuery, request)
        if query.queue >= topic.queue_count:
            queues = f"the queues 0 to {topic.queue_count - 1}"
            raise NotFound(f"Topic {topic.name} has {queues}, not {query.queue}.")
        offset = self._range(topic, query.queue)[0] if query.offset is None else query.offset
        found = self._live.query(
            self._live.core.finding.read, topic.name, query.queue, offset, at_most(query.limit)
        )
        return await written({"messages": map(message_shape, found)})

    async def arrivals(self, request: Request) -> Response:
        """Show messages after the given positions, oldest first, and wait if there are none."""
        topic, query = topic_of(self._live, request), asked(ArrivalsQuery, request)
        limit, positions = at_most(query.limit), self._positions(topic, query.after)
        found = await self._after(topic, positions, limit)
        wait_ms = min(query.wait_ms, WAIT_MS_MAX)
        if not found and wait_ms and await self._arrived(request, topic.name, wait_ms / 1000):
            found = await self._after(topic, positions, limit)
        after = ",".join(f"{queue_id}:{offset}" for queue_id, offset in positions.items())
        return await written({"messages": map(message_shape, found), "after": after})

    async def newest(self, request: Request) -> Response:
        """Show the newest messages of all queues, newest first."""
        topic, query = topic_of(self._live, request), asked(NewestQuery, request)
        count, pauses, finding = at_most(query.limit), Pauses(), self._live.core.finding
        places, ends = list[tuple[int, int, int]](), list[str]()
        for queue_id in range(topic.queue_count):
            ends.append(f"{queue_id}:{self._range(topic, queue_id)[1]}")
            of_queue = finding.newest(topic.name, queue_id, count)
            places = heapq.nlargest(count, [*places, *((at, queue_id, offset) for at, offset in of_queue)])
            await pauses.pause()
        found, left = list[Delivery](), min(query.bytes_max, limits.QUERY_BYTES_MAX)
        for _, queue_id, offset in places:
            one = self._live.query(finding.read, topic.name, queue_id, offset, 1)
            left -= sum(len(delivery.record.body) for delivery in one)
            if left < 0 and found:
                break
            found += one
            await pauses.pause()
        shapes = map(message_shape, found)
        return await written({"messages": shapes, "after": ",".join(ends)}, pauses=pauses)

    async def find(self, request: Request) -> Response:
        """Show the messages with a key, a message id or a timer key, and their states."""
        query, live = asked(FindQuery, request), self._live
        topic, limit = live.core.topics.get(query.topic).name, at_most(query.limit)
        found = live.find(topic, query.key, limit)
        messages, is_cut = found.messages, found.is_cut
        message_id = live.core.timers.message_id_of_key(topic, query.key)
        if message_id and all(one.message.message_id != message_id for one in messages):
            named = live.find(topic, message_id, limit)
            both = sorted([*messages, *named.messages], key=lambda one: -one.physical_offset)
            messages, is_cut = both[:limit], is_cut or named.is_cut
        states = states_of(live, topic, query.key, messages)
        shapes = (found_shape(one, state) for one, state in zip(messages, states, strict=True))
        return await written({"messages": shapes, "cut": is_cut})

    async def _arrived(self, request: Request, topic: str, seconds: float) -> bool:
        """Wait for a new message. Return False after the wait or a disconnect of the caller."""
        hang_up = HangUp(request)
        try:
            with self._polls.one(request, "arrivals"):
                return await hang_up.unless(self._live.receivers.wait_for_arrival(topic, seconds))
        except CallerGone:
            return False
        finally:
            hang_up.close()

    def _range(self, topic: Topic, queue_id: int) -> tuple[int, int]:
        return self._live.core.finding.queue_range(topic.name, queue_id)

    def _positions(self, topic: Topic, after: str) -> Positions:
        ends = {queue_id: self._range(topic, queue_id)[1] for queue_id in range(topic.queue_count)}
        return ends | {
            queue_id: offset for queue_id, offset in asked_positions(after).items() if queue_id in ends
        }

    async def _after(self, topic: Topic, positions: Positions, limit: int) -> list[Delivery]:
        """Return the messages after the positions, and advance the positions.

        The messages are read in several turns of the event loop. Messages that are stored in the meantime
        have higher log offsets.
        """
        found = list[Delivery]()
        while True:
            await asyncio.sleep(0)
            wanted_count = min(READ_AT_ONCE, limit - len(found))
            arrived = self._live.core.finding.read_after(topic.name, positions, wanted_count)
            more = self._live.clock.to_real_time(arrived.messages)
            kept = list(limit_bytes([*found, *more], limits.QUERY_BYTES_MAX))
            for delivery in kept[len(found) :]:
                positions[delivery.queue_id] = delivery.queue_offset + 1
            is_cut = len(kept) < len(found) + len(more)
            found = kept
            may_be_more = arrived.is_unfinished or len(more) == wanted_count
            if is_cut or not may_be_more or len(found) == limit:
                return found


OPERATIONS: Final = (
    Operation(
        "GET",
        "/api/topics/{topic}/messages",
        MessagesApi.messages,
        {200: MessagesAnswer},
        MessagesQuery,
        refusals=(400, 404),
    ),
    Operation(
        "GET",
        "/api/topics/{topic}/arrivals",
        MessagesApi.arrivals,
        {200: ArrivalsAnswer},
        ArrivalsQuery,
        refusals=(400, 404, 503),
    ),
    Operation(
        "GET",
        "/api/topics/{topic}/newest",
        MessagesApi.newest,
        {200: NewestAnswer},
        NewestQuery,
        refusals=(400, 404),
    ),
    Operation(
        "GET", "/api/messages", MessagesApi.find, {200: FoundMessagesAnswer}, FindQuery, refusals=(400, 404)
    ),
)
