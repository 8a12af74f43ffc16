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

from collections import Counter

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse

from services.broker.values import HalfFilter, HalfView
from services.live.live_broker import LiveBroker
from services.ops.queries import asked
from services.ops.shapes import parse
from services.ops.transaction_shapes import (
    HalfAnswer,
    HalvesQuery,
    NewCheckBack,
    NewResolution,
    ProducersQuery,
    QuestionsQuery,
    TransactionsSummaryAnswer,
    check_back_shape,
    end_shape,
    half_shape,
    number,
    one_half_shape,
    producer_shape,
    question_shape,
)
from services.times import durations
from tidewheel.errors import ClientMistake
from txn.states import State

log = structlog.get_logger()


class TransactionsApi:
    """The handlers of `/api/transactions`."""

    def __init__(self, live: LiveBroker) -> None:
        self._live, self._transactions = live, live.transactions

    async def page(self, request: Request) -> JSONResponse:
        """List half messages that are open or have expired."""
        query = asked(HalvesQuery, request)
        if query.key:
            return JSONResponse({"transactions": self._shapes(self._of_key(query)), "after": None})
        after = int(query.after) if query.after.isdigit() else None
        page = self._live.query(self._live.core.half_views.page, self._filter(query), after, query.limit)
        after_shape = number(page.after or 0, 0)
        return JSONResponse({"transactions": self._shapes(page.halves), "after": after_shape})

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
        found = self._transactions.log.newest(query.topic, query.limit)
        return JSONResponse({"questions": [question_shape(one) for one in found]})

    async def producers(self, request: Request) -> JSONResponse:
        """List who can be asked."""
        topic = asked(ProducersQuery, request).topic
        return JSONResponse(
            {"producers": [producer_shape(one) for one in self._transactions.producers(topic)]}
        )

    async def one(self, request: Request) -> JSONResponse:
        """Show one half message."""
        view = self._live.query(self._live.core.half_views.one, id_of(request))
        questions = [*self._transactions.log.of(view.transaction_id)]
        return JSONResponse(one_half_shape(view, questions, self._connected()[view.topic]))

    async def check(self, request: Request) -> JSONResponse:
        """Ask a producer now."""
        return JSONResponse(question_shape(self._transactions.check(id_of(request))))

    async def resolve(self, request: Request) -> JSONResponse:
        """End a transaction by hand."""
        wanted = parse(NewResolution, await request.body())
        receipt = await self._transactions.resolve(id_of(request), wanted.resolution, wanted.reason)
        log.info(
            "transaction resolved",
            transaction=receipt.transaction_id,
            resolution=wanted.resolution.value,
            reason=wanted.reason,
        )
        return JSONResponse(end_shape(receipt))

    async def set_check_back(self, request: Request) -> JSONResponse:
        """Say how a topic's half messages are asked about."""
        wanted = parse(NewCheckBack, await request.body())
        policy = wanted.policy(self._live.settings.check_back)
        set_check_back = self._live.core.transactions.set_check_back
        topic = await self._live.call(set_check_back, request.path_params["topic"], policy)
        return JSONResponse(check_back_shape(topic))

    def _of_key(self, query: HalvesQuery) -> list[HalfView]:
        if not query.topic:
            raise ClientMistake("A key is looked up in a topic: give topic, too.")
        return self._live.query(self._live.core.half_views.of_key, query.topic, query.key, query.limit)

    def _filter(self, query: HalvesQuery) -> HalfFilter:
        before_ms = HalfFilter().stored_before_ms
        if query.older_than:
            try:
                before_ms = self._live.clock.real_ms() - durations.span_ms(query.older_than)
            except ValueError as error:
                raise ClientMistake(f"older-than is {query.older_than!r}: {error}.") from error
        return HalfFilter(query.topic, State(query.state) if query.state else None, before_ms)

    def _shapes(self, views: list[HalfView]) -> list[HalfAnswer]:
        there, log = self._connected(), self._transactions.log
        return [half_shape(one, [*log.of(one.transaction_id)], there[one.topic]) for one in views]

    def _connected(self) -> Counter[str]:
        """How many producers of each topic can be asked."""
        return Counter(one.topic for one in self._transactions.producers("") if one.is_connected)


def id_of(request: Request) -> str:
    """Return the transaction id in a request's path."""
    transaction_id: str = request.path_params["id"]
    return transaction_id.upper()
