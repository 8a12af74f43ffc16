"""The barrier, the outbox and the guard over `Client` and `AsyncClient`, as applications use them."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from tests.acceptance.conftest import eventually
from tidewheel import (
    AsyncClient,
    Barrier,
    Client,
    Message,
    NewMessage,
    Relay,
    Tidewheel,
    Verdict,
    idempotence,
    identity_of,
    once_listener,
    outbox,
)
from tidewheel.barrier_halves import Half
from tidewheel.client import halves
from tidewheel.errors import ClientMistake, ConfigurationError, IllegalTopic

TOPICS = ("created", "deadlines")
INSERT = text("INSERT INTO orders VALUES (7)")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    outbox.create_table(made)
    idempotence.create_table(made)
    yield made
    made.dispose()


@pytest.fixture
def barrier(engine: Engine) -> Barrier:
    async_url = engine.url.set(drivername="sqlite+aiosqlite")
    made = Barrier(
        sessionmaker(engine), async_sessionmaker(create_async_engine(async_url, poolclass=NullPool))
    )
    made.create_table()
    return made


def created() -> NewMessage:
    return NewMessage("created", {"order": 7}, keys=["order-7"])


def deadline() -> NewMessage:
    return NewMessage("deadlines", {"order": 7}, delay="30m", key="order:7")


def orders(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT id FROM orders")).scalars())


def received(client: Client, topic: str) -> list[Any]:
    return [message.json() for message in client.receive(topic, "shop", wait="0s")]


def insert_and_fail(session: Session) -> None:
    session.execute(INSERT)
    raise ZeroDivisionError


async def place_and_fail(barrier: Barrier, client: AsyncClient) -> None:
    async with barrier.async_transaction(client, created()) as session:
        await session.execute(INSERT)
        raise ZeroDivisionError


def lose_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes die, as it were, before the first end of a half."""
    monkeypatch.setattr(Half, "end_by", lambda *_: lambda: None)


def lose_ends_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing() -> None: ...

    monkeypatch.setattr(Half, "end_by", lambda *_: nothing)


def test_an_order_and_its_messages_stand_together(
    tidewheel: Tidewheel, barrier: Barrier, engine: Engine
) -> None:
    client = tidewheel.client
    with (
        barrier.answering(client, *TOPICS),
        barrier.transaction(client, created(), deadline()) as session,
    ):
        session.execute(INSERT)
        assert received(client, "created") == []
        assert client.timer("deadlines", "order:7").get().verdict is Verdict.NEVER_SET
    assert orders(engine) == [7]
    assert received(client, "created") == [{"order": 7}]
    tidewheel.advance("29m")
    assert received(client, "deadlines") == []
    tidewheel.advance("1m")
    assert received(client, "deadlines") == [{"order": 7}]


def test_an_exception_rolls_all_back(tidewheel: Tidewheel, barrier: Barrier, engine: Engine) -> None:
    client = tidewheel.client
    with (
        barrier.answering(client, *TOPICS),
        pytest.raises(ZeroDivisionError),
        barrier.transaction(client, created(), deadline()) as session,
    ):
        insert_and_fail(session)
    tidewheel.advance("1h")
    assert orders(engine) == received(client, "created") == received(client, "deadlines") == []


def test_a_payment_cancels_its_deadline_in_the_same_transaction(
    tidewheel: Tidewheel, barrier: Barrier
) -> None:
    client = tidewheel.client
    client.send("deadlines", {"order": 7}, delay="30m", key="order:7")
    timer = client.timer("deadlines", "order:7")
    paid = NewMessage("paid", "7", cancel=timer)
    with barrier.answering(client, "paid", "created"):
        payment = barrier.transaction(client, paid, created())
        with payment:
            assert timer.get().verdict is Verdict.PENDING
        [cancel, nothing] = payment.verdicts
        assert cancel is not None
        assert (cancel.verdict, bool(cancel), nothing) == (Verdict.CANCELLED, True, None)
        with (again := barrier.transaction(client, NewMessage("paid", "7", fire=timer))):
            pass
        assert [(one.verdict, one.is_done) for one in again.verdicts] == [(Verdict.ALREADY, False)]
    assert timer.get().verdict is Verdict.ALREADY


def test_a_check_back_is_answered_by_the_table(
    tidewheel: Tidewheel, barrier: Barrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tidewheel.client
    lose_ends(monkeypatch)
    with barrier.answering(client, *TOPICS):
        with barrier.transaction(client, created(), deadline()) as session:
            session.execute(INSERT)
        assert received(client, "created") == []
        tidewheel.advance("1m")
        eventually(lambda: received(client, "created") == [{"order": 7}])
        eventually(lambda: client.timer("deadlines", "order:7").get().verdict is Verdict.PENDING)


def test_a_process_that_comes_later_answers_for_one_that_died(
    tidewheel: Tidewheel, barrier: Barrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tidewheel.client
    with monkeypatch.context() as patch:
        lose_ends(patch)
        with barrier.answering(client, *TOPICS), barrier.transaction(client, created()) as session:
            session.execute(INSERT)
    tidewheel.advance("1m")
    with barrier.answering(client, *TOPICS):
        eventually(lambda: received(client, "created") == [{"order": 7}])


def test_a_half_that_no_barrier_sent_is_not_this_barriers_to_end(
    tidewheel: Tidewheel, barrier: Barrier
) -> None:
    client = tidewheel.client
    begun = client.run(halves.begin(NewMessage("created", "1"), client.namespace, "OTHERS", {}))
    with barrier.answering(client, "created"), barrier.transaction(client, created()):
        tidewheel.advance("1m")
        eventually(lambda: "UNKNOWN" in said(tidewheel, begun.transaction_id))
    client.run(halves.end(begun.transaction_id, "commit"))
    assert sorted(map(str, received(client, "created"))) == ["1", "{'order': 7}"]


def said(tidewheel: Tidewheel, transaction_id: str) -> list[str]:
    """What was answered about a transaction."""
    log = tidewheel._process.get("/api/transactions/log")["questions"]
    return [one["answer"] for one in log if one["transaction_id"] == transaction_id]


def test_all_of_it_is_awaited_in_asyncio(
    tidewheel: Tidewheel, barrier: Barrier, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with (
            AsyncClient(tidewheel.http, namespace=tidewheel.namespace) as client,
            barrier.async_answering(client, *TOPICS),
        ):
            with pytest.raises(ZeroDivisionError):
                await place_and_fail(barrier, client)
            timer = client.timer("deadlines", "order:6")
            payment = barrier.async_transaction(client, NewMessage("created", "6", cancel=timer))
            async with payment:
                pass
            assert [one.verdict for one in payment.verdicts] == [Verdict.NEVER_SET]
            lose_ends_in_a_loop(monkeypatch)
            async with barrier.async_transaction(client, created(), deadline()) as session:
                await session.execute(INSERT)
            await asyncio.to_thread(tidewheel.advance, "1m")
            async with asyncio.timeout(30):
                while not (await client.timer("deadlines", "order:7").get()).due:
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert orders(engine) == [7]
    assert received(tidewheel.client, "created") == [6, {"order": 7}]


def test_a_client_of_threads_in_an_asynchronous_transaction(
    tidewheel: Tidewheel, barrier: Barrier, engine: Engine
) -> None:
    async def scenario() -> None:
        async with barrier.async_transaction(tidewheel.client, created()) as session:
            await session.execute(INSERT)

    with barrier.answering(tidewheel.client, "created"):
        asyncio.run(scenario())
    assert (orders(engine), received(tidewheel.client, "created")) == ([7], [{"order": 7}])


def test_the_answers_end_at_once_with_their_block(tidewheel: Tidewheel, barrier: Barrier) -> None:
    before = threading.active_count()
    with barrier.answering(tidewheel.client, *(f"topic-{number}" for number in range(20))):
        eventually(lambda: polls(tidewheel) == 2)
        assert threading.active_count() > before
    assert threading.active_count() == before
    eventually(lambda: polls(tidewheel) == 0)


NEVER_LEFT = """
import sys
from contextlib import ExitStack

sys.modules["rocketmq"] = None  # as where the official client is not installed
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from tidewheel import Barrier, Client, NewMessage, Relay, idempotence, outbox

http, namespace, url = sys.argv[1:]
barrier, client = Barrier(sessionmaker(create_engine(url))), Client(http, namespace=namespace)
stack = ExitStack()
stack.enter_context(barrier.answering(client, "created"))
with barrier.transaction(client, NewMessage("created", {"order": 7})):
    pass
"""


def test_a_process_without_the_official_client_may_leave_its_block_to_the_interpreter(
    tidewheel: Tidewheel, barrier: Barrier, engine: Engine
) -> None:
    command = [sys.executable, "-c", NEVER_LEFT, tidewheel.http, tidewheel.namespace, str(engine.url)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert received(tidewheel.client, "created") == [{"order": 7}]


def polls(tidewheel: Tidewheel) -> float:
    found = [one for one in tidewheel.metrics() if one.name == "mq_http_polls"]
    return sum(one.value for one in found if one.labels["kind"] == "check_back")


def test_a_broker_that_dies_is_asked_again(
    tidewheel: Tidewheel, barrier: Barrier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = tidewheel.client
    lose_ends(monkeypatch)
    with barrier.answering(client, "created"), barrier.transaction(client, created()) as session:
        session.execute(INSERT)
        tidewheel.crash()
        eventually(lambda: "no check-back" in caplog.text)
        tidewheel.restart()
    with barrier.answering(client, "created"):
        tidewheel.advance("1m")
        eventually(lambda: received(client, "created") == [{"order": 7}])


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        (NewMessage("created", "x", delay="30"), ClientMistake, "without a unit"),
        (NewMessage("created", ""), ClientMistake, "no body"),
        (NewMessage("created", b"x" * (4 * 1024 * 1024 + 1)), ClientMistake, "too large"),
        (NewMessage("", "x"), IllegalTopic, "empty"),
        (NewMessage("created", "x", idempotency_key="mine"), ClientMistake, "idempotency_key"),
        (NewMessage("elsewhere", "x"), ConfigurationError, r"answering\(client, 'elsewhere'\)"),
        ("created", ClientMistake, "NewMessage"),
    ],
)
def test_what_cannot_be_sent_is_one_sentence_and_leaves_nothing(
    tidewheel: Tidewheel, barrier: Barrier, message: Any, error: type[Exception], words: str
) -> None:
    with (
        barrier.answering(tidewheel.client, "created"),
        pytest.raises(error, match=words),
        barrier.transaction(tidewheel.client, created(), message),
    ):
        pass
    assert tidewheel.client.receive("created", "shop", wait="0s") == []


def test_mistakes_with_clients_are_one_sentence(
    tidewheel: Tidewheel, barrier: Barrier, caplog: pytest.LogCaptureFixture
) -> None:
    in_loop = AsyncClient(tidewheel.http)
    with (
        pytest.raises(ConfigurationError, match="async_transaction"),
        barrier.transaction(in_loop, created()),
    ):
        pass
    with pytest.raises(ConfigurationError, match="async_answering"), barrier.answering(in_loop, "created"):
        pass
    with pytest.raises(ConfigurationError, match="names no topic"), barrier.answering(tidewheel.client):
        pass
    with pytest.raises(IllegalTopic), barrier.answering(tidewheel.client, "a/b"):
        pass
    with pytest.raises(ConfigurationError, match="Relay takes a Client"):
        Relay(barrier._engine, in_loop)
    with caplog.at_level(logging.WARNING), barrier.answering(Client("127.0.0.1:1"), "created"):
        assert "no check-back" in caplog.text
        assert "127.0.0.1:1" in caplog.text


# Outbox and guard


def relayed(engine: Engine, client: Client) -> None:
    with Relay(engine, client) as relay:
        while relay.run_once().sent:
            pass


def test_the_outbox_keeps_all_that_a_message_says(tidewheel: Tidewheel, engine: Engine) -> None:
    client = tidewheel.client
    client.send("deadlines", "old", delay="1h", key="order:6")
    old = client.timer("deadlines", "order:6")
    with sessionmaker(engine).begin() as session:
        outbox.add(
            session, NewMessage("created", {"order": 7}, tag="new", group="g", properties={"by": "me"})
        )
        outbox.add(session, deadline())
        outbox.add(session, NewMessage("paid", b"\xff", keys=["order-6"], cancel=old))
    assert client.receive("created", "shop", wait="0s") == []
    relayed(engine, client)
    [message] = client.receive("created", "shop", wait="0s")
    assert (message.json(), message.tag, message.group) == ({"order": 7}, "new", "g")
    assert (message.properties["by"], message.properties["content-type"]) == ("me", "application/json")
    assert message.id == message.properties["TW_OUTBOX_ID"]
    assert identity_of(message) == f"created/{message.id}"
    [paid] = client.receive("paid", "shop", wait="0s")
    assert (paid.bytes, paid.keys) == (b"\xff", ("order-6",))
    assert old.get().verdict is Verdict.ALREADY
    [pending] = tidewheel.pending()
    assert timedelta(minutes=29) < pending.due_in <= timedelta(minutes=30)
    tidewheel.advance("30m")
    assert received(client, "deadlines") == [{"order": 7}]


def test_a_row_that_is_sent_again_at_once_is_stored_once(tidewheel: Tidewheel, engine: Engine) -> None:
    client = tidewheel.client
    with sessionmaker(engine).begin() as session:
        outbox.add(session, created())
    relayed(engine, client)
    with engine.begin() as connection:
        connection.execute(text("UPDATE tidewheel_outbox SET sent_ms = NULL"))
    relayed(engine, client)
    assert received(client, "created") == [{"order": 7}]


def effect(session: Session, message: Message) -> None:
    session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": message.json()["order"]})


def test_a_message_that_comes_again_has_its_effect_once(tidewheel: Tidewheel, engine: Engine) -> None:
    client = tidewheel.client
    client.send("created", {"order": 7})
    handle = once_listener(sessionmaker(engine), "billing", effect)
    [message] = client.receive("created", "billing", wait="0s")
    handle(message)
    message.retry(after="0s")
    tidewheel.advance("1s")
    [again] = client.receive("created", "billing")
    assert again.attempt == 2
    handle(again)
    assert orders(engine) == [7]
