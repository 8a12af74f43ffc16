"""The operations of `/api/dead-letters`: dead letters are listed, shown, redriven and purged.

    GET    /api/dead-letters                          lists the groups with dead letters, with their numbers
    GET    /api/dead-letters/groups/GROUP             lists dead letters, oldest first: FILTER, after, limit
    GET    /api/dead-letters/groups/GROUP/OFFSET      shows a dead letter with its content
    POST   /api/dead-letters/groups/GROUP/OFFSET/redrive  {"target"}: sends it to a topic, or its own topic
    DELETE /api/dead-letters/groups/GROUP/OFFSET      purges a dead letter
    POST   /api/dead-letters/tasks                    redrives or purges all that match
    (`services.ops.bulk.tasks`)

FILTER is any of topic (the original topic), key, tag, reason, from, until. Durations in from and until must
be in the past, such as from 2h ago, until 30m ago. OFFSET is the position of a dead letter among the dead
letters of its group, which does not change. A dead letter that is redriven to its own topic is delivered only
to its group, keeps its message id, and can be attempted the maximum number of times again.

Cost: the list of groups reads the oldest dead letter of each group. A filter has no index, so a page reads
until it is full, or has read `DEAD_LETTERS_EXAMINED_MAX` dead letters. A task reads all dead letters
(`services.live.queries.dead_letters`).
"""

from __future__ import annotations

from typing import Final, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from commitlog import limits
from services.broker.groups.group_values import DeadLetter, DeadLetterCount, DeadLetterPage
from services.broker.spine.errors import MessageNotFound
from services.live.bulk.dead_letter_tasks import DeadLetterTask, DeadLetterTaskRequest, DeadLetterVerb
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.live.queries import dead_letters
from services.live.queries.dead_letters import FOREVER_MS, DeadLetterFilter
from services.ops.administration.groups import name_of
from services.ops.bulk.tasks import Bulk, CountedAnswer, Limit, TaskProgressAnswer, progress_shape
from services.ops.messages.messages import ContentAnswer, content_shape
from services.ops.requests.answers import written
from services.ops.requests.operation import Operation
from services.ops.requests.request import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    GivenFields,
    Moment,
    Nothing,
    Number,
    Reason,
    asked,
    said_as,
)
from services.ops.timers.timers import time_text
from services.times import moments
from tidewheel.errors import ClientMistake
from tidewheel.printable import utc

PER_SECOND_MAX = 1_000_000
NAME_MAX = limits.TIMER_NAME_CHARACTERS_MAX
OFFSET_DIGITS_MAX = 18

log = structlog.get_logger()


class DeadLetterFilterQuery(Nothing):
    """The conditions on dead letters, all of which must match."""

    topic: str = Field("", description="The original topic.")
    key: str = Field("", max_length=NAME_MAX, description="A message key or message id.")
    tag: str = ""
    reason: str = Field("", description="Part of the reason, or of the first or last error.")
    from_: Moment = Field("", alias="from", description="Dead letters since a time, or 2h ago.")
    until: Moment = Field("", description="Dead letters before this time.")


class DeadLetterTaskFilter(GivenFields, DeadLetterFilterQuery):
    """The dead letters of a task."""


class DeadLettersQuery(DeadLetterFilterQuery):
    """The conditions on the dead letters of a group, and the position and size of the page."""

    after: Number | None = Field(None, description="The value that the previous page returned.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class NewRedrive(BaseModel):
    """The target topic of a redrive.

    An empty target sends the dead letter to its own topic, for its group only.
    """

    model_config = ConfigDict(extra="forbid")

    target: str = ""


class NewDeadLetterTask(BaseModel):
    """A task that processes the dead letters of a group.

    With `dry_run`, the dead letters are only counted.
    """

    model_config = ConfigDict(extra="forbid")

    verb: Literal["redrive", "purge"]
    group: str = Field(min_length=1)
    filter: DeadLetterTaskFilter = Field(default_factory=lambda: DeadLetterTaskFilter.model_validate({}))
    target: str = Field("", description="A topic; default: the original topic of each, for this group only.")
    rate_per_second: float = Field(0, ge=0, le=PER_SECOND_MAX, description="Highest rate; 0: no limit.")
    limit: Limit = None
    reason: Reason = ""
    dry_run: bool = False

    def order(self, now_ms: int) -> DeadLetterTaskRequest:
        """Return the order of the task for the core. Raise `ClientMistake` for an invalid order."""
        if self.verb == "purge" and self.target:
            raise ClientMistake("target is for redriving, not for purging.")
        wanted = dead_letter_filter(self.filter, now_ms)
        verb = DeadLetterVerb(self.verb)
        return DeadLetterTaskRequest(
            verb, self.group, wanted, self.target, self.rate_per_second, self.reason, self.limit or 0
        )


def dead_letter_filter(query: DeadLetterFilterQuery, now_ms: int) -> DeadLetterFilter:
    """Return a filter of the core. Raise `ClientMistake` for an invalid filter, or a reversed window."""
    from_ms = past_of(query.from_, now_ms, "from") if query.from_ != "" else 0
    until_ms = past_of(query.until, now_ms, "until") if query.until != "" else FOREVER_MS
    if from_ms >= until_ms:
        raise ClientMistake(f"The window is reversed or empty: from {utc(from_ms)} until {utc(until_ms)}.")
    return DeadLetterFilter(query.key, query.tag, query.topic, query.reason, from_ms, until_ms)


def past_of(moment: Moment, now_ms: int, field: str) -> int:
    """Parse a time in the past. Raise `ClientMistake` with the name of the field."""
    try:
        return moments.past_ms(str(moment), now_ms)
    except ValueError as error:
        raise ClientMistake(f"{field} is {str(moment)[:80]!r}: {error}.") from error


def offset_of(request: Request) -> int:
    """Return the offset in the path of a request. Raise `MessageNotFound` if the text is not an offset."""
    text: str = request.path_params["offset"]
    if not (text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS_MAX):
        raise MessageNotFound(f"{text[:80]!r} is no offset of a dead letter, which is a number.")
    return int(text)


class DeadLetterErrorAnswer(TypedDict):
    """The error of an attempt. `at_ms` is null if the time is unknown."""

    at_ms: str | None
    what: str


class DeadLetterAnswer(TypedDict):
    """A dead letter.

    `topic` is its original topic, and `given_up_ms` is the time at which it became a dead letter.
    """

    group: str
    offset: str
    message_id: str
    topic: str
    tag: str
    keys: list[str]
    reason: str
    attempts: int
    given_up_ms: str
    first_error: DeadLetterErrorAnswer | None
    last_error: DeadLetterErrorAnswer | None


class OneDeadLetterAnswer(DeadLetterAnswer):
    """A dead letter with the content of its message."""

    message: ContentAnswer


class DeadLettersAnswer(TypedDict):
    """Dead letters of a group, oldest first. `after` is the position of the next page, or null at the end."""

    dead_letters: list[DeadLetterAnswer]
    after: str | None


class DeadLetterGroupAnswer(TypedDict):
    """A group with dead letters: their number, and the time at which the oldest became a dead letter."""

    group: str
    count: int
    oldest_ms: str | None


class DeadLetterGroupsAnswer(TypedDict):
    """The groups with dead letters, sorted by name."""

    groups: list[DeadLetterGroupAnswer]


class DeadLetterEndAnswer(TypedDict):
    """A dead letter that was redriven or purged."""

    group: str
    offset: str
    verdict: Literal["REDRIVEN", "PURGED"]


class DeadLetterTaskAnswer(TaskProgressAnswer):
    """A task that processes dead letters of a group."""

    verb: Literal["redrive", "purge"]
    group: str
    target: str
    rate_per_second: float


class DeadLetterTasksAnswer(TypedDict):
    """The dead-letter tasks since the start of the broker, newest first."""

    tasks: list[DeadLetterTaskAnswer]


def dead_letter_shape(group: str, dead_letter: DeadLetter) -> DeadLetterAnswer:
    """Return a dead letter in JSON form."""
    return {
        "group": group,
        "offset": str(dead_letter.queue_offset),
        "message_id": dead_letter.message.message_id,
        "topic": dead_letter.topic,
        "tag": dead_letter.message.tag,
        "keys": list(dead_letter.message.keys),
        "reason": dead_letter.reason,
        "attempts": dead_letter.attempts,
        "given_up_ms": str(dead_letter.store_ms),
        "first_error": error_note(dead_letter.first_error),
        "last_error": error_note(dead_letter.last_error),
    }


def one_dead_letter_shape(group: str, dead_letter: DeadLetter) -> OneDeadLetterAnswer:
    """Return a dead letter with its message in JSON form."""
    return {**dead_letter_shape(group, dead_letter), "message": content_shape(dead_letter.message)}


def dead_letters_shape(group: str, page: DeadLetterPage) -> DeadLettersAnswer:
    """Return a page of dead letters in JSON form."""
    dead_letters = [dead_letter_shape(group, dead_letter) for dead_letter in page.dead_letters]
    return {"dead_letters": dead_letters, "after": None if page.after is None else str(page.after)}


def error_note(text: str) -> DeadLetterErrorAnswer | None:
    """Parse "<ms since 1970> <text>". Return None for an empty text."""
    at_ms, _, what = text.partition(" ")
    if not text:
        return None
    return {"at_ms": at_ms, "what": what} if at_ms.isdecimal() else {"at_ms": None, "what": text}


def dead_letter_task_shape(task: DeadLetterTask) -> DeadLetterTaskAnswer:
    """Return a task in JSON form."""
    order = task.order
    return {
        **progress_shape(task),
        "verb": order.verb.value,
        "group": order.group,
        "target": order.target,
        "rate_per_second": order.per_second,
    }


async def count_matching(live: LiveBroker, order: DeadLetterTaskRequest, seconds_max: float) -> CountedAnswer:
    """Count the dead letters that match the filter of a task. Stop after about `seconds_max`."""
    counted = await dead_letters.count_dead_letters(live, order.group, order.wanted, seconds_max=seconds_max)
    return {"matched": counted.total, "counted_until_ms": time_text(counted.until_ms)}


DEAD_LETTERS: Final = Bulk(
    "dead-letters",
    NewDeadLetterTask,
    dead_letter_task_shape,
    count_matching,
    DeadLetterTaskAnswer,
    DeadLetterTasksAnswer,
    (400, 404, 503),
)


class DeadLettersApi:
    """The handlers of `/api/dead-letters`."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    async def groups(self, request: Request) -> Response:
        """List the groups that have dead letters."""
        pauses, dead_letters = Pauses(), self._live.core.dead_letters
        groups = await pauses.sort_names(dead_letters.group_names())
        counts = (one for one in map(dead_letters.count_open_dead_letters, groups) if one.count)
        return await written({"groups": map(self._group_shape, counts)}, pauses=pauses)

    async def page(self, request: Request) -> Response:
        """List dead letters of a group."""
        query, group = asked(DeadLettersQuery, request), name_of(request)
        wanted = dead_letter_filter(query, self._live.now_ms())
        dead_letters.check_group(self._live, group)
        page = await dead_letters.find_dead_letters(self._live, group, wanted, query.after, query.limit)
        return await written(dead_letters_shape(group, page))

    async def one(self, request: Request) -> Response:
        """Show a dead letter and its content."""
        group, offset = name_of(request), offset_of(request)
        return await written(
            one_dead_letter_shape(group, dead_letters.find_dead_letter(self._live, group, offset))
        )

    async def redrive(self, request: Request) -> JSONResponse:
        """Send a dead letter to its original topic, or to another topic."""
        wanted = await said_as(NewRedrive, request)
        group, offset = name_of(request), offset_of(request)
        dead_letter = dead_letters.find_dead_letter(self._live, group, offset)
        if wanted.target:
            self._live.core.topics.get(wanted.target)
        else:
            dead_letters.check_return(self._live, group, dead_letter.topic)
        await self._live.groups.redrive(group, offset, wanted.target)
        log.info("dead letter redriven", group=group, offset=offset, target=wanted.target)
        return JSONResponse({"group": group, "offset": str(offset), "verdict": "REDRIVEN"})

    async def purge(self, request: Request) -> JSONResponse:
        """Purge a dead letter."""
        group, offset = name_of(request), offset_of(request)
        dead_letters.find_dead_letter(self._live, group, offset)
        await self._live.call(self._live.core.dead_letters.purge, group, offset)
        log.info("dead letter purged", group=group, offset=offset)
        return JSONResponse({"group": group, "offset": str(offset), "verdict": "PURGED"})

    def _group_shape(self, one: DeadLetterCount) -> DeadLetterGroupAnswer:
        oldest = self._live.query(self._live.core.dead_letters.read_page, one.group, None, 1).dead_letters
        return {
            "group": one.group,
            "count": one.count,
            "oldest_ms": str(oldest[0].store_ms) if oldest else None,
        }


IN_GROUP: Final = "/api/dead-letters/groups/{group}"
OPERATIONS: Final = (
    Operation("GET", "/api/dead-letters", DeadLettersApi.groups, {200: DeadLetterGroupsAnswer}),
    Operation(
        "GET",
        IN_GROUP,
        DeadLettersApi.page,
        {200: DeadLettersAnswer},
        DeadLettersQuery,
        refusals=(400, 404),
    ),
    Operation(
        "GET",
        f"{IN_GROUP}/{{offset}}",
        DeadLettersApi.one,
        {200: OneDeadLetterAnswer},
        refusals=(400, 404),
    ),
    Operation(
        "DELETE",
        f"{IN_GROUP}/{{offset}}",
        DeadLettersApi.purge,
        {200: DeadLetterEndAnswer},
        refusals=(400, 404, 503),
    ),
    Operation(
        "POST",
        f"{IN_GROUP}/{{offset}}/redrive",
        DeadLettersApi.redrive,
        {200: DeadLetterEndAnswer},
        bodies=(NewRedrive,),
        refusals=(400, 404, 409, 503),
    ),
)
