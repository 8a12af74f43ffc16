"""Transactions as JSON has them, checked on the way in; 64-bit numbers (offsets, times) go out as strings."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from commitlog import limits
from services.broker.values import EndReceipt, HalfView, Resolution, Topic
from services.live.check_log import Question
from services.live.transactions import ProducerView
from services.ops.answers import ContentAnswer
from services.ops.queries import LIMIT_DEFAULT, LIMIT_MAX, Nothing
from services.ops.shapes import content_shape
from txn.checkback import CheckBackPolicy


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


class EndAnswer(TypedDict):
    """A transaction that has ended as asked, now or before."""

    transaction_id: str
    resolution: str
    repeated: bool


class CheckBackAnswer(TypedDict):
    """How a topic's half messages are asked about; empty of times where the broker's settings hold."""

    topic: str
    immunity_ms: int | None
    interval_ms: int | None
    interval_ms_max: int | None
    count_max: int | None


class HalvesQuery(Nothing):
    """Which half messages: those open or expired, or of one state only."""

    state: Literal["OPEN", "EXPIRED", ""] = ""
    topic: str = ""
    older_than: str = Field("", alias="older-than", description="A span such as 10m.")
    key: str = Field("", max_length=limits.TIMER_NAME_CHARACTERS_MAX)
    after: str = Field("", description="From the page before.")
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
    reason: str = Field(pattern=r"\S", max_length=limits.REASON_CHARACTERS_MAX)


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


def half_shape(view: HalfView, questions: list[Question], producers: int) -> HalfAnswer:
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


def one_half_shape(view: HalfView, questions: list[Question], producers: int) -> OneHalfAnswer:
    """Return a half with everything that is known of it."""
    assert view.message is not None
    return {
        **half_shape(view, questions, producers),
        "message": content_shape(view.message),
        "questions": [question_shape(one) for one in questions],
    }


def question_shape(question: Question) -> QuestionAnswer:
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


def end_shape(receipt: EndReceipt) -> EndAnswer:
    """Return an end as JSON has it."""
    return {
        "transaction_id": receipt.transaction_id,
        "resolution": receipt.resolution.value,
        "repeated": receipt.repeated,
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
    """Return a number as JSON has it, None for the one that stands for nothing."""
    return None if value == nothing else str(value)
