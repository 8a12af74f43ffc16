"""`/api/groups`: consumer groups looked at, made, set, paused, reset and deleted.

    GET    /api/groups               every group, with its lag over all queues, or with each: queues=true
    POST   /api/groups               {"name", "topic", "start"} and its policy: makes a group, and lets
                                     it receive a topic; without a topic the same again changes nothing
    GET    /api/groups/NAME          one, with every queue
    PUT    /api/groups/NAME          its policy: attempts_max, retry_after_ms, fifo_run_max, is_lite_exclusive
    DELETE /api/groups/NAME          the group, or it on one topic; its dead letters stay
    POST   /api/groups/NAME/pause    gives it no more messages until /resume; what is leased may be answered
    POST   /api/groups/NAME/reset    {"to", "topic", "dry_run"}: sets where it goes on
    GET    /api/groups/NAME/clients  who consumes, and what they hold

A group is made by its first receive, too. `services.ops.group_shapes` has the shapes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse

from services.broker.group_values import From, GroupView
from services.broker.topics import check_receivable
from services.live.consumers import ConsumersOf
from services.live.live_broker import LiveBroker
from services.ops.group_shapes import (
    GroupsQuery,
    NewGroup,
    NewPolicy,
    NewReset,
    OneTopicOfGroup,
    consumer_shape,
    group_shape,
    reset_shape,
    start_of,
    topics_of,
)
from services.ops.queries import asked
from services.ops.shapes import body_of, parse
from tidewheel.errors import ClientMistake

log = structlog.get_logger()


class GroupsApi:
    """The handlers of `/api/groups`."""

    def __init__(self, live: LiveBroker, consuming: ConsumersOf) -> None:
        self._live, self._consuming = live, consuming

    async def all(self, request: Request) -> JSONResponse:
        """List the groups."""
        there = Counter(one.group for one in self._consuming(""))
        has_queues = asked(GroupsQuery, request).queues
        views = self._live.query(self._live.core.group_views.all)
        shapes = [group_shape(view, there[view.name], has_queues) for view in views]
        return JSONResponse({"groups": shapes})

    async def create(self, request: Request) -> JSONResponse:
        """Make a group with its policy, before anybody uses it, and let it receive a topic."""
        wanted = parse(NewGroup, await body_of(request))
        core, start = self._live.core, wanted.place(self._live.now_ms())
        policy = wanted.policy(core.groups.policy(wanted.name))
        if wanted.topic:
            check_receivable(wanted.topic)
            core.topics.get(wanted.topic)
        is_there = not wanted.topic and wanted.name in core.groups.names()
        create = partial(core.group_views.create, policy=policy)
        view = await self._live.call(create, wanted.name, wanted.topic, start)
        return self._told(view, status=200 if is_there else 201)

    async def one(self, request: Request) -> JSONResponse:
        """Show a group and where it is on every queue."""
        return self._told(self._get(name_of(request)))

    async def set(self, request: Request) -> JSONResponse:
        """Say how a group's messages are given out."""
        wanted = parse(NewPolicy, await body_of(request))
        view = self._get(name_of(request))
        return self._told(await self._live.groups.set(view.name, wanted.over(view.policy)))

    async def pause(self, request: Request) -> JSONResponse:
        """Give a group no more messages."""
        return await self._paused(name_of(request), True)

    async def resume(self, request: Request) -> JSONResponse:
        """Give a paused group messages again."""
        return await self._paused(name_of(request), False)

    async def delete(self, request: Request) -> JSONResponse:
        """Forget a group, or that it receives a topic."""
        topic = asked(OneTopicOfGroup, request).topic
        view = self._get(name_of(request))
        await self._live.call(self._live.core.group_views.delete, view.name, topic)
        topics = [topic] if topic else topics_of(view)
        log.info("group deleted", group=view.name, topics=topics)
        return JSONResponse({"name": view.name, "topics": topics})

    async def reset(self, request: Request) -> JSONResponse:
        """Set where a group goes on."""
        wanted = parse(NewReset, await body_of(request))
        start, name = start_of(wanted.to, self._live.now_ms(), "to"), name_of(request)
        if start.kind is From.OFFSET and not wanted.topic:
            raise ClientMistake("An offset is a place in the queues of one topic: say which topic.")
        reset = await self._live.groups.reset(name, wanted.topic, start, dry_run=wanted.dry_run)
        if not wanted.dry_run:
            log.info("group reset", group=name, topic=wanted.topic, to=str(wanted.to))
        return JSONResponse(reset_shape(name, reset, wanted.dry_run))

    async def clients(self, request: Request) -> JSONResponse:
        """Show who consumes, and what they hold."""
        view = self._get(name_of(request))
        leased = self._live.core.group_views.leased(view.name)
        shapes = [consumer_shape(one, leased.pop(one.client_id, 0)) for one in self._consuming(view.name)]
        return JSONResponse({"consumers": shapes, "leased_by_others": sum(leased.values())})

    def _get(self, name: str) -> GroupView:
        return self._live.query(self._live.core.group_views.one, name)

    async def _paused(self, name: str, is_paused: bool) -> JSONResponse:
        policy = replace(self._get(name).policy, is_paused=is_paused)
        log.info("group paused" if is_paused else "group resumed", group=name)
        return self._told(await self._live.groups.set(name, policy))

    def _told(self, view: GroupView, status: int = 200) -> JSONResponse:
        consumers = len(self._consuming(view.name))
        return JSONResponse(group_shape(view, consumers), status_code=status)


def name_of(request: Request) -> str:
    """Return the group in a request's path."""
    name: str = request.path_params["group"]
    return name
