"""`/api/transactions`: half messages looked at, asked about, and resolved by hand.

    GET  /api/transactions              those open or expired, the oldest first: state, topic, older-than, key
    GET  /api/transactions/summary      how many, how old, what has ended
    GET  /api/transactions/log          what producers were asked, and what they said: topic
    GET  /api/transactions/producers    who can be asked: topic
    GET  /api/transactions/ID           one, however it ended, with its message and questions
    POST /api/transactions/ID/check     asks a producer now, whatever the schedule says
    POST /api/transactions/ID/resolve   {"resolution": "COMMIT" or "ROLLBACK", "reason": ...}: ends it by hand
    PUT  /api/topics/TOPIC/check-back   how its halves are asked about; {} for the broker's settings

With `key` (which needs `topic`) halves are found however they ended, the newest first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from commitlog import limits
from services.broker.spine import verb_properties
from services.broker.spine.values import EndReceipt, HalfFilter, HalfView, Resolution, Topic
from services.live import half_queries
from services.live.check_log import CheckBackEntry
from services.live.live_broker import LiveBroker
from services.live.transactions import ProducerView
from services.ops.answers import written
from services.ops.given_times import span_in
from services.ops.messages import ContentAnswer, content_shape, offset_or_none
from services.ops.operation import Operation
from services.ops.request import LIMIT_DEFAULT, LIMIT_MAX, Nothing, Reason, asked, said_as
from services.ops.sending import CarriedVerdictAnswer, verdict_shape
from tidewheel.errors import ClientMistake
from txn.checkback import CheckBackPolicy
from txn.states import State

log = structlog.get_logger()

_ID: Final = re.compile("[0-9A-Fa-f]{24}")
"""A transaction id, in either case; what is none is quoted as it was given."""


class HalvesQuery(Nothing):
    """Which half messages: those open or expired, or of one state only."""

    state: Literal["OPEN", "EXPIRED", ""] = ""
    topic: str = ""
    older_than: str = Field("", alias="older-than", description="A duration such as 10m.")
    key: str = Field("", max_length=limits.TIMER_NAME_CHARACTERS_MAX)
    after: str = Field("", description="The value that the previous page returned.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class QuestionsQuery(Nothing):
    """Which questions."""

    topic: str = ""
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class ProducersQuery(Nothing):
    """Of which topic."""

    topic: str = ""


class NewResolution(BaseModel):
    """How an operator ends a transaction, and why."""

    model_config = ConfigDict(extra="forbid")

    resolution: Resolution
    reason: Reason = Field(pattern=r"\S")


class NewCheckBack(BaseModel):
    """How a topic's half messages are asked about; without any of them as the broker's settings say."""

    model_config = ConfigDict(extra="forbid")

    immunity_ms: int | None = Field(None, ge=0)
    interval_ms: int | None = Field(None, ge=1)
    interval_ms_max: int | None = Field(None, ge=1)
    count_max: int | None = Field(None, ge=1)

    def policy(self, settings: CheckBackPolicy) -> CheckBackPolicy | None:
        """Return the policy, with what is not given as it is in the settings."""
        given = self.model_dump(exclude_none=True)
        if not given:
            return None
        fields = {name: getattr(settings, name) for name in CheckBackPolicy.__dataclass_fields__}
        return CheckBackPolicy(**(fields | given))


def id_of(request: Request) -> str:
    """Return the transaction id in a request's path."""
    transaction_id: str = request.path_params["id"]
    return transaction_id.upper() if _ID.fullmatch(transaction_id) else transaction_id


class QuestionAnswer(TypedDict):
    """What a producer was asked; `client_id` is empty when nobody was there, `answer` until there is one."""

    transaction_id: str
    topic: str
    client_id: str
    asked_ms: str
    answer: str
    answered_ms: str | None


class LateAnswer(TypedDict):
    """An end that a producer asked for when its half had expired."""

    asked_for: str
    at_ms: str


class HalfAnswer(TypedDict):
    """A half message and what has become of it.

    `answers` counts what producers said when asked; `producers` is how many can be asked now.
    """

    transaction_id: str
    message_id: str
    topic: str
    keys: list[str]
    tag: str
    state: str
    half_offset: str
    stored_ms: str
    due_ms: str | None
    check_count: int
    check_count_max: int
    next_check_ms: str | None
    ended_ms: str | None
    ended_offset: str | None
    reason: str
    verdict: str
    late: list[LateAnswer]
    answers: dict[str, int]
    producers: int


class OneHalfAnswer(HalfAnswer):
    """The same with what the message says, and every question that is remembered."""

    message: ContentAnswer
    questions: list[QuestionAnswer]


class HalvesAnswer(TypedDict):
    """Half messages, the oldest first; `after` asks for the next ones, if there are more."""

    transactions: list[HalfAnswer]
    after: str | None


class TransactionsSummaryAnswer(TypedDict):
    """How many are open and expired, the age of the oldest open one, and what has ended since the start."""

    open: int
    expired: int
    oldest_open_ms: str | None
    committed: int
    rolled_back: int
    checks_asked: int
    producers: int


class QuestionsAnswer(TypedDict):
    """Questions, the newest first."""

    questions: list[QuestionAnswer]


class ProducerAnswer(TypedDict):
    """A client that produces to a topic, and whether it can be asked now."""

    topic: str
    client_id: str
    is_connected: bool


class ProducersAnswer(TypedDict):
    """Producers by topic, in the order in which they are asked."""

    producers: list[ProducerAnswer]


class EndedAnswer(TypedDict):
    """A transaction that has ended as asked, now or before.

    `verdict` is null unless its message carries a verb on a timer; `replaced_offset` is the log offset of the
    timer whose place its message took, if it took one.
    """

    transaction_id: str
    resolution: str
    repeated: bool
    verdict: CarriedVerdictAnswer | None
    replaced_offset: str | None


class CheckBackAnswer(TypedDict):
    """How a topic's half messages are asked about; empty of times where the broker's settings hold."""

    topic: str
    immunity_ms: int | None
    interval_ms: int | None
    interval_ms_max: int | None
    count_max: int | None


def half_shape(view: HalfView, questions: list[CheckBackEntry], producers: int) -> HalfAnswer:
    """Return a half as JSON has it."""
    answers: dict[str, int] = {}
    for one in questions:
        answer = one.answer or ("no answer" if one.client_id else "nobody to ask")
        answers[answer] = answers.get(answer, 0) + 1
    return {
        "transaction_id": view.transaction_id,
        "message_id": view.message_id,
        "topic": view.topic,
        "keys": list(view.keys),
        "tag": view.tag,
        "state": view.state.value,
        "half_offset": str(view.half_offset),
        "stored_ms": str(view.stored_ms),
        "due_ms": None if view.due_ms is None else str(view.due_ms),
        "check_count": view.check_count,
        "check_count_max": view.check_count_max,
        "next_check_ms": number(view.next_check_ms, 0),
        "ended_ms": number(view.ended_ms, 0),
        "ended_offset": number(view.ended_offset, -1),
        "reason": view.reason,
        "verdict": view.verdict,
        "late": [{"asked_for": event, "at_ms": str(at_ms)} for event, at_ms in view.late],
        "answers": answers,
        "producers": producers,
    }


def one_half_shape(view: HalfView, questions: list[CheckBackEntry], producers: int) -> OneHalfAnswer:
    """Return a half with its message and questions as JSON has it."""
    assert view.message is not None
    return {
        **half_shape(view, questions, producers),
        "message": content_shape(view.message),
        "questions": [question_shape(one) for one in questions],
    }


def question_shape(question: CheckBackEntry) -> QuestionAnswer:
    """Return a question as JSON has it."""
    return {
        "transaction_id": question.transaction_id,
        "topic": question.topic,
        "client_id": question.client_id,
        "asked_ms": str(question.asked_ms),
        "answer": question.answer,
        "answered_ms": number(question.answered_ms, 0),
    }


def producer_shape(view: ProducerView) -> ProducerAnswer:
    """Return a producer as JSON has it."""
    return {"topic": view.topic, "client_id": view.client_id, "is_connected": view.is_connected}


def ended_shape(live: LiveBroker, before: HalfView, receipt: EndReceipt) -> EndedAnswer:
    """Return an end as JSON has it; `before` is the half as it was, with its message."""
    verdict = replaced_offset = None
    if before.due_ms is not None or (before.message and verb_properties.has_verb(before.message)):
        ended = live.query(live.core.half_views.get_half, receipt.transaction_id)
        verdict, replaced_offset = verdict_shape(ended.verdict), offset_or_none(ended.replaced_offset)
    return {
        "transaction_id": receipt.transaction_id,
        "resolution": receipt.resolution.value,
        "repeated": receipt.repeated,
        "verdict": verdict,
        "replaced_offset": replaced_offset,
    }


def check_back_shape(topic: Topic) -> CheckBackAnswer:
    """Return a topic's check-backs as JSON has them."""
    policy = topic.check_back
    return {
        "topic": topic.name,
        "immunity_ms": None if policy is None else policy.immunity_ms,
        "interval_ms": None if policy is None else policy.interval_ms,
        "interval_ms_max": None if policy is None else policy.interval_ms_max,
        "count_max": None if policy is None else policy.count_max,
    }


def number(value: int, nothing: int) -> str | None:
    """Return a number as JSON has it, None for `nothing`, the number that stands for none."""
    return None if value == nothing else str(value)


class TransactionsApi:
    """The handlers of `/api/transactions`."""

    def __init__(self, live: LiveBroker) -> None:
        self._live, self._transactions = live, live.transactions

    async def page(self, request: Request) -> Response:
        """List half messages that are open or have expired."""
        query = asked(HalvesQuery, request)
        if query.key:
            return await written({"transactions": self._shapes(self._of_key(query)), "after": None})
        after = int(query.after) if query.after.isdigit() else None
        page = await half_queries.query_page(self._live, self._filter(query), after, query.limit)
        after_shape = number(page.after or 0, 0)
        return await written({"transactions": self._shapes(page.halves), "after": after_shape})

    async def summary(self, request: Request) -> JSONResponse:
        """Count transactions."""
        gauges, statistics = self._live.core.gauges(), self._live.core.statistics
        offset_ms = self._live.clock.offset_ms
        oldest_ms = None if gauges.oldest_half_ms is None else gauges.oldest_half_ms - offset_ms
        answer: TransactionsSummaryAnswer = {
            "open": gauges.open_halves,
            "expired": gauges.expired_halves,
            "oldest_open_ms": None if oldest_ms is None else str(oldest_ms),
            "committed": statistics.commits.total(),
            "rolled_back": statistics.rollbacks.total(),
            "checks_asked": statistics.checks_asked.total(),
            "producers": self._connected().total(),
        }
        return JSONResponse(answer)

    async def questions(self, request: Request) -> JSONResponse:
        """List what producers were asked and what they said."""
        query = asked(QuestionsQuery, request)
        found = self._transactions.log.newest_check_backs(query.topic, query.limit)
        return JSONResponse({"questions": [question_shape(one) for one in found]})

    async def producers(self, request: Request) -> JSONResponse:
        """List who can be asked."""
        topic = asked(ProducersQuery, request).topic
        return JSONResponse(
            {"producers": [producer_shape(one) for one in self._transactions.producers(topic)]}
        )

    async def one(self, request: Request) -> JSONResponse:
        """Show one half message."""
        view = self._live.query(self._live.core.half_views.get_half, id_of(request))
        questions = [*self._transactions.log.check_backs_of(view.transaction_id)]
        return JSONResponse(one_half_shape(view, questions, self._connected()[view.topic]))

    async def check(self, request: Request) -> JSONResponse:
        """Ask a producer now."""
        return JSONResponse(question_shape(self._transactions.check(id_of(request))))

    async def resolve(self, request: Request) -> JSONResponse:
        """End a transaction by hand."""
        wanted = await said_as(NewResolution, request)
        before = self._live.query(self._live.core.half_views.get_half, id_of(request))
        receipt = await self._transactions.resolve(id_of(request), wanted.resolution, wanted.reason)
        log.info(
            "transaction resolved",
            transaction=receipt.transaction_id,
            resolution=wanted.resolution.value,
            reason=wanted.reason,
        )
        return JSONResponse(ended_shape(self._live, before, receipt))

    async def set_check_back(self, request: Request) -> JSONResponse:
        """Say how a topic's half messages are asked about."""
        wanted = await said_as(NewCheckBack, request)
        policy = wanted.policy(self._live.settings.check_back)
        set_check_back = self._live.core.transactions.set_check_back
        topic = await self._live.call(set_check_back, request.path_params["topic"], policy)
        return JSONResponse(check_back_shape(topic))

    def _of_key(self, query: HalvesQuery) -> list[HalfView]:
        if not query.topic:
            raise ClientMistake("A key is looked up in a topic: give topic, too.")
        return self._live.query(self._live.core.half_views.find_by_key, query.topic, query.key, query.limit)

    def _filter(self, query: HalvesQuery) -> HalfFilter:
        before_ms = HalfFilter().stored_before_ms
        if query.older_than:
            before_ms = self._live.clock.real_ms() - span_in(query.older_than, "older-than")
        return HalfFilter(query.topic, State(query.state) if query.state else None, before_ms)

    def _shapes(self, views: list[HalfView]) -> Iterator[HalfAnswer]:
        there, log = self._connected(), self._transactions.log
        return (half_shape(one, [*log.check_backs_of(one.transaction_id)], there[one.topic]) for one in views)

    def _connected(self) -> Counter[str]:
        """Count the producers of each topic that can be asked."""
        return Counter(one.topic for one in self._transactions.producers("") if one.is_connected)


OPERATIONS: Final = (
    Operation("GET", "/api/transactions", TransactionsApi.page, {200: HalvesAnswer}, HalvesQuery),
    Operation("GET", "/api/transactions/summary", TransactionsApi.summary, {200: TransactionsSummaryAnswer}),
    Operation(
        "GET", "/api/transactions/log", TransactionsApi.questions, {200: QuestionsAnswer}, QuestionsQuery
    ),
    Operation(
        "GET",
        "/api/transactions/producers",
        TransactionsApi.producers,
        {200: ProducersAnswer},
        ProducersQuery,
    ),
    Operation("GET", "/api/transactions/{id}", TransactionsApi.one, {200: OneHalfAnswer}),
    Operation(
        "POST",
        "/api/transactions/{id}/check",
        TransactionsApi.check,
        {200: QuestionAnswer},
        refusals=(400, 409),
    ),
    Operation(
        "POST",
        "/api/transactions/{id}/resolve",
        TransactionsApi.resolve,
        {200: EndedAnswer},
        bodies=(NewResolution,),
        refusals=(400, 409, 503),
    ),
    Operation(
        "PUT",
        "/api/topics/{topic}/check-back",
        TransactionsApi.set_check_back,
        {200: CheckBackAnswer},
        bodies=(NewCheckBack,),
        refusals=(400, 404, 503),
    ),
)
