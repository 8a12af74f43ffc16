"""Schedules as JSON has them, checked on the way in; 64-bit numbers (times) go out as strings."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from typing import NotRequired

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from commitlog import limits
from services.broker.schedule_values import Missed, Occurrence, Schedule, ScheduleView
from services.ops.queries import LIMIT_MAX, Nothing
from tidewheel.errors import ClientMistake

COMING_DEFAULT = 5
LIMIT_DEFAULT = 100


class OccurrenceAnswer(TypedDict):
    """A run to come: when, and what the clocks of the schedule's zone will say."""

    at_ms: str
    local: str


class ScheduleAnswer(TypedDict):
    """A schedule, how far it is and what is to come; the body is base64 where it is no UTF-8 text."""

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
    """Schedules by name, without their bodies; `after` asks for the next ones, if there are more."""

    schedules: list[ScheduleAnswer]
    after: str | None


class PreviewAnswer(TypedDict):
    """When a schedule would occur; empty if it never does."""

    coming: list[OccurrenceAnswer]


class Recurring(BaseModel):
    """When something recurs."""

    model_config = ConfigDict(extra="forbid")

    cron: str = Field(description="5 cron fields, or 6 with the seconds first.")
    time_zone: str = Field("UTC", description="A name such as Europe/London.")
    start_ms: int | None = Field(None, description="The first moment at which it may occur.")
    end_ms: int | None = Field(None, description="The last one.")


class NewSchedule(Recurring):
    """A schedule to keep; its name is in the path."""

    topic: str
    body: str | None = None
    body_base64: str | None = None
    tag: str = ""
    keys: list[str] = []
    message_group: str = ""
    properties: dict[str, str] = {}
    missed: Missed = Field(Missed.ONCE, description="What to do about missed runs.")
    missed_max: int = Field(limits.SCHEDULE_MISSED_COUNT_DEFAULT, description="With all: so many at most.")

    def to_schedule(self, name: str) -> Schedule:
        """Return the schedule as the core takes it."""
        return Schedule(
            name=name,
            cron=self.cron,
            time_zone=self.time_zone,
            topic=self.topic,
            body=self._bytes(),
            tag=self.tag,
            keys=tuple(self.keys),
            message_group=self.message_group,
            properties=self.properties,
            missed=self.missed,
            missed_max=self.missed_max,
            start_ms=self.start_ms,
            end_ms=self.end_ms,
        )

    def _bytes(self) -> bytes:
        if (self.body is None) == (self.body_base64 is None):
            raise ClientMistake("Give either body or body_base64.")
        if self.body is not None:
            return self.body.encode()
        try:
            return b64decode(self.body_base64 or "", validate=True)
        except Error as error:
            raise ClientMistake(f"body_base64: {error}.") from error


class Preview(Recurring):
    """A cron line to look at."""

    count: int = Field(COMING_DEFAULT, ge=1, le=limits.SCHEDULE_PREVIEW_COUNT_MAX)

    def to_schedule(self) -> Schedule:
        """Return a schedule that is not to be kept."""
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
    """A page of schedules."""

    after: str = Field("", description="From the page before.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class ComingQuery(Nothing):
    """How many occurrences to show."""

    count: int = Field(COMING_DEFAULT, ge=0, le=limits.SCHEDULE_PREVIEW_COUNT_MAX)


def schedule_shape(view: ScheduleView, with_body: bool = True) -> ScheduleAnswer:
    """Return a schedule as JSON has it."""
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
        "coming": coming_shape(view.coming),
        "sent_count": view.sent_count,
        "last_ms": str(view.last_ms) if view.last_ms else None,
        "passed_ms": str(view.passed_ms) if view.passed_ms else None,
        "trouble": view.trouble,
    }
    if not with_body:
        return answer
    try:
        answer["body"] = schedule.body.decode()
    except UnicodeDecodeError:
        answer["body_base64"] = b64encode(schedule.body).decode()
    return answer


def coming_shape(coming: tuple[Occurrence, ...]) -> list[OccurrenceAnswer]:
    """Return occurrences as JSON has them."""
    return [{"at_ms": str(one.at_ms), "local": one.local} for one in coming]
