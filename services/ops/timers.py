"""`/api/timers`: delayed messages looked at, set, cancelled, moved and fired, one by one or many at once.

    GET    /api/timers            a page of those that wait, by due time: FILTER, after, limit
    GET    /api/timers/count      how many match: FILTER
    GET    /api/timers/histogram  how many are due in each window of time: FILTER, width=1m
    GET    /api/timers/damaged    what was found damaged, and the timers that nobody has any more: limit
    GET    /api/timers/summary    pending by topic, what is due when, how late deliveries were
    GET    /api/timers/one        one, with what it says: topic and id, or topic and key, or handle
    POST   /api/timers            sets one, or a batch of them: {"timers": [...]}
    POST   /api/timers/cancel     and /move and /fire: the verb on one timer; answers with its verdict
    POST   /api/timers/tasks      cancels or moves all timers of a filter, or counts them first: dry_run
    GET    /api/timers/tasks/ID   how far that is; DELETE stops it

FILTER is any of topic, topic-prefix, key, tag, from, until. `services.ops.timer_shapes` has the shapes.

A verdict comes with 200 when it is as was asked (CANCELLED, MOVED, FIRED, or cancelled ALREADY), with 409
when that is impossible (TOO_LATE; to move or fire what ended ALREADY), with 404 when there is no such timer
that anybody remembers (NEVER_SET, FORGOTTEN). To look at a timer that has ended is 410.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import accumulate
from math import ceil
from typing import Any
from uuid import uuid4

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse

from commitlog import limits
from services.broker.statistics import LATENESS_BOUNDS_MS, Lateness
from services.broker.values import SendReceipt, TimerFilter, TimerVerdict, Verdict
from services.live import timer_queries
from services.live.live_broker import LiveBroker
from services.live.timer_tasks import TimerTasks
from services.ops.answers import DamageAnswer, DueAnswer, LatenessAnswer, SummaryAnswer, TimerReceiptAnswer
from services.ops.horizon import counts_within
from services.ops.queries import DamagedQuery, FilterQuery, HistogramQuery, TimerQuery, TimersQuery, asked
from services.ops.shapes import body_of, parse
from services.ops.timer_shapes import (
    MovedTimer,
    NamedTimer,
    NewTask,
    NewTimer,
    NewTimers,
    cursor_of,
    damaged_shape,
    due_of,
    error_shape,
    filter_of,
    lost_timer_shape,
    name_of,
    one_timer_shape,
    page_shape,
    span_of,
    task_shape,
    timer_receipt_shape,
    verdict_shape,
)
from tidewheel.errors import ClientMistake, TidewheelError

DUE_SPANS_MS = (60_000, 300_000, 3_600_000, 86_400_000)
GONE = 410
VERDICT_STATUSES = {Verdict.TOO_LATE: 409, Verdict.NEVER_SET: 404, Verdict.FORGOTTEN: 404}

log = structlog.get_logger()


class TimersApi:
    """The handlers of `/api/timers`."""

    def __init__(self, live: LiveBroker, tasks: TimerTasks) -> None:
        self._live, self._tasks = live, tasks

    async def page(self, request: Request) -> JSONResponse:
        """Show timers that wait."""
        query = asked(TimersQuery, request)
        page = await timer_queries.page(self._live, self._filter(query), cursor_of(query.after), query.limit)
        return JSONResponse(page_shape(page))

    async def count(self, request: Request) -> JSONResponse:
        """Count timers."""
        wanted = self._filter(asked(FilterQuery, request))
        return JSONResponse({"count": await timer_queries.count(self._live, wanted)})

    async def histogram(self, request: Request) -> JSONResponse:
        """Count timers by when they are due."""
        query = asked(HistogramQuery, request)
        width_ms = span_of(query.width, "width")
        if width_ms <= 0:
            raise ClientMistake("width is 0: a window of time is at least 1ms wide.")
        windows = await timer_queries.histogram(self._live, self._filter(query), width_ms)
        if len(windows) > limits.TIMER_WINDOWS_MAX:
            raise ClientMistake(
                f"That gives {len(windows)} windows, the limit is {limits.TIMER_WINDOWS_MAX}:"
                " choose a larger width, or a shorter time from and until."
            )
        shapes = [{"start_ms": str(start_ms), "count": count} for start_ms, count in windows]
        total = sum(count for _, count in windows)
        return JSONResponse({"width_ms": str(width_ms), "count": total, "windows": shapes})

    async def damaged(self, request: Request) -> JSONResponse:
        """Show what was found damaged, and the timers that were lost to it."""
        limit = asked(DamagedQuery, request).limit
        core = self._live.core
        lost = core.timer_views.lost()
        answer: DamageAnswer = {
            "count": core.damage_count,
            "rebuilt": core.statistics.timers_rebuilt,
            "unreadable": len(lost),
            "damage": [damaged_shape(one) for one in list(core.damage)[: -limit - 1 : -1]],
            "timers": [lost_timer_shape(one, self._live.clock.offset_ms) for one in lost[:limit]],
        }
        return JSONResponse(answer)

    async def summary(self, request: Request) -> JSONResponse:
        """Show all timers at a glance."""
        gauges, lateness = self._live.core.gauges(), self._live.core.statistics.lateness
        now_ms, first = self._live.now_ms(), self._live.timers(TimerFilter(), None, 1).timers
        answer: SummaryAnswer = {
            "now_ms": str(now_ms),
            "pending": gauges.pending_timers,
            "pending_by_topic": dict(gauges.pending_by_topic),
            "next_due_ms": str(first[0].due_ms) if first else None,
            "due": self._due(gauges.pending_timers),
            "lateness": lateness_shape(together(lateness.values())),
            "lateness_by_topic": {topic: lateness_shape(late) for topic, late in lateness.items()},
        }
        return JSONResponse(answer)

    async def one(self, request: Request) -> JSONResponse:
        """Show one timer."""
        found = self._live.timer(name_of(asked(TimerQuery, request)))
        if not isinstance(found, TimerVerdict):
            return JSONResponse(one_timer_shape(found))
        return told(found, GONE if ended(found) else 404)

    async def set(self, request: Request) -> JSONResponse:
        """Set one timer, or a batch of them."""
        body = await body_of(request)
        if is_batch(body):
            return await self._set_batch(parse(NewTimers, body).timers)
        message = parse(NewTimer, body).to_message(uuid4().hex.upper(), self._live.now_ms())
        receipt = await self._live.send(message)
        return JSONResponse(timer_receipt_shape(receipt, message.delivery_ms or 0), status_code=201)

    async def cancel(self, request: Request) -> JSONResponse:
        """Cancel a timer."""
        wanted = parse(NamedTimer, await body_of(request))
        name = name_of(wanted)
        verdict = await self._live.call(self._live.core.timers.cancel, name, wanted.reason)
        if wanted.handle and verdict.verdict is Verdict.NEVER_SET:
            recall = self._live.core.timers.recall  # the handle tells FORGOTTEN apart
            verdict = await self._live.call(recall, name.topic, wanted.handle)
        return self._done("cancel", wanted, verdict)

    async def move(self, request: Request) -> JSONResponse:
        """Move a timer."""
        wanted = parse(MovedTimer, await body_of(request))
        due_ms = due_of(wanted.to, self._live.now_ms(), "to")
        return self._done("move", wanted, await self._live.move_timer(name_of(wanted), due_ms))

    async def fire(self, request: Request) -> JSONResponse:
        """Deliver a timer's message now."""
        wanted = parse(NamedTimer, await body_of(request))
        return self._done("fire", wanted, await self._live.fire_timer(name_of(wanted)))

    async def tasks(self, request: Request) -> JSONResponse:
        """List the tasks."""
        return JSONResponse({"tasks": [task_shape(task) for task in self._tasks.all()]})

    async def start_task(self, request: Request) -> JSONResponse:
        """Cancel or move all timers of a filter, or count them."""
        wanted = parse(NewTask, await body_of(request))
        order = wanted.order(self._live.now_ms())
        if not wanted.dry_run:
            return JSONResponse(task_shape(self._tasks.start(order)), status_code=202)
        self._tasks.check(order)
        return JSONResponse({"dry_run": True, "matched": await timer_queries.count(self._live, order.wanted)})

    async def task(self, request: Request) -> JSONResponse:
        """Show a task."""
        return JSONResponse(task_shape(self._tasks.get(request.path_params["id"])))

    async def stop_task(self, request: Request) -> JSONResponse:
        """Stop a task."""
        return JSONResponse(task_shape(await self._tasks.stop(request.path_params["id"])))

    def _filter(self, query: FilterQuery) -> TimerFilter:
        return filter_of(query, self._live.now_ms())

    def _due(self, pending: int) -> list[DueAnswer]:
        within = list(counts_within(self._live, DUE_SPANS_MS))
        due: list[DueAnswer] = [
            {"within_ms": str(span), "count": count} for span, count in zip(DUE_SPANS_MS, within, strict=True)
        ]
        return [*due, {"within_ms": None, "count": max(0, pending - sum(within))}]

    async def _set_batch(self, wanted: list[NewTimer]) -> JSONResponse:
        """Set each or refuse it; one flush for all."""
        now_ms = self._live.now_ms()
        answers: list[Any] = [message_of(one, now_ms) for one in wanted]
        sound = [number for number, one in enumerate(answers) if not isinstance(one, TidewheelError)]
        receipts = await self._live.send_many([answers[number] for number in sound])
        for number, receipt in zip(sound, receipts, strict=True):
            answers[number] = set_shape(receipt, answers[number].delivery_ms)
        shapes = [error_shape(one) if isinstance(one, TidewheelError) else one for one in answers]
        refused = sum("code" in shape for shape in shapes)
        return JSONResponse({"set": len(shapes) - refused, "refused": refused, "timers": shapes})

    def _done(self, verb: str, wanted: NamedTimer, verdict: TimerVerdict) -> JSONResponse:
        """Answer with a verdict; what had a reason is logged."""
        if wanted.reason:
            said = {"verb": verb, "verdict": verdict.verdict.value, "message_id": verdict.message_id}
            log.info("timer verb", **said, reason=wanted.reason)
        impossible = 409 if verdict.verdict is Verdict.ALREADY and verb != "cancel" else 200
        return told(verdict, VERDICT_STATUSES.get(verdict.verdict, impossible))


def told(verdict: TimerVerdict, status: int) -> JSONResponse:
    """Answer with a verdict."""
    return JSONResponse(verdict_shape(verdict), status_code=status)


def ended(verdict: TimerVerdict) -> bool:
    """Whether there was such a timer."""
    return verdict.verdict not in (Verdict.NEVER_SET, Verdict.FORGOTTEN)


def is_batch(body: bytes) -> bool:
    """Whether a body holds several timers; what is no JSON is refused later."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and "timers" in said


def message_of(wanted: NewTimer, now_ms: int) -> Any:
    """Return a timer of a batch as the core takes it, or what is wrong with it."""
    try:
        return wanted.to_message(uuid4().hex.upper(), now_ms)
    except TidewheelError as error:
        return error


def set_shape(receipt: SendReceipt | TidewheelError, due_ms: int) -> TimerReceiptAnswer | TidewheelError:
    """Return a timer of a batch that is set as JSON has it; a refusal as it is."""
    return receipt if isinstance(receipt, TidewheelError) else timer_receipt_shape(receipt, due_ms)


def together(parts: Iterable[Lateness]) -> Lateness:
    """Return the lateness of several topics as one."""
    whole = Lateness()
    for part in parts:
        whole.counts = [one + other for one, other in zip(whole.counts, part.counts, strict=True)]
        whole.sum_ms += part.sum_ms
        whole.max_ms = max(whole.max_ms, part.max_ms)
        whole.early_count += part.early_count
    return whole


def lateness_shape(late: Lateness) -> LatenessAnswer:
    """Return a histogram of lateness as JSON has it."""
    return {
        "delivered": sum(late.counts),
        "p50_ms": at_most_ms(late, 0.50),
        "p99_ms": at_most_ms(late, 0.99),
        "max_ms": late.max_ms,
        "early_count": late.early_count,
    }


def at_most_ms(late: Lateness, share: float) -> int:
    """Return what a share of the deliveries was no later than: the bound of its bucket, or the latest."""
    wanted = ceil(share * sum(late.counts))
    bounds = (*LATENESS_BOUNDS_MS, late.max_ms)
    reached = zip(bounds, accumulate(late.counts), strict=True)
    return min(next(bound for bound, count in reached if count >= wanted), late.max_ms)
