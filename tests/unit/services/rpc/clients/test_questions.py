"""Clients are asked over their streams; only whom was asked can answer, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from commitlog.records.message import Message
from services.broker.sending import message_record
from services.broker.spine.values import Delivery
from services.live.errors import ClientNotFound
from services.rpc.clients.questions import ClientQueries
from services.rpc.clients.session import Session
from services.rpc.clients.sessions import Sessions
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated.service_pb2 import TelemetryCommand, ThreadStackTrace, VerifyMessageResult
from services.rpc.wire.caller import Caller
from services.rpc.wire.errors import ClientSilent

PATIENCE_SECONDS = 60
DELIVERY = Delivery(message_record(Message(topic="t", body=b"hello", message_id="M1"), 0))


class Asked:
    """Two clients, of which "a" has a stream, and the questions to them."""

    def __init__(self, answer_seconds: float = PATIENCE_SECONDS) -> None:
        self.sessions = Sessions(lambda: 0)
        self.questions = ClientQueries(self.sessions, answer_seconds)
        self.stream = self.sessions.open_stream(Caller("a"))
        self.other = self.sessions.seen(Caller("b"))

    async def question(self) -> Any:
        """What client a reads next."""
        command = await self.stream.next()
        assert command is not None
        return getattr(command, str(command.WhichOneof("command")))

    def stack(self, nonce: str, session: Session | None = None) -> None:
        """A client says what its threads do."""
        trace = ThreadStackTrace(nonce=nonce, thread_stack_trace="main: waits")
        self.questions.answered(TelemetryCommand(thread_stack_trace=trace), session or self.stream.session)


def test_the_answer_with_the_nonce_is_the_answer() -> None:
    async def scenario() -> None:
        asked = Asked()
        waiting = asyncio.create_task(asked.questions.stack("a"))
        nonce = (await asked.question()).nonce
        asked.stack(f"not {nonce}")
        asked.stack(nonce, asked.other)
        await asyncio.sleep(0)
        assert not waiting.done()
        asked.stack(nonce)
        assert await waiting == "main: waits"
        asked.stack(nonce)  # twice does no harm

    asyncio.run(scenario())


def test_a_message_is_verified_with_the_code_that_the_client_gives() -> None:
    async def scenario() -> None:
        asked = Asked()
        waiting = asyncio.create_task(asked.questions.verify("a", DELIVERY))
        question = await asked.question()
        assert question.message.body == b"hello"
        told = TelemetryCommand(
            status=wire.Status(code=wire.FAILED_TO_CONSUME_MESSAGE),
            verify_message_result=VerifyMessageResult(nonce=question.nonce),
        )
        asked.questions.answered(told, asked.stream.session)
        assert await waiting == "FAILED_TO_CONSUME_MESSAGE"

    asyncio.run(scenario())


def test_a_client_that_does_not_answer_is_said_to_be_silent() -> None:
    async def scenario() -> None:
        asked = Asked(answer_seconds=0.01)
        with pytest.raises(ClientSilent, match="has not answered"):
            await asked.questions.stack("a")
        asked.stack((await asked.question()).nonce)  # too late, and nobody minds

    asyncio.run(scenario())


def test_who_has_no_stream_or_is_not_there_cannot_be_asked() -> None:
    async def scenario() -> None:
        asked = Asked()
        with pytest.raises(ClientSilent, match="no stream"):
            await asked.questions.stack("b")
        with pytest.raises(ClientNotFound, match="'c' is not connected"):
            asked.questions.reconnect("c")
        asked.questions.reconnect("a")
        assert (await asked.question()).nonce

    asyncio.run(scenario())


def test_everybody_is_shown() -> None:
    asked = Asked()
    shown = {one.client_id: one.can_be_asked for one in map(asked.questions.view, asked.questions.ids())}
    assert shown == {"a": True, "b": False}
