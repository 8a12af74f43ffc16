"""The operations of `/api/topics`: topics are listed, shown, created, changed, purged and deleted.

    GET    /api/topics?counts=             lists topics; with counts=true also their numbers of messages
    POST   /api/topics                     creates a topic: name, message_type, queue_count
    GET    /api/topics/TOPIC?since_ms=     shows a topic with the first and next offsets of its queues, and
                                           the offsets at a time; with oldest=true also the time at which the
                                           first message of each queue was stored
    PUT    /api/topics/TOPIC               alters a topic: message_type, queue_count, retention, discard,
                                           reason, seen
    DELETE /api/topics/TOPIC?discard=      deletes a topic: seen_unfinished
    GET    /api/topics/TOPIC/use           shows the messages, timers, halves, schedules and groups of a
                                           topic, and the messages that a retention=7d would discard
    POST   /api/topics/TOPIC/purge         discards the messages of a topic: discard, seen
    POST   /api/topics/TOPIC/hold          holds the timers of a topic at their due times: reason
    POST   /api/topics/TOPIC/release       delivers the held timers of a topic: per_second, reason,
                                           seen

A change that would discard data is refused (409). `discard` permits a change that discards unfinished
messages. Timers, halves and schedules must be ended before the change (`services.broker.topic_changes`). With
`seen`, a change of what another caller has changed since is refused, too (`services.ops.requests.seen`).

The messages of a topic are in `services.ops.messages.messages`, and its check-backs in
`services.ops.transactions.transactions`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NotRequired

import structlog
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from commitlog import limits
from commitlog.records.message import MessageType
from services.broker.spine.values import TimerHold, Topic
from services.broker.topic_changes import TopicUse
from services.broker.topic_retention import ExpiredMessages
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.ops.requests.answers import written
from services.ops.requests.given_times import span_in
from services.ops.requests.operation import Operation
from services.ops.requests.request import Nothing, Number, Reason, Span, asked, said_as
from services.ops.requests.seen import change_of, changes_since, refuse_changed
from tidewheel.durations import span_text
from tidewheel.errors import ClientMistake
from tidewheel.printable import utc

NO_RETENTION: Final = "none"
WORDS: Final = {"message_type": "type", "queue_count": "number of queues", "retention": "retention"}
"""The settings of a topic in sentences."""

log = structlog.get_logger()


class NewTopic(BaseModel):
    """A topic to create."""

    model_config = ConfigDict(extra="forbid")

    name: str
    message_type: MessageType = MessageType.MIXED
    queue_count: int | None = Field(None, ge=1)


class TopicsQuery(Nothing):
    """The additional fields of each topic in the answer."""

    counts: bool = Field(False, description="Count the messages of each, too.")


class OneTopicQuery(Nothing):
    """The additional fields of each queue in the answer."""

    oldest: bool = Field(
        False, description="Also return the time at which the first message of each queue was stored."
    )
    since_ms: Number | None = Field(None, description="Also return the first offset since this time.")


def topic_of(live: LiveBroker, request: Request) -> Topic:
    """Return the topic in the path of a request. Raise `TopicNotFound`."""
    return live.core.topics.get(request.path_params["topic"])


class SeenSettings(BaseModel):
    """The settings that the caller saw. The change is refused if one of them differs now.

    It is also refused if its retention would discard more unfinished messages at once.
    """

    model_config = ConfigDict(extra="forbid")

    message_type: MessageType | None = None
    queue_count: int | None = Field(None, ge=1)
    retention: Span | None = Field(None, description="Such as 7d; none: no retention.")
    unfinished: Number | None = Field(
        None, description="The number of unfinished messages that the new retention would discard at once."
    )

    def given(self) -> dict[str, Any]:
        """Return the given settings, as `settings_of` returns them. Raise `ClientMistake`."""
        given = self.model_dump(exclude_none=True, exclude={"unfinished"})
        if self.retention is not None:
            given["retention"] = retention_text(retention_in(self.retention, "seen.retention"))
        if self.message_type is not None:
            given["message_type"] = self.message_type.value
        return given


class SeenUse(BaseModel):
    """The unfinished messages that the caller saw. The change is refused if there are more now."""

    model_config = ConfigDict(extra="forbid")

    unfinished: Number


class SeenHold(BaseModel):
    """The hold that the caller saw. The change is refused if the topic has another hold or pace now."""

    model_config = ConfigDict(extra="forbid")

    since_ms: Number
    per_second: Number | None = Field(None, description="null: it was not being released.")


class ChangedTopic(BaseModel):
    """The new settings of a topic. Omitted settings remain unchanged."""

    model_config = ConfigDict(extra="forbid")

    message_type: MessageType | None = None
    queue_count: int | None = Field(None, ge=1)
    retention: Span | None = Field(
        None, description="Messages older than this are no longer delivered: 7d; none: no such limit."
    )
    discard: bool = Field(False, description="Let a retention discard unfinished messages at once.")
    reason: Reason = ""
    seen: SeenSettings | None = None

    def settings(self) -> dict[str, Any]:
        """Return the new settings, as `settings_of` returns them. Raise `ClientMistake`."""
        wanted = SeenSettings(
            message_type=self.message_type,
            queue_count=self.queue_count,
            retention=self.retention,
            unfinished=None,
        )
        return wanted.given()

    def retention_ms(self) -> int | None:
        """Return the new retention, 0 for none, or None if none is given. Raise `ClientMistake`."""
        return None if self.retention is None else retention_in(self.retention)


class UseQuery(Nothing):
    """A change that is considered."""

    retention: str = Field("", description="Also count the messages that this retention would discard.")


class Purge(BaseModel):
    """Whether messages that a group has not finished may be discarded."""

    model_config = ConfigDict(extra="forbid")

    discard: bool = False
    reason: Reason = ""
    seen: SeenUse | None = None


class TopicHold(BaseModel):
    """A hold of a topic's timers: they are not delivered when they are due, until a release."""

    model_config = ConfigDict(extra="forbid")

    reason: Reason = ""


class TopicRelease(BaseModel):
    """A release of a topic's held timers, of which `per_second` are delivered each second; 0: all at once."""

    model_config = ConfigDict(extra="forbid")

    per_second: int = Field(0, ge=0, le=limits.RELEASE_PER_SECOND_MAX)
    reason: Reason = ""
    seen: SeenHold | None = None


class DeletionQuery(Nothing):
    """Whether messages that a group has not finished may be discarded."""

    discard: bool = False
    reason: Reason = ""
    seen_unfinished: Number | None = Field(
        None,
        description="The number of unfinished messages that the caller saw; with more, nothing is deleted.",
    )


class TopicAnswer(TypedDict):
    """A topic with its type and its number of queues, and its retention if it has one."""

    name: str
    message_type: str
    queue_count: int
    retention_ms: NotRequired[str]


class ExpiredAnswer(TypedDict):
    """Messages that a retention discards at once, and how many of them groups have not finished."""

    messages: int
    unfinished: int


class AlteredTopicAnswer(TopicAnswer):
    """A topic after a change. `expired` is what a new retention has discarded; null: none was given."""

    expired: ExpiredAnswer | None


class HoldAnswer(TypedDict):
    """A hold of a topic's timers; `held` is the number of timers that are due and wait.

    `per_second` is null while the topic is held. After the release it is the rate of delivery, or 0 for no
    limit.
    """

    since_ms: str
    reason: str
    per_second: int | None
    held: int


class HeldTopicAnswer(TopicAnswer):
    """A topic; `hold` is null unless the topic is held, or its held timers are being delivered."""

    hold: HoldAnswer | None


class ListedTopicAnswer(HeldTopicAnswer):
    """A topic.

    `message_count` is the number of messages in its queues, received or not, if it was requested.
    """

    message_count: NotRequired[int]


class RetentionAnswer(TypedDict):
    """The limits of the log, which apply to all topics. A limit that is null does not exist.

    Without limits, no part of the log is deleted.
    """

    age_ms: str | None
    log_bytes_max: str | None


class TopicsAnswer(TypedDict):
    """All topics, sorted by name."""

    topics: list[ListedTopicAnswer]
    retention: RetentionAnswer


class QueueAnswer(TypedDict):
    """A queue with its first and next offsets, and the first offset since a time if it was requested.

    `oldest_ms`, if it was requested, is the time at which the first message was stored, or null for an empty
    queue.
    """

    queue_id: int
    min_offset: str
    end_offset: str
    since_offset: NotRequired[str]
    oldest_ms: NotRequired[str | None]


class OneTopicAnswer(HeldTopicAnswer):
    """A topic and its queues."""

    lite_topics: int
    queues: list[QueueAnswer]
    retention: RetentionAnswer


class GroupUseAnswer(TypedDict):
    """A group of a topic, with its unfinished messages of the topic, and its dead letters of any topic."""

    group: str
    unfinished: int
    dead_letters: int


class TopicUseAnswer(HeldTopicAnswer):
    """A topic, and the objects that a change of the topic affects."""

    messages: int
    unfinished: int
    timers: int
    halves: int
    schedules: list[str]
    groups: list[GroupUseAnswer]
    expired: ExpiredAnswer | None


def topic_shape(topic: Topic) -> TopicAnswer:
    """Return a topic in JSON form."""
    shape: TopicAnswer = {
        "name": topic.name,
        "message_type": topic.message_type.value,
        "queue_count": topic.queue_count,
    }
    return shape | {"retention_ms": str(topic.retention_ms)} if topic.retention_ms else shape


def expired_shape(expired: ExpiredMessages) -> ExpiredAnswer:
    """Return what a retention discards as JSON has it."""
    return {"messages": expired.messages, "unfinished": expired.unfinished}


def retention_in(text: str, field: str = "retention") -> int:
    """Return a retention of a topic in milliseconds, 0 for none; raise `ClientMistake`."""
    if text == NO_RETENTION:
        return 0
    retention_ms = span_in(text, field)
    if not retention_ms:
        raise ClientMistake(f"{field} is {text[:80]!r}: write {NO_RETENTION} to remove the retention.")
    return retention_ms


def retention_text(retention_ms: int) -> str:
    """Return a retention of a topic as callers write it."""
    return span_text(retention_ms) if retention_ms else NO_RETENTION


def settings_of(topic: Topic) -> dict[str, Any]:
    """Return the settings of a topic, to be compared with those that a caller saw."""
    return {
        "message_type": topic.message_type.value,
        "queue_count": topic.queue_count,
        "retention": retention_text(topic.retention_ms),
    }


def hold_changes(seen: SeenHold, hold: TimerHold, per_second: int) -> list[str]:
    """Return what was changed of a hold since it was seen, apart from a release at the rate `per_second`."""
    if hold.since_ms != seen.since_ms:
        return [change_of("hold", f"that of {utc(seen.since_ms)}", f"that of {utc(hold.since_ms)}")]
    if hold.per_second in (seen.per_second, per_second):
        return []
    return [change_of("release", pace_text(seen.per_second), pace_text(hold.per_second))]


def pace_text(per_second: int | None) -> str:
    """Return the rate of a release as part of a sentence."""
    if per_second is None:
        return "none"
    return f"{per_second:,} per second" if per_second else "at once"


def hold_shape(topic: Topic, held_count: int) -> HoldAnswer | None:
    """Return a topic's hold as JSON has it, or None if it keeps no timers."""
    hold = topic.hold
    if hold is None or not (topic.is_held or held_count):
        return None
    return {
        "since_ms": str(hold.since_ms),
        "reason": hold.reason,
        "per_second": hold.per_second,
        "held": held_count,
    }


def queue_shape(queue_id: int, offsets: tuple[int, int]) -> QueueAnswer:
    """Return the first and next offsets of a queue in JSON form."""
    return {"queue_id": queue_id, "min_offset": str(offsets[0]), "end_offset": str(offsets[1])}


def use_shape(use: TopicUse, expired: ExpiredMessages | None = None) -> TopicUseAnswer:
    """Return the use of a topic, and the messages that a retention would discard, in JSON form."""
    return {
        **topic_shape(use.topic),
        "hold": hold_shape(use.topic, use.held_timers),
        "messages": use.messages,
        "unfinished": use.unfinished,
        "timers": use.timers,
        "halves": use.halves,
        "schedules": use.schedules,
        "groups": [
            {"group": one.group, "unfinished": one.unfinished, "dead_letters": one.dead_letters}
            for one in use.groups
        ],
        "expired": None if expired is None else expired_shape(expired),
    }


class TopicsApi:
    """The handlers of `/api/topics`."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    async def topics(self, request: Request) -> Response:
        """List the topics."""
        query, pauses, topics = asked(TopicsQuery, request), Pauses(), self._live.core.topics
        shape = self._counted if query.counts else self._listed
        names = await pauses.sort_names(topics.names())
        shapes = (shape(topics.get(name)) for name in names)
        return await written({"topics": shapes, "retention": self._retention()}, pauses=pauses)

    async def create_topic(self, request: Request) -> JSONResponse:
        """Create a topic."""
        wanted = await said_as(NewTopic, request)
        queue_count = wanted.queue_count or self._live.settings.queue_count
        topic = await self._live.call(
            self._live.core.topics.create, wanted.name, wanted.message_type, queue_count
        )
        return JSONResponse(topic_shape(topic), status_code=201)

    async def topic(self, request: Request) -> Response:
        """Show a topic and its queues, each with its first offset since `since_ms` if it is given."""
        topic, query = topic_of(self._live, request), asked(OneTopicQuery, request)
        queue_range = self._live.core.finding.queue_range
        queues = [
            queue_shape(queue_id, queue_range(topic.name, queue_id)) for queue_id in range(topic.queue_count)
        ]
        pauses = Pauses()
        for queue_id, shape in enumerate(queues if query.since_ms is not None or query.oldest else ()):
            if query.since_ms is not None:
                shape["since_offset"] = str(self._live.offset_at(topic.name, queue_id, query.since_ms))
            if query.oldest:
                shape["oldest_ms"] = self._oldest_ms(topic, queue_id)
            await pauses.pause()
        more = {"lite_topics": self._live.core.lite.count(topic), "retention": self._retention()}
        return await written(
            {**topic_shape(topic), "hold": self._hold_of(topic), **more, "queues": queues}, pauses=pauses
        )

    async def use(self, request: Request) -> Response:
        """Show the objects that a change of a topic affects."""
        name, query = request.path_params["topic"], asked(UseQuery, request)
        changes, expired = self._live.core.topic_changes, None
        use = self._live.query(changes.describe_use, name)
        if query.retention:
            expired = self._live.call_with_time(changes.expired, name, retention_in(query.retention))
        return await written(use_shape(use, expired))

    async def alter(self, request: Request) -> JSONResponse:
        """Change the type or the retention of a topic, or add queues."""
        wanted = await said_as(ChangedTopic, request)
        if (wanted.message_type, wanted.queue_count, wanted.retention) == (None, None, None):
            raise ClientMistake("Give message_type, queue_count, retention or some of them.")
        if wanted.seen and wanted.seen.unfinished is not None and wanted.retention is None:
            raise ClientMistake("seen.unfinished limits what a retention discards: give retention, too.")
        name, retention_ms = request.path_params["topic"], wanted.retention_ms()
        alter = partial(
            self._live.core.topic_changes.alter, retention_ms=retention_ms, discard=wanted.discard
        )
        check = partial(self._check_settings, name, wanted)
        changed = await self._live.call(alter, name, wanted.message_type, wanted.queue_count, check=check)
        said = wanted.model_dump(mode="json", exclude_none=True, exclude={"seen"})
        log.info("topic altered", topic=name, **said)
        expired = None if retention_ms is None else expired_shape(changed.expired)
        answer: AlteredTopicAnswer = {**topic_shape(changed.topic), "expired": expired}
        return JSONResponse(answer)

    async def purge(self, request: Request) -> Response:
        """Discard the messages of a topic."""
        wanted, name = await said_as(Purge, request), request.path_params["topic"]
        purge = partial(self._live.core.topic_changes.purge, discard=wanted.discard)
        seen = None if wanted.seen is None else wanted.seen.unfinished
        changed = await self._live.call(purge, name, check=partial(self._check_unfinished, name, seen))
        log.info("topic purged", topic=name, messages=changed.use.messages, unfinished=changed.use.unfinished)
        return await written(use_shape(changed.use))

    async def hold(self, request: Request) -> Response:
        """Hold back the timers of a topic when they are due."""
        wanted, name = await said_as(TopicHold, request), request.path_params["topic"]
        changed = await self._live.call(self._live.core.topic_changes.hold, name, wanted.reason)
        log.info("topic held", topic=name, timers=changed.use.timers, reason=wanted.reason)
        return await written(use_shape(changed.use._replace(topic=changed.topic)))

    async def release(self, request: Request) -> Response:
        """Deliver the held timers of a topic, at once or at a pace."""
        wanted, name = await said_as(TopicRelease, request), request.path_params["topic"]
        release = self._live.core.topic_changes.release
        check = partial(self._check_hold, name, wanted)
        changed = await self._live.call(release, name, wanted.per_second, check=check)
        held = changed.use.held_timers
        log.info("topic released", topic=name, held=held, per_second=wanted.per_second, reason=wanted.reason)
        return await written(use_shape(changed.use._replace(topic=changed.topic)))

    async def delete(self, request: Request) -> Response:
        """Delete a topic after all pending sends to the topic have been stored."""
        query, name = asked(DeletionQuery, request), request.path_params["topic"]
        await self._live.wait_until_all_durable()
        delete = partial(self._live.core.topic_changes.delete, discard=query.discard)
        check = partial(self._check_unfinished, name, query.seen_unfinished)
        changed = await self._live.call(delete, name, check=check)
        use = changed.use
        log.info("topic deleted", topic=name, messages=use.messages, unfinished=use.unfinished)
        return await written(use_shape(use))

    def _check_settings(self, name: str, wanted: ChangedTopic) -> None:
        """Raise `RefusedByState` if settings that the caller saw are different now."""
        if wanted.seen is None:
            return
        now = settings_of(self._live.core.topics.get(name))
        changes = changes_since(wanted.seen.given(), now, wanted.settings(), WORDS)
        retention_ms, seen = wanted.retention_ms(), wanted.seen.unfinished
        if retention_ms and seen is not None:
            expired = self._live.core.topic_changes.expired
            unfinished = self._live.call_with_time(expired, name, retention_ms).unfinished
            what = "unfinished messages older than the retention"
            changes += [change_of(what, f"{seen:,}", f"{unfinished:,}")] if unfinished > seen else []
        refuse_changed(self._live, repr(name), changes)

    def _check_unfinished(self, name: str, seen: int | None) -> None:
        """Raise `RefusedByState` if more messages are unfinished than the caller saw."""
        if seen is None:
            return
        unfinished = self._live.core.topic_changes.describe_use(name).unfinished
        changes = [change_of("unfinished messages", f"{seen:,}", f"{unfinished:,}")]
        refuse_changed(self._live, repr(name), changes if unfinished > seen else [])

    def _check_hold(self, name: str, wanted: TopicRelease) -> None:
        """Raise `RefusedByState` if the hold that the caller saw is different now."""
        hold = self._live.clock.to_real_time(self._live.core.topics.get(name)).hold
        if wanted.seen is not None and hold is not None:
            changes = hold_changes(wanted.seen, hold, wanted.per_second)
            refuse_changed(self._live, repr(name), changes)

    def _hold_of(self, topic: Topic) -> HoldAnswer | None:
        held_count = self._live.core.timers.held.counts[topic.name]
        return hold_shape(self._live.clock.to_real_time(topic), held_count)

    def _listed(self, topic: Topic) -> HeldTopicAnswer:
        return {**topic_shape(topic), "hold": self._hold_of(topic)}

    def _counted(self, topic: Topic) -> ListedTopicAnswer:
        ranges = (self._live.core.finding.queue_range(topic.name, one) for one in range(topic.queue_count))
        message_count = sum(end - first for first, end in ranges)
        return {
            **topic_shape(topic),
            "hold": self._hold_of(topic),
            "message_count": message_count,
        }

    def _oldest_ms(self, topic: Topic, queue_id: int) -> str | None:
        finding = self._live.core.finding
        first, end = finding.queue_range(topic.name, queue_id)
        found = self._live.query(finding.read, topic.name, queue_id, first, 1) if first < end else []
        return str(found[0].store_ms) if found else None

    def _retention(self) -> RetentionAnswer:
        policy = self._live.settings.retention
        age_ms, bytes_max = policy.age_ms, policy.log_bytes_max
        return {
            "age_ms": None if age_ms is None else str(age_ms),
            "log_bytes_max": None if bytes_max is None else str(bytes_max),
        }


OPERATIONS: Final = (
    Operation("GET", "/api/topics", TopicsApi.topics, {200: TopicsAnswer}, TopicsQuery),
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
    Operation(
        "PUT",
        "/api/topics/{topic}",
        TopicsApi.alter,
        {200: AlteredTopicAnswer},
        bodies=(ChangedTopic,),
        refusals=(400, 404, 409, 503),
    ),
    Operation(
        "DELETE",
        "/api/topics/{topic}",
        TopicsApi.delete,
        {200: TopicUseAnswer},
        DeletionQuery,
        refusals=(400, 404, 409, 503),
    ),
    Operation(
        "GET",
        "/api/topics/{topic}/use",
        TopicsApi.use,
        {200: TopicUseAnswer},
        UseQuery,
        refusals=(400, 404),
    ),
    Operation(
        "POST",
        "/api/topics/{topic}/purge",
        TopicsApi.purge,
        {200: TopicUseAnswer},
        bodies=(Purge,),
        refusals=(400, 404, 409, 503),
    ),
    Operation(
        "POST",
        "/api/topics/{topic}/hold",
        TopicsApi.hold,
        {200: TopicUseAnswer},
        bodies=(TopicHold,),
        refusals=(400, 404, 409, 503),
    ),
    Operation(
        "POST",
        "/api/topics/{topic}/release",
        TopicsApi.release,
        {200: TopicUseAnswer},
        bodies=(TopicRelease,),
        refusals=(400, 404, 409, 503),
    ),
)
