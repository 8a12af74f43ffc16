"""What the outbox's endurance test runs in processes that it kills, over the official client.

outbox_process BROKER create DATABASE EFFECTS      makes the tables
outbox_process BROKER fill DATABASE TOPIC COUNT    adds rows, KEYS keys in turn
outbox_process BROKER relay DATABASE TOPIC BATCH   a relay
outbox_process BROKER consume DATABASE TOPIC       a consumer whose effect is a row, behind the guard
"""

from __future__ import annotations

import sys
import threading

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from tidewheel import idempotence, outbox
from tidewheel.idempotence import once_listener
from tidewheel.outbox import Relay

KEYS = 50
ROWS_PER_TRANSACTION = 10
LEASE_MS = 2_000
BUSY_S = 30
INVISIBLE_S = 2
AWAIT_S = 1
RECEIVED = 16


def create(_: str, database: str, effects: str) -> None:
    outbox.create_table(engine(database))
    idempotence.create_table(engine(effects))
    with engine(effects).begin() as connection:
        connection.execute(text("CREATE TABLE effects (body TEXT)"))
    print("ready", flush=True)


def fill(_: str, database: str, topic: str, count: str) -> None:
    sessions = sessionmaker(engine(database))
    for first in range(0, int(count), ROWS_PER_TRANSACTION):
        with sessions.begin() as session:
            for number in range(first, first + ROWS_PER_TRANSACTION):
                outbox.add(session, message(topic, str(number % KEYS), str(number // KEYS)))
    print("ready", flush=True)


def message(topic: str, key: str, place: str) -> Message:
    made = Message()
    made.topic, made.body, made.message_group = topic, f"{key} {place}".encode(), key
    return made


def relay(broker: str, database: str, topic: str, batch: str) -> None:
    producer = Producer(ClientConfiguration(broker, Credentials()), [topic])
    producer.startup()
    with Relay(engine(database), producer, batch=int(batch), lease_ms=LEASE_MS) as sending:
        print("ready", flush=True)
        sending.run(threading.Event())


def consume(broker: str, database: str, topic: str) -> None:
    listener = once_listener(sessionmaker(engine(database)), "effects", effect)
    configuration = ClientConfiguration(broker, Credentials())
    consumer = SimpleConsumer(configuration, "effects", {topic: FilterExpression()}, AWAIT_S)
    consumer.startup()
    print("ready", flush=True)
    while True:
        for message in consumer.receive(RECEIVED, INVISIBLE_S):
            listener.consume(message)
            consumer.ack(message)


def effect(session: Session, message: Message) -> None:
    session.execute(text("INSERT INTO effects VALUES (:body)"), {"body": message.body.decode()})


def engine(database: str) -> Engine:
    settings = {"connect_args": {"timeout": BUSY_S}} if database.startswith("sqlite") else {}
    return create_engine(database, **settings)


if __name__ == "__main__":
    {"create": create, "fill": fill, "relay": relay, "consume": consume}[sys.argv[2]](
        sys.argv[1], *sys.argv[3:]
    )
