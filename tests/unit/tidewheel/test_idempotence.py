"""The consumer's guard on real databases and a real Redis."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from rocketmq import ConsumeResult, Message
from sqlalchemy import text
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

import tidewheel
from services.shop.redis_server import bundled_redis
from tidewheel import idempotence
from tidewheel.client.values import Delivery
from tidewheel.errors import ConfigurationError, RefusedByState
from tidewheel.idempotence import RedisGuard, consumed_sql, identity_of, once, once_listener
from tidewheel.outbox import OUTBOX_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session


@pytest.fixture
def engine(database: Engine) -> Engine:
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE effects (body TEXT)"))
    idempotence.create_table(database)
    return database


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with bundled_redis(tmp_path_factory.mktemp("redis")) as url, Redis.from_url(url) as connected:
        yield connected


def handle(session: Session, message: Message) -> None:
    session.execute(text("INSERT INTO effects VALUES (:body)"), {"body": message.body.decode()})


def effects(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT body FROM effects")).scalars())


def message(message_id: str, body: bytes = b"x") -> Message:
    made = Message()
    made.message_id, made.body = message_id, body
    return made


def test_a_message_that_comes_again_has_its_effect_once(engine: Engine) -> None:
    listener = once_listener(sessionmaker(engine), "billing", handle)
    assert [listener.consume(message("M1")) for _ in range(3)] == [ConsumeResult.SUCCESS] * 3
    assert once_listener(sessionmaker(engine), "audit", handle).consume(message("M1"))
    assert effects(engine) == ["x", "x"]


def test_a_second_send_by_a_relay_is_the_same_message(engine: Engine) -> None:
    listener = once_listener(sessionmaker(engine), "billing", handle)
    for message_id in ("M1", "M2"):
        sent = message(message_id)
        sent.add_property(OUTBOX_ID, "O1")
        assert identity_of(sent) == "O1"
        listener.consume(sent)
    assert effects(engine) == ["x"]


def test_a_message_of_our_client_is_the_same_as_its_next_delivery(engine: Engine) -> None:
    listener = once_listener(sessionmaker(engine), "billing", handle_ours)
    for attempt, properties in enumerate(({}, {}, {OUTBOX_ID: "O1"}, {OUTBOX_ID: "O1"})):
        received = ours("M1", attempt, properties)
        assert identity_of(received) == properties.get(OUTBOX_ID, "M1")
        listener(received)
    assert effects(engine) == ["x", "x"]


def handle_ours(session: Session, message: Any) -> None:
    session.execute(text("INSERT INTO effects VALUES (:body)"), {"body": message.text})


def ours(message_id: str, attempt: int, properties: dict[str, str]) -> tidewheel.Message[None]:
    now = datetime.now(UTC)
    delivery = Delivery(
        message_id, "orders", b"x", attempt, "H", (0, 0), now, "", (), "", "", properties, now
    )
    return tidewheel.Message(delivery, "orders", "billing", lambda steps: steps.close())


def test_an_effect_that_fails_may_be_tried_again(engine: Engine) -> None:
    def handle_and_fail(session: Session, message: Message) -> None:
        handle(session, message)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        once_listener(sessionmaker(engine), "g", handle_and_fail).consume(message("M1"))
    assert effects(engine) == []
    once_listener(sessionmaker(engine), "g", handle).consume(message("M1"))
    assert effects(engine) == ["x"]


def test_a_failure_that_is_swallowed_leaves_no_answer_without_its_effect(engine: Engine) -> None:
    with sessionmaker(engine)() as session:
        with pytest.raises(ZeroDivisionError), once(session, "g", "M1"):
            assert 1 / 0
        session.commit()
    with sessionmaker(engine)() as session, once(session, "g", "M1") as is_first:
        assert is_first


def test_a_rival_waits_and_then_sees_that_it_was_done(engine: Engine) -> None:
    sessions, answers = sessionmaker(engine), []

    def rival() -> None:
        with sessions.begin() as session, once(session, "g", "M1") as is_first:
            answers.append(is_first)

    waiting = threading.Thread(target=rival)
    with sessions.begin() as session, once(session, "g", "M1") as is_first:
        waiting.start()
        handle(session, message("M1"))
        assert is_first
    waiting.join()
    assert answers == [False]


def test_the_asynchronous_form(engine: Engine) -> None:
    pytest.importorskip("greenlet")
    pytest.importorskip("aiosqlite")
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    driver = "sqlite+aiosqlite" if engine.dialect.name == "sqlite" else "postgresql+psycopg"

    async def twice() -> list[bool]:
        other = create_async_engine(engine.url.set(drivername=driver), poolclass=NullPool)
        answers = []
        for _ in range(2):
            async with (
                async_sessionmaker(other).begin() as session,
                idempotence.async_once(session, "g", "M1") as is_first,
            ):
                answers.append(is_first)
        return answers

    assert asyncio.run(twice()) == [True, False]


def test_forget_and_the_plain_sql(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE tidewheel_consumed"))
        for statement in consumed_sql(engine.dialect.name).split(";")[:-1]:
            connection.execute(text(statement))
    once_listener(sessionmaker(engine), "g", handle).consume(message("M1"))
    assert idempotence.forget(engine, idempotence.wall_clock_ms() + 1) == 1


def test_a_missing_table_and_an_engine_without_transactions_are_clear_sentences(
    engine: Engine,
) -> None:
    eager = sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT"))
    with eager() as session, pytest.raises(ConfigurationError, match="AUTOCOMMIT"), once(session, "g", "M1"):
        pass
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE tidewheel_consumed"))
    with (
        sessionmaker(engine)() as session,
        pytest.raises(ConfigurationError, match=r"no table.*create_table"),
        once(session, "g", "M1"),
    ):
        pass


def test_the_weak_guard_lets_the_first_in_and_then_nobody(redis: Redis) -> None:
    guard = RedisGuard(redis)
    answers = []
    for _ in range(2):
        with guard.once("g", "weak") as is_first:
            answers.append(is_first)
    assert answers == [True, False]
    assert 0 < redis.ttl("tidewheel:once:g:weak") <= idempotence.KEEP_S


def test_the_weak_guard_refuses_a_rival_at_work_and_forgets_a_failure(redis: Redis) -> None:
    guard = RedisGuard(redis)

    def fail_beside_a_rival() -> None:
        with guard.once("g", "failing"):
            with pytest.raises(RefusedByState, match="at work"), guard.once("g", "failing"):
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_beside_a_rival()
    with guard.once("g", "failing") as is_first:
        assert is_first


def test_who_is_too_slow_at_work_does_not_end_anothers(redis: Redis) -> None:
    guard = RedisGuard(redis)
    key = "tidewheel:once:g:slow"
    with guard.once("g", "slow"):
        redis.set(key, "at work another")
    assert redis.get(key) == b"at work another"
    _: Any = redis.delete(key)
