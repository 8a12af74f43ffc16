"""The consumer's guard on real databases and a real Redis."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from rocketmq import ConsumeResult, Message
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

import tidewheel
from services.shop.carts.redis_server import bundled_redis
from tidewheel import idempotence
from tidewheel.barrier import Barrier
from tidewheel.client.values import Delivery
from tidewheel.errors import ClientMistake, ConfigurationError, RefusedByState
from tidewheel.idempotence import RedisGuard, consumed_sql, identity_of, once, once_listener
from tidewheel.outbox import OUTBOX_ID

from .test_barrier import Producing as HalfProducing
from .test_barrier import message as half

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL, Engine
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


def message(message_id: str, body: bytes = b"x", topic: str = "orders") -> Message:
    made = Message()
    made.message_id, made.body, made.topic = message_id, body, topic
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
        assert identity_of(sent) == "orders/O1"
        listener.consume(sent)
    assert effects(engine) == ["x"]


@pytest.mark.parametrize("properties", [{OUTBOX_ID: "O1"}, {}])
def test_a_message_that_is_sent_on_to_another_topic_is_another_one(
    engine: Engine, redis: Redis, properties: dict[str, str]
) -> None:
    """With its properties copied, or under one idempotency key."""
    listener, guard, first = once_listener(sessionmaker(engine), "billing", handle), RedisGuard(redis), []
    for topic in ("orders", "invoices", "orders", "invoices"):
        sent = message("M1", topic.encode(), topic)
        for name, value in properties.items():
            sent.add_property(name, value)
        listener.consume(sent)
        with guard.once(f"forwards-{engine.dialect.name}-{len(properties)}", identity_of(sent)) as is_first:
            first.append(is_first)
    assert effects(engine) == ["orders", "invoices"]
    assert first == [True, True, False, False]


def test_a_dead_letter_that_is_redriven_elsewhere_is_the_message_that_it_was() -> None:
    redriven = message("M1", topic="repairs")
    redriven.add_property(idempotence.ORIGIN_TOPIC, "orders")
    assert identity_of(redriven) == identity_of(message("M1")) == "orders/M1"


def test_a_message_of_our_client_is_the_same_as_its_next_delivery(engine: Engine) -> None:
    listener = once_listener(sessionmaker(engine), "billing", handle_ours)
    for attempt, properties in enumerate(({}, {}, {OUTBOX_ID: "O1"}, {OUTBOX_ID: "O1"})):
        received = ours("M1", attempt, properties)
        assert identity_of(received) == f"orders/{properties.get(OUTBOX_ID, 'M1')}"
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


@pytest.mark.parametrize("is_undone", [True, False])
def test_a_savepoint_that_comes_first_ends_with_its_session(engine: Engine, is_undone: bool) -> None:
    """In SQLite, too: without a row of the guard there, the effect would be lost for good."""
    sessions = sessionmaker(engine)
    with sessions() as session:
        with session.begin_nested(), once(session, "g", "orders/M1") as is_first:
            assert is_first
            handle(session, message("M1"))
        session.rollback() if is_undone else session.commit()
    assert effects(engine) == ([] if is_undone else ["x"])
    with sessions.begin() as session, once(session, "g", "orders/M1") as is_first:
        assert is_first == is_undone


def test_a_savepoint_that_is_rolled_back_takes_its_own_rows_only(engine: Engine) -> None:
    with sessionmaker(engine).begin() as session:
        savepoint = session.begin_nested()
        handle(session, message("M1", b"inside"))
        savepoint.rollback()
        handle(session, message("M1", b"after"))
    assert effects(engine) == ["after"]


def test_a_consumer_sends_on_by_the_barrier_in_the_transaction_of_its_guard(engine: Engine) -> None:
    barrier, producer = Barrier(sessionmaker(engine)), HalfProducing()
    barrier.create_table()
    with barrier.transaction(producer, half()) as session, once(session, "g", "orders/M1") as is_first:
        assert is_first
        handle(session, message("M1"))
    assert (effects(engine), producer.ends) == (["x"], ["COMMIT"])


def test_a_batch_is_guarded_in_one_transaction(engine: Engine) -> None:
    for is_new in (True, False):
        with (
            sessionmaker(engine).begin() as session,
            once(session, "g", "orders/M1") as is_first,
            once(session, "g", "orders/M2") as is_second,
        ):
            assert (is_first, is_second) == (is_new, is_new)
            if is_new:
                handle(session, message("M1"))
    assert effects(engine) == ["x"]


def test_the_users_exception_leaves_a_block_in_a_block(engine: Engine) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        sessionmaker(engine).begin() as session,
        once(session, "g", "orders/M1"),
        once(session, "g", "orders/M2"),
    ):
        assert 1 / 0


def test_a_batch_is_guarded_in_one_asynchronous_transaction(engine: Engine, async_url: URL) -> None:
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    async def run() -> None:
        other = create_async_engine(async_url, poolclass=NullPool)
        async with (
            async_sessionmaker(other).begin() as session,
            idempotence.async_once(session, "g", "orders/M1"),
            idempotence.async_once(session, "g", "orders/M2"),
        ):
            await session.execute(text("INSERT INTO effects VALUES ('x')"))

    asyncio.run(run())
    assert effects(engine) == ["x"]


def refused() -> Any:
    return pytest.raises(RefusedByState, match="inside its block")


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
@pytest.mark.parametrize("is_swallowed", [False, True])
def test_a_transaction_that_the_session_begins_after_the_guards_is_refused(
    engine: Engine, end: str, is_swallowed: bool
) -> None:
    """What it does would stand without the row, or be lost behind it."""
    with sessionmaker(engine)() as session:
        with refused(), once(session, "g", "orders/M1"):
            handle(session, message("M1", b"before"))
            getattr(session, end)()
            with suppress(RefusedByState if is_swallowed else ()):
                handle(session, message("M1", b"after"))
        session.commit()
    assert effects(engine) == (["before"] if end == "commit" else [])
    with sessionmaker(engine).begin() as session, once(session, "g", "orders/M1") as is_first:
        assert is_first == (end != "commit")


def test_objects_that_are_added_behind_the_guards_transaction_are_refused(engine: Engine) -> None:
    with sessionmaker(engine)() as session:
        with refused(), once(session, "g", "orders/M1"):
            session.rollback()
            session.begin()
        assert not session.in_transaction()


def test_a_session_may_be_ended_where_nothing_follows_in_the_guards_block(engine: Engine) -> None:
    """Also by a scoped_session, whose next block is not watched by the one before."""
    sessions = scoped_session(sessionmaker(engine))
    for number in (1, 2):
        with once(sessions, "g", f"orders/M{number}") as is_first:
            assert is_first
            with sessions.begin_nested():
                handle(sessions, message("M"))
            sessions.commit()
        handle(sessions, message("M"))
        sessions.commit()
    sessions.remove()
    assert effects(engine) == ["x"] * 4


@pytest.mark.parametrize("is_scoped", [False, True])
def test_an_asynchronous_transaction_after_the_guards_is_refused(
    engine: Engine, async_url: URL, is_scoped: bool
) -> None:
    from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine

    async def run() -> None:
        sessions = async_sessionmaker(create_async_engine(async_url, poolclass=NullPool))
        session: Any = async_scoped_session(sessions, asyncio.current_task) if is_scoped else sessions()
        try:
            async with idempotence.async_once(session, "g", "orders/M1"):
                await session.rollback()
                await session.execute(text("INSERT INTO effects VALUES ('x')"))
        finally:
            await session.close()

    with refused():
        asyncio.run(run())
    assert effects(engine) == []


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


def test_identities_are_compared_character_by_character(engine: Engine) -> None:
    identities = ["orders/M1", "orders/m1", "orders/M1 ", "orders/\u1e3e1", "orders/M\u03011", "Orders/M1"]
    listener, answers = sessionmaker(engine), []
    for identity in [*identities, *identities]:
        with listener.begin() as session, once(session, "g", identity) as is_first:
            answers.append(is_first)
    assert answers == [True] * 6 + [False] * 6


@pytest.mark.parametrize(("group", "identity"), [("g" * 256, "orders/M1"), ("g", "orders/" + "M" * 250)])
def test_what_a_row_cannot_keep_is_refused(engine: Engine, group: str, identity: str) -> None:
    with (
        sessionmaker(engine)() as session,
        pytest.raises(ClientMistake, match="at most"),
        once(session, group, identity),
    ):
        pass


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


def test_the_asynchronous_form(engine: Engine, async_url: URL) -> None:
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    async def twice() -> list[bool]:
        other = create_async_engine(async_url, poolclass=NullPool)
        answers = []
        async with async_sessionmaker(other)() as session:
            async with session.begin_nested(), idempotence.async_once(session, "g", "M1") as is_first:
                assert is_first
            await session.rollback()
        for _ in range(2):
            async with (
                async_sessionmaker(other).begin() as session,
                idempotence.async_once(session, "g", "M1") as is_first,
            ):
                answers.append(is_first)
        return answers

    assert asyncio.run(twice()) == [True, False]


def test_forget_and_the_plain_sql(engine: Engine, server: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE tidewheel_consumed"))
        for statement in consumed_sql(server).split(";")[:-1]:
            connection.execute(text(statement))
    once_listener(sessionmaker(engine), "g", handle).consume(message("M1"))
    assert idempotence.forget(engine, idempotence.wall_clock_ms() + 1) == 1


def test_forget_works_in_steps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotence, "FORGET_ROWS", 2)
    listener = once_listener(sessionmaker(engine), "g", handle)
    for number in range(5):
        listener.consume(message(f"M{number}"))
    commits = []
    event.listen(engine, "commit", commits.append)
    assert idempotence.forget(engine, idempotence.wall_clock_ms() + 1) == 5
    assert len(commits) == 4, "three steps, and the one that found nothing"
    assert idempotence.forget(engine, idempotence.wall_clock_ms() + 1) == 0


def test_a_lock_that_does_not_come_is_told_by_the_database(engine: Engine) -> None:
    """With a pool that has no second connection to ask."""
    waits_1_s = {"init_command": "SET SESSION innodb_lock_wait_timeout = 1"}
    arguments = {
        "sqlite": {"timeout": 0.1},
        "postgresql": {"options": "-c lock_timeout=100"},
        "mariadb": waits_1_s,
        "mysql": waits_1_s,
    }
    patient = create_engine(
        engine.url, connect_args=arguments[engine.dialect.name], pool_size=1, max_overflow=0, pool_timeout=20
    )
    with sessionmaker(engine).begin() as holder, once(holder, "g", "orders/M1") as is_first:
        assert is_first
        with (
            pytest.raises(
                OperationalError, match=r"(?is)repeat it.*(is locked|lock timeout|lock wait timeout)"
            ),
            sessionmaker(patient).begin() as session,
            once(session, "g", "orders/M1"),
        ):
            pass
    patient.dispose()


def test_a_table_of_an_older_version_is_told_from_a_column_that_it_lacks(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE tidewheel_consumed"))
        connection.execute(text("CREATE TABLE tidewheel_consumed (consumer_group TEXT, consumed_ms BIGINT)"))
    with (
        sessionmaker(engine)() as session,
        pytest.raises(ConfigurationError, match=r"older version.*identity.*create_table"),
        once(session, "g", "orders/M1"),
    ):
        pass
    with pytest.raises(ConfigurationError, match=r"older version.*identity.*create_table"):
        idempotence.forget(engine, 1)
    with pytest.raises(ConfigurationError, match="older version, without identity"):
        idempotence.create_table(engine)


def test_a_missing_table_and_an_engine_without_transactions_are_clear_sentences(
    engine: Engine,
) -> None:
    eager = sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT"))
    with eager() as session, pytest.raises(ConfigurationError, match="AUTOCOMMIT"), once(session, "g", "M1"):
        pass
    with sessionmaker(engine).begin() as session, once(session, "g", "M1") as is_first:
        assert is_first, "what was refused is still to be done"
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE tidewheel_consumed"))
    with (
        sessionmaker(engine)() as session,
        pytest.raises(ConfigurationError, match=r"no table.*create_table"),
        once(session, "g", "M1"),
    ):
        pass


async def handle_in_a_loop(session: Session, message: Message) -> None:
    handle(session, message)


class Handling:
    async def __call__(self, session: Session, message: Message) -> None:
        handle(session, message)


@pytest.mark.parametrize("handling", [handle_in_a_loop, partial(handle_in_a_loop), Handling()])
def test_a_listener_of_a_coroutine_is_refused_when_it_is_made(handling: Any) -> None:
    """It would be called, and never run: the message would be acknowledged without its effect."""
    with pytest.raises(ConfigurationError, match="async_once"):
        once_listener(sessionmaker(), "g", handling)


def test_a_coroutine_that_does_not_say_so_leaves_no_row(engine: Engine) -> None:
    hidden = once_listener(sessionmaker(engine), "g", lambda *given: handle_in_a_loop(*given))
    with pytest.raises(ConfigurationError, match="async_once"):
        hidden.consume(message("M1"))
    once_listener(sessionmaker(engine), "g", handle).consume(message("M1"))
    assert effects(engine) == ["x"]


def test_what_is_refused_for_autocommit_is_not_taken_for_done(engine: Engine) -> None:
    """The engine is set right after the refusal, and the message comes again."""
    wrong = sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT"))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            once_listener(wrong, "g", handle).consume(message("M1"))
    once_listener(sessionmaker(engine), "g", handle).consume(message("M1"))
    assert effects(engine) == ["x"]


def test_what_is_refused_for_autocommit_in_a_loop_is_not_taken_for_done(
    engine: Engine, async_url: URL
) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def refused() -> None:
        other = create_async_engine(async_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        async with AsyncSession(other) as session, idempotence.async_once(session, "g", "orders/M1"):
            pass

    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        asyncio.run(refused())
    once_listener(sessionmaker(engine), "g", handle).consume(message("M1"))
    assert effects(engine) == ["x"]


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
