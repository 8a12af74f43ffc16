"""A block of the barrier or the guard whose transaction ends inside it is refused, on each database.

The oracle: a block that ends without an error has all its rows, and its message or the guard's row, and one
that ends with an error is never taken for done while a part of its rows is missing.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy import insert as insert_of
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from tidewheel import idempotence
from tidewheel.barrier import Barrier
from tidewheel.errors import RefusedByState
from tidewheel.idempotence import once

from .test_barrier import Producing, message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session


@pytest.fixture
def engine(database: Engine) -> Engine:
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE orders (order_id INTEGER PRIMARY KEY)"))
        connection.execute(text("INSERT INTO orders VALUES (1)"))
    Barrier(sessionmaker(database)).create_table()
    idempotence.create_table(database)
    return database


def in_barrier(engine: Engine, step: Callable[[Session], object]) -> bool:
    """Run a block of the barrier; return whether its message is committed."""
    producer = Producing()
    with (
        suppress(RefusedByState),
        Barrier(sessionmaker(engine)).transaction(producer, message()) as session,
    ):
        step(session)
    return producer.ends == ["COMMIT"]


def in_guard(engine: Engine, step: Callable[[Session], object]) -> bool:
    """Run a block of the guard; return whether its message is taken for done."""
    sessions = sessionmaker(engine)
    with suppress(RefusedByState), sessions.begin() as session, once(session, "g", "t/1"):
        step(session)
    with sessions.begin() as session, once(session, "g", "t/1") as is_first:
        return not is_first


def half_by_half(step: Callable[[Session], object], session: Session) -> None:
    insert(session, 7)
    step(session)
    insert(session, 8)


def insert(session: Session, number: int) -> None:
    session.execute(text(f"INSERT INTO orders VALUES ({number})"))


def orders(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT order_id FROM orders ORDER BY order_id")).scalars())


def by_driver(name: str) -> Callable[[Session], object]:
    def end(session: Session) -> None:
        driver: Any = session.connection().connection.driver_connection
        getattr(driver, name)()

    return end


def failing(statement: str) -> Callable[[Session], object]:
    def step(session: Session) -> None:
        with suppress(DBAPIError):
            session.execute(text(statement))

    return step


BLOCKS = {"barrier": in_barrier, "guard": in_guard}
ENDS = {
    "COMMIT": lambda session: session.execute(text("COMMIT")),
    "END": lambda session: session.execute(text("/* x */ end")),
    "ROLLBACK": lambda session: session.execute(text("ROLLBACK")),
    "the driver's rollback": by_driver("rollback"),
    "an error that rolls back": failing("INSERT OR ROLLBACK INTO orders VALUES (1)"),
}


ONLY_ON = {"END": ("sqlite", "postgresql"), "an error that rolls back": ("sqlite",)}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_whose_transaction_ends_in_it_is_refused(engine: Engine, server: str, block: str) -> None:
    for end, step in ENDS.items():
        if end in ONLY_ON and server not in ONLY_ON[end]:
            continue
        is_done = BLOCKS[block](engine, partial(half_by_half, step))
        assert (orders(engine), is_done) == ([1], False), end
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM tidewheel_barrier"))
            connection.execute(text("DELETE FROM tidewheel_consumed"))


@pytest.mark.parametrize("block", BLOCKS)
def test_an_error_that_is_swallowed_costs_no_rows_unseen(engine: Engine, server: str, block: str) -> None:
    """PostgreSQL rolls the whole transaction back at its commit, and its driver says nothing."""

    def swallow(session: Session) -> None:
        insert(session, 7)
        with suppress(DBAPIError):
            insert(session, 1)

    is_done = BLOCKS[block](engine, swallow)
    assert (orders(engine), is_done) == (([1], False) if server == "postgresql" else ([1, 7], True))


def test_a_guard_inside_a_savepoint_that_is_rolled_back_in_its_block_is_refused(engine: Engine) -> None:
    """The guard's row would be gone, and what follows would stand, and come again with the next delivery."""

    def guard(session: Session) -> None:
        savepoint = session.begin_nested()
        with once(session, "g", "t/1"):
            half_by_half(lambda _: savepoint.rollback(), session)

    with sessionmaker(engine)() as session:
        with pytest.raises(RefusedByState, match="savepoint around the block"):
            guard(session)
        session.commit()
    assert orders(engine) == [1]


def test_an_error_that_is_swallowed_inside_a_savepoint_costs_no_rows_unseen(
    engine: Engine, server: str
) -> None:
    with (
        pytest.raises(RefusedByState) if server == "postgresql" else nullcontext(),
        sessionmaker(engine).begin() as session,
        session.begin_nested(),
        once(session, "g", "t/1"),
    ):
        insert(session, 7)
        with suppress(DBAPIError):
            insert(session, 1)
    assert orders(engine) == ([1] if server == "postgresql" else [1, 7])


class Model(DeclarativeBase):
    """Rows of another database."""


class Other(Model):
    __tablename__ = "others"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_whose_session_writes_to_another_database_is_refused(
    engine: Engine, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit is another one: the message would be there, and the row lost, or the other way round."""
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    Model.metadata.create_all(other)
    monkeypatch.setitem(globals(), "sessionmaker", partial(sessionmaker, binds={Model: other}))
    assert not BLOCKS[block](engine, lambda session: session.execute(insert_of(Other).values(number=1)))
    with other.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM others")).scalar_one() == 0
    other.dispose()
