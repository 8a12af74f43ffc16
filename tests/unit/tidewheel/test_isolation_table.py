"""Every isolation level x database x (relay, barrier, guard): many short histories of two actors at once.

The oracle is what callers were told:
- what an owner of the engine was told is written is there, also where each statement commits;
- a message that was told committed is sent once, and a block that failed left neither message nor row;
- an effect is there once when both listeners returned.
A call may refuse a setting (`ConfigurationError`): it leaves nothing behind then.

The suite runs `HISTORIES` for each cell; `--isolation-histories 50` runs more.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from tidewheel import idempotence, outbox
from tidewheel.barrier import Barrier, Outcome
from tidewheel.barrier_table import commits_each_statement
from tidewheel.errors import ConfigurationError, TransactionEnded
from tidewheel.idempotence import once_listener
from tidewheel.outbox import Relay

from .test_barrier import Producing as HalfProducing
from .test_barrier import message as half
from .test_outbox import Producing, message

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

EVERY = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"]
LEVELS = {
    "sqlite": ["READ UNCOMMITTED", "SERIALIZABLE", "AUTOCOMMIT"],
    "postgresql": EVERY,
    "mariadb": EVERY,
}
BY_DRIVER: dict[str, dict[str, dict[str, Any]]] = {
    "sqlite": {"autocommit": {"isolation_level": None}, "immediate": {"isolation_level": "IMMEDIATE"}},
    "postgresql": {
        "autocommit": {"autocommit": True},
        "default": {"options": "-c default_transaction_isolation=serializable"},
    },
    "mariadb": {
        "autocommit": {"autocommit": True},
        "default": {"init_command": "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"},
        "snapshot": {"init_command": "SET SESSION innodb_snapshot_isolation = ON"},
    },
}
WAYS = ["engine", "option", "driver", "listener"]
TRIES = 30
HISTORIES = 1
EFFECT = 1_000_000
"""What blocks and listeners write is from here on; what owners write is below."""


def settings(server: str, way: str) -> list[str]:
    """Return what can be set in a way."""
    if way == "listener":
        return ["AUTOCOMMIT"]
    return [*BY_DRIVER[server]] if way == "driver" else LEVELS[server]


def engine_with(database: Engine, server: str, way: str, setting: str) -> Engine:
    """Return an engine of two connections with a setting."""
    options: dict[str, Any] = {"pool_size": 2}
    if way == "driver":
        return create_engine(database.url, connect_args=BY_DRIVER[server][setting], **options)
    if way == "engine":
        return create_engine(database.url, isolation_level=setting, **options)
    made = create_engine(database.url, **options)
    if way == "option":
        return made.execution_options(isolation_level=setting)
    event.listen(made, "connect", lambda driver, _: made.dialect.set_isolation_level(driver, setting))
    return made


class Play:
    """Histories on one engine; `database` is the oracle's own."""

    def __init__(self, database: Engine, engine: Engine) -> None:
        self.database, self.engine, self.numbers = database, engine, count(1)
        self.written: list[int] = []
        self.refused = 0
        with engine.connect() as connection:
            self.commits_each = commits_each_statement(connection)

    def own(self) -> None:
        """Write as an owner does: without a commit, where each statement commits."""
        number = next(self.numbers)
        with self.engine.connect() as connection:
            connection.execute(text(f"INSERT INTO effects VALUES ({number})"))
            if not self.commits_each:
                connection.commit()
        self.written.append(number)

    def at_once(self, *actors: Callable[[], object]) -> None:
        """Run two actors at once, each again when the database says so; count who is refused."""
        meeting, failed = threading.Barrier(len(actors), timeout=60), list[Exception]()

        def run(actor: Callable[[], object]) -> None:
            meeting.wait()
            for _ in range(TRIES):
                try:
                    actor()
                except ConfigurationError:
                    self.refused += 1
                except DBAPIError as error:
                    last = error
                    continue
                except Exception as error:
                    failed.append(error)
                return
            failed.append(last)

        threads = [threading.Thread(target=run, args=(actor,)) for actor in actors]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        if failed:
            raise failed[0]

    def numbers_there(self) -> list[int]:
        with self.database.connect() as connection:
            return list(connection.execute(text("SELECT number FROM effects ORDER BY number")).scalars())


def relay(play: Play, number: int) -> None:
    """Two relays take what an owner added; the owner writes beside them."""
    bodies = [b"%d-%d" % (number, one) for one in range(4)]
    try:
        with sessionmaker(play.engine).begin() as session:
            for body in bodies:
                outbox.add(session, message(body, key=f"k{body[-1] % 2}"))
    except ConfigurationError:
        play.refused += 1
        with sessionmaker(play.database).begin() as session:
            for body in bodies:
                outbox.add(session, message(body, key=f"k{body[-1] % 2}"))
    producer = Producing()

    def run() -> None:
        with Relay(play.engine, producer, batch=2, senders=1) as sending:
            while sending.run_once().sent:
                pass

    play.at_once(run, run)
    run()
    play.own()
    assert sorted(producer.bodies) == bodies


def barrier(play: Play, number: int) -> None:
    """A block, and a check-back of its message meanwhile; then the check-back of another service."""
    producer, told = HalfProducing(), list[str]()
    producer.ids = [f"H{number}-{one}" for one in range(TRIES)]
    made = Barrier(sessionmaker(play.engine))

    def block() -> None:
        sent = half()
        try:
            with made.transaction(producer, sent) as session:
                session.execute(text(f"INSERT INTO effects VALUES ({EFFECT + number})"))
        except TransactionEnded:
            return
        told.append(sent.message_id)

    play.at_once(block, lambda: made.outcome(f"H{number}-{TRIES - 1}"))
    play.own()
    is_there = EFFECT + number in play.numbers_there()
    other = Barrier(sessionmaker(play.database))
    assert producer.ends.count("COMMIT") == len(told) == is_there
    for message_id in told:
        assert other.outcome(message_id) is Outcome.COMMITTED


def guard(play: Play, number: int) -> None:
    """Two consumers of one message."""
    same, done = message(b"x"), list[int]()
    same.message_id = f"M{number}"

    def handle(session: Session, _: Any) -> None:
        session.execute(text(f"INSERT INTO effects VALUES ({EFFECT + number})"))

    listener = once_listener(sessionmaker(play.engine), "g", handle)

    def consume() -> None:
        listener(same)
        done.append(1)

    play.at_once(consume, consume)
    play.own()
    assert play.numbers_there().count(EFFECT + number) == bool(done)


PLAYS = {"relay": relay, "barrier": barrier, "guard": guard}


@pytest.fixture
def prepared(database: Engine) -> Engine:
    if database.dialect.name == "mysql":
        pytest.skip("by the other URL")
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE effects (number INTEGER)"))
    idempotence.create_table(database)
    outbox.create_table(database)
    Barrier(sessionmaker(database)).create_table()
    return database


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("actor", PLAYS)
def test_callers_are_told_what_is_so(
    prepared: Engine, server: str, actor: str, way: str, request: pytest.FixtureRequest
) -> None:
    histories = int(request.config.getoption("--isolation-histories", HISTORIES))
    numbers = count()
    for setting in settings(server, way):
        engine = engine_with(prepared, server, way, setting)
        play = Play(prepared, engine)
        for _ in range(histories):
            PLAYS[actor](play, next(numbers))
        there = [number for number in play.numbers_there() if number < EFFECT]
        assert (setting, there) == (setting, play.written)
        assert bool(play.refused) == play.commits_each, setting
        with prepared.begin() as connection:
            connection.execute(text("DELETE FROM effects"))
        engine.dispose()
        print(f"{server} {way} {setting} {actor}: {histories} histories")
