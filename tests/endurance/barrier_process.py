"""What the barrier's endurance tests run in processes of their own.

    barrier_process BROKER HTTP CLIENT DATABASE place     orders from stdin ("number point"), each in a
                                                          process that dies; each is told as
                                                          "killed", or "refused" by a check-back
                                                answer    answers check-backs, and nothing else
                                                race N    N commits, each against its own check-back
                                                slow      one transaction that ends when stdin says so
                                                stream N  N orders, whatever fails

CLIENT is `official`, `client` (`tidewheel.Client`) or `async` (`tidewheel.AsyncClient`, in a loop). Every
order has two messages, on `created` and `deadline`, and one row.

The works are coroutines; without a loop nothing in them waits, so that one step runs them to their end.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from rocketmq import ClientConfiguration, Credentials, Message, Producer
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from tidewheel import AsyncClient, Client, NewMessage
from tidewheel import barrier as barrier_module
from tidewheel.barrier import Barrier, Outcome
from tidewheel.errors import TransactionEnded

TOPICS = ("created", "deadline")
ORDER = "order"
"""A property: the order's number."""
FENCED = "fenced, "
"""Before a point: a check-back's fence comes between the halves and the barrier row."""
REFUSED = 3
"""Exit status of an order refused by a check-back that came first."""
RANDOM_S_MAX = 0.06
JITTER_S_MAX = 0.004
CHECKED_S = 30
ASYNCHRONOUS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+asyncmy"}
"""Drivers for a loop, by database."""
Step = Callable[..., Any]


def die() -> NoReturn:
    """As `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


async def finished(result: Any) -> Any:
    """The result of a step, which is awaited if need be."""
    return await result if inspect.isawaitable(result) else result


def after(step: Step, then: Step) -> Step:
    """The step, and something more behind it."""

    async def both_awaited(waiting: Any) -> Any:
        done = await waiting
        await finished(then())
        return done

    def both(*arguments: Any) -> Any:
        done = step(*arguments)
        if inspect.isawaitable(done):
            return both_awaited(done)
        then()
        return done

    return both


def before(step: Step, first: Step) -> Step:
    """Something, and then the step."""

    async def both_awaited(waiting: Any, arguments: Any) -> Any:
        await waiting
        return await step(*arguments)

    def both(*arguments: Any) -> Any:
        waiting = first()
        return both_awaited(waiting, arguments) if inspect.isawaitable(waiting) else step(*arguments)

    return both


def changed(step: Step, change: Step) -> Step:
    """The step, with its result changed."""

    async def awaited(waiting: Any) -> Any:
        return change(await waiting)

    def both(*arguments: Any) -> Any:
        done = step(*arguments)
        return awaited(done) if inspect.isawaitable(done) else change(done)

    return both


class WatchedBarrier(Barrier):
    """Says when a check-back of the watched order begins."""

    watched = ""

    def answer(self, message_id: str, properties: Any) -> Any:
        if properties.get(ORDER) == self.watched:
            self.begun.set()
        return super().answer(message_id, properties)

    def watch(self, number: int) -> None:
        self.watched, self.begun = str(number), threading.Event()

    def wait_for_check(self) -> None:
        assert self.begun.wait(CHECKED_S), "nobody asked"
        time.sleep(random.random() ** 4 * JITTER_S_MAX)


class Placing:
    """Transactions of one kind of client."""

    def __init__(self, broker: str, http: str, kind: str, database: str) -> None:
        self.broker, self.http, self.kind = broker, http, kind
        sessions = sessionmaker(create_engine(database, poolclass=NullPool))
        self.barrier = WatchedBarrier(sessions, async_sessions(database) if kind == "async" else None)
        self.producer: Any = None
        suffix = "async_" if kind == "async" else ""
        self.names = (f"{suffix}send_halves", f"{suffix}end_halves")
        self.steps = [getattr(barrier_module, name) for name in self.names]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a work to its end."""
        if self.kind == "async":
            return asyncio.run(work)
        try:
            work.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waits without a loop")

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Have a client that answers check-backs."""
        if self.kind == "official":
            configuration = ClientConfiguration(self.broker, Credentials())
            self.producer = Producer(configuration, TOPICS, checker=self.barrier)
            self.producer.startup()
            yield
            self.producer.shutdown()
        elif self.kind == "client":
            self.producer = Client(self.http)
            with self.producer, self.barrier.answering(self.producer, *TOPICS):
                yield
        else:
            self.producer = AsyncClient(self.http)
            async with self.producer, self.barrier.async_answering(self.producer, *TOPICS):
                yield

    @asynccontextmanager
    async def transaction(self, number: int) -> AsyncIterator[Any]:
        """Begin an order."""
        messages = [self.message(topic, number) for topic in TOPICS]
        if self.kind == "async":
            async with self.barrier.async_transaction(self.producer, *messages) as session:
                yield session
        else:
            with self.barrier.transaction(self.producer, *messages) as session:
                yield session

    def message(self, topic: str, number: int) -> Any:
        if self.kind != "official":
            return NewMessage(topic, str(number), properties={ORDER: str(number)})
        made = Message()
        made.topic, made.body = topic, str(number).encode()
        made.add_property(ORDER, str(number))
        return made

    def patch(self, send: Step | None = None, end: Step | None = None) -> None:
        """Change how halves are sent and ended, if only for one order."""
        for name, step, change in zip(self.names, self.steps, (send, end), strict=True):
            setattr(barrier_module, name, step if change is None else change(step))

    async def wait_for_check(self) -> None:
        """Wait until the watched order is asked about."""
        await finished(self.waiting())

    def waiting(self) -> Any:
        wait = self.barrier.wait_for_check
        return asyncio.to_thread(wait) if self.kind == "async" else wait()


def async_sessions(database: str) -> Any:
    url = make_url(database)
    driver = ASYNCHRONOUS[url.get_backend_name()]
    return async_sessionmaker(create_async_engine(url.set(drivername=driver), poolclass=NullPool))


async def insert_order(session: Any, number: int) -> None:
    await finished(session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number}))


def dying_between_halves(send_halves: Step) -> Step:
    """Die when the first half is sent."""

    def dying(prepare: Step) -> Step:
        return lambda message, database: after(prepare(message, database), die)

    return lambda prepare, *rest: send_halves(dying(prepare), *rest)


def dying_between_ends(send_halves: Step) -> Step:
    """Die before the last half is committed, whatever became of the first one's commit."""

    def marked(halves: Any) -> Any:
        return [*halves[:-1], replace(halves[-1], commit=before(halves[-1].commit, die))]

    return changed(send_halves, marked)


def dying_after_commits(end_halves: Step) -> Step:
    """Die when the halves are committed; go on after a rollback, which is no commit to die behind."""

    def dying(halves: Any, outcome_of: Any) -> Any:
        step = after(end_halves, die) if outcome_of is barrier_module.committed else end_halves
        return step(halves, outcome_of)

    return dying


PATCHES: dict[str, dict[str, Step]] = {
    "before the halves": {"send": lambda step: before(step, die)},
    "between the halves": {"send": dying_between_halves},
    "after the halves": {"send": lambda step: after(step, die)},
    "between the ends": {"send": dying_between_ends},
    "after the ends": {"end": dying_after_commits},
}


def patches(barrier: Barrier, point: str) -> dict[str, Step]:
    """The changed steps of a point; for a fenced one, with the answer to a check-back behind the halves."""
    steps = PATCHES.get(point.removeprefix(FENCED), {})
    if not point.startswith(FENCED):
        return steps
    send = steps.get("send", lambda step: step)
    return {**steps, "send": lambda step: changed(send(step), partial(fenced, barrier))}


def fenced(barrier: Barrier, halves: Any) -> Any:
    """The halves, each rolled back in the table."""
    outcomes = [barrier.outcome(half.message_id) for half in halves]
    assert set(outcomes) == {Outcome.ROLLED_BACK}
    return halves


async def place(placing: Placing, number: int, point: str) -> None:
    """Place one order and die at a point of it."""
    placing.patch(**patches(placing.barrier, point))
    point = point.removeprefix(FENCED)
    async with placing.transaction(number) as session:
        if point == "after the barrier row":
            die()
        await insert_order(session, number)
        if point == "before the commit":
            die()
        if point == "after the commit":
            event.listen(getattr(session, "sync_session", session), "after_commit", lambda _: die())


async def place_and_die(placing: Placing, number: int, point: str, begun: int) -> None:
    async with placing.answering():
        os.write(begun, b"!")
        try:
            await place(placing, number, point)
        except TransactionEnded:
            os._exit(REFUSED)
        assert point == "random", f"order {number} is alive behind its point, {point}"
        signal.pause()
    raise AssertionError


def place_orders(make: Callable[[], Placing]) -> None:
    """Each order in a forked process; at "random" this one kills it."""
    for line in sys.stdin:
        number, _, point = line.strip().partition(" ")
        begun, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                placing = make()
                placing.run(place_and_die(placing, int(number), point, writer))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(writer)
        is_begun = os.read(begun, 1)
        if point == "random":
            time.sleep(random.random() * RANDOM_S_MAX)
            os.kill(child, signal.SIGKILL)
        os.close(begun)
        _, status = os.waitpid(child, 0)
        print(number, ended(status) if is_begun else "has not begun", flush=True)


def ended(status: int) -> str:
    """How an order's process ended."""
    code = os.waitstatus_to_exitcode(status)
    return {-signal.SIGKILL: "killed", REFUSED: "refused"}.get(code, f"ended with {code}, see above")


async def race(placing: Placing, number: int) -> str:
    """One order whose check-back begins just before its rows, before its commit, or before its end."""
    window = ("rows", "commit", "end")[number % 3]
    placing.barrier.watch(number)
    if window == "rows":
        placing.patch(send=lambda step: after(step, placing.waiting))
    elif window == "end":
        placing.patch(end=lambda step: before(step, placing.waiting))
    try:
        async with placing.transaction(number) as session:
            await insert_order(session, number)
            if window == "commit":
                await placing.wait_for_check()
    except TransactionEnded:
        return f"{window}: the check-back won"
    finally:
        placing.patch()
    return f"{window}: the commit won"


async def races(placing: Placing, count: int) -> None:
    results = Counter([await race(placing, number) for number in range(count)])
    for result, times in sorted(results.items()):
        print(f"{result}: {times}")


async def slow(placing: Placing) -> None:
    async with placing.transaction(1) as session:
        await insert_order(session, 1)
        print("inside", flush=True)
        await finished(heard(placing))


async def stream(placing: Placing, count: int) -> None:
    """Place orders; whatever fails was rolled back, or is committed all the same."""
    failed = Counter[str]()
    for number in range(count):
        try:
            async with placing.transaction(number) as session:
                await insert_order(session, number)
        except Exception as error:
            failed[type(error).__name__] += 1
        print(number, flush=True)
    print(f"failed {dict(failed)}")


def heard(placing: Placing) -> Any:
    """Wait for a line."""
    return asyncio.to_thread(sys.stdin.readline) if placing.kind == "async" else sys.stdin.readline()


async def serve(placing: Placing, work: str, arguments: Sequence[str]) -> None:
    async with placing.answering():
        if work == "race":
            await races(placing, int(arguments[0]))
        elif work == "slow":
            await slow(placing)
        elif work == "stream":
            await stream(placing, int(arguments[0]))
        print("done", flush=True)
        await finished(heard(placing))


def run(broker: str, http: str, kind: str, database: str, work: str, *arguments: str) -> None:
    make = partial(Placing, broker, http, kind, database)
    if work == "place":
        place_orders(make)
        return
    placing = make()
    with suppress(KeyboardInterrupt):
        placing.run(serve(placing, work, arguments))


if __name__ == "__main__":
    run(*sys.argv[1:])
