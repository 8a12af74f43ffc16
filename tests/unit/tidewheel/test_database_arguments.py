"""Calls of barrier, outbox and guard with something else than they take: one sentence, and nothing done."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tidewheel import Barrier, Client, NewMessage, Relay, Timer, idempotence, once_listener, outbox
from tidewheel.errors import ClientMistake, RefusedByState
from tidewheel.idempotence import RedisGuard, async_once, identity_of, once
from tidewheel.outbox import OutboxRow

from .test_barrier import Producing
from .test_barrier import message as official

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Engine

MESSAGE = NewMessage("orders", "x")
CLIENT = Client("http://127.0.0.1:1")
ROW = OutboxRow(1, "o", "t", None, 1, 1, None, 1, b"")


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{tmp_path / 'test.db'}")
    outbox.create_table(engine)
    idempotence.create_table(engine)
    Barrier(sessionmaker(engine)).create_table()
    return engine


def entered(block: Any) -> None:
    with block:
        pass


async def async_entered(block: Any) -> None:
    async with block:
        pass


def nothing(*_: object) -> None:
    """Handle no message."""


OTHERS: dict[str, Callable[[Engine], Any]] = {
    "url": lambda engine: str(engine.url),
    "URL": lambda engine: make_url(engine.url),
    "AsyncEngine": lambda engine: create_async_engine(engine.url.set(drivername="sqlite+aiosqlite")),
    "engine of a driver for a loop": lambda engine: create_engine(
        engine.url.set(drivername="sqlite+aiosqlite")
    ),
    "sessionmaker": sessionmaker,
    "Session": Session,
    "AsyncSession": lambda _: AsyncSession(),
    "async_sessionmaker": lambda _: async_sessionmaker(),
    "Connection": lambda engine: engine.connect(),
    "NewMessage": lambda _: MESSAGE,
    "None": lambda _: None,
}
TAKE_AN_ENGINE: dict[str, Callable[[Any], object]] = {
    "outbox.create_table": outbox.create_table,
    "idempotence.create_table": idempotence.create_table,
    "outbox.forget": lambda engine: outbox.forget(engine, 1),
    "idempotence.forget": lambda engine: idempotence.forget(engine, 1),
    "outbox.counts": outbox.counts,
    "outbox.parked": outbox.parked,
    "outbox.waiting": outbox.waiting,
    "outbox.row_of_id": lambda engine: outbox.row_of_id(engine, 1),
    "outbox.replay": lambda engine: outbox.replay(engine, [1]),
    "Relay": lambda engine: Relay(engine, CLIENT),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("call", TAKE_AN_ENGINE)
def test_what_takes_an_engine_says_so(engine: Engine, call: str, other: str) -> None:
    with pytest.raises(ClientMistake, match=r"an Engine of SQLAlchemy, and this is|a driver for a loop"):
        TAKE_AN_ENGINE[call](OTHERS[other](engine))


TAKE_A_SESSION: dict[str, Callable[[Any], object]] = {
    "outbox.add": lambda session: outbox.add(session, MESSAGE),
    "once": lambda session: entered(once(session, "g", "orders/M1")),
    "async_once": lambda session: asyncio.run(async_entered(async_once(session, "g", "orders/M1"))),
}
FIT = {("outbox.add", "Session"), ("outbox.add", "Connection"), ("once", "Session")}
FIT |= {("async_once", "AsyncSession")}


@pytest.mark.parametrize(
    ("call", "other"), [one for one in product(TAKE_A_SESSION, OTHERS) if one not in FIT]
)
def test_what_takes_a_session_says_so(engine: Engine, call: str, other: str) -> None:
    with pytest.raises(ClientMistake, match=r"It takes an? (Async)?Session"):
        TAKE_A_SESSION[call](OTHERS[other](engine))


TAKE_A_FACTORY: dict[str, Callable[[Engine, Any], object]] = {
    "Barrier": lambda _, sessions: Barrier(sessions),
    "once_listener": lambda _, sessions: once_listener(sessions, "g", nothing),
    "Barrier's second": lambda engine, sessions: Barrier(sessionmaker(engine), sessions),
}


@pytest.mark.parametrize("other", sorted(OTHERS.keys() - {"sessionmaker", "async_sessionmaker", "None"}))
@pytest.mark.parametrize("call", TAKE_A_FACTORY)
def test_what_takes_a_session_factory_says_so(engine: Engine, call: str, other: str) -> None:
    with pytest.raises(ClientMistake, match="session factory, and this is"):
        TAKE_A_FACTORY[call](engine, OTHERS[other](engine))


def test_factories_of_either_kind_are_told_from_each_other(engine: Engine) -> None:
    for call in ("Barrier", "once_listener"):
        with pytest.raises(ClientMistake, match="session factory, and this is"):
            TAKE_A_FACTORY[call](engine, async_sessionmaker())
    with pytest.raises(ClientMistake, match="scoped_session"):
        once_listener(scoped_session(sessionmaker(engine)), "g", nothing)
    with pytest.raises(ClientMistake, match="asynchronous session factory, and this is"):
        TAKE_A_FACTORY["Barrier's second"](engine, sessionmaker(engine))


SAYING: list[tuple[Callable[[Engine], object], str]] = [
    (lambda engine: outbox.add(Session(engine), "x"), "a NewMessage, or a Message .* this is str: 'x'"),
    (lambda engine: outbox.add(Session(engine), None), "this is NoneType"),
    (lambda engine: outbox.add(Session(engine), MESSAGE, key=7), "key is 7: give a text"),
    (lambda _: outbox.adding({"topic": "t"}), "this is dict"),
    (lambda engine: entered(once(Session(engine), "g", official())), r"identity_of\(message\)"),
    (lambda engine: entered(once(Session(engine), official(), "g")), "The group is"),
    (lambda engine: entered(once(Session(engine), "g", "")), "The identity is ''"),
    (lambda engine: asyncio.run(async_entered(async_once(Session(engine), "g", "i"))), "use once"),
    (lambda _: identity_of("M1"), "a message that was received"),
    (lambda _: identity_of(MESSAGE), "a message that was received"),
    (lambda engine: once_listener(sessionmaker(engine), nothing, "g"), "The group is"),
    (lambda engine: once_listener(sessionmaker(engine), "g", None), "a function of session and message"),
    (lambda engine: Relay(engine, "http://127.0.0.1:1"), r"and this is str. Give tidewheel.Client\(url\)"),
    (lambda engine: Relay(engine, None), "this is NoneType"),
    (lambda engine: Relay(engine, Producing), "a started producer"),
    (lambda engine: outbox.replay(engine, 17), r"ids is 17: give a list"),
    (lambda engine: outbox.replay(engine, ["17"]), "give the number"),
    (lambda engine: outbox.replay(engine, [ROW]), r"such as row\.id"),
    (lambda engine: outbox.forget(engine, datetime.now(UTC)), "milliseconds since 1970"),
    (lambda engine: idempotence.forget(engine, "1"), "milliseconds since 1970"),
    (lambda engine: outbox.forget(engine, -1), "milliseconds since 1970"),
    (lambda engine: idempotence.forget(engine, 1_790_000_000), "in seconds: give 1790000000000"),
    (lambda engine: Relay(engine, CLIENT, park_after=0), "park_after is 0: give a whole number, 1 or more"),
    (lambda engine: Relay(engine, CLIENT, lease_ms="1m"), "lease_ms is '1m'"),  # type: ignore[arg-type]
    (lambda engine: Relay(engine, CLIENT, batch=True), "batch is True"),
    (lambda engine: Relay(engine, CLIENT, senders=-1), "senders is -1"),
    (lambda engine: Barrier(sessionmaker(engine)).forget("1"), "milliseconds since 1970"),
    (lambda engine: transacted(engine, "http://127.0.0.1:1", official()), "this is str"),
    (lambda engine: transacted(engine, None, official()), "this is NoneType"),
    (lambda engine: transacted(engine, official(), official()), "a started producer"),
    (lambda engine: transacted(engine, Producing(), "x"), "its own Message, and this is str"),
    (lambda engine: entered(Barrier(sessionmaker(engine)).answering(CLIENT, ["t"])), "A topic is"),
    (lambda _: RedisGuard("redis://127.0.0.1"), "a redis.Redis, which blocks, and this is str"),
    (lambda _: RedisGuard(AsyncRedis()), "which blocks"),
    (lambda _: entered(RedisGuard(Redis()).once("g", official())), r"identity_of\(message\)"),
    (lambda _: CLIENT.send("t", "x", cancel="k"), r"cancel is 'k': it takes a timer, as client\.timer"),
    (lambda _: CLIENT.send("t", "x", fire="k"), "fire is 'k'"),
    (lambda _: CLIENT.send("t", "x", move="k"), "move is 'k'"),
    (lambda _: CLIENT.send("t", "x", move=("k", "1h")), "move is 'k'"),
    (lambda _: CLIENT.send("t", "x", properties=["a"]), r"properties is \['a'\]: give a dict"),
]


def transacted(engine: Engine, producer: Any, message: Any) -> None:
    entered(Barrier(sessionmaker(engine)).transaction(producer, message))


@pytest.mark.parametrize("number", range(len(SAYING)))
def test_an_argument_that_is_mixed_up_is_one_sentence(engine: Engine, number: int) -> None:
    call, said = SAYING[number]
    with pytest.raises(ClientMistake, match=said):
        call(engine)


def test_a_block_that_is_entered_again_says_so(engine: Engine) -> None:
    barrier, producer = Barrier(sessionmaker(engine)), Producing()
    block = barrier.transaction(producer, official())
    entered(block)
    with pytest.raises(RefusedByState, match="entered before"):
        entered(block)
    both = Barrier(
        sessionmaker(engine),
        async_sessionmaker(create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))),
    )
    async_block = both.async_transaction(producer, official())
    asyncio.run(async_entered(async_block))
    with pytest.raises(RefusedByState, match="entered before"):
        asyncio.run(async_entered(async_block))
    assert producer.ends == ["COMMIT", "COMMIT"]


def test_what_is_right_is_taken() -> None:
    timer = Timer("t", "k", "t", lambda steps: steps)
    for said in ({"cancel": timer}, {"fire": timer}, {"move": (timer, "1h")}, {"properties": {"a": "b"}}):
        outbox.adding(NewMessage("t", "x", **said))
