"""`/api/topics`: topics listed, looked at and created.

    GET  /api/topics                       every topic
    POST /api/topics                       creates one: name, message_type, queue_count
    GET  /api/topics/TOPIC?since_ms=       one, with its queues' first and next offsets, and that at a time

A topic's messages are in `services.ops.messages`, its check-backs in `services.ops.transactions`.
"""

from __future__ import annotations

from typing import Final, NotRequired

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from commitlog.message import MessageType
from services.broker.spine.values import Topic
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.ops.answers import written
from services.ops.operation import Operation
from services.ops.request import Nothing, Number, asked, said_as


class NewTopic(BaseModel):
    """A topic to create."""

    model_config = ConfigDict(extra="forbid")

    name: str
    message_type: MessageType = MessageType.MIXED
    queue_count: int | None = Field(None, ge=1)


class OneTopicQuery(Nothing):
    """What to say of a topic's queues."""

    since_ms: Number | None = Field(None, description="Say which offset is the first since this time, too.")


def topic_of(live: LiveBroker, request: Request) -> Topic:
    """Return the topic in a request's path; raise `TopicNotFound`."""
    return live.core.topics.get(request.path_params["topic"])


class TopicAnswer(TypedDict):
    """Add a topic."""

    name: str
    message_type: str
    queue_count: int


class TopicsAnswer(TypedDict):
    """Every topic, by name."""

    topics: list[TopicAnswer]


class QueueAnswer(TypedDict):
    """A queue: its first and its next offset, and the first one since a time if that was asked for."""

    queue_id: int
    min_offset: str
    end_offset: str
    since_offset: NotRequired[str]


class OneTopicAnswer(TopicAnswer):
    """A topic and its queues."""

    lite_topics: int
    queues: list[QueueAnswer]


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


class TopicsApi:
    """The handlers of `/api/topics`."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    async def topics(self, request: Request) -> Response:
        """List the topics."""
        pauses, topics = Pauses(), self._live.core.topics
        names = await pauses.sort(topics.names())
        return await written({"topics": (topic_shape(topics.get(name)) for name in names)}, pauses=pauses)

    async def create_topic(self, request: Request) -> JSONResponse:
        """Create a topic."""
        wanted = await said_as(NewTopic, request)
        queue_count = wanted.queue_count or self._live.settings.queue_count
        topic = await self._live.call(
            self._live.core.topics.create, wanted.name, wanted.message_type, queue_count
        )
        return JSONResponse(topic_shape(topic), status_code=201)

    async def topic(self, request: Request) -> Response:
        """Show a topic and its queues, each with its first offset since `since_ms`, if that is given."""
        topic, query = topic_of(self._live, request), asked(OneTopicQuery, request)
        queue_range = self._live.core.finding.queue_range
        queues = [
            queue_shape(queue_id, queue_range(topic.name, queue_id)) for queue_id in range(topic.queue_count)
        ]
        if query.since_ms is not None:
            pauses = Pauses()
            for queue_id, shape in enumerate(queues):
                shape["since_offset"] = str(self._live.offset_at(topic.name, queue_id, query.since_ms))
                await pauses.pause()
        lite_topics = self._live.core.lite.count(topic)
        return await written({**topic_shape(topic), "lite_topics": lite_topics, "queues": queues})


OPERATIONS: Final = (
    Operation("GET", "/api/topics", TopicsApi.topics, {200: TopicsAnswer}),
    Operation(
        "POST",
        "/api/topics",
        TopicsApi.create_topic,
        {201: TopicAnswer},
        bodies=(NewTopic,),
        refusals=(400, 409, 503),
    ),
    Operation(
        "GET",
        "/api/topics/{topic}",
        TopicsApi.topic,
        {200: OneTopicAnswer},
        OneTopicQuery,
        refusals=(400, 404),
    ),
)
