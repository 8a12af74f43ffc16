"""`/api/schedules`: recurring messages.

    GET    /api/schedules                those there are, by name, each with its next occurrence: after, limit
    GET    /api/schedules/NAME?count=5   one, with its next occurrences
    PUT    /api/schedules/NAME           keeps one: new (201), changed or as it was (200)
    DELETE /api/schedules/NAME           ends one; answers how far it came
    POST   /api/schedules/NAME/pause     and /resume: no occurrences for a while; they are not made up
    POST   /api/schedules/preview        when a cron line would occur; keeps nothing

A PUT may be repeated: what is just as it was stays untouched. Times in and out are those of callers; `local`
is what the schedule's own clock says (`services.live.clock`).
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse

from services.broker.errors import ScheduleNotFound
from services.broker.schedule_values import ScheduleView
from services.broker.schedules import preview
from services.live.live_broker import LiveBroker
from services.ops.queries import asked
from services.ops.schedule_shapes import (
    ComingQuery,
    NewSchedule,
    Preview,
    SchedulesQuery,
    coming_shape,
    schedule_shape,
)
from services.ops.shapes import parse

Verb = Callable[[str, int], ScheduleView]


class SchedulesApi:
    """The handlers of `/api/schedules`."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    async def page(self, request: Request) -> JSONResponse:
        """List schedules, without their bodies."""
        query = asked(SchedulesQuery, request)
        page = self._live.query(self._live.core.schedules.page, query.after, query.limit + 1)
        shapes = [schedule_shape(view, with_body=False) for view in page[: query.limit]]
        after = shapes[-1]["name"] if len(page) > query.limit else None
        return JSONResponse({"schedules": shapes, "after": after})

    async def get(self, request: Request) -> JSONResponse:
        """Show a schedule and its next occurrences."""
        count = asked(ComingQuery, request).count
        return JSONResponse(schedule_shape(self._get(name_of(request), count)))

    async def set(self, request: Request) -> JSONResponse:
        """Keep a schedule."""
        name, wanted = name_of(request), parse(NewSchedule, await request.body())
        is_known = self._is_known(name)
        view = await self._live.call(self._live.core.schedules.set, wanted.to_schedule(name))
        return JSONResponse(schedule_shape(view), status_code=200 if is_known else 201)

    async def delete(self, request: Request) -> JSONResponse:
        """End a schedule."""
        return await self._told(self._live.core.schedules.delete, request)

    async def pause(self, request: Request) -> JSONResponse:
        """Let a schedule rest."""
        return await self._told(self._live.core.schedules.pause, request)

    async def resume(self, request: Request) -> JSONResponse:
        """Let a schedule go on."""
        return await self._told(self._live.core.schedules.resume, request)

    async def preview(self, request: Request) -> JSONResponse:
        """Show when a cron line would occur."""
        wanted = parse(Preview, await request.body())
        coming = self._live.query(preview, wanted.to_schedule(), self._live.clock.now_ms(), wanted.count)
        return JSONResponse({"coming": coming_shape(coming)})

    async def _told(self, verb: Verb, request: Request) -> JSONResponse:
        return JSONResponse(schedule_shape(await self._live.call(verb, name_of(request))))

    def _get(self, name: str, count: int) -> ScheduleView:
        return self._live.query(self._live.core.schedules.get, name, count)

    def _is_known(self, name: str) -> bool:
        try:
            self._get(name, 0)
        except ScheduleNotFound:
            return False
        return True


def name_of(request: Request) -> str:
    """Return the name in a request's path."""
    name: str = request.path_params["name"]
    return name
