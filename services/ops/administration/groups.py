"""The operations of `/api/groups`: groups are shown, created, changed, paused, reset and deleted.

    GET    /api/groups               lists groups with their lag; with queues=true also the lag of each queue
    POST   /api/groups               {"name", "topic", "start"} and a policy: creates a group that receives a
                                     topic. Without a topic, a repeated call has no effect
    GET    /api/groups/NAME          shows a group with all queues
    PUT    /api/groups/NAME          sets attempts_max, retry_after_ms, fifo_run_max, is_lite_exclusive
    DELETE /api/groups/NAME          deletes a group, or its state for a topic, but not its dead letters
    POST   /api/groups/NAME/pause    stops deliveries until /resume; leased messages can be acknowledged
    POST   /api/groups/NAME/reset    {"to", "topic", "dry_run", "seen"}: sets the offsets of a group
    GET    /api/groups/NAME/clients  lists the consumers and their leases

The first receive of a group also creates the group. The start of a group and the target of a reset are given
as `earliest`, `latest`, `offset:1200` or a time, in which case messages that were stored since this time are
delivered again. A duration must be in the past, such as 30m ago.

Cost: a call for a single group reads the state of each of its queues. A list of groups reads the queues of
all groups, with pauses.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, NotRequired

import structlog
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from commitlog import limits
from services.broker.groups.group_filters import format_filter
from services.broker.groups.group_values import (
    FilterView,
    GroupPolicy,
    GroupStart,
    GroupView,
    MissedMessagesView,
    PositionChange,
    QueueView,
    ResetResult,
)
from services.broker.spine.errors import GroupNotFound
from services.broker.spine.topics import require_receivable_topic
from services.broker.spine.values import StartPosition
from services.live.clients.consumers import ConsumersOf, ConsumerView
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.ops.requests.answers import written
from services.ops.requests.operation import Operation
from services.ops.requests.request import Given, Moment, Nothing, Number, asked, said_as
from services.ops.requests.seen import change_of, refuse_changed
from services.times import moments
from tidewheel.errors import ClientMistake

RETRIES_MAX = 100
CHANGES_TOLD_MAX = 5
"""The number of queues that the refusal of a reset names."""
OFFSET = re.compile(r"offset:(\d{1,18})")

RetryAfterMs = Annotated[int, Field(ge=0, le=limits.INVISIBLE_MS_MAX)]

log = structlog.get_logger()


class GroupsQuery(Nothing):
    """The optional fields of each group in the answer."""

    queues: bool = Field(False, description="Also return every queue of each group.")


class OneTopicOfGroup(Nothing):
    """The topic of the group; default: all topics."""

    topic: Given = ""


class PolicyFields(BaseModel):
    """The policy by which the messages of a group are delivered."""

    model_config = ConfigDict(extra="forbid")

    attempts_max: int | None = Field(None, ge=1, le=limits.ATTEMPTS_MAX)
    retry_after_ms: list[RetryAfterMs] | None = Field(None, min_length=1, max_length=RETRIES_MAX)
    fifo_run_max: int | None = Field(None, ge=1, le=limits.RECEIVE_BATCH_MAX)
    is_lite_exclusive: bool | None = Field(
        None, description="Give a lite topic only to its last subscriber in the group."
    )

    def given(self) -> dict[str, Any]:
        """Return the given fields of a policy."""
        given = self.model_dump(exclude_none=True, include=set(PolicyFields.model_fields))
        if self.retry_after_ms is not None:
            given["retry_after_ms"] = tuple(self.retry_after_ms)
        return given


class NewGroup(PolicyFields):
    """The name of a new group, the fields of its policy, its start, and a topic that it receives.

    The policy contains only fields that differ from the defaults of the broker.
    """

    name: str
    topic: Given = Field(
        "", description="A topic to receive; default: the topics that its consumers request."
    )
    start: Moment | None = Field(
        None, description="First position: earliest, latest, offset:1200, a time, or 30m ago."
    )

    def policy(self, policy: GroupPolicy) -> GroupPolicy | None:
        """Return the policy with the given fields replaced, or None if no field is given."""
        given = self.given()
        return replace(policy, **given) if given else None

    def place(self, now_ms: int) -> GroupStart:
        """Return the start of the group. Raise `ClientMistake` for an invalid start."""
        if self.start is None:
            return GroupStart()
        if not self.topic:
            raise ClientMistake(
                "start is a place in a topic: say which topic. Of topics that its consumers ask for, a group "
                "begins where the broker's setting group_start says."
            )
        return start_of(self.start, now_ms, "start")


class NewPolicy(PolicyFields):
    """A change of the policy of a group. Omitted fields remain unchanged."""

    def over(self, policy: GroupPolicy) -> GroupPolicy:
        """Return the policy with the given fields replaced. Raise `ClientMistake` if no field is given."""
        given = self.given()
        if not given:
            raise ClientMistake(
                "Nothing is set: give attempts_max, retry_after_ms, fifo_run_max or is_lite_exclusive."
            )
        return replace(policy, **given)


class NewReset(BaseModel):
    """The target of a reset. With `dry_run`, the answer shows the effect, and the group is not changed."""

    model_config = ConfigDict(extra="forbid")

    to: Moment = Field(description="earliest, latest, offset:1200, a time with a zone, or 30m ago.")
    topic: Given = Field("", description="One topic of the group; default: all topics.")
    dry_run: bool = False
    seen: dict[str, dict[int, Number]] | None = Field(
        None,
        description="The offsets before the reset that the caller saw, by topic and queue. The reset is "
        "refused if it moves a queue in which the group is before its seen offset now.",
    )


def start_of(text: Moment, now_ms: int, field: str) -> GroupStart:
    """Parse the start of a group. Raise `ClientMistake` with the name of the field."""
    said = str(text).strip()
    if said in (StartPosition.EARLIEST.value, StartPosition.LATEST.value):
        return GroupStart(StartPosition(said))
    if offset := OFFSET.fullmatch(said):
        return GroupStart(StartPosition.OFFSET, int(offset[1]))
    try:
        return GroupStart(StartPosition.TIME, moments.past_ms(said, now_ms))
    except ValueError as error:
        kinds = "earliest, latest, offset:NUMBER or a moment"
        raise ClientMistake(f"{field} is {said[:80]!r}: give {kinds} ({error}).") from error


def name_of(request: Request) -> str:
    """Return the group in the path of a request."""
    name: str = request.path_params["group"]
    return name


class QueueOfGroupAnswer(TypedDict):
    """The state of a group in a queue, whose offsets range from `min_offset` to before `end_offset`.

    All messages before `committed_offset` are finished. No message at or after `next_offset` was delivered.
    `lag` is the number of unfinished messages. Of these messages, `in_flight` are leased. A message that was
    discarded during its lease is not counted. `waiting` messages will be redelivered, or wait for their
    message group or for another filter. The other messages have not been delivered. `oldest_ms` is the time
    at which the first unfinished message was stored.
    """

    topic: str
    queue_id: int
    min_offset: str
    committed_offset: str
    next_offset: str
    end_offset: str
    lag: int
    in_flight: int
    waiting: int
    oldest_ms: str | None


class FilterOfGroupAnswer(TypedDict):
    """A filter of the group for a topic, of type TAG or SQL.

    `clients` is the number of clients whose last receive used the filter. `waiting` is the number of messages
    that wait for a client with the filter.
    """

    topic: str
    type: str
    expression: str
    clients: int
    waiting: int


class MissedOfGroupAnswer(TypedDict):
    """Unfinished messages of a topic that retention deleted. `last_ms` is the time of the last deletion."""

    topic: str
    count: int
    last_ms: str


class PolicyAnswer(TypedDict):
    """The policy by which the messages of a group are delivered."""

    attempts_max: int
    retry_after_ms: list[int]
    fifo_run_max: int
    is_paused: bool
    is_lite_exclusive: bool


class GroupAnswer(TypedDict):
    """A consumer group with its topics, its lag over all queues, and the number of its consumers.

    `missed` is the number of messages that retention deleted before the group had finished them, since the
    group began to receive their topics. `missed_ms` is the time of the last such deletion, and
    `missed_topics` contains the numbers by topic, if any. `queues` is included on request, and `filters` only
    if a single group is shown.
    """

    name: str
    topics: list[str]
    policy: PolicyAnswer
    lag: int
    in_flight: int
    waiting: int
    oldest_ms: str | None
    consumers: int
    missed: int
    missed_ms: str | None
    missed_topics: NotRequired[list[MissedOfGroupAnswer]]
    queues: NotRequired[list[QueueOfGroupAnswer]]
    filters: NotRequired[list[FilterOfGroupAnswer]]


class GroupsAnswer(TypedDict):
    """Groups, sorted by name."""

    groups: list[GroupAnswer]


class DeletedGroupAnswer(TypedDict):
    """The topics for which the state of the group was deleted."""

    name: str
    topics: list[str]


class MoveAnswer(TypedDict):
    """The offset of the first unfinished message of a queue, before and after a reset."""

    topic: str
    queue_id: int
    before: str
    after: str
    min_offset: str
    end_offset: str


class ResetAnswer(TypedDict):
    """The changes of a reset, which a dry run does not apply."""

    name: str
    dry_run: bool
    moves: list[MoveAnswer]


class ConsumerAnswer(TypedDict):
    """A client of the group, with the number of its open receives and of its leased messages.

    `filters` are the filters of its last receives, each with its topic, for example `orders: TAG paid`.
    """

    client_id: str
    kind: str
    language: str
    version: str
    is_connected: bool
    receives: int
    leased: int
    filters: list[str]
    seen_ms: str


class ConsumersAnswer(TypedDict):
    """The clients of a group. `leased_by_others` is the number of messages leased by disconnected clients."""

    consumers: list[ConsumerAnswer]
    leased_by_others: int


def topics_of(view: GroupView) -> list[str]:
    """Return the topics that a group receives."""
    return sorted({queue.topic for queue in view.queues})


def group_shape(view: GroupView, consumers: int, has_queues: bool = True) -> GroupAnswer:
    """Return a group in JSON form."""
    oldest_ms = min((one.oldest_ms for one in view.queues if one.oldest_ms is not None), default=None)
    group: GroupAnswer = {
        "name": view.name,
        "topics": topics_of(view),
        "policy": policy_shape(view.policy),
        "lag": sum(queue.lag for queue in view.queues),
        "in_flight": sum(queue.in_flight for queue in view.queues),
        "waiting": sum(queue.waiting for queue in view.queues),
        "oldest_ms": None if oldest_ms is None else str(oldest_ms),
        "consumers": consumers,
        "missed": sum(one.count for one in view.missed),
        "missed_ms": str(max(one.last_ms for one in view.missed)) if view.missed else None,
    }
    if view.missed:
        group["missed_topics"] = [missed_shape(one) for one in view.missed]
    if has_queues:
        group["queues"] = [queue_of_group_shape(one) for one in view.queues]
    if view.filters:
        group["filters"] = [filter_shape(one) for one in view.filters]
    return group


def missed_shape(one: MissedMessagesView) -> MissedOfGroupAnswer:
    """Return the missed messages of a group and a topic in JSON form."""
    return {"topic": one.topic, "count": one.count, "last_ms": str(one.last_ms)}


def policy_shape(policy: GroupPolicy) -> PolicyAnswer:
    """Return a policy in JSON form."""
    return {
        "attempts_max": policy.attempts_max,
        "retry_after_ms": list(policy.retry_after_ms),
        "fifo_run_max": policy.fifo_run_max,
        "is_paused": policy.is_paused,
        "is_lite_exclusive": policy.is_lite_exclusive,
    }


def queue_of_group_shape(queue: QueueView) -> QueueOfGroupAnswer:
    """Return the state of a group in a queue in JSON form."""
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "min_offset": str(queue.min_offset),
        "committed_offset": str(queue.committed_offset),
        "next_offset": str(queue.next_offset),
        "end_offset": str(queue.end_offset),
        "lag": queue.lag,
        "in_flight": queue.in_flight,
        "waiting": queue.waiting,
        "oldest_ms": None if queue.oldest_ms is None else str(queue.oldest_ms),
    }


def reset_shape(name: str, reset: ResetResult, dry_run: bool) -> ResetAnswer:
    """Return the changes of a reset in JSON form."""
    return {"name": name, "dry_run": dry_run, "moves": [move_shape(move) for move in reset.moves]}


def move_shape(move: PositionChange) -> MoveAnswer:
    """Return the change of a queue in JSON form."""
    return {
        "topic": move.topic,
        "queue_id": move.queue_id,
        "before": str(move.before),
        "after": str(move.after),
        "min_offset": str(move.min_offset),
        "end_offset": str(move.end_offset),
    }


def filter_shape(one: FilterView) -> FilterOfGroupAnswer:
    """Return a filter of a group in JSON form."""
    return {
        "topic": one.topic,
        "type": one.text.type,
        "expression": one.text.expression,
        "clients": len(one.clients),
        "waiting": one.waiting,
    }


def consumer_shape(view: ConsumerView, leased: int, filters: list[str]) -> ConsumerAnswer:
    """Return a consumer in JSON form."""
    return {
        "client_id": view.client_id,
        "kind": view.kind,
        "language": view.language,
        "version": view.version,
        "is_connected": view.is_connected,
        "receives": view.receives,
        "leased": leased,
        "filters": filters,
        "seen_ms": str(view.seen_ms),
    }


class GroupsApi:
    """The handlers of `/api/groups`."""

    def __init__(self, live: LiveBroker, consuming: ConsumersOf) -> None:
        self._live, self._consuming = live, consuming

    async def all(self, request: Request) -> Response:
        """List the groups."""
        has_queues, pauses, there = asked(GroupsQuery, request).queues, Pauses(), Counter[str]()
        for consumer in self._consuming(""):
            if consumer is not None:
                there[consumer.group] += 1
            await pauses.pause()
        names = await pauses.sort_names(self._live.core.groups.unsorted_group_names())
        shapes = (group_shape(view, there[view.name], has_queues) for view in self._views(names))
        return await written({"groups": shapes}, pauses=pauses)

    async def create(self, request: Request) -> Response:
        """Create a group with its policy before its first use, and make it receive a topic."""
        wanted = await said_as(NewGroup, request)
        core, start = self._live.core, wanted.place(self._live.now_ms())
        policy = wanted.policy(core.groups.policy(wanted.name))
        if wanted.topic:
            require_receivable_topic(wanted.topic)
            core.topics.get(wanted.topic)
        is_there = not wanted.topic and core.groups.is_known(wanted.name)
        view = await self._live.groups.create(wanted.name, wanted.topic, start, policy)
        return await self._told(view, status=200 if is_there else 201)

    async def one(self, request: Request) -> Response:
        """Show a group and its state in all queues."""
        return await self._told(await self._live.groups.view(name_of(request)))

    async def set(self, request: Request) -> Response:
        """Change the policy of a group."""
        wanted = await said_as(NewPolicy, request)
        view = await self._live.groups.view(name_of(request))
        return await self._told(await self._live.groups.set(view.name, wanted.over(view.policy)))

    async def pause(self, request: Request) -> Response:
        """Pause the deliveries of a group."""
        return await self._paused(name_of(request), True)

    async def resume(self, request: Request) -> Response:
        """Resume the deliveries of a paused group."""
        return await self._paused(name_of(request), False)

    async def delete(self, request: Request) -> JSONResponse:
        """Delete a group, or its state for a topic."""
        topic = asked(OneTopicOfGroup, request).topic
        view = await self._live.groups.view(name_of(request))
        await self._live.call(self._live.core.group_views.delete, view.name, topic)
        topics = [topic] if topic else topics_of(view)
        log.info("group deleted", group=view.name, topics=topics)
        return JSONResponse({"name": view.name, "topics": topics})

    async def reset(self, request: Request) -> Response:
        """Set the offsets of a group."""
        wanted = await said_as(NewReset, request)
        start, name = start_of(wanted.to, self._live.now_ms(), "to"), name_of(request)
        if start.kind is StartPosition.OFFSET and not wanted.topic:
            raise ClientMistake("An offset is a place in the queues of one topic: say which topic.")
        check = partial(self._check_positions, name, wanted.topic, wanted.seen) if wanted.seen else None
        reset = await self._live.groups.reset(name, wanted.topic, start, dry_run=wanted.dry_run, check=check)
        if not wanted.dry_run:
            log.info("group reset", group=name, topic=wanted.topic, to=str(wanted.to))
        return await written(reset_shape(name, reset, wanted.dry_run))

    async def clients(self, request: Request) -> Response:
        """List the consumers of a group and their leases."""
        view = await self._live.groups.view(name_of(request))
        leased = self._live.core.group_views.leased(view.name)
        filters: defaultdict[str, list[str]] = defaultdict(list)
        for one in view.filters:
            for client_id in one.clients:
                filters[client_id].append(f"{one.topic}: {format_filter(one.text)}")
        found, pauses = list[ConsumerView](), Pauses()
        for consumer in self._consuming(view.name):
            if consumer is not None:
                found.append(consumer)
            await pauses.pause()
        found.sort(key=lambda one: one.client_id)
        others = sum(leased.values()) - sum(leased[one.client_id] for one in found)
        shapes = (consumer_shape(one, leased[one.client_id], filters[one.client_id]) for one in found)
        return await written({"consumers": shapes, "leased_by_others": others}, pauses=pauses)

    def _check_positions(
        self, name: str, topic: str, seen: Mapping[str, Mapping[int, int]], start: GroupStart
    ) -> None:
        """Raise `RefusedByState` if another caller has set the group back behind the seen offsets.

        Only queues that the reset moves are compared: a caller may administer a group and not know the other
        topics. Consumers move a group only forward, which is no reason for a refusal, and neither is a queue
        that is already where the reset would set it. Raise `GroupNotFound` if the group does not exist.
        """
        placed, changes = self._live.clock.to_broker_time(start), []
        reset = self._live.core.group_views.reset
        for move in self._live.call_with_time(reset, name, topic, placed, True).moves:
            before = seen.get(move.topic, {}).get(move.queue_id, 0)
            if move.before < before and move.before != move.after:
                what = f"position in queue {move.queue_id} of {move.topic!r}"
                changes.append(change_of(what, before, move.before))
        refuse_changed(self._live, repr(name), changes[:CHANGES_TOLD_MAX])

    def _views(self, names: Iterator[str]) -> Iterator[GroupView]:
        """Yield the groups with the given names that still exist."""
        for name in names:
            with suppress(GroupNotFound):
                yield self._get(name)

    def _get(self, name: str) -> GroupView:
        return self._live.query(self._live.core.group_views.view_group, name)

    async def _paused(self, name: str, is_paused: bool) -> Response:
        policy = replace((await self._live.groups.view(name)).policy, is_paused=is_paused)
        log.info("group paused" if is_paused else "group resumed", group=name)
        return await self._told(await self._live.groups.set(name, policy))

    async def _told(self, view: GroupView, status: int = 200) -> Response:
        consumers, pauses = 0, Pauses()
        for one in self._consuming(view.name):
            consumers += one is not None
            await pauses.pause()
        return await written(group_shape(view, consumers), status, pauses)


GROUP: Final = "/api/groups/{group}"
OPERATIONS: Final = (
    Operation("GET", "/api/groups", GroupsApi.all, {200: GroupsAnswer}, GroupsQuery),
    Operation(
        "POST",
        "/api/groups",
        GroupsApi.create,
        {201: GroupAnswer, 200: GroupAnswer},
        bodies=(NewGroup,),
        refusals=(400, 404, 409, 503),
    ),
    Operation("GET", GROUP, GroupsApi.one, {200: GroupAnswer}, refusals=(400, 404)),
    Operation("PUT", GROUP, GroupsApi.set, {200: GroupAnswer}, bodies=(NewPolicy,), refusals=(400, 404, 503)),
    Operation(
        "DELETE",
        GROUP,
        GroupsApi.delete,
        {200: DeletedGroupAnswer},
        OneTopicOfGroup,
        refusals=(400, 404, 409, 503),
    ),
    Operation("POST", f"{GROUP}/pause", GroupsApi.pause, {200: GroupAnswer}, refusals=(400, 404, 503)),
    Operation("POST", f"{GROUP}/resume", GroupsApi.resume, {200: GroupAnswer}, refusals=(400, 404, 503)),
    Operation(
        "POST",
        f"{GROUP}/reset",
        GroupsApi.reset,
        {200: ResetAnswer},
        bodies=(NewReset,),
        refusals=(400, 404, 409, 503),
    ),
    Operation("GET", f"{GROUP}/clients", GroupsApi.clients, {200: ConsumersAnswer}, refusals=(400, 404)),
)
