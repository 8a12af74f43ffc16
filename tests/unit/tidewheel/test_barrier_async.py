"""The barrier's asynchronous form on real databases; needs greenlet, and a driver of each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("greenlet")

from rocketmq import Message, TransactionResolution
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from tidewheel.barrier import Barrier
from tidewheel.barrier_halves import BARRIER
from tidewheel.errors import ConfigurationError, RefusedByState, TransactionEnded

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from sqlalchemy import URL, Engine


class Half:
    def __init__(self, ends: list[str]) -> None:
        self.ends = ends

    def commit(self) -> None:
        self.ends.append("COMMIT")

    def rollback(self) -> None:
        self.ends.append("ROLLBACK")


class Producing:
    """A producer whose half messages are M1, M2 and so on; it blocks its thread, as the official one does."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.sent = 0

    def begin_transaction(self) -> Half:
        return Half(self.ends)

    def send(self, message: Message, transaction: Half) -> Message:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        self.sent += 1
        message.message_id = f"M{self.sent}"
        return message


@pytest.fixture
def engine(database: Engine) -> Engine:
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE orders (order_id INTEGER PRIMARY KEY)"))
    return database


@pytest.fixture
def barrier(engine: Engine, async_url: URL) -> Barrier:
    made = Barrier(sessionmaker(engine), async_sessionmaker(async_engine(async_url)))
    made.create_table()
    return made


def async_engine(url: URL) -> Any:
    return create_async_engine(url, poolclass=NullPool)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def orders(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT order_id FROM orders")).scalars())


def asked(barrier: Barrier) -> Message:
    barrier._refuse_unfit_database()  # which has its name then
    made = message()
    made.add_property(BARRIER, barrier._database)
    made.message_id = "M1"
    return made


def message() -> Message:
    made = Message()
    made.topic, made.body = "orders", b"7"
    return made


def test_a_block_that_succeeds_commits_rows_and_messages(barrier: Barrier, engine: Engine) -> None:
    producer = Producing()

    async def work() -> None:
        async with barrier.async_transaction(producer, message(), message()) as session:
            await session.execute(text("INSERT INTO orders VALUES (7)"))

    run(work())
    assert (orders(engine), producer.ends) == ([7], ["COMMIT", "COMMIT"])
    assert barrier.check(asked(barrier)) == TransactionResolution.COMMIT


def test_an_exception_rolls_all_back(barrier: Barrier, engine: Engine) -> None:
    producer = Producing()

    async def work() -> None:
        async with barrier.async_transaction(producer, message(), message()) as session:
            await session.execute(text("INSERT INTO orders VALUES (7)"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(work())
    assert (orders(engine), producer.ends) == ([], ["ROLLBACK", "ROLLBACK"])


def test_a_cancelled_task_rolls_all_back(barrier: Barrier, engine: Engine) -> None:
    producer = Producing()

    async def work() -> None:
        inside = asyncio.Event()

        async def block() -> None:
            async with barrier.async_transaction(producer, message()) as session:
                await session.execute(text("INSERT INTO orders VALUES (7)"))
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(work())
    assert (orders(engine), producer.ends) == ([], ["ROLLBACK"])


def test_a_check_during_the_block_is_unknown(barrier: Barrier, engine: Engine) -> None:
    async def work() -> None:
        async with barrier.async_transaction(Producing(), message()):
            answer = await asyncio.to_thread(barrier.check, asked(barrier))
            assert answer == TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED

    run(work())
    assert barrier.check(asked(barrier)) == TransactionResolution.COMMIT


def test_a_block_behind_the_fence_is_refused(barrier: Barrier, engine: Engine) -> None:
    assert barrier.check(asked(barrier)) == TransactionResolution.ROLLBACK
    producer = Producing()

    async def work() -> None:
        async with barrier.async_transaction(producer, message()) as session:
            await session.execute(text("INSERT INTO orders VALUES (7)"))

    with pytest.raises(TransactionEnded, match="M1"):
        run(work())
    assert (orders(engine), producer.ends) == ([], ["ROLLBACK"])


def test_a_block_that_ends_its_session_itself_is_refused(barrier: Barrier) -> None:
    producer = Producing()

    async def work() -> None:
        async with barrier.async_transaction(producer, message()) as session:
            await session.commit()

    with pytest.raises(RefusedByState, match="M1"):
        run(work())
    assert producer.ends == ["COMMIT"]


def test_a_missing_table_leaves_no_half(engine: Engine, async_url: URL) -> None:
    producer = Producing()
    barrier = Barrier(sessionmaker(engine), async_sessionmaker(async_engine(async_url)))

    async def work() -> None:
        async with barrier.async_transaction(producer, message()):
            pass

    with pytest.raises(ConfigurationError, match="no table tidewheel_barrier"):
        run(work())
    assert producer.sent == 0


def test_asynchronous_sessions_must_be_given_and_lead_to_the_same_database(engine: Engine) -> None:
    async def work() -> None:
        async with Barrier(sessionmaker(engine)).async_transaction(Producing(), message()):
            pass

    with pytest.raises(ConfigurationError, match="no asynchronous sessions"):
        run(work())
    other = create_async_engine("sqlite+aiosqlite:///elsewhere.db")
    with pytest.raises(ConfigurationError, match="different databases"):
        Barrier(sessionmaker(engine), async_sessionmaker(other))
    memory = create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(ConfigurationError, match="different databases"):
        Barrier(sessionmaker(memory[0]), async_sessionmaker(memory[1]))
