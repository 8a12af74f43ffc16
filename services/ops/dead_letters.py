"""`/api/dead-letters`: messages that groups gave up, looked at, sent back and purged, one by one or many.

    GET    /api/dead-letters                          the groups that have some, and how many
    GET    /api/dead-letters/groups/GROUP             a page of them, the oldest first: FILTER, after, limit
    GET    /api/dead-letters/groups/GROUP/OFFSET      one, with what it says
    POST   /api/dead-letters/groups/GROUP/OFFSET/redrive  {"target"}: sends it to a topic, or back to its own
    DELETE /api/dead-letters/groups/GROUP/OFFSET      purges it
    POST   /api/dead-letters/tasks                    does that to all of a filter (`services.ops.tasks`)

FILTER is any of topic (where they came from), key, tag, reason, from, until. Spans in from and until say
that they are past: from 2h ago, until 30m ago. OFFSET is a dead letter's place among its group's dead
letters, which it keeps. A dead letter that goes back to its own topic is for the group that gave it up alone,
keeps its message id, and has all of its attempts again.

Cost: the list of groups reads the oldest dead letter of each. A filter has no index: a page reads on until it
is full, or has read `DEAD_LETTERS_LOOKED_AT_MAX`; a task reads all (`services.live.dead_letters`).
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
from services.live import dead_letters
from services.live.dead_letter_tasks import DeadLetterOrder, DeadLetterTask, DeadLetterVerb
from services.live.dead_letters import FOREVER_MS, DeadLetterFilter
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.ops.answers import written
from services.ops.groups import name_of
from services.ops.messages import ContentAnswer, content_shape
from services.ops.operation import Operation
from services.ops.request import LIMIT_DEFAULT, LIMIT_MAX, Moment, Nothing, Number, Reason, asked, said_as
from services.ops.tasks import Bulk, Limit, TaskProgressAnswer, progress_shape
from services.times import moments
from tidewheel.errors import ClientMistake

PER_SECOND_MAX = 1_000_000
NAME_MAX = limits.TIMER_NAME_CHARACTERS_MAX
OFFSET_DIGITS_MAX = 18

log = structlog.get_logger()


class DeadLetterFilterQuery(Nothing):
    """Which dead letters: those that match everything that is given."""

    topic: str = Field("", description="The original topic.")
    key: str = Field("", max_length=NAME_MAX, description="A message key or message id.")
    tag: str = ""
    reason: str = Field("", description="Part of the reason, or of the first or last error.")
    from_: Moment = Field("", alias="from", description="Dead letters since a time, or 2h ago.")
    until: Moment = Field("", description="Dead letters before this time.")


class DeadLettersQuery(DeadLetterFilterQuery):
    """A page of a group's dead letters."""

    after: Number | None = Field(None, description="The value that the previous page returned.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class NewRedrive(BaseModel):
    """Where a dead letter goes: to a topic, or if that is empty back to its own, for the group alone."""

    model_config = ConfigDict(extra="forbid")

    target: str = ""


class NewDeadLetterTask(BaseModel):
    """What to do to a group's dead letters of a filter; with `dry_run` they are only counted."""

    model_config = ConfigDict(extra="forbid")

    verb: Literal["redrive", "purge"]
    group: str = Field(min_length=1)
    filter: DeadLetterFilterQuery = Field(default_factory=lambda: DeadLetterFilterQuery.model_validate({}))
    target: str = Field("", description="A topic; default: the original topic of each, for this group only.")
    rate_per_second: float = Field(0, ge=0, le=PER_SECOND_MAX, description="Highest rate; 0: no limit.")
    limit: Limit = None
    reason: Reason = ""
    dry_run: bool = False

    def order(self, now_ms: int) -> DeadLetterOrder:
        """Return the task's order as the broker takes it; raise `ClientMistake`."""
        if self.verb == "purge" and self.target:
            raise ClientMistake("target is for redriving, not for purging.")
        wanted = dead_letter_filter(self.filter, now_ms)
        verb = DeadLetterVerb(self.verb)
        return DeadLetterOrder(
            verb, self.group, wanted, self.target, self.rate_per_second, self.reason, self.limit or 0
        )


def dead_letter_filter(query: DeadLetterFilterQuery, now_ms: int) -> DeadLetterFilter:
    """Return a filter as the broker takes it; raise `ClientMistake`, for a reversed window too."""
    from_ms = past_of(query.from_, now_ms, "from") if query.from_ != "" else 0
    until_ms = past_of(query.until, now_ms, "until") if query.until != "" else FOREVER_MS
    if from_ms >= until_ms:
        raise ClientMistake(
            f"The window is reversed or empty: from {from_ms} until {until_ms} (milliseconds)."
        )
    return DeadLetterFilter(query.key, query.tag, query.topic, query.reason, from_ms, until_ms)


def past_of(moment: Moment, now_ms: int, field: str) -> int:
    """Read a past moment; raise `ClientMistake` naming the field."""
    try:
        return moments.past_ms(str(moment), now_ms)
    except ValueError as error:
        raise ClientMistake(f"{field} is {str(moment)[:80]!r}: {error}.") from error


def offset_of(request: Request) -> int:
    """Return the offset in a request's path; raise `MessageNotFound` for what is no offset."""
    text: str = request.path_params["offset"]
    if not (text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS_MAX):
        raise MessageNotFound(f"{text[:80]!r} is no offset of a dead letter, which is a number.")
    return int(text)


class DeadLetterErrorAnswer(TypedDict):
    """How an attempt ended; `at_ms` is null where that is not known."""

    at_ms: str | None
    what: str


class DeadLetterAnswer(TypedDict):
    """A message that a group gave up. `topic` is where it came from, `given_up_ms` when it was given up."""

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
    """The same with what the message says."""

    message: ContentAnswer


class DeadLettersAnswer(TypedDict):
    """Dead letters of a group, the oldest first; `after` asks for the next ones, null at the end."""

    dead_letters: list[DeadLetterAnswer]
    after: str | None


class DeadLetterGroupAnswer(TypedDict):
    """A group that has dead letters: how many, and when it gave up the oldest."""

    group: str
    count: int
    oldest_ms: str | None


class DeadLetterGroupsAnswer(TypedDict):
    """The groups that have dead letters, by name."""

    groups: list[DeadLetterGroupAnswer]


class DeadLetterEndAnswer(TypedDict):
    """A dead letter that is no more: sent back, or purged."""

    group: str
    offset: str
    verdict: Literal["REDRIVEN", "PURGED"]


class DeadLetterTaskAnswer(TaskProgressAnswer):
    """A task over dead letters of a group."""

    verb: Literal["redrive", "purge"]
    group: str
    target: str
    rate_per_second: float


class DeadLetterTasksAnswer(TypedDict):
    """The tasks over dead letters since the broker's start, the newest first."""

    tasks: list[DeadLetterTaskAnswer]


def dead_letter_shape(group: str, dead_letter: DeadLetter) -> DeadLetterAnswer:
    """Return a dead letter as JSON has it."""
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
    """Return a dead letter with its message as JSON has it."""
    return {**dead_letter_shape(group, dead_letter), "message": content_shape(dead_letter.message)}


def dead_letters_shape(group: str, page: DeadLetterPage) -> DeadLettersAnswer:
    """Return a page of dead letters as JSON has it."""
    dead_letters = [dead_letter_shape(group, dead_letter) for dead_letter in page.dead_letters]
    return {"dead_letters": dead_letters, "after": None if page.after is None else str(page.after)}


def error_note(text: str) -> DeadLetterErrorAnswer | None:
    """Read "<ms since 1970> <what happened>"; None for an empty one."""
    at_ms, _, what = text.partition(" ")
    if not text:
        return None
    return {"at_ms": at_ms, "what": what} if at_ms.isdecimal() else {"at_ms": None, "what": text}


def dead_letter_task_shape(task: DeadLetterTask) -> DeadLetterTaskAnswer:
    """Return a task as JSON has it."""
    order = task.order
    return {
        **progress_shape(task),
        "verb": order.verb.value,
        "group": order.group,
        "target": order.target,
        "rate_per_second": order.per_second,
    }


DEAD_LETTERS: Final = Bulk(
    "dead-letters",
    NewDeadLetterTask,
    dead_letter_task_shape,
    lambda live, order: dead_letters.count_dead_letters(live, order.group, order.wanted),
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
        counts = (one for one in map(dead_letters.count_open, groups) if one.count)
        return await written({"groups": map(self._group_shape, counts)}, pauses=pauses)

    async def page(self, request: Request) -> Response:
        """List dead letters of a group."""
        query, group = asked(DeadLettersQuery, request), name_of(request)
        wanted = dead_letter_filter(query, self._live.now_ms())
        dead_letters.check_group(self._live, group)
        page = await dead_letters.find_dead_letters(self._live, group, wanted, query.after, query.limit)
        return await written(dead_letters_shape(group, page))

    async def one(self, request: Request) -> Response:
        """Show a dead letter and what it says."""
        group, offset = name_of(request), offset_of(request)
        return await written(
            one_dead_letter_shape(group, dead_letters.find_dead_letter(self._live, group, offset))
        )

    async def redrive(self, request: Request) -> JSONResponse:
        """Send a dead letter back to its topic, or to another."""
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
        """Let a dead letter go for good."""
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
