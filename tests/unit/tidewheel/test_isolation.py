"""Barrier and guard at every isolation level of each database; the relay's levels are in test_outbox.py."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from tidewheel import idempotence
from tidewheel.barrier import Barrier, Outcome
from tidewheel.errors import TransactionEnded
from tidewheel.idempotence import once, once_listener

from .test_barrier import Producing
from .test_barrier import message as half
from .test_outbox import message

if TYPE_CHECKING:
    from collections.abc import Iterator

LEVELS = {
    "sqlite": ["SERIALIZABLE"],
    "postgresql": ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"],
    "mariadb": ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "snapshot"],
}


@pytest.fixture(params=["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "snapshot"])
def engine(database: Engine, server: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A database at a level; "snapshot" is MariaDB's REPEATABLE READ as it comes from 11.6 on."""
    level = request.param
    if level not in LEVELS[server]:
        pytest.skip(f"{server} has no {level}")
    options: dict[str, Any] = {"isolation_level": level}
    if level == "snapshot":
        options = {"connect_args": {"init_command": "SET SESSION innodb_snapshot_isolation = ON"}}
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE effects (number INTEGER)"))
    idempotence.create_table(database)
    Barrier(sessionmaker(database)).create_table()
    made = create_engine(database.url, **options)
    yield made
    made.dispose()


def effects(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT number FROM effects")).scalars())


def test_rivals_have_one_effect(engine: Engine) -> None:
    """A rival that loses by a conflict is run again by the listener, and sees then that it was done."""
    meeting, failed = threading.Barrier(3), list[Exception]()

    def handle(session: Any, _: Any) -> None:
        session.execute(text("INSERT INTO effects VALUES (1)"))

    listener = once_listener(sessionmaker(engine), "g", handle)

    def rival() -> None:
        same = message(b"x")
        same.message_id = "M1"
        meeting.wait()
        try:
            listener(same)
        except DBAPIError as error:
            failed.append(error)

    rivals = [threading.Thread(target=rival) for _ in range(3)]
    for one in rivals:
        one.start()
    for one in rivals:
        one.join()
    assert (effects(engine), failed) == ([1], [])


def test_a_snapshot_of_before_does_not_answer_for_a_rival(engine: Engine) -> None:
    """It is False, or an error that says to repeat the transaction: never True."""
    sessions, answers = sessionmaker(engine), list[bool]()

    def late() -> None:
        with sessions.begin() as session:
            session.execute(text("SELECT count(*) FROM tidewheel_barrier")).all()
            with sessions.begin() as rival, once(rival, "g", "orders/M1") as is_first:
                assert is_first
            with once(session, "g", "orders/M1") as is_first:
                answers.append(is_first)

    try:
        late()
    except DBAPIError as error:
        assert "repeat it" in str(error)  # noqa: PT017 # there may be none
    assert answers in ([], [False])


def test_a_block_and_its_check_back_agree(engine: Engine) -> None:
    barrier = Barrier(sessionmaker(engine))
    with barrier.transaction(Producing(), half()) as session:
        session.execute(text("INSERT INTO effects VALUES (1)"))
        assert barrier.outcome("M1") is Outcome.UNKNOWN
    assert barrier.outcome("M1") is Outcome.COMMITTED
    second = Producing()
    second.ids = ["M2"]
    assert barrier.outcome("M2") is Outcome.ROLLED_BACK
    with pytest.raises(TransactionEnded), barrier.transaction(second, half()):
        pass
    assert effects(engine) == [1]
