"""Transactions of producers over HTTP: begin, commit, rollback and check-backs.

    POST /api/transactions                a message as in POST /api/messages, which is invisible until its
                                          commit, and "check_after", the time until its first check-back;
                                          returns the transaction_id
    POST /api/transactions/ID/commit      sends the message, and applies a timer verb that it contains
    POST /api/transactions/ID/rollback    discards the message
    POST /api/transactions/ID/unknown     answers a check-back without an outcome
    POST /api/transactions/check-backs    {"topics": [...], "count", "wait", "client"}: waits for check-backs
                                          of open halves, which are answered by an end

Only the first end of a half takes effect. A repetition of this end is confirmed (`repeated`), and the
opposite end is refused (409). The operations of operators are in `services.ops.transactions.transactions`.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from commitlog import limits
from services.broker.spine.topics import check_topic_name
from services.broker.spine.values import Resolution
from services.live.clients.check_back_polls import PolledHalf
from services.live.created_topics import CreatedTopics
from services.live.live_broker import LiveBroker
from services.ops.messages.messages import ReceiptAnswer, TakenAnswer, receipt_shape, taken_shape
from services.ops.messages.sending import (
    NewMessage,
    header_key,
    new_id,
    with_key,
)
from services.ops.requests.given_times import span_in
from services.ops.requests.operation import Operation
from services.ops.requests.polls import (
    CALLER_GONE,
    CallerGone,
    Handed,
    HangUp,
    Polls,
    check_serves,
    client_id,
    poll_seconds,
)
from services.ops.requests.request import Span, said_as, said_by, shaped
from services.ops.transactions.transactions import EndedAnswer, ended_shape, id_of
from tidewheel.errors import TidewheelError, TransactionEnded

UNKNOWN: Final = "UNKNOWN"
TOPICS_MAX: Final = 16
"""Of a poll; lists of producers look at the topics of all polls in one go."""


class NewHalf(NewMessage):
    """The message of a new transaction.

    `check_after` is the time until the first check-back of an open half.
    """

    check_after: Span | None = Field(
        None, description="A duration such as 1m; default: the setting of the topic or of the broker."
    )


class NewCheckBackPoll(BaseModel):
    """A long poll for the check-backs of topics."""

    model_config = ConfigDict(extra="forbid")

    topics: list[str] = Field(min_length=1, max_length=TOPICS_MAX)
    count: int = Field(16, ge=1, le=limits.CHECKS_WOKEN_MAX)
    wait: Span = Field(f"{limits.LONG_POLL_MS // 1000}s", description="A duration such as 5s, at most 20s.")
    client: str = Field(
        "",
        max_length=limits.TOPIC_CHARACTERS_MAX,
        description="The producer's name in lists; default: its address.",
    )


class BegunAnswer(ReceiptAnswer):
    """A new transaction, whose message is stored, and is invisible until the commit."""

    transaction_id: str


class UnknownAnswer(TypedDict):
    """A transaction without a known outcome. As long as the transaction is OPEN, check-backs continue."""

    transaction_id: str
    state: str


class AskedAnswer(TypedDict):
    """A check-back, which requests the outcome of a transaction."""

    transaction_id: str
    topic: str
    message: TakenAnswer


class CheckBacksAnswer(TypedDict):
    """The check-backs that were due within the wait, which may be none."""

    questions: list[AskedAnswer]


def asked_shape(half: PolledHalf) -> dict[str, Any]:
    """Return a check-back in JSON form."""
    return {
        "transaction_id": half.transaction_id,
        "topic": half.topic,
        "message": taken_shape(half.message),
    }


class HalvesApi:
    """The handlers of transactions of producers: begin, end, and check-backs."""

    def __init__(self, live: LiveBroker, polls: Polls) -> None:
        self._live, self._polls = live, polls

    async def begin(self, request: Request) -> JSONResponse:
        """Begin a transaction with a message that is invisible until the commit."""
        wanted = shaped(NewHalf, await said_by(request), "")
        given, now_ms = with_key(wanted, header_key(request)), self._live.now_ms()
        immunity_ms = None if wanted.check_after is None else span_in(wanted.check_after, "check_after")
        message = given.to_message(new_id(), now_ms, is_half=True, check_immunity_ms=immunity_ms)
        created = CreatedTopics()
        receipt = await self._live.send(message, created)
        shape = {**receipt_shape(receipt, message.topic, created), "transaction_id": receipt.transaction_id}
        return JSONResponse(shape, status_code=201)

    async def commit(self, request: Request) -> JSONResponse:
        """Commit a transaction, which sends its message."""
        return await self._end(id_of(request), Resolution.COMMIT)

    async def rollback(self, request: Request) -> JSONResponse:
        """Roll back a transaction, which discards its message."""
        return await self._end(id_of(request), Resolution.ROLLBACK)

    async def unknown(self, request: Request) -> JSONResponse:
        """Answer a check-back without an outcome."""
        view = self._live.query(self._live.core.half_views.get_half, id_of(request))
        self._live.record_answer(view.transaction_id, UNKNOWN)
        return JSONResponse({"transaction_id": view.transaction_id, "state": view.state.value})

    async def check_backs(self, request: Request) -> Response:
        """Wait for check-backs."""
        wanted = await said_as(NewCheckBackPoll, request)
        self._check_topics(wanted.topics)
        seconds, name = poll_seconds(wanted.wait), client_id(request, wanted.client)
        polls, hang_up = self._live.check_back_polls, HangUp(request)
        answer = Response(status_code=CALLER_GONE)
        try:
            with (
                self._polls.one(request, "check_back"),
                polls.open_poll(name, dict.fromkeys(wanted.topics), wanted.count) as poll,
            ):
                try:
                    await hang_up.unless(polls.wait(poll, seconds))
                except BaseException:
                    polls.set_held_bytes(poll, 0)
                    raise
            if not poll.halves:
                check_serves(self._live)
            answer = await Handed.of(
                {"questions": map(asked_shape, poll.halves)},
                hang_up,
                lambda count_bytes: polls.set_held_bytes(poll, count_bytes),
                lambda taken: polls.set_held_bytes(poll, 0),
            )
        except CallerGone:
            return answer
        finally:
            if not isinstance(answer, Handed):
                hang_up.close()
        return answer

    def _check_topics(self, names: list[str]) -> None:
        """Raise `IllegalTopic`, or `TopicNotFound` if topics are not created automatically."""
        for name in names:
            check_topic_name(name)
            if not self._live.settings.auto_create_topics:
                self._live.core.topics.get(name)

    async def _end(self, transaction_id: str, resolution: Resolution) -> JSONResponse:
        live, answer = self._live, resolution.value
        view = live.query(live.core.half_views.get_half, transaction_id)
        if resolution is Resolution.COMMIT:
            await live.room.wait_for_copy()
        try:
            end = live.core.transactions.end
            receipt = await live.call(end, view.topic, transaction_id, view.message_id, resolution)
        except TidewheelError as error:
            why = "too late" if isinstance(error, TransactionEnded) else "refused"
            live.record_answer(transaction_id, f"{answer}, {why}")
            raise
        live.record_answer(transaction_id, answer)
        return JSONResponse(ended_shape(live, view, receipt))


ID: Final = "/api/transactions/{id}"
_ENDED: Final[dict[int, Any]] = {200: EndedAnswer}
OPERATIONS: Final = (
    Operation(
        "POST",
        "/api/transactions",
        HalvesApi.begin,
        {201: BegunAnswer},
        bodies=(NewHalf,),
        refusals=(400, 404, 409, 503),
    ),
    Operation(
        "POST",
        "/api/transactions/check-backs",
        HalvesApi.check_backs,
        {200: CheckBacksAnswer},
        bodies=(NewCheckBackPoll,),
        refusals=(400, 404, 503),
    ),
    Operation("POST", f"{ID}/commit", HalvesApi.commit, _ENDED, refusals=(400, 409, 503)),
    Operation("POST", f"{ID}/rollback", HalvesApi.rollback, _ENDED, refusals=(400, 409, 503)),
    Operation("POST", f"{ID}/unknown", HalvesApi.unknown, {200: UnknownAnswer}, refusals=(400, 503)),
)
