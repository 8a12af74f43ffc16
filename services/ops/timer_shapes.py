"""What goes over `/api/timers`: what is asked, checked on the way in, and what is answered.

Moments come in as wall time with a zone (2026-11-22T09:00+08:00), as milliseconds since 1970, or as a span
from now (in 30m, or just 30m); they go out as milliseconds since 1970, in strings.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from commitlog import limits, properties
from commitlog.message import Message
from services.broker import recall
from services.broker.delays import dated
from services.broker.errors import IllegalDeliveryTime, InvalidRecallHandle
from services.broker.values import (
    Damaged,
    LostTimer,
    PendingTimer,
    SendReceipt,
    TimerFilter,
    TimerName,
    TimerPage,
    TimerVerdict,
)
from services.live.timer_tasks import TimerOrder, TimerTask, TimerVerb
from services.ops.answers import (
    DamagedPartAnswer,
    ErrorAnswer,
    LostTimerAnswer,
    OneTimerAnswer,
    TaskAnswer,
    TimerAnswer,
    TimerReceiptAnswer,
    TimersAnswer,
    VerdictAnswer,
)
from services.ops.queries import FilterQuery, Moment, TimerQuery
from services.ops.shapes import content_shape, receipt_shape
from services.times import durations, moments
from tidewheel.errors import ClientMistake, TidewheelError

FOREVER_MS = TimerFilter().until_ms


class NewTimer(BaseModel):
    """A message to deliver `in` a span of time or `at` a moment.

    A timer key names it: another timer of the topic with that key replaces it, or is refused if `unique`.
    """

    model_config = ConfigDict(extra="forbid")

    topic: str
    body: str
    keys: list[str] = []
    tag: str = ""
    properties: dict[str, str] = {}
    in_: Moment | None = Field(None, alias="in", description="A span such as 30m, or milliseconds.")
    at: Moment | None = Field(None, description="A moment with its zone, or milliseconds since 1970.")
    timer_key: str = ""
    unique: bool = False

    def to_message(self, message_id: str, now_ms: int) -> Message:
        """Return the message as the core takes it; raises `IllegalDeliveryTime`."""
        message = Message(
            topic=self.topic,
            body=self.body.encode(),
            message_id=message_id,
            tag=self.tag,
            keys=tuple(self.keys),
            delivery_ms=self._due_ms(now_ms),
            properties=self.properties | self._marks(),
            born_ms=now_ms,
        )
        return dated(message, now_ms)

    def _due_ms(self, now_ms: int) -> int:
        if (self.in_ is None) == (self.at is None):
            raise IllegalDeliveryTime("Say either in, such as 30m, or at, such as 2026-11-22T09:00+08:00.")
        if self.in_ is not None:
            return now_ms + span_of(self.in_, "in")
        return due_of(self.at or "", now_ms, "at")

    def _marks(self) -> dict[str, str]:
        if self.timer_key and not self.properties.keys().isdisjoint(
            (properties.TIMER_KEY, properties.TIMER_UNIQUE)
        ):
            raise ClientMistake("timer_key is given in properties, too: give it once.")
        if self.unique and not self.timer_key:
            raise ClientMistake("unique is about a timer_key: name one.")
        key = {properties.TIMER_KEY: self.timer_key} if self.timer_key else {}
        return key | ({properties.TIMER_UNIQUE: "true"} if self.unique else {})


class NewTimers(BaseModel):
    """A batch of timers to set; each is set or refused for itself."""

    model_config = ConfigDict(extra="forbid")

    timers: list[NewTimer] = Field(min_length=1, max_length=limits.TIMER_BATCH_MAX)


class NamedTimer(TimerQuery):
    """Which timer a verb is for, and why (which is logged)."""

    reason: str = Field("", max_length=limits.REASON_CHARACTERS_MAX)


class MovedTimer(NamedTimer):
    """Which timer is to be due when."""

    to: Moment = Field(description="A moment with its zone, milliseconds since 1970, or a span from now.")


class TaskFilter(FilterQuery):
    """Which timers a task is for; `everything` must be said when nothing else is."""

    everything: bool = False


class NewTask(BaseModel):
    """What to do to every timer of a filter; with `dry_run` they are only counted."""

    model_config = ConfigDict(extra="forbid")

    verb: Literal["cancel", "move"]
    filter: TaskFilter
    to: Moment | None = Field(None, description="Where to move them: a moment as above.")
    by: str | None = Field(None, description="How far to move each: a span such as 1h, or -30m for earlier.")
    reason: str = Field("", max_length=limits.REASON_CHARACTERS_MAX)
    dry_run: bool = False

    def order(self, now_ms: int) -> TimerOrder:
        """Return it as the broker takes it; raises the `ClientMistake` that fits."""
        wanted = filter_of(self.filter, now_ms)
        if wanted == TimerFilter() and not self.filter.everything:
            raise ClientMistake('The filter names no timers: say {"everything": true} if all are meant.')
        if self.verb == "cancel" and (self.to is not None or self.by is not None):
            raise ClientMistake("to and by are for moving, not for cancelling.")
        if self.verb == "move" and (self.to is None) == (self.by is None):
            raise ClientMistake(
                "To move them say either to, such as 2026-11-22T09:00+08:00, or by, such as 1h."
            )
        to_ms = None if self.to is None else due_of(self.to, now_ms, "to")
        return TimerOrder(TimerVerb(self.verb), wanted, self.reason, to_ms, self._by_ms())

    def _by_ms(self) -> int:
        if self.by is None:
            return 0
        span = span_of(self.by.removeprefix("-"), "by")
        return -span if self.by.startswith("-") else span


def filter_of(query: FilterQuery, now_ms: int) -> TimerFilter:
    """Return a filter as the core takes it; raises `ClientMistake`, for a reversed window too."""
    from_ms = moment_of(query.from_, now_ms, "from") if query.from_ != "" else 0
    until_ms = moment_of(query.until, now_ms, "until") if query.until != "" else FOREVER_MS
    if from_ms >= until_ms:
        raise ClientMistake(
            f"The window is reversed or empty: from {from_ms} until {until_ms} (milliseconds)."
        )
    return TimerFilter(query.topic, query.topic_prefix, query.key, query.tag, from_ms, until_ms)


def moment_of(moment: Moment, now_ms: int, field: str) -> int:
    """Read a moment; raises `ClientMistake` naming the field."""
    try:
        return moments.moment_ms(str(moment), now_ms)
    except ValueError as error:
        raise ClientMistake(f"{field} is {str(moment)[:80]!r}: {error}.") from error


def due_of(moment: Moment, now_ms: int, field: str) -> int:
    """Read when something is to be due; raises `IllegalDeliveryTime` naming the field."""
    try:
        return moments.due_ms(str(moment), now_ms)
    except ValueError as error:
        raise IllegalDeliveryTime(f"{field} is {str(moment)[:80]!r}: {error}.") from error


def span_of(span: Moment, field: str) -> int:
    """Read a span of time; raises `IllegalDeliveryTime` naming the field."""
    try:
        text = str(span)
        return moments.whole_ms(text) if text.isascii() and text.isdigit() else durations.span_ms(text)
    except ValueError as error:
        raise IllegalDeliveryTime(f"{field} is {str(span)[:80]!r}: {error}.") from error


def name_of(query: TimerQuery) -> TimerName:
    """Return which timer is meant; raises `ClientMistake` unless it is named in exactly one way."""
    given = [query.id, query.key, query.handle]
    if sum(map(bool, given)) != 1:
        raise ClientMistake("Name the timer in one way: by its id, its timer key, or its recall handle.")
    if query.handle:
        return name_of_handle(query.handle, query.topic)
    if not query.topic:
        raise ClientMistake("topic is missing: an id or a timer key names a timer within its topic.")
    return TimerName(query.topic, query.id, query.key)


def name_of_handle(handle: str, topic: str) -> TimerName:
    """Return which timer a recall handle is for; raises `InvalidRecallHandle`."""
    meant = recall.decode(handle)
    if topic and topic != meant.topic:
        raise InvalidRecallHandle(f"It is for topic {meant.topic!r}, not {topic!r}.")
    return TimerName(meant.topic, meant.message_id)


def cursor_of(text: str) -> tuple[int, int] | None:
    """Read where a page ends, as `page_shape` wrote it; raises `ClientMistake`."""
    due_ms, _, offset = text.partition(":")
    if not text:
        return None
    try:
        return moments.whole_ms(due_ms), moments.whole_ms(offset)
    except ValueError:
        raise ClientMistake(f"after is {text[:80]!r}: use the one from the page before.") from None


def timer_shape(timer: PendingTimer) -> TimerAnswer:
    """Return a delayed message that waits as JSON has it."""
    return {
        "message_id": timer.message_id,
        "topic": timer.topic,
        "keys": list(timer.keys),
        "due_ms": str(timer.due_ms),
        "timer_key": timer.timer_key,
        "tag": timer.tag,
        "stored_ms": str(timer.stored_ms),
        "timer_offset": str(timer.timer_offset),
    }


def one_timer_shape(timer: PendingTimer) -> OneTimerAnswer:
    """Return a delayed message that waits, with what it says, as JSON has it."""
    message = None if timer.message is None else content_shape(timer.message)
    return {**timer_shape(timer), "message": message}


def page_shape(page: TimerPage) -> TimersAnswer:
    """Return a page of timers as JSON has it."""
    after = None if page.after is None else f"{page.after[0]}:{page.after[1]}"
    return {"timers": [timer_shape(timer) for timer in page.timers], "after": after}


def verdict_shape(verdict: TimerVerdict) -> VerdictAnswer:
    """Return a verdict as JSON has it."""
    return {
        "verdict": verdict.verdict.value,
        "message_id": verdict.message_id,
        "ended_ms": str(verdict.ended_ms),
        "ended_offset": str(verdict.ended_offset),
        "due_ms": str(verdict.due_ms),
    }


def timer_receipt_shape(receipt: SendReceipt, due_ms: int) -> TimerReceiptAnswer:
    """Return a timer that is set as JSON has it."""
    return {**receipt_shape(receipt), "due_ms": str(due_ms)}


def error_shape(error: TidewheelError) -> ErrorAnswer:
    """Return an error of the tree as JSON has it."""
    return {"code": error.code, "detail": error.detail, "message": str(error)}


def task_shape(task: TimerTask) -> TaskAnswer:
    """Return a task as JSON has it."""
    return {
        "id": task.id,
        "verb": task.order.verb.value,
        "state": task.state.value,
        "matched": task.matched,
        "done": task.done,
        "by_verdict": dict(task.by_verdict),
        "reason": task.order.reason,
        "started_ms": str(task.started_ms),
        "ended_ms": None if task.ended_ms is None else str(task.ended_ms),
        "why": task.why,
    }


def damaged_shape(found: Damaged) -> DamagedPartAnswer:
    """Return what was found damaged as JSON shows it."""
    return {
        "part": found.part,
        "path": found.path,
        "what": found.what,
        "rebuilt": found.rebuilt_count,
        "lost": found.lost_count,
    }


def lost_timer_shape(lost: LostTimer, offset_ms: int) -> LostTimerAnswer:
    """Return a timer that nobody has any more; `offset_ms` is by how much the broker's clock is ahead."""
    return {
        "timer_offset": str(lost.timer_offset),
        "topic": lost.topic,
        "due_ms": str(lost.due_ms - offset_ms),
        "ended_ms": str(lost.ended_ms - offset_ms),
    }
