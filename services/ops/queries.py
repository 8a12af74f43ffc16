"""What may stand in the query of a request: shapes, checked on the way in like the bodies."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError
from starlette.requests import Request

from commitlog import limits
from tidewheel.errors import ClientMistake

LIMIT_DEFAULT = 20
LIMIT_MAX = 1_000
NUMBER_MAX = (1 << 63) - 1

Number = Annotated[int, Field(ge=0, le=NUMBER_MAX)]
Moment = str | Annotated[int, Strict()]
"""What `services.times.moments` reads, or in a body a number of milliseconds since 1970."""

Query = TypeVar("Query", bound=BaseModel)


class Nothing(BaseModel):
    """A query without anything in it."""

    model_config = ConfigDict(extra="forbid")


class OneTopicQuery(Nothing):
    """What to say of a topic's queues."""

    since_ms: Number | None = Field(None, description="Say which offset is the first since this time, too.")


class MessagesQuery(Nothing):
    """Which messages of which queue."""

    queue: Number = 0
    offset: Number | None = Field(None, description="The first one; else the oldest that is kept.")
    limit: Number = Field(LIMIT_DEFAULT, description=f"How many; up to {LIMIT_MAX}.")


class ArrivalsQuery(Nothing):
    """After which positions, and how long to wait."""

    after: str = Field("", description="QUEUE:OFFSET,...; a queue not named starts at its end.")
    limit: Number = Field(LIMIT_DEFAULT, description=f"How many; up to {LIMIT_MAX}.")
    wait_ms: Number = Field(0, description="How long to wait if there is nothing; up to 20000.")


class FindQuery(Nothing):
    """Which messages to look up."""

    topic: str = Field(min_length=1)
    key: str = Field(min_length=1, description="A message key, or a message id.")
    limit: Number = Field(LIMIT_DEFAULT, description=f"How many; up to {LIMIT_MAX}.")


class FilterQuery(Nothing):
    """Which timers: those that match everything that is given."""

    topic: str = ""
    topic_prefix: str = Field("", alias="topic-prefix")
    key: str = Field("", max_length=limits.TIMER_NAME_CHARACTERS_MAX, description="A message or timer key.")
    tag: str = ""
    from_: Moment = Field(
        "",
        alias="from",
        description="Due from then on: a moment with its zone, milliseconds, in 30m, or 30m ago.",
    )
    until: Moment = Field("", description="Due before then.")


class TimersQuery(FilterQuery):
    """A page of timers."""

    after: str = Field("", description="From the page before.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class DamagedQuery(Nothing):
    """What is damaged, the newest first."""

    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class HistogramQuery(FilterQuery):
    """Timers by windows of time."""

    width: str = Field("1m", description="A span such as 10s, 1m, 1h.")


class TimerQuery(Nothing):
    """One timer: by its handle, or by its topic and its message id or timer key."""

    topic: str = ""
    id: str = Field("", max_length=limits.TIMER_NAME_CHARACTERS_MAX)
    key: str = Field("", max_length=limits.TIMER_NAME_CHARACTERS_MAX)
    handle: str = ""


def asked(kind: type[Query], request: Request) -> Query:
    """Read a request's query; raises `ClientMistake` naming the first thing that is wrong."""
    try:
        return kind.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise mistake(error, "the query") from error


def mistake(error: ValidationError, whole: str) -> ClientMistake:
    """Return what is wrong with a query or a body as an error of the tree."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or whole
    said = first["msg"].removeprefix("Value error, ")
    given = first["input"]
    quoted = f" is {given!r}" if isinstance(given, str | int | float) and len(repr(given)) <= 80 else ""
    if first["type"] == "extra_forbidden":
        return ClientMistake(f"{where} is nothing that is known here: is it misspelt?")
    return ClientMistake(f"{where}{quoted}: {said}.")
