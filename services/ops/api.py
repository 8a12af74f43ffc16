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
says where: a waiting timer or an open half lies in the broker's own topics |
| POST /api/messages | sends one message; the answer comes when it is on disk |
| GET /api/timers?topic-prefix=&limit= | delayed messages that wait, the first due first |
| GET /api/clock | the broker's clock, and how far it is ahead of real time |
| POST /api/clock/advance | lets time pass on a virtual clock: by, such as "30m"; answers on arrival |

Times are real time; the broker's own differs on a virtual clock (`services.live.clock`).

Messages are read until there are `limit` of them or their bodies are large; then ask again from there.
An error is {"code": "TW-nnn", "detail": ..., "message": ...} with the HTTP status that fits.
"""

from __future__ import annotations

from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse

from commitlog.errors import Busy, ClientMistake, NotFound, RefusedByState, TidewheelError
from services.broker.values import Delivery, Topic
from services.live.live_broker import LiveBroker
from services.ops.shapes import (
    NewMessage,
    NewTopic,
    TimeToPass,
    clock_shape,
    found_shape,
    message_shape,
    parse,
    queue_shape,
    receipt_shape,
    timer_shape,
    topic_shape,
)

LIMIT_DEFAULT = 20
LIMIT_MAX = 1_000
READ_AT_ONCE = 16
BODIES_BYTES_MAX = 4 * 1024 * 1024
WAIT_MS_MAX = 20_000
HTTP_STATUSES = ((ClientMistake, 400), (NotFound, 404), (RefusedByState, 409), (Busy, 503))

Positions = dict[int, int]
"""For each queue id the next queue offset to look at."""


class Api:
    """The handlers of the JSON interface."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    async def topics(self, request: Request) -> JSONResponse:
        """List the topics."""
        topics = sorted(self._live.core.topics(), key=lambda topic: topic.name)
        return JSONResponse({"topics": [topic_shape(topic) for topic in topics]})

    async def create_topic(self, request: Request) -> JSONResponse:
        """Create a topic."""
        wanted = parse(NewTopic, await request.body())
        queue_count = wanted.queue_count or self._live.settings.queue_count
        topic = await self._live.create_topic(wanted.name, wanted.message_type, queue_count)
        return JSONResponse(topic_shape(topic), status_code=201)

    async def topic(self, request: Request) -> JSONResponse:
        """Show a topic and its queues, each with its first offset since `since_ms`, if that is given."""
        topic = self._topic(request)
        queues = [
            queue_shape(queue_id, self._range(topic, queue_id)) for queue_id in range(topic.queue_count)
        ]
        if "since_ms" in request.query_params:
            since_ms = number(request, "since_ms", 0)
            for queue_id, shape in enumerate(queues):
                shape["since_offset"] = str(self._live.offset_at(topic.name, queue_id, since_ms))
        return JSONResponse({**topic_shape(topic), "queues": queues})

    async def messages(self, request: Request) -> JSONResponse:
        """Show messages of one queue."""
        topic = self._topic(request)
        queue_id, limit = number(request, "queue", 0), limit_of(request)
        if queue_id >= topic.queue_count:
            raise NotFound(f"Topic {topic.name} has the queues 0 to {topic.queue_count - 1}, not {queue_id}.")
        offset = number(request, "offset", self._range(topic, queue_id)[0])
        found = self._read(topic, queue_id, offset, limit)
        return JSONResponse({"messages": [message_shape(delivery) for delivery in found]})

    async def arrivals(self, request: Request) -> JSONResponse:
        """Show what came after some positions, oldest first, and wait for it if there is nothing."""
        topic, limit = self._topic(request), limit_of(request)
        positions = self._positions(topic, request)
        found = self._after(topic, positions, limit)
        wait_ms = min(number(request, "wait_ms", 0), WAIT_MS_MAX)
        if not found and await self._live.arrival(topic.name, wait_ms / 1000):
            found = self._after(topic, positions, limit)
        after = ",".join(f"{queue_id}:{offset}" for queue_id, offset in positions.items())
        return JSONResponse({"messages": [message_shape(delivery) for delivery in found], "after": after})

    async def find(self, request: Request) -> JSONResponse:
        """Show the messages that have a key or message id."""
        topic = self._live.core.topic(text(request, "topic"))
        found = self._live.find(topic.name, text(request, "key"), limit_of(request))
        return JSONResponse({"messages": [found_shape(delivery) for delivery in found]})

    async def send(self, request: Request) -> JSONResponse:
        """Store one message."""
        wanted = parse(NewMessage, await request.body())
        receipt = await self._live.send(wanted.to_message(uuid4().hex.upper(), self._live.now_ms()))
        return JSONResponse(receipt_shape(receipt), status_code=201)

    async def timers(self, request: Request) -> JSONResponse:
        """Show delayed messages that wait."""
        prefix = request.query_params.get("topic-prefix", "")
        found = self._live.pending_timers(prefix, limit_of(request))
        return JSONResponse({"timers": [timer_shape(timer) for timer in found]})

    async def clock(self, request: Request) -> JSONResponse:
        """Show the clock."""
        return JSONResponse(clock_shape(self._live.clock))

    async def advance(self, request: Request) -> JSONResponse:
        """Let time pass."""
        await self._live.advance(parse(TimeToPass, await request.body()).by_ms())
        return JSONResponse(clock_shape(self._live.clock))

    def _topic(self, request: Request) -> Topic:
        return self._live.core.topic(request.path_params["topic"])

    def _range(self, topic: Topic, queue_id: int) -> tuple[int, int]:
        return self._live.core.queue_range(topic.name, queue_id)

    def _read(self, topic: Topic, queue_id: int, offset: int, limit: int) -> list[Delivery]:
        """Return up to `limit` messages of a queue, fewer when their bodies are large."""
        found: list[Delivery] = []
        body_bytes = 0
        while len(found) < limit and body_bytes < BODIES_BYTES_MAX:
            count = min(READ_AT_ONCE, limit - len(found))
            more = self._live.read(topic.name, queue_id, offset, count)
            if not more:
                break
            found += more
            offset = more[-1].queue_offset + 1
            body_bytes += sum(len(delivery.message.body) for delivery in more)
        return found

    def _positions(self, topic: Topic, request: Request) -> Positions:
        ends = {queue_id: self._range(topic, queue_id)[1] for queue_id in range(topic.queue_count)}
        return ends | {
            queue_id: offset for queue_id, offset in asked_positions(request).items() if queue_id in ends
        }

    def _after(self, topic: Topic, positions: Positions, limit: int) -> list[Delivery]:
        """Return what is there after the positions, and move them past it."""
        found: list[Delivery] = []
        for queue_id, offset in positions.items():
            found += self._read(topic, queue_id, offset, limit)
        found = sorted(found, key=lambda delivery: delivery.physical_offset)[:limit]
        for delivery in found:
            positions[delivery.queue_id] = delivery.queue_offset + 1
        return found


def asked_positions(request: Request) -> Positions:
    """Read `after=0:12,1:7`."""
    pairs = [pair.partition(":") for pair in request.query_params.get("after", "").split(",") if pair]
    try:
        return {int(queue_id): int(offset) for queue_id, _, offset in pairs}
    except ValueError as error:
        raise ClientMistake("after must be QUEUE:OFFSET,QUEUE:OFFSET, such as after=0:12,1:7.") from error


def limit_of(request: Request) -> int:
    """Return how many messages are wanted at most."""
    return max(1, min(number(request, "limit", LIMIT_DEFAULT), LIMIT_MAX))


def text(request: Request, name: str) -> str:
    """Return a value of the query that must be there."""
    value = request.query_params.get(name)
    if not value:
        raise ClientMistake(f"{name} is missing: name it in the query, such as ?{name}=...")
    return value


def number(request: Request, name: str, otherwise: int) -> int:
    """Return a whole number of the query, zero or more."""
    text = request.query_params.get(name)
    if text is None:
        return otherwise
    if not text.isdecimal():
        raise ClientMistake(f"{name} is {text!r}; it must be a whole number, 0 or more.")
    return int(text)


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Answer with an error of the tree."""
    assert isinstance(error, TidewheelError)
    status = next((status for kind, status in HTTP_STATUSES if isinstance(error, kind)), 500)
    shape = {"code": error.code, "detail": error.detail, "message": str(error)}
    return JSONResponse(shape, status_code=status)
