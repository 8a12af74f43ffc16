"""The operations of `/api/timers`: timers are listed, shown, set, cancelled, moved and fired.

    GET    /api/timers            lists pending timers by due time: FILTER, after, limit
    GET    /api/timers/count      counts pending timers: FILTER
    GET    /api/timers/histogram  counts the timers that are due in each time window: FILTER, width=1m
    GET    /api/timers/damaged    lists damage, and timers whose records are unreadable: limit
    GET    /api/timers/summary    shows pending timers by topic and due time, and the lateness of deliveries
    GET    /api/timers/one        shows a timer with its content: topic and id, topic and key, or handle
    POST   /api/timers            sets a timer, or a batch of timers: {"timers": [...]}
    POST   /api/timers/cancel     and /move and /fire: applies a verb to a timer, and returns the verdict

FILTER is any of topic, topic-prefix, key, message-key, tag, property (NAME=VALUE, repeatable), from, until,
held. A task cancels, moves or fires all timers of a filter (`services.ops.bulk.tasks`). A filter by a topic
that is unknown and has no timers is refused with 404.

Times in requests are a local time with a zone (2026-11-22T09:00+08:00), milliseconds since 1970, or a
duration from now (in 30m, or 30m). Times in answers are milliseconds since 1970, as strings.

The status of a verdict is 200 if the requested state was reached (CANCELLED, MOVED, FIRED, or ALREADY for a
cancel). The status is 409 if this is impossible (TOO_LATE, or ALREADY for a move or fire), and 404 if no such
timer is known (NEVER_SET, FORGOTTEN). A request to show a timer that has ended returns 410. With `seen`, a
verb on a timer that was moved since is refused with 409 and an error (`services.ops.requests.seen`).

Cost: a query on many timers is processed in pieces (`services.live.queries.timer_queries`). A batch waits for
a flush, and each of its timers is set or refused separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from math import ceil
from typing import Any, Final, Literal
from uuid import uuid4

import structlog
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.records.message import Message
from services.broker.spine.errors import IllegalDeliveryTime, InvalidRecallHandle
from services.broker.spine.statistics import LATE_BY_HOLD, LATENESS_BOUNDS_MS, Lateness
from services.broker.spine.values import (
    DamagedPart,
    LostTimer,
    PendingTimer,
    SendReceipt,
    TimerFilter,
    TimerName,
    TimerPage,
    TimerVerdict,
    Verdict,
)
from services.broker.timers import recall
from services.broker.timers.delays import with_absolute_times
from services.explain.life import HELD, waiting
from services.live.created_topics import CreatedTopics
from services.live.live_broker import Check, LiveBroker
from services.live.pauses import Pauses
from services.live.queries import timer_queries
from services.ops.messages.message_states import end_of
from services.ops.messages.messages import (
    ContentAnswer,
    ReceiptAnswer,
    body_bytes,
    content_shape,
    receipt_shape,
)
from services.ops.messages.sending import send_each
from services.ops.metrics.horizon import counts_within
from services.ops.requests.answers import written
from services.ops.requests.given_times import delay_of, due_of, moment_of, span_in
from services.ops.requests.operation import Handler, Operation
from services.ops.requests.request import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    Given,
    Moment,
    Nothing,
    Number,
    Reason,
    Repeated,
    Span,
    a_list,
    asked,
    said_as,
    said_by,
    shaped,
)
from services.ops.requests.seen import change_of, refuse_changed
from services.ops.requests.statuses import ErrorAnswer, error_shape
from tidewheel import property_names
from tidewheel.errors import ClientMistake, TidewheelError
from tidewheel.printable import utc
from timingwheel.due_run import LAST_OFFSET

DUE_SPANS_MS = (60_000, 300_000, 3_600_000, 86_400_000)
FOREVER_MS = TimerFilter().until_ms
NOT_HELD = TimerFilter(is_held=False)
GONE = 410
SECONDS_MAX = 2.0
"""Longest search of a request, apart from lookups of names: callers wait for 10 seconds."""
_CURSOR: Final = re.compile(rf"([0-9]{{1,{limits.TIME_DIGITS_MAX}}}):([0-9]{{1,20}})")
"""The position after a timer, or after a slot of the wheel, whose offset is `LAST_OFFSET`."""
VERDICT_STATUSES = {Verdict.TOO_LATE: 409, Verdict.NEVER_SET: 404, Verdict.FORGOTTEN: 404}

log = structlog.get_logger()


class FilterQuery(Nothing):
    """The conditions on timers, all of which must match."""

    topic: str = ""
    topic_prefix: str = Field("", alias="topic-prefix")
    key: str = Field("", max_length=limits.TIMER_NAME_CHARACTERS_MAX, description="A message or timer key.")
    message_key: str = Field(
        "",
        alias="message-key",
        max_length=limits.TIMER_NAME_CHARACTERS_MAX,
        description="One of the message keys, and not the timer key.",
    )
    tag: str = ""
    properties: Repeated = Field(
        [],
        alias="property",
        max_length=limits.FILTER_PROPERTIES_MAX,
        description="A property of the message, as NAME=VALUE; all that are given must match.",
    )
    from_: Moment = Field(
        "",
        alias="from",
        description="Due at or after a time with a zone, milliseconds, in 30m, or 30m ago.",
    )
    until: Moment = Field("", description="Due before this time.")
    held: bool | None = Field(
        None, description="Only timers that a hold of their topic keeps (true), or only the others (false)."
    )


class TimersQuery(FilterQuery):
    """The conditions on timers, and the position and size of a page."""

    after: str = Field("", description="The value that the previous page returned.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class DamagedQuery(Nothing):
    """The maximum number of entries in each list of damage, newest first."""

    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class HistogramQuery(FilterQuery):
    """The conditions on timers, and the width of a time window."""

    width: str = Field("1m", description="A duration such as 10s, 1m, 1h.")


class TimerQuery(Nothing):
    """A timer, which is identified by its handle, or by its topic and its message id or timer key."""

    topic: str = ""
    id: str = Field("", max_length=limits.TIMER_NAME_CHARACTERS_MAX)
    key: str = Field("", max_length=limits.TIMER_NAME_CHARACTERS_MAX)
    handle: str = ""


class NewTimer(BaseModel):
    """A message to deliver after the duration `in` or at the time `at`.

    The message replaces another timer of the topic with the same timer key, or is refused with `unique`.
    """

    model_config = ConfigDict(extra="forbid")

    topic: str
    body: str | None = None
    body_base64: str | None = Field(None, description="Bytes in base64, instead of body.")
    keys: list[str] = []
    tag: str = ""
    properties: dict[str, str] = {}
    in_: Span | None = Field(None, alias="in", description="A duration with a unit, such as 30m.")
    at: Moment | None = Field(None, description="A time with a zone, or milliseconds since 1970.")
    timer_key: Given = ""
    unique: bool = False

    def to_message(self, message_id: str, now_ms: int) -> Message:
        """Return the message for the core. Raise `IllegalDeliveryTime` for an invalid time."""
        message = Message(
            topic=self.topic,
            body=body_bytes(self.body, self.body_base64),
            message_id=message_id,
            tag=self.tag,
            keys=tuple(self.keys),
            delivery_ms=self._due_ms(now_ms),
            properties=self.properties | self._marks(),
            born_ms=now_ms,
        )
        return with_absolute_times(message, now_ms)

    def _due_ms(self, now_ms: int) -> int:
        if (self.in_ is None) == (self.at is None):
            raise IllegalDeliveryTime("Say either in, such as 30m, or at, such as 2026-11-22T09:00+08:00.")
        if self.in_ is not None:
            return now_ms + delay_of(self.in_, "in")
        return due_of(self.at or "", now_ms, "at")

    def _marks(self) -> dict[str, str]:
        if self.timer_key and not self.properties.keys().isdisjoint(
            (property_names.TIMER_KEY, property_names.TIMER_UNIQUE)
        ):
            raise ClientMistake("timer_key is given in properties, too: give it once.")
        if self.unique and not self.timer_key:
            raise ClientMistake("unique is about a timer_key: name one.")
        key = {property_names.TIMER_KEY: self.timer_key} if self.timer_key else {}
        return key | ({property_names.TIMER_UNIQUE: "true"} if self.unique else {})


class NewTimers(BaseModel):
    """A batch of timers, each of which is set or refused separately."""

    model_config = ConfigDict(extra="forbid")

    timers: list[NewTimer] = Field(min_length=1, max_length=limits.TIMER_BATCH_MAX)


class UnreadTimers(BaseModel):
    """The body of a `NewTimers` request whose timers have not been checked yet."""

    model_config = ConfigDict(extra="forbid")

    timers: list[Any] = Field(min_length=1, max_length=limits.TIMER_BATCH_MAX)


class SeenTimer(BaseModel):
    """The due time that the caller saw. The verb is refused if the timer has another one now."""

    model_config = ConfigDict(extra="forbid")

    due_ms: Number


class NamedTimer(TimerQuery):
    """The timer of a verb, and the reason for the verb, which is stored."""

    reason: Reason = ""
    seen: SeenTimer | None = None


class MovedTimer(NamedTimer):
    """The timer of a move, and its new due time."""

    to: Moment = Field(description="A time with a zone, milliseconds since 1970, or a duration from now.")


def filter_of(query: FilterQuery, now_ms: int) -> TimerFilter:
    """Return a filter for the core. Raise `ClientMistake` for an invalid filter or a reversed window."""
    from_ms = moment_of(query.from_, now_ms, "from") if query.from_ != "" else 0
    until_ms = moment_of(query.until, now_ms, "until") if query.until != "" else FOREVER_MS
    if from_ms >= until_ms:
        raise ClientMistake(f"The window is reversed or empty: from {utc(from_ms)} until {utc(until_ms)}.")
    wanted = tuple(property_of(text) for text in query.properties)
    texts = query.topic, query.topic_prefix, query.key, query.tag
    return TimerFilter(*texts, from_ms, until_ms, query.message_key, wanted, query.held)


def property_of(text: str) -> tuple[str, str]:
    """Return the name and the value of a property in NAME=VALUE; raise `ClientMistake`."""
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise ClientMistake(f"property is {text[:80]!r}: write it as NAME=VALUE.")
    return name, value


def name_of(query: TimerQuery) -> TimerName:
    """Return the name of a timer.

    Raise `ClientMistake` unless the query contains exactly one kind of name.
    """
    given = [query.id, query.key, query.handle]
    if sum(map(bool, given)) != 1:
        raise ClientMistake("Name the timer in one way: by its id, its timer key, or its recall handle.")
    if query.handle:
        return name_of_handle(query.handle, query.topic)
    if not query.topic:
        raise ClientMistake("topic is missing: an id or a timer key names a timer within its topic.")
    return TimerName(query.topic, query.id, query.key)


def name_of_handle(handle: str, topic: str) -> TimerName:
    """Return the name of the timer of a recall handle. Raise `InvalidRecallHandle`."""
    meant = recall.decode(handle)
    if topic and topic != meant.topic:
        raise InvalidRecallHandle(f"It is for topic {meant.topic!r}, not {topic!r}.")
    return TimerName(meant.topic, meant.message_id)


def cursor_of(text: str) -> tuple[int, int] | None:
    """Parse the end of a page as encoded by `page_shape`. Raise `ClientMistake` for an invalid position."""
    if not text:
        return None
    found = _CURSOR.fullmatch(text)
    if found is None or (offset := int(found[2])) > LAST_OFFSET:
        raise ClientMistake(f"after is {text[:80]!r}: use the one from the page before.")
    return int(found[1]), offset


async def timers_in(said: dict[str, Any]) -> list[NewTimer]:
    """Return the timers of a batch, each of which is checked separately. Raise `ClientMistake`."""
    found, pauses = list[NewTimer](), Pauses()
    for number, one in enumerate(shaped(UnreadTimers, said, "").timers):
        found.append(shaped(NewTimer, one, f"timers.{number}"))
        await pauses.pause()
    return found


def message_of(wanted: NewTimer, now_ms: int) -> Any:
    """Return a timer of a batch for the core, or the error for which it is refused."""
    try:
        return wanted.to_message(uuid4().hex.upper(), now_ms)
    except TidewheelError as error:
        return error


class TimerAnswer(TypedDict):
    """A pending delayed message.

    `keys` are its message keys, and `timer_key` is the key by which a later message replaces it. `state` is
    "held" if the message is due and waits for the release of its topic.
    """

    message_id: str
    topic: str
    keys: list[str]
    due_ms: str
    timer_key: str
    tag: str
    stored_ms: str
    timer_offset: str
    state: Literal["waiting", "held"]


class OneTimerAnswer(TimerAnswer):
    """A pending delayed message with its content, which is null if its record cannot be read.

    `note` contains whether the timer was moved, with the reason.
    """

    note: str
    message: ContentAnswer | None


class TimersAnswer(TypedDict):
    """Delayed messages by due time. `after` is the position of the next page, or null at the end.

    A page contains fewer timers than requested, or none, if the search for them takes longer than 2 seconds.
    """

    timers: list[TimerAnswer]
    after: str | None


class LostTimerAnswer(TypedDict):
    """A timer that ended as UNREADABLE, because no copy of its record is readable.

    `topic` is empty if the topic is unknown.
    """

    timer_offset: str
    topic: str
    due_ms: str
    ended_ms: str


class DamagedPartAnswer(TypedDict):
    """A part of the store whose content differs from the written content."""

    part: str
    path: str
    what: str
    rebuilt: int
    lost: int


class DamageAnswer(TypedDict):
    """The damage that was found since the start of the broker, and the timers that were lost.

    `unreadable` is the number of stored timers that ended as UNREADABLE. `rebuilt` is the number of timers
    that were rebuilt since the start. Lists are sorted newest first.
    """

    count: int
    rebuilt: int
    unreadable: int
    damage: list[DamagedPartAnswer]
    timers: list[LostTimerAnswer]


class CountAnswer(TypedDict):
    """The number of timers that match.

    A count ends after about 2 seconds. `counted_until_ms` is then the due time up to which the timers were
    counted. Otherwise it is null.
    """

    count: int
    counted_until_ms: str | None


class WindowAnswer(TypedDict):
    """The number of timers that are due in the window that starts at `start_ms`."""

    start_ms: str
    count: int


class HistogramAnswer(TypedDict):
    """The number of timers in each time window. Windows without timers are omitted.

    A count ends after about 2 seconds. `counted_until_ms` is then the due time up to which the timers were
    counted. Otherwise it is null.
    """

    width_ms: str
    count: int
    counted_until_ms: str | None
    windows: list[WindowAnswer]


class LatenessAnswer(TypedDict):
    """The lateness of deliveries since the start, as upper bounds in milliseconds.

    The lateness of a timer that was set after its due time is measured from the time at which it was set.
    `early_count` is 0, because the broker delivers no timer before its due time. `after_hold` is the number
    of timers delivered after their topic was held. They are late by the hold and are not part of the other
    fields.
    """

    delivered: int
    p50_ms: int
    p99_ms: int
    max_ms: int
    early_count: int
    after_hold: int


class DueAnswer(TypedDict):
    """The number of timers that are due within `within_ms` milliseconds from now.

    A timer is counted in a single entry, the first whose `within_ms` it meets: the counts are not cumulative.
    The last entry, in which `within_ms` is null, counts the timers that are due later.
    """

    within_ms: str | None
    count: int


class HeldTopicAnswer(TypedDict):
    """A topic whose timers are held, or whose held timers are being released.

    `per_second` is the pace of the release, 0 for no limit, and null while the topic is held.
    """

    topic: str
    held: int
    since_ms: str | None
    reason: str
    per_second: int | None


class SummaryAnswer(TypedDict):
    """A summary of the delayed messages of a broker. `next_due_ms` and `due` exclude held messages."""

    now_ms: str
    pending: int
    pending_by_topic: dict[str, int]
    held: list[HeldTopicAnswer]
    next_due_ms: str | None
    due: list[DueAnswer]
    lateness: LatenessAnswer
    lateness_by_topic: dict[str, LatenessAnswer]


class VerdictAnswer(TypedDict):
    """The result of a verb on a timer, with the time and log offset of the end ("-1" if none or unknown).

    `due_ms` is the due time before the verb, or "0" if it is unknown. For MOVED, `ended_ms` is the new due
    time. `what` is the earlier end of the timer (cancelled, replaced, moved, delivered, fired, lost) and
    `note` its reason, in the terms of `/api/explain`. Both are empty if the timer had not ended.
    """

    verdict: Literal["CANCELLED", "MOVED", "FIRED", "TOO_LATE", "ALREADY", "NEVER_SET", "FORGOTTEN"]
    message_id: str
    ended_ms: str
    ended_offset: str
    due_ms: str
    what: str
    note: str


class TimerReceiptAnswer(ReceiptAnswer):
    """A timer that was set."""

    due_ms: str


class SetTimersAnswer(TypedDict):
    """The results for the timers of a batch, in order."""

    set: int
    refused: int
    timers: list[TimerReceiptAnswer | ErrorAnswer]


def timer_shape(timer: PendingTimer) -> TimerAnswer:
    """Return a pending delayed message in JSON form."""
    return {
        "message_id": timer.message_id,
        "topic": timer.topic,
        "keys": list(timer.keys),
        "due_ms": str(timer.due_ms),
        "timer_key": timer.timer_key,
        "tag": timer.tag,
        "stored_ms": str(timer.stored_ms),
        "timer_offset": str(timer.timer_offset),
        "state": "held" if timer.is_held else "waiting",
    }


def one_timer_shape(timer: PendingTimer) -> OneTimerAnswer:
    """Return a pending delayed message with its content in JSON form."""
    message = None if timer.message is None else content_shape(timer.message)
    note = HELD if timer.is_held else waiting(timer.move_reason)
    return {**timer_shape(timer), "note": note, "message": message}


def page_shape(page: TimerPage) -> TimersAnswer:
    """Return a page of timers in JSON form."""
    after = None if page.after is None else f"{page.after[0]}:{page.after[1]}"
    return {"timers": [timer_shape(timer) for timer in page.timers], "after": after}


def lost_timer_shape(lost: LostTimer, offset_ms: int) -> LostTimerAnswer:
    """Return a lost timer in JSON form. The clock of the broker is `offset_ms` ahead of real time."""
    return {
        "timer_offset": str(lost.timer_offset),
        "topic": lost.topic,
        "due_ms": str(lost.due_ms - offset_ms),
        "ended_ms": str(lost.ended_ms - offset_ms),
    }


def damaged_shape(found: DamagedPart) -> DamagedPartAnswer:
    """Return a damaged part of the store in JSON form."""
    return {
        "part": found.part,
        "path": found.path,
        "what": found.what,
        "rebuilt": found.rebuilt_count,
        "lost": found.lost_count,
    }


def verdict_shape(verdict: TimerVerdict, what: str, note: str) -> VerdictAnswer:
    """Return a verdict in JSON form."""
    return {
        "verdict": verdict.verdict.value,
        "message_id": verdict.message_id,
        "ended_ms": str(verdict.ended_ms),
        "ended_offset": str(verdict.ended_offset),
        "due_ms": str(verdict.due_ms),
        "what": what,
        "note": note,
    }


def timer_receipt_shape(receipt: SendReceipt, message: Message, created: CreatedTopics) -> TimerReceiptAnswer:
    """Return a timer that was set in JSON form."""
    return {**receipt_shape(receipt, message.topic, created), "due_ms": str(message.delivery_ms or 0)}


def set_shape(
    receipt: SendReceipt | TidewheelError, message: Any, created: CreatedTopics
) -> TimerReceiptAnswer | TidewheelError:
    """Return the result for a timer of a batch in JSON form, or an error unchanged."""
    if isinstance(receipt, TidewheelError):
        return receipt
    return timer_receipt_shape(receipt, message, created)


def combined(parts: Iterable[Lateness]) -> Lateness:
    """Return the combined lateness of several topics."""
    whole = Lateness()
    for part in parts:
        whole.counts = [one + other for one, other in zip(whole.counts, part.counts, strict=True)]
        whole.sum_ms += part.sum_ms
        whole.max_ms = max(whole.max_ms, part.max_ms)
        whole.early_count += part.early_count
    return whole


def time_text(at_ms: int | None) -> str | None:
    """Return a time in JSON form, in which 64-bit numbers are strings."""
    return None if at_ms is None else str(at_ms)


def lateness_shape(late: Lateness, after_hold: int) -> LatenessAnswer:
    """Return a histogram of lateness in JSON form. `after_hold` is the number of deliveries after a hold."""
    return {
        "delivered": sum(late.counts),
        "p50_ms": at_most_ms(late, 0.50),
        "p99_ms": at_most_ms(late, 0.99),
        "max_ms": late.max_ms,
        "early_count": late.early_count,
        "after_hold": after_hold,
    }


def at_most_ms(late: Lateness, share: float) -> int:
    """Return an upper bound of the lateness of a share of the deliveries, from its bucket or the maximum."""
    wanted = ceil(share * sum(late.counts))
    bounds = (*LATENESS_BOUNDS_MS, late.max_ms)
    reached = zip(bounds, accumulate(late.counts), strict=True)
    return min(next(bound for bound, count in reached if count >= wanted), late.max_ms)


class TimersApi:
    """The handlers of `/api/timers`, except for tasks."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    async def page(self, request: Request) -> Response:
        """List pending timers."""
        query = asked(TimersQuery, request)
        page = await timer_queries.query_page(
            self._live, self._filter(query), cursor_of(query.after), query.limit, SECONDS_MAX
        )
        return await written(page_shape(page))

    async def count(self, request: Request) -> JSONResponse:
        """Count timers."""
        wanted = self._filter(asked(FilterQuery, request))
        found = await timer_queries.count_timers(self._live, wanted, SECONDS_MAX)
        return JSONResponse({"count": found.total, "counted_until_ms": time_text(found.counted_until_ms)})

    async def histogram(self, request: Request) -> Response:
        """Count timers by due time."""
        query = asked(HistogramQuery, request)
        width_ms = span_in(query.width, "width")
        if width_ms <= 0:
            raise ClientMistake("width is 0: a window of time is at least 1ms wide.")
        found = await timer_queries.count_by_window(self._live, self._filter(query), width_ms, SECONDS_MAX)
        windows = found.windows
        if len(windows) > limits.TIMER_WINDOWS_MAX:
            raise ClientMistake(
                f"That gives {len(windows)} windows, the limit is {limits.TIMER_WINDOWS_MAX}:"
                " choose a larger width, or a shorter time from and until."
            )
        shapes = ({"start_ms": str(start_ms), "count": count} for start_ms, count in windows)
        answer = {"width_ms": str(width_ms), "count": found.total}
        answer |= {"counted_until_ms": time_text(found.counted_until_ms), "windows": shapes}
        return await written(answer)

    async def damaged(self, request: Request) -> JSONResponse:
        """Show damage, and the timers that were lost because of damage."""
        limit = asked(DamagedQuery, request).limit
        core = self._live.core
        lost = core.timer_views.lost()
        answer: DamageAnswer = {
            "count": len(core.damage),
            "rebuilt": core.statistics.timers_rebuilt,
            "unreadable": len(lost),
            # core.damage is sorted oldest first, lost newest first
            "damage": [damaged_shape(one) for one in list(core.damage)[: -limit - 1 : -1]],
            "timers": [lost_timer_shape(one, self._live.clock.offset_ms) for one in lost[:limit]],
        }
        return JSONResponse(answer)

    async def summary(self, request: Request) -> JSONResponse:
        """Show a summary of all timers."""
        gauges, statistics = self._live.core.gauges(), self._live.core.statistics
        lateness, causes = statistics.lateness, statistics.lateness_by_cause
        after_hold = {topic: count for (topic, cause), count in causes.items() if cause == LATE_BY_HOLD}
        now_ms, first = self._live.now_ms(), self._live.timers(NOT_HELD, None, 1).timers
        answer: SummaryAnswer = {
            "now_ms": str(now_ms),
            "pending": gauges.pending_timers,
            "pending_by_topic": dict(gauges.pending_by_topic),
            "held": list(self._held()),
            "next_due_ms": str(first[0].due_ms) if first else None,
            "due": self._due(gauges.pending_timers - sum(gauges.held_by_topic.values())),
            "lateness": lateness_shape(combined(lateness.values()), sum(after_hold.values())),
            "lateness_by_topic": {
                topic: lateness_shape(lateness.get(topic, Lateness()), after_hold.get(topic, 0))
                for topic in lateness.keys() | after_hold
            },
        }
        return JSONResponse(answer)

    async def one(self, request: Request) -> JSONResponse:
        """Show a timer."""
        found = self._live.timer(name_of(asked(TimerQuery, request)))
        if not isinstance(found, TimerVerdict):
            return JSONResponse(one_timer_shape(found))
        return self._told(found, GONE if ended(found) else 404)

    async def set(self, request: Request) -> Response:
        """Set a timer, or a batch of timers."""
        said = await said_by(request)
        if isinstance(said, list):
            raise a_list(NewTimers, "timers")
        if isinstance(said, dict) and "timers" in said:
            return await self._set_batch(await timers_in(said))
        message = shaped(NewTimer, said, "").to_message(uuid4().hex.upper(), self._live.now_ms())
        created = CreatedTopics()
        receipt = await self._live.send(message, created)
        return JSONResponse(timer_receipt_shape(receipt, message, created), status_code=201)

    async def cancel(self, request: Request) -> JSONResponse:
        """Cancel a timer."""
        wanted = await said_as(NamedTimer, request)
        name, check = name_of(wanted), self._check_of(wanted)
        verdict = await self._live.call(self._live.core.timers.cancel, name, wanted.reason, check=check)
        if wanted.handle and verdict.verdict is Verdict.NEVER_SET:
            recall = self._live.core.timers.recall  # the handle distinguishes FORGOTTEN
            verdict = await self._live.call(recall, name.topic, wanted.handle)
        return self._done("cancel", wanted, verdict)

    async def move(self, request: Request) -> JSONResponse:
        """Move a timer."""
        wanted = await said_as(MovedTimer, request)
        due_ms = due_of(wanted.to, self._live.now_ms(), "to")
        name, check = name_of(wanted), self._check_of(wanted, due_ms)
        return self._done("move", wanted, await self._live.move_timer(name, due_ms, wanted.reason, check))

    async def fire(self, request: Request) -> JSONResponse:
        """Deliver the message of a timer immediately."""
        wanted = await said_as(NamedTimer, request)
        name, check = name_of(wanted), self._check_of(wanted)
        return self._done("fire", wanted, await self._live.fire_timer(name, wanted.reason, check))

    def _check_of(self, wanted: NamedTimer, due_ms: int | None = None) -> Check:
        """Return the check of a verb, which refuses a timer that was moved since its caller saw it.

        A pending timer is compared, if its record is readable and it is not due at `due_ms` already.
        """

        def check() -> None:
            if wanted.seen is None:
                return
            seen_ms, found = wanted.seen.due_ms, None
            with suppress(StoreDamaged):
                found = self._live.timer(name_of(wanted))
            if isinstance(found, PendingTimer) and found.due_ms not in (seen_ms, due_ms):
                changes = [change_of("due time", utc(seen_ms), utc(found.due_ms))]
                refuse_changed(self._live, "The timer", changes)

        return check

    def _held(self) -> Iterator[HeldTopicAnswer]:
        """Yield the topics that are held, or have held timers, by name."""
        topics, counts = self._live.core.topics, self._live.core.timers.held.counts
        for name in sorted({*topics.held, *counts}):
            hold = topics.get(name).hold if name in topics else None
            hold = self._live.clock.to_real_time(hold)
            yield {
                "topic": name,
                "held": counts[name],
                "since_ms": None if hold is None else str(hold.since_ms),
                "reason": "" if hold is None else hold.reason,
                "per_second": 0 if hold is None else hold.per_second,
            }

    def _filter(self, query: FilterQuery) -> TimerFilter:
        """Return the filter of a query. Raise `TopicNotFound` for an unknown topic without timers."""
        wanted = filter_of(query, self._live.now_ms())
        timer_queries.check_topic(self._live, wanted)
        return wanted

    def _due(self, pending: int) -> list[DueAnswer]:
        within = list(counts_within(self._live, DUE_SPANS_MS))
        due: list[DueAnswer] = [
            {"within_ms": str(span), "count": count} for span, count in zip(DUE_SPANS_MS, within, strict=True)
        ]
        return [*due, {"within_ms": None, "count": max(0, pending - sum(within))}]

    async def _set_batch(self, wanted: list[NewTimer]) -> Response:
        """Set or refuse each timer of a batch, in several turns of the event loop and one or two flushes."""
        now_ms, created = self._live.now_ms(), CreatedTopics()
        answers: list[Any] = [message_of(one, now_ms) for one in wanted]
        receipts = await send_each(self._live, answers, created)
        answers = [set_shape(one, message, created) for one, message in zip(receipts, answers, strict=True)]
        shapes = [error_shape(one) if isinstance(one, TidewheelError) else one for one in answers]
        refused = sum("code" in shape for shape in shapes)
        return await written({"set": len(shapes) - refused, "refused": refused, "timers": shapes})

    def _done(self, verb: str, wanted: NamedTimer, verdict: TimerVerdict) -> JSONResponse:
        """Return an answer with a verdict. Log a verb that has a reason."""
        if wanted.reason:
            said = {"verb": verb, "verdict": verdict.verdict.value, "message_id": verdict.message_id}
            log.info("timer verb", **said, reason=wanted.reason)
        impossible = 409 if verdict.verdict is Verdict.ALREADY and verb != "cancel" else 200
        return self._told(verdict, VERDICT_STATUSES.get(verdict.verdict, impossible))

    def _told(self, verdict: TimerVerdict, status: int) -> JSONResponse:
        """Return an answer with a verdict, and with the earlier end of the timer."""
        return JSONResponse(verdict_shape(verdict, *end_of(self._live, verdict)), status_code=status)


def ended(verdict: TimerVerdict) -> bool:
    """Return whether the timer existed."""
    return verdict.verdict not in (Verdict.NEVER_SET, Verdict.FORGOTTEN)


def verb(path: str, handler: Handler, body: type[BaseModel]) -> Operation:
    """Return a verb on a timer, whose answers are all verdicts."""
    answers = {200: VerdictAnswer, 404: VerdictAnswer, 409: VerdictAnswer | ErrorAnswer}
    return Operation("POST", path, handler, answers, bodies=(body,), refusals=(400, 503))


OPERATIONS: Final = (
    Operation("GET", "/api/timers", TimersApi.page, {200: TimersAnswer}, TimersQuery, refusals=(400, 404)),
    Operation(
        "POST",
        "/api/timers",
        TimersApi.set,
        {201: TimerReceiptAnswer, 200: SetTimersAnswer},
        bodies=(NewTimer, NewTimers),
        refusals=(400, 404, 409, 503),
    ),
    Operation(
        "GET", "/api/timers/count", TimersApi.count, {200: CountAnswer}, FilterQuery, refusals=(400, 404)
    ),
    Operation(
        "GET",
        "/api/timers/histogram",
        TimersApi.histogram,
        {200: HistogramAnswer},
        HistogramQuery,
        refusals=(400, 404),
    ),
    Operation("GET", "/api/timers/summary", TimersApi.summary, {200: SummaryAnswer}),
    Operation("GET", "/api/timers/damaged", TimersApi.damaged, {200: DamageAnswer}, DamagedQuery),
    Operation(
        "GET",
        "/api/timers/one",
        TimersApi.one,
        {200: OneTimerAnswer, 404: VerdictAnswer, 410: VerdictAnswer},
        TimerQuery,
    ),
    verb("/api/timers/cancel", TimersApi.cancel, NamedTimer),
    verb("/api/timers/move", TimersApi.move, MovedTimer),
    verb("/api/timers/fire", TimersApi.fire, NamedTimer),
)
