"""What two relays, and transactions of the user's, do to each other's rows where rows are locked.

No relay may send what another has in hand. So what one has in hand must stay locked until it is marked: marks
that are a deadlock's victim lose the locks after the sends.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import sessionmaker

from tidewheel import outbox, outbox_claims
from tidewheel.database_errors import LOCK_TIMED_OUT, ROLLED_BACK, says
from tidewheel.outbox import Relay, Round

from .test_outbox import Producing, add, message, once_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine import ExceptionContext


@pytest.fixture
def engine(database: Engine) -> Engine:
    if database.dialect.name == "sqlite":
        pytest.skip("SQLite locks no rows: its claims are tested in test_outbox")
    outbox.create_table(database)
    return database


HASTY = {
    "postgresql": {"options": "-c lock_timeout=1s"},
    "mysql": {"init_command": "SET SESSION innodb_lock_wait_timeout = 1"},
}
HASTY["mariadb"] = HASTY["mysql"]
HOLD_INDEX = (
    "SELECT id FROM tidewheel_outbox FORCE INDEX (tidewheel_outbox_sent) WHERE sent_ms IS NULL "
    "FOR UPDATE SKIP LOCKED"
)
"""Rows that are locked are skipped, and their entries of the index locked."""
INDEXES = ("PRIMARY", "tidewheel_outbox_sent", "tidewheel_outbox_turn")


def free_ids(engine: Engine, index: str) -> list[int]:
    """Return the unsent rows that a search of the user's by an index can lock now."""
    by = "" if engine.dialect.name == "postgresql" else f"FORCE INDEX ({index})"
    query = f"SELECT id FROM tidewheel_outbox {by} WHERE sent_ms IS NULL FOR UPDATE SKIP LOCKED"
    with engine.connect() as connection:
        return sorted(connection.execute(text(query)).scalars())


@pytest.mark.parametrize(("batch", "in_hand"), [(2, [3, 4]), (5, [3, 4, 5, 6, 7]), (100, [*range(3, 12)])])
def test_a_relay_locks_what_it_has_in_hand_and_nothing_else(
    engine: Engine, batch: int, in_hand: list[int]
) -> None:
    add(engine, message(b"parked"), message(b"paused", "p"))
    add(engine, *(message(b"%d" % number, f"k{number % 3}") for number in range(9)), message(b"p2", "p"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE tidewheel_outbox SET retry_ms = -1 WHERE id = 1"))
        connection.execute(text("UPDATE tidewheel_outbox SET retry_ms = 10000 WHERE id = 2"))
    producer, free = Producing(), dict[str, list[int]]()
    producer.inside = once_only(lambda: free.update({index: free_ids(engine, index) for index in INDEXES}))
    with Relay(engine, producer, batch=batch, clock_ms=lambda: 5_000) as sending:
        assert sending.run_once() == Round(len(in_hand), 0)
    assert free == dict.fromkeys(INDEXES, sorted({*range(1, 13)} - {*in_hand}))


def test_rows_in_hand_are_sent_once_when_a_transaction_wants_them(engine: Engine) -> None:
    """It would delete two rows of a key, the later one first; it holds so much that a relay is the victim."""
    add(engine, message(b"a1", "a"), message(b"a2", "a"))
    producer, user = Producing(), engine.connect()
    ends = threading.Thread(target=lambda: end_by_deleting(user, 1))

    def want() -> None:
        if engine.dialect.name == "postgresql":
            user.execute(text("SET deadlock_timeout = '10min'"))
        try:
            user.execute(text("SELECT id FROM tidewheel_outbox WHERE id = 2 FOR UPDATE NOWAIT"))
        except OperationalError:
            return
        for number in range(50):
            user.execute(outbox.adding(message(b"never %d" % number)))
        ends.start()

    producer.inside = once_only(want)
    with relays(engine, producer, ends.join) as (sending, other):
        assert sending.run_once() == Round(2, 0)
        user.close()
        assert other.run_once() == Round(0, 0)
    assert producer.bodies == [b"a1", b"a2"]


@contextmanager
def relays(engine: Engine, producer: Producing, wait: Callable[[], object]) -> Iterator[tuple[Relay, Relay]]:
    """Give two relays; when the first is a deadlock's victim, the second sends before the first goes on."""
    with Relay(engine, producer) as other:

        def send_by_other() -> None:
            wait()
            other.run_once()

        with at_each_deadlock(engine, send_by_other) as ours, Relay(ours, producer) as sending:
            yield sending, other


@contextmanager
def at_each_deadlock(engine: Engine, step: Callable[[], object]) -> Iterator[Engine]:
    """Give an engine of the same database that carries out a step when it is a deadlock's victim."""
    ours = create_engine(engine.url)

    @event.listens_for(ours, "handle_error")
    def carry_out(context: ExceptionContext) -> None:
        assert isinstance(context.sqlalchemy_exception, DBAPIError)
        assert says(context.sqlalchemy_exception, ROLLED_BACK)
        step()

    yield ours
    ours.dispose()


def end_by_deleting(user: Connection, row_id: int) -> None:
    """Delete a row in a transaction, which is rolled back at its end."""
    user.execute(text("DELETE FROM tidewheel_outbox WHERE id = :id"), {"id": row_id})
    user.rollback()


def test_relays_that_a_transaction_held_up_in_part_send_each_row_once(engine: Engine) -> None:
    """It holds the first row of one key and the second of another, until the first relay has taken rows.

    With so many rows that are sent, MariaDB searches those that are not by an index of theirs.
    """
    add(engine, *(message(b"%d" % number) for number in range(100)))
    with Relay(engine, Producing()) as sending:
        sending.run_once()
    add(engine, message(b"a1", "a"), message(b"a2", "a"), message(b"b1", "b"), message(b"b2", "b"))
    producer, others, both = Producing(), Producing(), threading.Barrier(2, timeout=60)
    with (
        engine.connect() as user,
        Relay(engine, producer) as third,
        at_each_deadlock(engine, third.run_once) as ours,
        Relay(ours, producer) as first,
        Relay(ours, others) as second,
    ):
        for row_id in (101, 104):
            user.execute(
                text("DELETE FROM tidewheel_outbox WHERE sent_ms IS NULL AND id = :id"), {"id": row_id}
            )
        running = threading.Thread(target=second.run_once)

        def let_second_take() -> None:
            user.rollback()
            running.start()
            both.wait()

        producer.inside, others.inside = once_only(let_second_take), once_only(both.wait)
        assert first.run_once().sent
        running.join()
        third.run_once()
    assert sorted(producer.bodies + others.bodies) == [b"a1", b"a2", b"b1", b"b2"]


def test_a_row_that_was_added_first_and_committed_later_lets_no_relay_take_what_is_in_hand(
    engine: Engine,
) -> None:
    first, second, hasty = (
        Producing(),
        Producing(),
        create_engine(engine.url, connect_args=HASTY[engine.name]),
    )
    with sessionmaker(engine)() as session, Relay(hasty, second) as other, Relay(engine, first) as sending:
        outbox.add(session, message(b"slow", "a"))
        add(engine, message(b"quick", "a"), message(b"next", "a"))

        def commit_and_send() -> None:
            session.commit()
            assert other.run_once() == Round(1, 0)

        first.inside = once_only(commit_and_send)
        assert sending.run_once() == Round(2, 0)
        assert other.run_once() == Round(0, 0)
    hasty.dispose()
    assert (first.bodies, second.bodies) == ([b"quick", b"next"], [b"slow"])


def test_a_row_that_is_committed_behind_the_page_that_was_read_is_sent_before_later_ones(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_claims, "LOOKED_AT_ONCE", 2)
    producer, ours = Producing(), create_engine(engine.url)
    with sessionmaker(engine)() as session, Relay(ours, producer, senders=1) as sending:
        outbox.add(session, message(b"a1", "a"))
        add(engine, message(b"z1", "z"), message(b"z2", "z"))

        def commit_and_add() -> None:
            session.commit()
            add(engine, message(b"a2", "a"))

        step = once_only(commit_and_add)

        @event.listens_for(ours, "after_cursor_execute")
        def go_on(_connection: Any, _cursor: Any, statement: str, *_: object) -> None:
            if "FOR UPDATE" in statement:
                step(None)

        assert sending.run_once() == Round(4, 0)
    ours.dispose()
    assert producer.bodies == [b"a1", b"a2", b"z1", b"z2"]


def test_a_row_that_a_transaction_holds_holds_back_what_is_behind_it(engine: Engine) -> None:
    add(
        engine,
        *(message(b"%s%d" % (key, number), key.decode()) for number in range(3) for key in (b"a", b"b")),
    )
    producer, hasty = Producing(), create_engine(engine.url, connect_args=HASTY[engine.name])
    with Relay(hasty, producer) as sending:
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM tidewheel_outbox WHERE id = 3"))
            assert sending.run_once() == Round(4, 0)
        assert sending.run_once() == Round(1, 0)
    hasty.dispose()
    assert sorted(producer.bodies) == [b"a0", b"a2", b"b0", b"b1", b"b2"]
    assert producer.bodies[-1] == b"a2"


def test_a_row_in_hand_can_be_wanted_back_without_harm(engine: Engine) -> None:
    """It is not parked, so nothing is brought back; it is only waited for."""
    add(engine, message(b"1", "a"))
    producer, brought = Producing(), list[int | DBAPIError]()

    def bring_back() -> None:
        try:
            brought.append(outbox.replay(engine, [1]))
        except DBAPIError as error:
            brought.append(error)

    asking = threading.Thread(target=bring_back)

    def ask() -> None:
        asking.start()
        await_waiting(engine, asking)

    producer.inside = once_only(ask)
    with relays(engine, producer, asking.join) as (sending, other):
        assert sending.run_once() == Round(1, 0)
        asking.join()
        assert other.run_once() == Round(0, 0)
    assert (brought, producer.bodies) == ([0], [b"1"])


def test_marks_are_made_again_in_a_new_transaction_where_a_deadlock_ended_the_first(engine: Engine) -> None:
    if engine.dialect.name == "postgresql":
        pytest.skip("on PostgreSQL a deadlock is undone to the savepoint, and the transaction goes on")
    add(engine, message(b"1", "a"), message(b"2", "a"))
    producer, user = Producing(), engine.connect()
    ends = threading.Thread(target=lambda: end_by_deleting(user, 1))
    ours, undone = create_engine(engine.url), list[bool]()

    def hold_and_want() -> None:
        user.execute(text(HOLD_INDEX))
        for number in range(50):
            user.execute(outbox.adding(message(b"never %d" % number)))
        ends.start()

    @event.listens_for(ours, "handle_error")
    def write_down(context: ExceptionContext) -> None:
        assert isinstance(context.sqlalchemy_exception, DBAPIError)
        undone.append(says(context.sqlalchemy_exception, ROLLED_BACK))

    producer.inside = once_only(hold_and_want)
    with Relay(ours, producer) as sending:
        assert sending.run_once() == Round(2, 0)
        assert sending.run_once() == Round(0, 0)
    ends.join()
    user.close()
    ours.dispose()
    assert undone[:1] == [True]
    assert producer.bodies == [b"1", b"2"]


def test_marks_that_wait_too_long_for_a_lock_keep_what_is_in_hand(engine: Engine) -> None:
    """It is a lock on the table in PostgreSQL, and one in an index of it in MariaDB."""
    add(engine, message(b"1", "a"), message(b"2", "a"))
    producer, user, waited = Producing(), engine.connect(), list[DBAPIError]()
    hasty = create_engine(engine.url, connect_args=HASTY[engine.name])

    def hold() -> None:
        if engine.dialect.name == "postgresql":
            user.execute(text("LOCK TABLE tidewheel_outbox IN SHARE MODE"))
        else:
            user.execute(text(HOLD_INDEX))

    producer.inside = once_only(hold)
    with Relay(engine, producer) as other, Relay(hasty, producer) as sending:

        @event.listens_for(hasty, "handle_error")
        def let_go(context: ExceptionContext) -> None:
            assert isinstance(context.sqlalchemy_exception, DBAPIError)
            assert says(context.sqlalchemy_exception, LOCK_TIMED_OUT)
            user.close()
            waited.append(context.sqlalchemy_exception)

        @event.listens_for(hasty, "before_cursor_execute")
        def send_by_other(_connection: Any, _cursor: Any, statement: str, *_: object) -> None:
            if waited and statement.startswith("UPDATE"):
                assert other.run_once() == Round(0, 0)

        assert sending.run_once() == Round(2, 0)
        assert other.run_once() == Round(0, 0)
    hasty.dispose()
    assert (len(waited), producer.bodies) == (1, [b"1", b"2"])


def await_waiting(engine: Engine, thread: threading.Thread) -> None:
    """Wait until a transaction waits for a lock, or the thread is over."""
    with engine.connect() as connection:
        while thread.is_alive() and not is_any_waiting(connection):
            connection.rollback()


def is_any_waiting(connection: Connection) -> bool:
    """Return whether some transaction waits for a lock."""
    if connection.dialect.name == "postgresql":
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return connection.execute(text(waiting)).first() is not None
    return "LOCK WAIT" in str(connection.execute(text("SHOW ENGINE INNODB STATUS")).one()[2])
