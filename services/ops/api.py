"""The JSON interface: look at topics and messages without leasing them, create topics, send.

| request | answer |
|---|---|
| GET /api/topics | every topic |
| POST /api/topics | creates one: name, message_type, queue_count |
| GET /api/topics/{topic}?since_ms= | the topic and its queues' first and next offsets, and that at a time |
| GET /api/topics/{topic}/messages?queue=&offset=&limit= | messages of one queue from an offset on |
| GET /api/topics/{topic}/arrivals?after=0:12,1:7&limit=&wait_ms= | what came after those positions (a queue
that is not named starts at its end), waiting for it if need be; and the positions to ask for next |
| GET /api/messages?topic=&key=&limit= | messages with that key or message id, newest first; `stored_topic`
says where: a waiting timer or an open half lies in the broker's own topics; `cut`: older ones were too large
to be shown, too |
| POST /api/messages | sends one message; the answer comes when it is on disk |
| GET /api/clock | the broker's clock, and how far it is ahead of real time |
| POST /api/clock/advance | lets time pass on a virtual clock: by, such as "30m"; answers on arrival |

Delayed messages have an interface of their own, `/api/timers` (`services.ops.timers`). Times are real time;
the broker's own differs on a virtual clock (`services.live.clock`).

Messages are read until there are `limit` of them or their bodies have `LOOK_BYTES_MAX` bytes (one comes in
any case); then ask again from there.
An error is {"code": "TW-nnn", "detail": ..., "message": ...} with the HTTP status that fits.
"""

from __future__ import annotations

from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from services.auth.errors import Unauthorized
from services.broker.values import Delivery, Topic
from services.live.errors import unread
from services.live.live_broker import LiveBroker
from services.ops.errors import BodyNotJson, BodyUnfinished
from services.ops.queries import (
    LIMIT_MAX,
    ArrivalsQuery,
    FindQuery,
    MessagesQuery,
    OneTopicQuery,
    asked,
)
from services.ops.shapes import (
    NewMessage,
    NewTopic,
    TimeToPass,
    body_of,
    clock_shape,
    found_shape,
    message_shape,
    parse,
    queue_shape,
    receipt_shape,
    topic_shape,
)
from tidewheel.errors import AccessRefused, Busy, ClientMistake, NotFound, RefusedByState, TidewheelError

WAIT_MS_MAX = 20_000
NOT_FOUND = 404
HTTP_STATUSES = (
    (BodyNotJson, 415),
    (BodyUnfinished, 408),
    (ClientMistake, 400),
    (Unauthorized, 401),
    (AccessRefused, 403),
    (NotFound, 404),
    (RefusedByState, 409),
    (Busy, 503),
)

Positions = dict[int, int]
"""For each queue id the next queue offset to look at."""


class Api:
    """The handlers of the JSON interface."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    async def topics(self, request: Request) -> JSONResponse:
        """List the topics."""
        topics = sorted(self._live.core.topics.all(), key=lambda topic: topic.name)
        return JSONResponse({"topics": [topic_shape(topic) for topic in topics]})

    async def create_topic(self, request: Request) -> JSONResponse:
        """Create a topic."""
        wanted = parse(NewTopic, await body_of(request))
        queue_count = wanted.queue_count or self._live.settings.queue_count
        topic = await self._live.call(
            self._live.core.topics.create, wanted.name, wanted.message_type, queue_count
        )
        return JSONResponse(topic_shape(topic), status_code=201)

    async def topic(self, request: Request) -> JSONResponse:
        """Show a topic and its queues, each with its first offset since `since_ms`, if that is given."""
        topic, query = self._topic(request), asked(OneTopicQuery, request)
        queues = [
            queue_shape(queue_id, self._range(topic, queue_id)) for queue_id in range(topic.queue_count)
        ]
        if query.since_ms is not None:
            for queue_id, shape in enumerate(queues):
                shape["since_offset"] = str(self._live.offset_at(topic.name, queue_id, query.since_ms))
        lite_topics = self._live.core.lite.count(topic)
        return JSONResponse({**topic_shape(topic), "lite_topics": lite_topics, "queues": queues})

    async def messages(self, request: Request) -> JSONResponse:
        """Show messages of one queue."""
        topic, query = self._topic(request), asked(MessagesQuery, request)
        if query.queue >= topic.queue_count:
            queues = f"the queues 0 to {topic.queue_count - 1}"
            raise NotFound(f"Topic {topic.name} has {queues}, not {query.queue}.")
        offset = self._range(topic, query.queue)[0] if query.offset is None else query.offset
        found = self._live.query(
            self._live.core.finding.read, topic.name, query.queue, offset, at_most(query.limit)
        )
        return JSONResponse({"messages": [message_shape(delivery) for delivery in found]})

    async def arrivals(self, request: Request) -> JSONResponse:
        """Show what came after some positions, oldest first, and wait for it if there is nothing."""
        topic, query = self._topic(request), asked(ArrivalsQuery, request)
        limit, positions = at_most(query.limit), self._positions(topic, query.after)
        found = self._after(topic, positions, limit)
        wait_ms = min(query.wait_ms, WAIT_MS_MAX)
        if not found and await self._live.receivers.arrival(topic.name, wait_ms / 1000):
            found = self._after(topic, positions, limit)
        after = ",".join(f"{queue_id}:{offset}" for queue_id, offset in positions.items())
        return JSONResponse({"messages": [message_shape(delivery) for delivery in found], "after": after})

    async def find(self, request: Request) -> JSONResponse:
        """Show the messages that have a key or message id."""
        query = asked(FindQuery, request)
        topic = self._live.core.topics.get(query.topic)
        found = self._live.find(topic.name, query.key, at_most(query.limit))
        shapes = [found_shape(delivery) for delivery in found.messages]
        return JSONResponse({"messages": shapes, "cut": found.is_cut})

    async def send(self, request: Request) -> JSONResponse:
        """Store one message."""
        wanted = parse(NewMessage, await body_of(request))
        receipt = await self._live.send(wanted.to_message(uuid4().hex.upper(), self._live.now_ms()))
        return JSONResponse(receipt_shape(receipt), status_code=201)

    async def clock(self, request: Request) -> JSONResponse:
        """Show the clock."""
        return JSONResponse(clock_shape(self._live.clock))

    async def advance(self, request: Request) -> JSONResponse:
        """Let time pass."""
        await self._live.advance(parse(TimeToPass, await body_of(request)).by_ms())
        return JSONResponse(clock_shape(self._live.clock))

    def _topic(self, request: Request) -> Topic:
        return self._live.core.topics.get(request.path_params["topic"])

    def _range(self, topic: Topic, queue_id: int) -> tuple[int, int]:
        return self._live.core.finding.queue_range(topic.name, queue_id)

    def _positions(self, topic: Topic, after: str) -> Positions:
        ends = {queue_id: self._range(topic, queue_id)[1] for queue_id in range(topic.queue_count)}
        return ends | {
            queue_id: offset for queue_id, offset in asked_positions(after).items() if queue_id in ends
        }

    def _after(self, topic: Topic, positions: Positions, limit: int) -> list[Delivery]:
        """Return what is there after the positions, and move them past it."""
        found = self._live.query(self._live.core.finding.read_after, topic.name, positions, limit)
        for delivery in found:
            positions[delivery.queue_id] = delivery.queue_offset + 1
        return found


def asked_positions(after: str) -> Positions:
    """Read `after=0:12,1:7`."""
    pairs = [pair.partition(":") for pair in after.split(",") if pair]
    try:
        return {int(queue_id): int(offset) for queue_id, _, offset in pairs}
    except ValueError as error:
        raise ClientMistake("after must be QUEUE:OFFSET,QUEUE:OFFSET, such as after=0:12,1:7.") from error


def at_most(limit: int) -> int:
    """Return how many messages to show when so many are wanted."""
    return max(1, min(limit, LIMIT_MAX))


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Answer with an error of the tree."""
    assert isinstance(error, TidewheelError)
    status = next((status for kind, status in HTTP_STATUSES if isinstance(error, kind)), 500)
    shape = {"code": error.code, "detail": error.detail, "message": str(error)}
    ends = (
        {"Connection": "close"} if isinstance(error, BodyUnfinished) else None
    )  # the rest is not waited for
    return JSONResponse(shape, status_code=status, headers=ends)


async def disk_failed(request: Request, error: Exception) -> JSONResponse:
    """Answer to a look that the store's disk would not let end."""
    assert isinstance(error, OSError)
    if error.errno is None:  # a time-out, which is no failure of a file
        return await bug(request, error)
    return await refuse(request, unread(error))


async def bug(request: Request, error: Exception) -> JSONResponse:
    """Answer where the broker has a bug."""
    shape = {
        "code": "TW-100",
        "detail": "",
        "message": "The broker has met a bug; its log says more. Report it.",
    }
    return JSONResponse(shape, status_code=500)


async def unknown(request: Request, error: Exception) -> JSONResponse:
    """Answer to a path or method that is not served."""
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.url.path}"
    kind = NotFound if error.status_code == NOT_FOUND else ClientMistake
    said = kind(f"{asked[:200]} is not served here; /openapi.json lists what is.")
    shape = {"code": said.code, "detail": said.detail, "message": str(said)}
    return JSONResponse(shape, status_code=error.status_code, headers=error.headers)
