"""The barrier on real databases; the producer is a double here, a real one is in the acceptance tests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from rocketmq import Message, TransactionResolution
from rocketmq.v5.exception import IllegalArgumentException
from sqlalchemy import create_engine, event, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import scoped_session, sessionmaker

from tidewheel import barrier as barrier_module
from tidewheel import barrier_table as table_module
from tidewheel.barrier import Barrier, Outcome, barrier_sql, barrier_table
from tidewheel.barrier_halves import BARRIER
from tidewheel.errors import (
    ClientMistake,
    ConfigurationError,
    IllegalTopic,
    RefusedByState,
    TransactionEnded,
    UnknownChoice,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Connection, Engine
    from sqlalchemy.orm import Session

ROLLED_BACK_ROW = {"message_id": "M1", "outcome": "ROLLED_BACK", "created_ms": 1}


class Half:
    """What the official client's Transaction does, written down instead of sent."""

    def __init__(self, ends: list[str], broker_down: bool) -> None:
        self.ends = ends
        self.broker_down = broker_down

    def commit(self) -> None:
        self.finish("COMMIT")

    def rollback(self) -> None:
        self.finish("ROLLBACK")

    def finish(self, resolution: str) -> None:
        if self.broker_down:
            raise ConnectionError("no broker")
        self.ends.append(resolution)


class Producing:
    """A producer whose half messages are M1, M2 and so on."""

    def __init__(self, broker_down: bool = False, sends: int = 9) -> None:
        self.ends: list[str] = []
        self.broker_down = broker_down
        self.ids = [f"M{number}" for number in range(sends, 0, -1)]

    def begin_transaction(self) -> Half:
        return Half(self.ends, self.broker_down)

    def send(self, message: Message, transaction: Half) -> Message:
        if not self.ids:
            raise ConnectionError("no broker")
        message.message_id = self.ids.pop()
        return message


@pytest.fixture
def engine(database: Engine) -> Engine:
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE orders (order_id INTEGER PRIMARY KEY)"))
    return database


@pytest.fixture
def barrier(engine: Engine) -> Barrier:
    made = Barrier(sessionmaker(engine), clock_ms=lambda: 1_000)
    made.create_table()
    return made


def orders(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT order_id FROM orders")).scalars())


def rows(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(barrier_table))]


def insert_and(session: Session, then: Callable[[], object]) -> None:
    session.execute(text("INSERT INTO orders VALUES (7)"))
    then()


def commit_and_lose_the_answer(session: Session) -> None:
    driver_connection = session.connection().connection.driver_connection
    assert driver_connection is not None
    driver_connection.commit()
    raise ConnectionResetError


def asked(barrier: Barrier, message_id: str = "M1") -> Message:
    barrier._refuse_unfit_database()  # which has its name then
    made = message()
    made.add_property(BARRIER, barrier._database)
    made.message_id = message_id
    return made


def message() -> Message:
    made = Message()
    made.topic, made.body = "orders", b"7"
    return made


def test_a_block_that_succeeds_commits_rows_and_message(barrier: Barrier, engine: Engine) -> None:
    producer = Producing()
    with barrier.transaction(producer, message()) as session:
        session.execute(text("INSERT INTO orders VALUES (7)"))
    assert (orders(engine), rows(engine)) == ([7], [("M1", "COMMITTED", 1_000)])
    assert producer.ends == ["COMMIT"]
    assert barrier.check(asked(barrier)) == TransactionResolution.COMMIT


def test_the_row_is_the_first_statement(barrier: Barrier) -> None:
    with barrier.transaction(Producing(), message()) as session:
        inside = session.execute(select(barrier_table.c.message_id)).scalars().all()
    assert inside == ["M1"]


def test_an_exception_rolls_both_back_and_leaves_the_fence(barrier: Barrier, engine: Engine) -> None:
    producer = Producing()
    with pytest.raises(ZeroDivisionError), barrier.transaction(producer, message()) as session:
        insert_and(session, lambda: 1 / 0)
    assert (orders(engine), rows(engine)) == ([], [("M1", "ROLLED_BACK", 1_000)])
    assert producer.ends == ["ROLLBACK"]


def test_a_failing_statement_rolls_both_back(barrier: Barrier, engine: Engine) -> None:
    producer = Producing()
    with pytest.raises(IntegrityError), barrier.transaction(producer, message()) as session:
        insert_and(session, lambda: session.execute(text("INSERT INTO orders VALUES (7)")))
    assert (orders(engine), producer.ends) == ([], ["ROLLBACK"])


def test_a_block_that_comes_behind_the_fence_is_refused(barrier: Barrier, engine: Engine) -> None:
    assert barrier.check(asked(barrier)) == TransactionResolution.ROLLBACK
    producer = Producing()
    with pytest.raises(TransactionEnded, match="M1"), barrier.transaction(producer, message()) as session:
        session.execute(text("INSERT INTO orders VALUES (7)"))
    assert (orders(engine), producer.ends) == ([], ["ROLLBACK"])


def test_a_check_during_the_transaction_is_unknown_and_does_not_wait_for_its_end(
    barrier: Barrier, engine: Engine
) -> None:
    with barrier.transaction(Producing(), message()) as session:
        session.execute(text("INSERT INTO orders VALUES (7)"))
        assert barrier.check(asked(barrier)) == TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
    assert barrier.check(asked(barrier)) == TransactionResolution.COMMIT
    assert orders(engine) == [7]


def test_a_fence_that_waits_for_a_transaction_sees_how_it_ended(
    barrier: Barrier, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "FENCE_LOCK_MS", 60_000)
    answers: list[Outcome] = []
    asking = threading.Thread(target=lambda: answers.append(barrier.outcome("M1")))
    with barrier.transaction(Producing(), message()) as session:
        session.execute(text("INSERT INTO orders VALUES (7)"))
        asking.start()
    asking.join()
    assert answers == [Outcome.COMMITTED]


def test_a_lost_answer_of_the_commit_is_settled_by_the_table(barrier: Barrier, engine: Engine) -> None:
    producer = Producing()
    with pytest.raises(ConnectionResetError), barrier.transaction(producer, message()) as session:
        insert_and(session, lambda: commit_and_lose_the_answer(session))
    assert (orders(engine), producer.ends) == ([7], ["COMMIT"])


def test_a_broker_that_is_gone_after_the_commit_is_not_the_callers_failure(
    barrier: Barrier, engine: Engine
) -> None:
    with barrier.transaction(Producing(broker_down=True), message()) as session:
        session.execute(text("INSERT INTO orders VALUES (7)"))
    assert orders(engine) == [7]
    assert barrier.check(asked(barrier)) == TransactionResolution.COMMIT


@pytest.mark.parametrize(("early_end", "told"), [("commit", "COMMIT"), ("rollback", "ROLLBACK")])
def test_a_block_that_ends_its_session_itself_is_refused(barrier: Barrier, early_end: str, told: str) -> None:
    producer = Producing()
    with pytest.raises(RefusedByState, match="M1"), barrier.transaction(producer, message()) as session:
        getattr(session, early_end)()
    assert producer.ends == [told]


def test_a_database_that_cannot_answer_is_unknown(barrier: Barrier, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE tidewheel_barrier"))
    assert barrier.outcome("M1") is Outcome.UNKNOWN


def test_the_fence_gives_the_connection_its_own_lock_timeout_back(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'orders.db'}", connect_args={"timeout": 7})
    barrier = Barrier(sessionmaker(engine))
    barrier.create_table()
    assert barrier.outcome("M1") is Outcome.ROLLED_BACK
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar_one() == 7_000
    engine.dispose()


def test_forget_deletes_what_is_older(barrier: Barrier, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(insert(barrier_table).values(ROLLED_BACK_ROW))
    barrier.outcome("M2")
    assert barrier.forget(before_ms=1_000) == 1
    assert rows(engine) == [("M2", "ROLLED_BACK", 1_000)]


def test_forget_goes_in_steps(barrier: Barrier, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier_module, "FORGET_ROWS", 2)
    for number in range(5):
        barrier.outcome(f"M{number}")
    assert barrier.forget(before_ms=1_001) == 5


def test_several_messages_stand_together(barrier: Barrier, engine: Engine) -> None:
    producer = Producing()
    with barrier.transaction(producer, message(), message(), message()) as session:
        session.execute(text("INSERT INTO orders VALUES (7)"))
    assert [row[:2] for row in rows(engine)] == [(f"M{number}", "COMMITTED") for number in (1, 2, 3)]
    assert producer.ends == ["COMMIT"] * 3


def test_several_messages_fall_together(barrier: Barrier, engine: Engine) -> None:
    producer = Producing()
    with pytest.raises(ZeroDivisionError), barrier.transaction(producer, message(), message()) as session:
        insert_and(session, lambda: 1 / 0)
    assert (orders(engine), producer.ends) == ([], ["ROLLBACK"] * 2)


def test_a_fence_for_one_of_several_messages_refuses_all(barrier: Barrier, engine: Engine) -> None:
    assert barrier.check(asked(barrier, "M2")) == TransactionResolution.ROLLBACK
    producer = Producing()
    with (
        pytest.raises(TransactionEnded, match="M1, M2, M3"),
        barrier.transaction(producer, message(), message(), message()) as session,
    ):
        session.execute(text("INSERT INTO orders VALUES (7)"))
    assert (orders(engine), producer.ends) == ([], ["ROLLBACK"] * 3)


def test_halves_before_one_that_cannot_be_sent_are_rolled_back(barrier: Barrier, engine: Engine) -> None:
    producer = Producing(sends=1)
    with (
        pytest.raises(ConnectionError),
        barrier.transaction(producer, message(), message()) as session,
    ):
        session.execute(text("INSERT INTO orders VALUES (7)"))
    assert (orders(engine), producer.ends) == ([], ["ROLLBACK"])


def test_one_message_given_twice_is_refused(barrier: Barrier) -> None:
    message = Message()
    with (
        pytest.raises(ClientMistake, match="given twice"),
        barrier.transaction(Producing(), message, message),
    ):
        pass


def test_a_missing_table_is_one_clear_sentence_and_leaves_no_half(engine: Engine) -> None:
    producer = Producing()
    with (
        pytest.raises(ConfigurationError, match=r"no table tidewheel_barrier.*barrier.create_table\(\)"),
        Barrier(sessionmaker(engine)).transaction(producer, message()),
    ):
        pass
    assert len(producer.ids) == 9


def test_a_table_of_an_older_version_is_one_clear_sentence(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE tidewheel_barrier (message_id VARCHAR(128) PRIMARY KEY)"))
    with (
        pytest.raises(ConfigurationError, match="older version, without outcome, created_ms"),
        Barrier(sessionmaker(engine)).transaction(Producing(), message()),
    ):
        pass
    with pytest.raises(ConfigurationError, match=r"older version(?s:.*)create_table"):
        Barrier(sessionmaker(engine)).forget(1)
    with pytest.raises(ConfigurationError, match="older version, without outcome, created_ms"):
        Barrier(sessionmaker(engine)).create_table()


def test_the_plain_sql_makes_the_table(engine: Engine, server: str) -> None:
    with engine.begin() as connection:
        for statement in barrier_sql(server).split(";")[:-1]:
            connection.execute(text(statement))
    assert Barrier(sessionmaker(engine)).outcome("M1") is Outcome.ROLLED_BACK
    with pytest.raises(UnknownChoice, match="oracle"):
        barrier_sql("oracle")


def test_a_session_that_is_in_a_transaction_already_is_refused(barrier: Barrier, engine: Engine) -> None:
    with engine.connect() as connection, connection.begin():
        joined = Barrier(sessionmaker(connection))
        with pytest.raises(RefusedByState, match="already"), joined.transaction(Producing(), message()):
            pass
    shared = scoped_session(sessionmaker(engine))
    shared.execute(text("SELECT 1"))
    scoped = Barrier(shared)  # a mistake that a newcomer makes
    with pytest.raises(RefusedByState, match="already"), scoped.transaction(Producing(), message()):
        pass
    assert shared().in_transaction()
    shared.remove()


def test_an_engine_that_commits_each_statement_is_refused(barrier: Barrier, engine: Engine) -> None:
    eager = Barrier(sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT")))
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"), eager.transaction(Producing(), message()):
        pass


@pytest.mark.parametrize("by", ["connection", "pool"])
def test_a_connection_that_commits_each_statement_is_refused(
    barrier: Barrier, engine: Engine, by: str
) -> None:
    """One that the factory is bound to, or one of a pool of which the first was none."""
    producer = Producing()
    if by == "connection":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            fail_in(Barrier(sessionmaker(connection)), producer)
    else:
        with barrier.transaction(Producing(), message()):
            pass
        producer.ids = ["N1"]
        engine.dispose()
        event.listen(
            engine, "connect", lambda driver, _: engine.dialect.set_isolation_level(driver, "AUTOCOMMIT")
        )
        fail_in(barrier, producer)
    assert (orders(engine), producer.ends) == ([], ["ROLLBACK"])


def fail_in(barrier: Barrier, producer: Producing) -> None:
    with (
        pytest.raises(ConfigurationError, match="AUTOCOMMIT"),
        barrier.transaction(producer, message()) as session,
    ):
        insert_and(session, lambda: 1 / 0)


def test_sqlites_transactions_may_be_begun_by_sqlalchemy(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    barrier = Barrier(sessionmaker(engine))
    barrier.create_table()
    with barrier.transaction(Producing(), message()):
        pass
    assert [row[:2] for row in rows(engine)] == [("M1", "COMMITTED")]
    engine.dispose()


def test_a_barrier_of_another_database_does_not_know(barrier: Barrier, tmp_path: Path) -> None:
    sent = asked(barrier)
    with barrier.transaction(Producing(), sent):
        pass
    engine = create_engine(f"sqlite:///{tmp_path / 'another.db'}")
    another = Barrier(sessionmaker(engine))
    unknown = TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
    assert another.check(sent) == unknown
    another.create_table()
    assert another.check(sent) == unknown
    assert rows(engine) == []
    again = Barrier(sessionmaker(barrier._engine))
    assert again.check(sent) == barrier.check(sent) == TransactionResolution.COMMIT
    engine.dispose()


def test_a_name_that_was_rolled_back_is_not_taken(barrier: Barrier, engine: Engine) -> None:
    """A half would carry a name that no other barrier of the database knows."""
    failures = [ConnectionResetError()]

    def fail(connection: Connection) -> None:
        if failures and connection.execute(text("SELECT count(*) FROM tidewheel_database")).scalar_one():
            driver: Any = connection.connection.driver_connection
            driver.rollback()
            raise failures.pop()

    event.listen(engine, "commit", fail)
    with pytest.raises(ConnectionResetError), barrier.transaction(Producing(), message()):
        pass
    event.remove(engine, "commit", fail)
    sent = message()
    with barrier.transaction(Producing(), sent):
        pass
    assert Barrier(sessionmaker(engine)).check(sent) == TransactionResolution.COMMIT


def test_two_barriers_that_name_a_database_at_once_agree(
    barrier: Barrier, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked for a name before either writes one."""
    looked = threading.Barrier(2)

    def look(connection: Any) -> str | None:
        name = table_module.database_name(connection)
        looked.wait(60)
        return name

    monkeypatch.setattr(barrier_module, "database_name", look)
    barriers = [barrier, Barrier(sessionmaker(create_engine(engine.url)))]
    with ThreadPoolExecutor(2) as threads:
        naming = [threads.submit(one._refuse_unfit_database) for one in barriers]
        assert [one.result(60) for one in naming] == [None, None]
    first, second = (one._database for one in barriers)
    assert first
    assert first == second


def test_a_name_that_is_not_committed_is_not_taken(barrier: Barrier, engine: Engine, server: str) -> None:
    """Also at READ UNCOMMITTED, which shows in MySQL what another transaction has written."""
    if server != "mariadb":
        pytest.skip("others show no such rows")
    dirty = Barrier(sessionmaker(create_engine(engine.url, isolation_level="READ UNCOMMITTED")))
    sent, naming = message(), threading.Thread(target=dirty._refuse_unfit_database)
    with engine.connect() as connection:
        table_module.draw_database_name(connection)
        naming.start()
        naming.join(0.2)  # it waits for the lock
        connection.rollback()
    naming.join()
    with dirty.transaction(Producing(), sent):
        pass
    assert Barrier(sessionmaker(engine)).check(sent) == TransactionResolution.COMMIT


def test_a_half_that_no_barrier_sent_is_left_alone(barrier: Barrier, engine: Engine) -> None:
    sent = message()
    sent.message_id = "M1"
    assert barrier.check(sent) == TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
    assert rows(engine) == []


def test_a_block_that_outlasts_the_brokers_patience_is_rolled_back(barrier: Barrier, engine: Engine) -> None:
    producer, hasty = Producing(), Barrier(sessionmaker(engine), longest_s=0)
    with pytest.raises(RefusedByState, match="so long"), hasty.transaction(producer, message()) as session:
        session.execute(text("INSERT INTO orders VALUES (7)"))
    assert (orders(engine), producer.ends) == ([], ["ROLLBACK"])


def test_a_broker_that_has_ended_the_message_otherwise_is_said_aloud(
    barrier: Barrier, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionRefusedError("TW-161 The transaction has already ended the other way. It expired.")

    monkeypatch.setattr(Half, "finish", refuse)
    with barrier.transaction(Producing(), message()):
        pass
    assert "M1 is COMMITTED in the database, and the broker has ended it otherwise" in caplog.text


def test_what_a_newcomer_gives_by_mistake_is_said_clearly(barrier: Barrier, engine: Engine) -> None:
    class Unchecked(Producing):
        def begin_transaction(self) -> Half:
            raise IllegalArgumentException("Transaction checker should not be null.")

    with (
        pytest.raises(ConfigurationError, match="checker=barrier"),
        barrier.transaction(Unchecked(), message()),
    ):
        pass
    with pytest.raises(IllegalTopic, match="Set message"), barrier.transaction(Producing(), Message()):
        pass
    for no_factory in (engine, sessionmaker(engine)(), lambda: engine):
        with pytest.raises(ClientMistake, match="session factory"):
            Barrier(no_factory)


def test_other_databases_are_refused() -> None:
    class Oracle:
        class dialect:  # noqa: N801 # as SQLAlchemy spells it
            name = "oracle"

    with pytest.raises(UnknownChoice, match="oracle"):
        table_module.lock_timeout_of(Oracle)
