"""Polls for check-backs: what is answered, what is waited for, and how they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from tidewheel.barrier_answers import answers_in_this_loop
from tidewheel.barrier_halves import Outcome
from tidewheel.client import patience
from tidewheel.client.clients import AsyncClient
from tidewheel.client.exchange import Request, Steps
from tidewheel.client.halves import Question
from tidewheel.errors import AccessRefused, AnswerLost, BrokerUnreachable, TransactionEnded

SECONDS = 60


class Broker:
    """Answers polls with what a test says, one after the other, and notes ends."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.ends = list(answers), list[str]()
        self.polls, self.cut_off = 0, 0
        self.refusal: Exception | None = None
        self.ended = asyncio.Event()

    async def run(self, steps: Steps[Any]) -> Any:
        request = next(steps)
        steps.close()
        assert isinstance(request, Request)
        if request.path.endswith("/check-backs"):
            return await self.poll()
        self.ends.append(request.path.removeprefix("/api/transactions/"))
        self.ended.set()
        if self.refusal is not None:
            raise self.refusal
        return None

    async def poll(self) -> Any:
        self.polls += 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cut_off += 1
            raise


def question(number: int) -> Question:
    return Question(f"T{number}", f"M{number}", {"number": str(number)})


Answer = Callable[[str, Mapping[str, str]], Outcome]


def committed(message_id: str, properties: Mapping[str, str]) -> Outcome:
    assert message_id == f"M{properties['number']}"
    return Outcome.COMMITTED


async def answered_by(broker: Broker, answer: Answer, ends: int) -> None:
    """Answer until there are so many ends."""
    async with answers_in_this_loop(cast("AsyncClient", broker), ["orders"], answer):
        async with asyncio.timeout(SECONDS):
            while len(broker.ends) < ends:
                await broker.ended.wait()
                broker.ended.clear()
                await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSES_S", (0.0,) * 6)


def test_each_question_gets_the_tables_answer() -> None:
    outcomes = {"M1": Outcome.COMMITTED, "M2": Outcome.ROLLED_BACK, "M3": Outcome.UNKNOWN}

    async def scenario() -> Broker:
        broker = Broker([question(1)], [question(2), question(3)])
        await answered_by(broker, lambda message_id, _: outcomes[message_id], 3)
        return broker

    broker = asyncio.run(scenario())
    assert sorted(broker.ends) == ["T1/commit", "T2/rollback", "T3/unknown"]
    assert broker.cut_off == broker.polls - 2


def test_a_refusal_of_the_first_poll_is_the_blocks_error() -> None:
    async def scenario() -> None:
        await answered_by(Broker(AccessRefused("No right.")), committed, 0)

    with pytest.raises(AccessRefused):
        asyncio.run(scenario())


def test_a_broker_that_is_gone_is_waited_for_and_a_later_refusal_is_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> list[str]:
        broker = Broker(BrokerUnreachable("gone"), AnswerLost("cut"), AccessRefused("revoked"), [question(1)])
        await answered_by(broker, committed, 1)
        return broker.ends

    assert asyncio.run(scenario()) == ["T1/commit"]
    said = [(record.levelname, record.message) for record in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "WARNING", "ERROR"]
    assert all("orders" in message for _, message in said)


def test_an_answer_that_fails_is_unknown_and_the_next_is_given(caplog: pytest.LogCaptureFixture) -> None:
    def answer(message_id: str, _: Mapping[str, str]) -> Outcome:
        if message_id == "M1":
            raise ZeroDivisionError
        return Outcome.COMMITTED

    async def scenario() -> list[str]:
        broker = Broker([question(1), question(2)])
        await answered_by(broker, answer, 2)
        return sorted(broker.ends)

    assert asyncio.run(scenario()) == ["T1/unknown", "T2/commit"]
    assert "M1 is unknown" in caplog.text


def test_an_end_that_is_refused_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker = Broker([question(1), question(2)])
        broker.refusal = TransactionEnded("It expired.")
        await answered_by(broker, committed, 2)

    asyncio.run(scenario())
    assert "M1 is COMMITTED in the database, and the broker has ended it otherwise" in caplog.text


def test_an_answer_under_way_is_finished_when_the_block_ends() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def answer(*_: object) -> Outcome:
        begun.set()
        assert may_end.wait(SECONDS)
        return Outcome.COMMITTED

    async def scenario() -> list[str]:
        broker = Broker([question(1)])
        async with answers_in_this_loop(cast("AsyncClient", broker), ["orders"], answer):
            await asyncio.to_thread(begun.wait, SECONDS)
            asyncio.get_running_loop().call_soon(may_end.set)
        return broker.ends

    assert asyncio.run(scenario()) == ["T1/commit"]


def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    async def scenario() -> None:
        async with answers_in_this_loop(cast("AsyncClient", Broker([])), ["orders"], committed):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(scenario())
