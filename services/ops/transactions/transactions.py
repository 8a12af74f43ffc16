"""The operations of `/api/transactions`: halves are listed, shown, checked and resolved.

    GET  /api/transactions              lists open or expired halves, oldest first: state, topic, older-than,
                                        key
    GET  /api/transactions/summary      shows numbers, ages, and the numbers of ended transactions
    GET  /api/transactions/log          lists check-backs with their answers: topic
    GET  /api/transactions/producers    lists the producers that can be sent check-backs: topic
    GET  /api/transactions/ID           shows a transaction in any state, with its message and check-backs
    POST /api/transactions/ID/check     sends a check-back immediately, regardless of its due time
    POST /api/transactions/ID/resolve   {"resolution": "COMMIT" or "ROLLBACK", "reason": ...}: ends it
    PUT  /api/topics/TOPIC/check-back   sets the check-back policy of a topic; {} for the broker's settings

With `key` (which requires `topic`), halves in any state are found, newest first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from commitlog import limits
from services.broker.spine import verb_properties
from services.broker.spine.values import HalfFilter, HalfView, Resolution, Topic, TransactionReceipt
from services.live.clients.check_back_log import CheckBackEntry
from services.live.live_broker import LiveBroker
from services.live.queries import half_queries
from services.live.transactions import ProducerView
from services.ops.messages.messages import ContentAnswer, content_shape, offset_or_none
from services.ops.messages.sending import CarriedVerdictAnswer, verdict_shape
from services.ops.requests.answers import written
from services.ops.requests.given_times import span_in
from services.ops.requests.operation import Operation
from services.ops.requests.request import LIMIT_DEFAULT, LIMIT_MAX, Nothing, Reason, asked, said_as
from tidewheel.errors import ClientMistake
from txn.checkback import CheckBackPolicy
from txn.states import State

log = structlog.get_logger()

_ID: Final = re.compile("[0-9A-Fa-f]{24}")
"""A transaction id, in either case; what is none is quoted as it was given."""


class HalvesQuery(Nothing):
    """The conditions on half messages, which are open or expired, or in the given state."""

    state: Literal["OPEN", "EXPIRED", ""] = ""
    topic: str = ""
    older_than: str = Field("", alias="older-than", description="A duration such as 10m.")
    key: str = Field("", max_length=limits.TIMER_NAME_CHARACTERS_MAX)
    after: str = Field("", description="The value that the previous page returned.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class QuestionsQuery(Nothing):
    """The topic of the check-backs."""

    topic: str = ""
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)


class ProducersQuery(Nothing):
    """The topic of the producers."""

    topic: str = ""


class NewResolution(BaseModel):
    """The end that an operator selects for a transaction, and the reason."""

    model_config = ConfigDict(extra="forbid")

    resolution: Resolution
    reason: Reason = Field(pattern=r"\S")


class NewCheckBack(BaseModel):
    """The check-back policy of a topic. If all fields are omitted, the settings of the broker apply."""

    model_config = ConfigDict(extra="forbid")

    immunity_ms: int | None = Field(None, ge=0)
    interval_ms: int | None = Field(None, ge=1)
    interval_ms_max: int | None = Field(None, ge=1)
    count_max: int | None = Field(None, ge=1)

    def policy(self, settings: CheckBackPolicy) -> CheckBackPolicy | None:
        """Return the policy, in which omitted fields have the values of the settings."""
        given = self.model_dump(exclude_none=True)
        if not given:
            return None
        fields = {name: getattr(settings, name) for name in CheckBackPolicy.__dataclass_fields__}
        return CheckBackPolicy(**(fields | given))


def id_of(request: Request) -> str:
    """Return the transaction id in the path of a request."""
    transaction_id: str = request.path_params["id"]
    return transaction_id.upper() if _ID.fullmatch(transaction_id) else transaction_id


class QuestionAnswer(TypedDict):
    """A check-back.

    `client_id` is empty if no producer was connected, and `answer` is empty without an answer.
    """

    transaction_id: str
    topic: str
    client_id: str
    asked_ms: str
    answer: str
    answered_ms: str | None


class SentQuestionAnswer(QuestionAnswer):
    """A check-back requested by an operator. NO_PRODUCER: no producer was connected, and none was sent."""

    verdict: Literal["ASKED", "NO_PRODUCER"]


class LateAnswer(TypedDict):
    """An end that a producer requested after its half had expired."""

    asked_for: str
    at_ms: str


class HalfAnswer(TypedDict):
    """A half message and its state.

    `answers` is the number of answers to check-backs. `producers` is the number of producers that can be sent
    check-backs.
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
    """A half message with its content and all stored check-backs."""

    message: ContentAnswer
    questions: list[QuestionAnswer]


class HalvesAnswer(TypedDict):
    """Half messages, oldest first. `after` is the position of the next page, if there is one."""

    transactions: list[HalfAnswer]
    after: str | None


class TransactionsSummaryAnswer(TypedDict):
    """The numbers of open, expired and ended halves, and the age of the oldest open half."""

    open: int
    expired: int
    oldest_open_ms: str | None
    committed: int
    rolled_back: int
    checks_asked: int
    producers: int


class QuestionsAnswer(TypedDict):
    """Check-backs, newest first."""

    questions: list[QuestionAnswer]


class ProducerAnswer(TypedDict):
    """A producer of a topic, and whether it can be sent check-backs."""

    topic: str
    client_id: str
    is_connected: bool


class ProducersAnswer(TypedDict):
    """Producers by topic, in the order in which check-backs are sent to them."""

    producers: list[ProducerAnswer]


class EndedAnswer(TypedDict):
    """A transaction that has ended as requested, by this call or before.

    `verdict` is null unless its message contains a verb on a timer. `replaced_offset` is the log offset of
    the timer that its message replaced, or null.
    """

    transaction_id: str
    resolution: str
    repeated: bool
    verdict: CarriedVerdictAnswer | None
    replaced_offset: str | None


class CheckBackAnswer(TypedDict):
    """The check-back policy of a topic. Fields for which the settings of the broker apply are null."""

    topic: str
    immunity_ms: int | None
    interval_ms: int | None
    interval_ms_max: int | None
    count_max: int | None


def half_shape(view: HalfView, questions: list[CheckBackEntry], producers: int) -> HalfAnswer:
    """Return a half in JSON form."""
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
    """Return a half with its message and check-backs in JSON form."""
    assert view.message is not None
    return {
        **half_shape(view, questions, producers),
        "message": content_shape(view.message),
        "questions": [question_shape(one) for one in questions],
    }


def question_shape(question: CheckBackEntry) -> QuestionAnswer:
    """Return a check-back in JSON form."""
    return {
        "transaction_id": question.transaction_id,
        "topic": question.topic,
        "client_id": question.client_id,
        "asked_ms": str(question.asked_ms),
        "answer": question.answer,
        "answered_ms": number(question.answered_ms, 0),
    }


def producer_shape(view: ProducerView) -> ProducerAnswer:
    """Return a producer in JSON form."""
    return {"topic": view.topic, "client_id": view.client_id, "is_connected": view.is_connected}


def ended_shape(live: LiveBroker, before: HalfView, receipt: TransactionReceipt) -> EndedAnswer:
    """Return the end of a transaction in JSON form. `before` is the half before the end, with its message."""
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
    """Return the check-back policy of a topic in JSON form."""
    policy = topic.check_back
    return {
        "topic": topic.name,
        "immunity_ms": None if policy is None else policy.immunity_ms,
        "interval_ms": None if policy is None else policy.interval_ms,
        "interval_ms_max": None if policy is None else policy.interval_ms_max,
        "count_max": None if policy is None else policy.count_max,
    }


def number(value: int, nothing: int) -> str | None:
    """Return a number in JSON form, or None for the number `nothing`."""
    return None if value == nothing else str(value)


class TransactionsApi:
    """The handlers of `/api/transactions`."""

    def __init__(self, live: LiveBroker) -> None:
        self._live, self._transactions = live, live.transactions

    async def page(self, request: Request) -> Response:
        """List half messages that are open or expired."""
        query = asked(HalvesQuery, request)
        if query.key:
            of_key = self._of_key(query)
            self._check_topic(query.topic, of_key)
            return await written({"transactions": self._shapes(of_key), "after": None})
        after = int(query.after) if query.after.isdigit() else None
        page = await half_queries.query_page(self._live, self._filter(query), after, query.limit)
        self._check_topic(query.topic, page.halves)
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
        """List check-backs and their answers."""
        query = asked(QuestionsQuery, request)
        found = self._transactions.log.newest_check_backs(query.topic, query.limit)
        self._check_topic(query.topic, found)
        return JSONResponse({"questions": [question_shape(one) for one in found]})

    async def producers(self, request: Request) -> JSONResponse:
        """List the producers that can be sent check-backs."""
        topic = asked(ProducersQuery, request).topic
        found = self._transactions.producers(topic)
        self._check_topic(topic, found)
        return JSONResponse({"producers": [producer_shape(one) for one in found]})

    async def one(self, request: Request) -> JSONResponse:
        """Show a half message."""
        view = self._live.query(self._live.core.half_views.get_half, id_of(request))
        questions = [*self._transactions.log.check_backs_of(view.transaction_id)]
        return JSONResponse(one_half_shape(view, questions, self._connected()[view.topic]))

    async def check(self, request: Request) -> JSONResponse:
        """Send a check-back to a producer immediately."""
        question = self._transactions.check(id_of(request))
        answer: SentQuestionAnswer = {
            **question_shape(question),
            "verdict": "ASKED" if question.client_id else "NO_PRODUCER",
        }
        return JSONResponse(answer)

    async def resolve(self, request: Request) -> JSONResponse:
        """End a transaction as an operator."""
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
        """Set the check-back policy of a topic."""
        wanted = await said_as(NewCheckBack, request)
        policy = wanted.policy(self._live.settings.check_back)
        set_check_back = self._live.core.transactions.set_check_back
        topic = await self._live.call(set_check_back, request.path_params["topic"], policy)
        return JSONResponse(check_back_shape(topic))

    def _check_topic(self, topic: str, found: Sequence[object]) -> None:
        """Raise `TopicNotFound` if nothing was found of a topic that is unknown, and may be misspelt.

        Damage may have destroyed the record of a topic whose halves are open.
        """
        if topic and not found:
            self._live.core.topics.get(topic)

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
        """Count the producers of each topic that can be sent check-backs."""
        return Counter(one.topic for one in self._transactions.producers("") if one.is_connected)


OPERATIONS: Final = (
    Operation(
        "GET",
        "/api/transactions",
        TransactionsApi.page,
        {200: HalvesAnswer},
        HalvesQuery,
        refusals=(400, 404),
    ),
    Operation("GET", "/api/transactions/summary", TransactionsApi.summary, {200: TransactionsSummaryAnswer}),
    Operation(
        "GET",
        "/api/transactions/log",
        TransactionsApi.questions,
        {200: QuestionsAnswer},
        QuestionsQuery,
        refusals=(400, 404),
    ),
    Operation(
        "GET",
        "/api/transactions/producers",
        TransactionsApi.producers,
        {200: ProducersAnswer},
        ProducersQuery,
        refusals=(400, 404),
    ),
    Operation("GET", "/api/transactions/{id}", TransactionsApi.one, {200: OneHalfAnswer}),
    Operation(
        "POST",
        "/api/transactions/{id}/check",
        TransactionsApi.check,
        {200: SentQuestionAnswer},
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
