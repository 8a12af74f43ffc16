"""What the barrier's endurance tests run in processes of their own, over the official client.

    barrier_process BROKER DATABASE place    orders from stdin ("number point"), each in a process that dies
    barrier_process BROKER DATABASE answer   a producer that only answers check-backs
    barrier_process BROKER DATABASE race N   N commits, each against its own check-back
    barrier_process BROKER DATABASE slow     one transaction that ends when stdin says so

Every order has two messages, on `created` and `deadline`, and one row.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from rocketmq import ClientConfiguration, Credentials, Message, Producer
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from tidewheel import barrier as barrier_module
from tidewheel.barrier import Barrier
from tidewheel.errors import TransactionEnded

TOPICS = ("created", "deadline")
RANDOM_S_MAX = 0.06
JITTER_S_MAX = 0.004
CHECKED_S = 30


def die() -> NoReturn:
    """As `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def message(topic: str, number: int) -> Message:
    made = Message()
    made.topic, made.body = topic, str(number).encode()
    return made


def insert_order(session: Any, number: int) -> None:
    session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})


def started(broker: str, barrier: Barrier) -> Producer:
    producer = Producer(ClientConfiguration(broker, Credentials()), TOPICS, checker=barrier)
    producer.startup()
    return producer


def after(step: Callable[..., Any], then: Callable[[], Any]) -> Callable[..., Any]:
    """The step, and something more behind it."""

    def both(*arguments: Any) -> Any:
        done = step(*arguments)
        then()
        return done

    return both


def place(producer: Producer, barrier: Barrier, number: int, point: str) -> None:
    """Place one order and die at a point of it."""
    if point == "between halves":
        producer.send = after(producer.send, die)
    if point == "after the halves":
        barrier_module.send_halves = after(barrier_module.send_halves, die)
    with barrier.transaction(producer, *(message(topic, number) for topic in TOPICS)) as session:
        if point == "after the barrier row":
            die()
        insert_order(session, number)
        if point == "before the commit":
            session.flush()
            die()
        if point == "after the commit":
            event.listen(session, "after_commit", lambda _: die())


def place_and_die(broker: str, database: str, number: int, point: str, begun: int) -> NoReturn:
    barrier = Barrier(sessionmaker(create_engine(database, poolclass=NullPool)))
    producer = started(broker, barrier)
    os.write(begun, b"!")
    place(producer, barrier, number, point)
    signal.pause()
    raise AssertionError


def place_orders(broker: str, database: str) -> None:
    """Each order in a forked process; at "random" this one kills it."""
    for line in sys.stdin:
        number, _, point = line.strip().partition(" ")
        begun, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                place_and_die(broker, database, int(number), point, writer)
            finally:
                os._exit(1)
        os.close(writer)
        is_begun = os.read(begun, 1)
        if point == "random":
            time.sleep(random.random() * RANDOM_S_MAX)
            os.kill(child, signal.SIGKILL)
        os.close(begun)
        _, status = os.waitpid(child, 0)
        print(number, "killed" if is_begun and os.WTERMSIG(status) == signal.SIGKILL else status, flush=True)


class WatchedBarrier(Barrier):
    """Says when a check-back of the watched order begins."""

    def __init__(self, sessions: Any) -> None:
        super().__init__(sessions)
        self.watched = b""
        self.begun = threading.Event()

    def check(self, message: Message) -> Any:
        if message.body == self.watched:
            self.begun.set()
        return super().check(message)

    def wait_for_check(self) -> None:
        assert self.begun.wait(CHECKED_S), "nobody asked"
        time.sleep(random.random() ** 4 * JITTER_S_MAX)


def race(producer: Producer, barrier: WatchedBarrier, number: int) -> str:
    """One order whose check-back begins just before its rows, before its commit, or before its end."""
    window = ("rows", "commit", "end")[number % 3]
    barrier.watched = str(number).encode()
    barrier.begun.clear()
    if window == "rows":
        barrier_module.send_halves = after(send_halves, barrier.wait_for_check)
    if window == "end":
        barrier_module.end_halves = wait_then(barrier.wait_for_check, end_halves)
    try:
        with barrier.transaction(producer, *(message(topic, number) for topic in TOPICS)) as session:
            insert_order(session, number)
            if window == "commit":
                barrier.wait_for_check()
    except TransactionEnded:
        return f"{window}: the check-back won"
    finally:
        barrier_module.send_halves, barrier_module.end_halves = send_halves, end_halves
    return f"{window}: the commit won"


def wait_then(wait: Callable[[], None], step: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arguments: Any) -> Any:
        wait()
        return step(*arguments)

    return both


send_halves, end_halves = barrier_module.send_halves, barrier_module.end_halves


def run(broker: str, database: str, work: str, arguments: Sequence[str]) -> None:
    if work == "place":
        place_orders(broker, database)
        return
    barrier = WatchedBarrier(sessionmaker(create_engine(database)))
    producer = started(broker, barrier)
    if work == "race":
        results = Counter(race(producer, barrier, number) for number in range(int(arguments[0])))
        for result, count in sorted(results.items()):
            print(f"{result}: {count}")
    elif work == "slow":
        with barrier.transaction(producer, *(message(topic, 1) for topic in TOPICS)) as session:
            insert_order(session, 1)
            print("inside", flush=True)
            sys.stdin.readline()
    print("done", flush=True)
    with suppress(KeyboardInterrupt):
        sys.stdin.read()
    producer.shutdown()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
