"""The operations of `/api/schedules`, for recurring messages.

    GET    /api/schedules                lists schedules by name, each with its next run: after, limit
    GET    /api/schedules/NAME?count=5   shows a schedule with its next runs
    PUT    /api/schedules/NAME           stores a schedule: 201 if new, 200 if changed or unchanged
    DELETE /api/schedules/NAME           deletes a schedule, and returns its progress
    POST   /api/schedules/NAME/pause     and /resume: stops and resumes runs; runs of the pause are not sent
    POST   /api/schedules/preview        returns the runs of a cron line, and stores nothing

A PUT can be repeated, because an unchanged schedule is not modified. With `seen`, a PUT is refused (409) if
another caller has changed the schedule since (`services.ops.requests.seen`). Times in requests and answers
are real times. `local` is the time on the clock of the schedule's zone (`services.live.clock`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Final, NotRequired

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from commitlog import limits
from services.broker.schedules.schedule_values import MissedRunPolicy, Occurrence, Schedule, ScheduleView
from services.broker.schedules.schedules import preview
from services.broker.spine.errors import ScheduleNotFound
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.ops.messages.messages import body_bytes, body_shape
from services.ops.requests.answers import written
from services.ops.requests.operation import Operation
from services.ops.requests.request import LIMIT_MAX, Nothing, asked, said_as
from services.ops.requests.seen import changes_since, refuse_changed
from tidewheel.errors import RefusedByState
from tidewheel.printable import utc

COMING_DEFAULT = 5
LIMIT_DEFAULT = 100
SEARCHED_AT_ONCE = 5
"""Occurrences that are searched in one go: one that is years away takes up to 6 ms."""

WORDS: Final = {
    "cron": "cron line",
    "time_zone": "time zone",
    "start_ms": "start",
    "end_ms": "end",
    "topic": "topic",
    "tag": "tag",
    "keys": "keys",
    "message_group": "message group",
    "properties": "properties",
    "missed": "policy for missed runs",
    "missed_max": "limit of missed runs",
    "body_sha256": "body",
}
"""The values of a schedule in sentences, in their order."""
UNSAID: Final = ("body_sha256",)
"""Values of which a sentence does not contain the old and the new one."""

Verb = Callable[[str, int], ScheduleView]


class Recurring(BaseModel):
    """The cron line, the time zone and the time limits of a schedule."""

    model_config = ConfigDict(extra="forbid")

    cron: str = Field(description="5 cron fields, 6 with seconds first, or a name such as @daily.")
    time_zone: str = Field("UTC", description="The name of a time zone, such as Europe/London.")
    start_ms: int | None = Field(None, description="The earliest time of a run.")
    end_ms: int | None = Field(None, description="The latest time of a run.")


class SeenSchedule(BaseModel):
    """The values that the caller saw. The change is refused if one of them differs now."""

    model_config = ConfigDict(extra="forbid")

    exists: bool = Field(True, description="false: there was no schedule of this name.")
    cron: str = ""
    time_zone: str = ""
    topic: str = ""
    body_sha256: str = Field("", description="The SHA-256 of the bytes of the body, in hexadecimal.")
    tag: str = ""
    keys: list[str] = []
    message_group: str = ""
    properties: dict[str, str] = {}
    missed: MissedRunPolicy = MissedRunPolicy.ONCE
    missed_max: int = 0
    start_ms: int | None = None
    end_ms: int | None = None

    def given(self) -> dict[str, Any]:
        """Return the given values, as `values_of` returns them."""
        given = self.model_dump(mode="json", exclude_unset=True, exclude={"exists"})
        return given | {name: bound_text(given[name]) for name in ("start_ms", "end_ms") if name in given}


class NewSchedule(Recurring):
    """A schedule to store. Its name is in the path."""

    topic: str
    body: str | None = None
    body_base64: str | None = None
    tag: str = ""
    keys: list[str] = []
    message_group: str = ""
    properties: dict[str, str] = {}
    missed: MissedRunPolicy = Field(MissedRunPolicy.ONCE, description="The policy for missed runs.")
    missed_max: int = Field(
        limits.SCHEDULE_MISSED_COUNT_DEFAULT, description="With all: largest number of missed runs to send."
    )
    seen: SeenSchedule | None = None

    def to_schedule(self, name: str) -> Schedule:
        """Return the schedule for the core."""
        return Schedule(
            name=name,
            cron=self.cron,
            time_zone=self.time_zone,
            topic=self.topic,
            body=body_bytes(self.body, self.body_base64),
            tag=self.tag,
            keys=tuple(self.keys),
            message_group=self.message_group,
            properties=self.properties,
            missed=self.missed,
            missed_max=self.missed_max,
            start_ms=self.start_ms,
            end_ms=self.end_ms,
        )


class Preview(Recurring):
    """A cron line whose runs are returned."""

    count: int = Field(COMING_DEFAULT, ge=1, le=limits.SCHEDULE_PREVIEW_COUNT_MAX)

    def to_schedule(self) -> Schedule:
        """Return a schedule without a name, which is not stored."""
        return Schedule(
            name="",
            cron=self.cron,
            time_zone=self.time_zone,
            topic="",
            body=b"",
            start_ms=self.start_ms,
            end_ms=self.end_ms,
        )


class SchedulesQuery(Nothing):
    """The position and size of a page of schedules."""

    after: str = Field("", description="The value that the previous page returned.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class ComingQuery(Nothing):
    """The number of runs in the answer."""

    count: int = Field(COMING_DEFAULT, ge=0, le=limits.SCHEDULE_PREVIEW_COUNT_MAX)


def name_of(request: Request) -> str:
    """Return the name in the path of a request."""
    name: str = request.path_params["name"]
    return name


class OccurrenceAnswer(TypedDict):
    """A future run, with its time and the local time in the zone of the schedule."""

    at_ms: str
    local: str


class ScheduleAnswer(TypedDict):
    """A schedule with its progress and its next runs. A body that is not UTF-8 is encoded in base64."""

    name: str
    cron: str
    time_zone: str
    topic: str
    body: NotRequired[str]
    body_base64: NotRequired[str]
    tag: str
    keys: list[str]
    message_group: str
    properties: dict[str, str]
    missed: str
    missed_max: int
    start_ms: str | None
    end_ms: str | None
    state: str
    coming: list[OccurrenceAnswer]
    sent_count: int
    last_ms: str | None
    passed_ms: str | None
    trouble: str


class SchedulesAnswer(TypedDict):
    """Schedules by name, without their bodies. `after` is the position of the next page, if there is one."""

    schedules: list[ScheduleAnswer]
    after: str | None


class PreviewAnswer(TypedDict):
    """The runs of a schedule, which are empty if the cron line never matches."""

    coming: list[OccurrenceAnswer]


def schedule_shape(view: ScheduleView, with_body: bool = True) -> ScheduleAnswer:
    """Return a schedule in JSON form."""
    schedule = view.schedule
    answer: ScheduleAnswer = {
        "name": schedule.name,
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "topic": schedule.topic,
        "tag": schedule.tag,
        "keys": list(schedule.keys),
        "message_group": schedule.message_group,
        "properties": schedule.properties,
        "missed": schedule.missed.value,
        "missed_max": schedule.missed_max,
        "start_ms": None if schedule.start_ms is None else str(schedule.start_ms),
        "end_ms": None if schedule.end_ms is None else str(schedule.end_ms),
        "state": view.state.value,
        "coming": coming_shape(view.upcoming_runs),
        "sent_count": view.sent_count,
        "last_ms": str(view.last_ms) if view.last_ms else None,
        "passed_ms": str(view.passed_ms) if view.passed_ms else None,
        "trouble": view.error,
    }
    return {**answer, **body_shape(schedule.body)} if with_body else answer


def coming_shape(coming: tuple[Occurrence, ...]) -> list[OccurrenceAnswer]:
    """Return runs in JSON form."""
    return [{"at_ms": str(one.at_ms), "local": one.local} for one in coming]


def values_of(schedule: Schedule) -> dict[str, Any]:
    """Return the values of a schedule, to be compared with those that a caller saw."""
    return {
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "start_ms": bound_text(schedule.start_ms),
        "end_ms": bound_text(schedule.end_ms),
        "topic": schedule.topic,
        "tag": schedule.tag,
        "keys": list(schedule.keys),
        "message_group": schedule.message_group,
        "properties": schedule.properties,
        "missed": schedule.missed.value,
        "missed_max": schedule.missed_max,
        "body_sha256": sha256(schedule.body).hexdigest(),
    }


def bound_text(at_ms: int | None) -> str:
    """Return the start or the end of a schedule as part of a sentence."""
    return "none" if at_ms is None else utc(at_ms)


def following(schedule: Schedule, occurrence: Occurrence) -> tuple[Occurrence, ...]:
    """Return the run of a schedule after a given run, or nothing if there is none."""
    return schedule.upcoming_runs(schedule.next_after(occurrence.at_ms), 1)


class SchedulesApi:
    """The handlers of `/api/schedules`."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    async def page(self, request: Request) -> Response:
        """List schedules, without their bodies."""
        query = asked(SchedulesQuery, request)
        # one additional row shows whether there is a next page
        page = self._live.query(self._live.core.schedules.page, query.after, query.limit + 1)
        shapes = (schedule_shape(view, with_body=False) for view in page[: query.limit])
        after = page[query.limit - 1].schedule.name if len(page) > query.limit else None
        return await written({"schedules": shapes, "after": after})

    async def get(self, request: Request) -> JSONResponse:
        """Show a schedule and its next runs."""
        count = asked(ComingQuery, request).count
        view = self._get(name_of(request), min(count, SEARCHED_AT_ONCE))
        coming = await self._coming(view.schedule, view.upcoming_runs, count)
        return JSONResponse(schedule_shape(replace(view, upcoming_runs=coming)))

    async def set(self, request: Request) -> JSONResponse:
        """Store a schedule."""
        name, wanted = name_of(request), await said_as(NewSchedule, request)
        is_known, schedule = self._is_known(name), wanted.to_schedule(name)
        check = partial(self._check_seen, schedule, wanted.seen)
        view = await self._live.call(self._live.core.schedules.set, schedule, check=check)
        return JSONResponse(schedule_shape(view), status_code=200 if is_known else 201)

    async def delete(self, request: Request) -> JSONResponse:
        """Delete a schedule."""
        return await self._told(self._live.core.schedules.delete, request)

    async def pause(self, request: Request) -> JSONResponse:
        """Pause a schedule."""
        return await self._told(self._live.core.schedules.pause, request)

    async def resume(self, request: Request) -> JSONResponse:
        """Resume a paused schedule."""
        return await self._told(self._live.core.schedules.resume, request)

    async def preview(self, request: Request) -> JSONResponse:
        """Show the runs of a cron line."""
        wanted = await said_as(Preview, request)
        schedule, first_count = wanted.to_schedule(), min(wanted.count, SEARCHED_AT_ONCE)
        first = self._live.query(preview, schedule, self._live.clock.now_ms(), first_count)
        return JSONResponse({"coming": coming_shape(await self._coming(schedule, first, wanted.count))})

    async def _coming(
        self, schedule: Schedule, found: tuple[Occurrence, ...], count: int
    ) -> tuple[Occurrence, ...]:
        """Return the first runs of a schedule and the runs after them, at most `count`."""
        pauses = Pauses()
        while found and len(found) < count:
            await pauses.pause()
            more = self._live.query(following, schedule, found[-1])
            if not more:
                break
            found += more
        return found

    async def _told(self, verb: Verb, request: Request) -> JSONResponse:
        return JSONResponse(schedule_shape(await self._live.call(verb, name_of(request))))

    def _check_seen(self, wanted: Schedule, seen: SeenSchedule | None) -> None:
        """Raise `RefusedByState` if what the caller saw of a schedule is different now."""
        if seen is None:
            return
        name, durable_at = wanted.name, self._live.core.store.log.end_offset
        if not self._is_known(name):
            if seen.exists:
                raise RefusedByState(
                    f"The schedule {name!r} was removed since you saw it. Set a new one if you want it.",
                    durable_at,
                )
            return
        now, new = values_of(self._get(name, 0).schedule), values_of(wanted)
        if not seen.exists and now != new:
            raise RefusedByState(
                f"There is a schedule {name!r} already. Look at it and change it, or choose another name.",
                durable_at,
            )
        refuse_changed(self._live, repr(name), changes_since(seen.given(), now, new, WORDS, UNSAID))

    def _get(self, name: str, count: int) -> ScheduleView:
        return self._live.query(self._live.core.schedules.get, name, count)

    def _is_known(self, name: str) -> bool:
        try:
            self._get(name, 0)
        except ScheduleNotFound:
            return False
        return True


OPERATIONS: Final = (
    Operation("GET", "/api/schedules", SchedulesApi.page, {200: SchedulesAnswer}, SchedulesQuery),
    Operation(
        "POST", "/api/schedules/preview", SchedulesApi.preview, {200: PreviewAnswer}, bodies=(Preview,)
    ),
    Operation(
        "GET",
        "/api/schedules/{name}",
        SchedulesApi.get,
        {200: ScheduleAnswer},
        ComingQuery,
        refusals=(400, 404),
    ),
    Operation(
        "PUT",
        "/api/schedules/{name}",
        SchedulesApi.set,
        {201: ScheduleAnswer, 200: ScheduleAnswer},
        bodies=(NewSchedule,),
        refusals=(400, 404, 409, 503),
    ),
    Operation(
        "DELETE", "/api/schedules/{name}", SchedulesApi.delete, {200: ScheduleAnswer}, refusals=(400, 404)
    ),
    Operation(
        "POST",
        "/api/schedules/{name}/pause",
        SchedulesApi.pause,
        {200: ScheduleAnswer},
        refusals=(400, 404),
    ),
    Operation(
        "POST",
        "/api/schedules/{name}/resume",
        SchedulesApi.resume,
        {200: ScheduleAnswer},
        refusals=(400, 404),
    ),
)
