"""What goes over `/api/dead-letters`: what is asked, checked on the way in, and what is answered.

64-bit numbers (offsets, times) go out as strings. A dead letter's `offset` is its place among its group's
dead letters, which it keeps. Spans in from and until say that they are past: from 2h ago, until 30m ago.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from commitlog import limits
from services.broker.group_values import DeadLetter, DeadLetterPage
from services.live.dead_letter_tasks import DeadLetterOrder, DeadLetterTask, DeadLetterVerb
from services.live.dead_letters import FOREVER_MS, DeadLetterFilter
from services.ops.answers import ContentAnswer
from services.ops.queries import LIMIT_DEFAULT, LIMIT_MAX, Moment, Nothing, Number
from services.ops.shapes import content_shape
from services.times import moments
from tidewheel.errors import ClientMistake

PER_SECOND_MAX = 1_000_000
NAME_MAX = limits.TIMER_NAME_CHARACTERS_MAX


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


class DeadLetterDryRunAnswer(TypedDict):
    """How many dead letters the task would touch, had it been started."""

    dry_run: bool
    matched: int


class DeadLetterTaskAnswer(TypedDict):
    """A task over dead letters. `matched` is null until they are counted.

    `by_verdict` says how the `done` ended, the refused ones under their error's code; `why` why it stopped.
    """

    id: str
    verb: Literal["redrive", "purge"]
    group: str
    target: str
    rate_per_second: float
    state: Literal["running", "done", "stopped"]
    matched: int | None
    done: int
    by_verdict: dict[str, int]
    reason: str
    started_ms: str
    ended_ms: str | None
    why: str


class DeadLetterTasksAnswer(TypedDict):
    """The tasks over dead letters since the broker's start, the newest first."""

    tasks: list[DeadLetterTaskAnswer]


class DeadLetterFilterQuery(Nothing):
    """Which dead letters: those that match everything that is given."""

    topic: str = Field("", description="The topic they came from.")
    key: str = Field("", max_length=NAME_MAX, description="A message key or message id.")
    tag: str = ""
    reason: str = Field("", description="Part of the reason, or of the first or last error.")
    from_: Moment = Field("", alias="from", description="Given up since: a moment, or 2h ago.")
    until: Moment = Field("", description="Given up before.")


class DeadLettersQuery(DeadLetterFilterQuery):
    """A page of a group's dead letters."""

    after: Number | None = Field(None, description="From the page before.")
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
    target: str = Field("", description="A topic; else each goes back to its own, for the group alone.")
    rate_per_second: float = Field(0, ge=0, le=PER_SECOND_MAX, description="At most so many; 0: no limit.")
    reason: str = Field("", max_length=limits.REASON_CHARACTERS_MAX)
    dry_run: bool = False

    def order(self, now_ms: int) -> DeadLetterOrder:
        """Return it as the broker takes it; raises `ClientMistake`."""
        if self.verb == "purge" and self.target:
            raise ClientMistake("target is for redriving, not for purging.")
        wanted = dead_letter_filter(self.filter, now_ms)
        verb = DeadLetterVerb(self.verb)
        return DeadLetterOrder(verb, self.group, wanted, self.target, self.rate_per_second, self.reason)


def dead_letter_filter(query: DeadLetterFilterQuery, now_ms: int) -> DeadLetterFilter:
    """Return a filter as the broker takes it; raises `ClientMistake`, for a reversed window too."""
    from_ms = past_of(query.from_, now_ms, "from") if query.from_ != "" else 0
    until_ms = past_of(query.until, now_ms, "until") if query.until != "" else FOREVER_MS
    if from_ms >= until_ms:
        raise ClientMistake(
            f"The window is reversed or empty: from {from_ms} until {until_ms} (milliseconds)."
        )
    return DeadLetterFilter(query.key, query.tag, query.topic, query.reason, from_ms, until_ms)


def past_of(moment: Moment, now_ms: int, field: str) -> int:
    """Read a moment that has been; raises `ClientMistake` naming the field."""
    try:
        return moments.past_ms(str(moment), now_ms)
    except ValueError as error:
        raise ClientMistake(f"{field} is {str(moment)[:80]!r}: {error}.") from error


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
    """Return a dead letter with what it says as JSON has it."""
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
        "id": task.id,
        "verb": order.verb.value,
        "group": order.group,
        "target": order.target,
        "rate_per_second": order.per_second,
        "state": task.state.value,
        "matched": task.matched,
        "done": task.done,
        "by_verdict": dict(task.by_verdict),
        "reason": order.reason,
        "started_ms": str(task.started_ms),
        "ended_ms": None if task.ended_ms is None else str(task.ended_ms),
        "why": task.why,
    }
