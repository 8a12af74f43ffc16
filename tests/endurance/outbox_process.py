"""What the outbox's endurance test runs in processes that it kills.

outbox_process BROKER HTTP CLIENT create DATABASE EFFECTS      makes the tables
                                  fill DATABASE TOPIC COUNT    adds rows, KEYS keys in turn
                                  relay DATABASE TOPIC BATCH   a relay
                                  consume DATABASE TOPIC       a consumer behind the guard

CLIENT is `official`, `client` (`tidewheel.Client`) or `async`: rows are added and effects take place in
asynchronous sessions, and an AsyncClient receives. The relay is one of threads in any case.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import AbstractContextManager, suppress
from typing import Any

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Producer, SimpleConsumer
from rocketmq import Message as OfficialMessage
from rocketmq.v5.exception import BadRequestException
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from tidewheel import AsyncClient, Client, NewMessage, idempotence, outbox
from tidewheel.errors import InvalidReceiptHandle
from tidewheel.idempotence import async_once, identity_of, once_listener
from tidewheel.outbox import Relay

KEYS = 50
ROWS_PER_TRANSACTION = 10
LEASE_MS = 2_000
BUSY_S = 30
INVISIBLE_S = 2
AWAIT_S = 1
RECEIVED = 16
GROUP = "effects"
ASYNCHRONOUS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+asyncmy"}
"""Drivers for a loop, by database."""
EFFECT = text("INSERT INTO effects VALUES (:body)")


class Work:
    """The works of one kind of client."""

    def __init__(self, broker: str, http: str, kind: str) -> None:
        self.broker, self.http, self.kind = broker, http, kind

    def create(self, database: str, effects: str) -> None:
        outbox.create_table(engine(database))
        idempotence.create_table(engine(effects))
        with engine(effects).begin() as connection:
            connection.execute(text("CREATE TABLE effects (body TEXT)"))
        print("ready", flush=True)

    def fill(self, database: str, topic: str, count: str) -> None:
        starts = range(0, int(count), ROWS_PER_TRANSACTION)
        parts = [
            [self.message(topic, str(number % KEYS), str(number // KEYS)) for number in range(first, last)]
            for first, last in ((first, first + ROWS_PER_TRANSACTION) for first in starts)
        ]
        if self.kind == "async":
            asyncio.run(fill_in_a_loop(database, parts))
        else:
            fill_by_threads(database, parts)
        print("ready", flush=True)

    def message(self, topic: str, key: str, place: str) -> Any:
        body = f"{key} {place}".encode()
        if self.kind != "official":
            return NewMessage(topic, body, group=key)
        made = OfficialMessage()
        made.topic, made.body, made.message_group = topic, body, key
        return made

    def relay(self, database: str, topic: str, batch: str) -> None:
        if self.kind == "official":
            producer: Any = Producer(ClientConfiguration(self.broker, Credentials()), [topic])
            producer.startup()
        else:
            producer = Client(self.http)
        with Relay(engine(database), producer, batch=int(batch), lease_ms=LEASE_MS) as sending:
            print("ready", flush=True)
            sending.run(threading.Event())

    def consume(self, database: str, topic: str) -> None:
        if self.kind == "official":
            consume_officially(self.broker, database, topic)
        elif self.kind == "client":
            consume_by_threads(self.http, database, topic)
        else:
            asyncio.run(consume_in_a_loop(self.http, database, topic))


def fill_by_threads(database: str, parts: list[list[Any]]) -> None:
    sessions = sessionmaker(engine(database))
    for part in parts:
        with sessions.begin() as session:
            for message in part:
                outbox.add(session, message)


async def fill_in_a_loop(database: str, parts: list[list[Any]]) -> None:
    sessions = async_sessions(database)
    for part in parts:
        async with sessions.begin() as session:
            for message in part:
                await session.execute(outbox.adding(message))


def consume_officially(broker: str, database: str, topic: str) -> None:
    listener = once_listener(sessionmaker(engine(database)), GROUP, effect)
    configuration = ClientConfiguration(broker, Credentials())
    consumer = SimpleConsumer(configuration, GROUP, {topic: FilterExpression()}, AWAIT_S)
    consumer.startup()
    print("ready", flush=True)
    while True:
        for message in consumer.receive(RECEIVED, INVISIBLE_S):
            listener.consume(message)
            with late_is_no_error():
                consumer.ack(message)


def consume_by_threads(http: str, database: str, topic: str) -> None:
    handle = once_listener(sessionmaker(engine(database)), GROUP, effect)
    client = Client(http)
    print("ready", flush=True)
    while True:
        for message in client.receive(topic, GROUP, wait=f"{AWAIT_S}s", lease=f"{INVISIBLE_S}s"):
            handle(message)
            with late_is_no_error():
                message.ack()


async def consume_in_a_loop(http: str, database: str, topic: str) -> None:
    client, sessions = AsyncClient(http), async_sessions(database)
    print("ready", flush=True)
    while True:
        for message in await client.receive(topic, GROUP, wait=f"{AWAIT_S}s", lease=f"{INVISIBLE_S}s"):
            async with (
                sessions.begin() as session,
                async_once(session, GROUP, identity_of(message)) as is_first,
            ):
                if is_first:
                    await session.execute(EFFECT, {"body": message.text})
            with late_is_no_error():
                await message.ack()


def late_is_no_error() -> AbstractContextManager[None]:
    """Go on if an acknowledgement comes behind the end of its lease: then the message comes again."""
    return suppress(InvalidReceiptHandle, BadRequestException)


def effect(session: Session, message: Any) -> None:
    body = message.body if isinstance(message, OfficialMessage) else message.bytes
    session.execute(EFFECT, {"body": body.decode()})


def engine(database: str) -> Engine:
    settings = {"connect_args": {"timeout": BUSY_S}} if database.startswith("sqlite") else {}
    return create_engine(database, **settings)


def async_sessions(database: str) -> Any:
    url = make_url(database)
    driver = ASYNCHRONOUS[url.get_backend_name()]
    settings = {"connect_args": {"timeout": BUSY_S}} if url.get_backend_name() == "sqlite" else {}
    return async_sessionmaker(create_async_engine(url.set(drivername=driver), poolclass=NullPool, **settings))


if __name__ == "__main__":
    getattr(Work(*sys.argv[1:4]), sys.argv[4])(*sys.argv[5:])
