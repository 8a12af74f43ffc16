"""What is special about MySQL and MariaDB, on a real MariaDB, by a URL of either."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from tidewheel import NewMessage, idempotence, outbox
from tidewheel.barrier import Barrier, Outcome, barrier_table
from tidewheel.database_errors import ROLLED_BACK, says
from tidewheel.errors import ConfigurationError, RefusedByState, UnknownChoice
from tidewheel.idempotence import async_once, once, once_listener
from tidewheel.mysql_tables import refuse_server_that_waits
from tidewheel.outbox import Relay, Round

from .test_barrier import Producing as HalfProducing
from .test_barrier import message as half
from .test_outbox import Producing, add, message, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import URL, Engine
    from sqlalchemy.orm import Session

    Step = Callable[[Session], object]


@pytest.fixture
def engine(database: Engine) -> Engine:
    if database.dialect.name not in ("mysql", "mariadb"):
        pytest.skip("of MySQL and MariaDB")
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE effects (number INTEGER PRIMARY KEY) ENGINE=InnoDB"))
    Barrier(sessionmaker(database)).create_table()
    outbox.create_table(database)
    idempotence.create_table(database)
    return database


@pytest.fixture
def barrier(engine: Engine) -> Barrier:
    return Barrier(sessionmaker(engine))


def effects(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT number FROM effects ORDER BY number")).scalars())


def insert(session: Session, number: int) -> None:
    session.execute(text("INSERT INTO effects VALUES (:number)"), {"number": number})


def inserting(number: int) -> Step:
    return lambda session: insert(session, number)


def executing(statement: str) -> Step:
    return lambda session: session.execute(text(statement))


def in_transaction(barrier: Barrier, *steps: Step) -> list[str]:
    """Run steps in a block of the barrier that is refused; return the ends of its half."""
    producer = HalfProducing()
    with (
        pytest.raises((RefusedByState, OperationalError)) as raised,
        barrier.transaction(producer, half()) as session,
    ):
        run(session, steps)
    return [*producer.ends, str(raised.value)]


def guarded(engine: Engine, *steps: Step) -> None:
    with sessionmaker(engine).begin() as session, once(session, "g", "orders/M1") as is_first:
        assert is_first
        run(session, steps)


def run(session: Session, steps: tuple[Step, ...]) -> None:
    for step in steps:
        step(session)


def test_a_rival_that_the_snapshot_hides_is_seen(engine: Engine) -> None:
    sessions = sessionmaker(engine)
    with sessions.begin() as session:
        assert session.execute(text("SELECT count(*) FROM effects")).scalar_one() == 0
        with sessions.begin() as rival, once(rival, "g", "orders/M1") as is_first:
            assert is_first
            insert(rival, 1)
        assert session.execute(text("SELECT count(*) FROM effects")).scalar_one() == 0, "its snapshot"
        with once(session, "g", "orders/M1") as is_first:
            assert not is_first


def test_of_two_rivals_that_wait_for_one_that_fails_one_is_the_first(engine: Engine) -> None:
    """InnoDB lets them deadlock; the listener runs the transaction again."""
    sessions, handled = sessionmaker(engine), []

    def handle(session: Session, _: Any) -> None:
        handled.append(1)
        insert(session, len(handled))

    listener = once_listener(sessions, "g", handle)
    rivals = [threading.Thread(target=listener, args=(the_message("M1"),)) for _ in range(4)]
    with sessions() as session, once(session, "g", "orders/M1") as is_first:
        assert is_first
        for rival in rivals:
            rival.start()
        wait_for_waiting(engine, len(rivals))
        session.rollback()
    for rival in rivals:
        rival.join()
    assert (handled, effects(engine)) == ([1], [1])


def the_message(message_id: str) -> Any:
    made = message(b"x")
    made.message_id = message_id
    return made


def wait_for_waiting(engine: Engine, count: int) -> None:
    """Wait until so many transactions wait for a lock."""
    query = text("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        for _ in range(10_000):
            if int(connection.execute(query).one()[1]) == count:
                return
    raise AssertionError("they do not wait")


COMMITTING = [
    "CREATE TABLE others (id INTEGER)",
    "  /* a */ -- b\n alter table effects ADD COLUMN more INTEGER",
    "TRUNCATE effects",
    "COMMIT",
    "START TRANSACTION",
]


@pytest.mark.parametrize("statement", COMMITTING)
def test_a_statement_that_commits_is_refused_in_a_block(
    engine: Engine, barrier: Barrier, statement: str
) -> None:
    end, why = in_transaction(barrier, inserting(1), executing(statement))
    assert end == "ROLLBACK"
    assert "before the block" in why
    with pytest.raises(RefusedByState, match="before the block"):
        guarded(engine, inserting(2), executing(statement))
    assert effects(engine) == []
    scratch = (
        executing("CREATE TEMPORARY TABLE scratch (id INTEGER)"),
        executing("DROP TEMPORARY TABLE scratch"),
    )
    guarded(engine, *scratch, inserting(3))
    assert effects(engine) == [3]


def test_a_statement_that_commits_is_refused_behind_an_inner_block(engine: Engine) -> None:
    def behind(session: Session) -> None:
        with once(session, "g", "orders/M2"):
            pass
        executing(COMMITTING[0])(session)

    with pytest.raises(RefusedByState, match="before the block"):
        guarded(engine, inserting(1), behind)
    guarded(engine, inserting(2))
    assert effects(engine) == [2]


def test_a_statement_that_commits_unseen_is_noticed(engine: Engine, barrier: Barrier) -> None:
    """The message has the end that the table has: what was committed stays together."""
    unseen = executing("EXECUTE IMMEDIATE 'CREATE TABLE others (id INTEGER)'")
    end, why = in_transaction(barrier, inserting(1), unseen, inserting(2))
    assert (effects(engine), end) == ([1], "COMMIT")
    assert "ended inside its block" in why


UNSEEN = [
    "EXECUTE IMMEDIATE 'CREATE TABLE others (id INTEGER)'",
    "EXECUTE IMMEDIATE 'COMMIT'",
    "SET LOCAL autocommit = 1",
    "SET @@LOCAL.autocommit = 1",
    "SET sql_mode = '', autocommit = 1",
    "SET STATEMENT max_statement_time = 10 FOR ALTER TABLE effects COMMENT 'x'",
    "CHECK TABLE effects",
]
"""Statements that commit, and that no list of ours has."""


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("statement", UNSEEN)
def test_a_message_whose_transaction_was_committed_in_the_middle_comes_again(
    engine: Engine, statement: str, fails: bool
) -> None:
    """Half of the effect is there, and the guard's row: taken for done, the other half would be lost."""
    after = executing("SIGNAL SQLSTATE '45000'") if fails else inserting(2)
    with pytest.raises((RefusedByState, OperationalError)):
        guarded(engine, inserting(1), executing(statement), after)
    if fails:
        engine.dispose()  # the user's own statement may have turned the session's autocommit on
    for is_expected in (True, False):
        with sessionmaker(engine).begin() as session, once(session, "g", "orders/M1") as is_first:
            assert is_first is is_expected


@pytest.mark.parametrize("statement", [*COMMITTING, *UNSEEN])
def test_a_transaction_of_the_outbox_that_is_committed_in_the_middle_is_refused(
    engine: Engine, statement: str
) -> None:
    """Else the message is sent, and the owner is told of no half that was lost."""
    with sessionmaker(engine)() as session:
        outbox.add(session, message(b"1"))
        with pytest.raises((RefusedByState, OperationalError)):
            execute_and_commit(session, statement)
        session.rollback()
    assert len(rows(engine)) == (0 if statement in COMMITTING else 1)


def add_in_savepoint(session: Session) -> None:
    with session.begin_nested():
        outbox.add(session, message(b"1"))


def add_in_block(session: Session) -> None:
    with once(session, "g", "orders/M1"):
        outbox.add(session, message(b"1"))


@pytest.mark.parametrize("add", [add_in_savepoint, add_in_block])
@pytest.mark.parametrize("statement", [*COMMITTING, *UNSEEN, "ROLLBACK"])
def test_a_transaction_of_the_outbox_is_watched_behind_a_savepoint_and_a_block(
    engine: Engine, statement: str, add: Step
) -> None:
    with sessionmaker(engine)() as session:
        add(session)
        with pytest.raises((RefusedByState, OperationalError)):
            execute_and_commit(session, statement)
        session.rollback()
    assert len(rows(engine)) == (1 if statement in UNSEEN else 0)


def test_a_block_may_be_committed_in_a_watched_transaction(engine: Engine) -> None:
    with sessionmaker(engine)() as session:
        with once(session, "g", "orders/M1"):
            outbox.add(session, message(b"1"))
            session.commit()
        add_in_savepoint(session)
        with session.begin_nested():
            add_in_block(session)
        session.commit()
    assert len(rows(engine)) == 3


def execute_and_commit(session: Session, statement: str) -> None:
    session.execute(text(statement))
    session.commit()


def test_a_connection_of_the_outbox_may_be_used_again(engine: Engine) -> None:
    """Also for statements that commit, when its transaction has ended."""
    with engine.connect() as connection:
        for end in ("commit", "rollback", "commit"):
            outbox.add(connection, message(b"1"))
            outbox.add(connection, message(b"2"))
            getattr(connection, end)()
            connection.execute(text("ALTER TABLE effects COMMENT 'x'"))
            connection.commit()
    with sessionmaker(engine).begin() as session:
        with session.begin_nested():
            outbox.add(session, message(b"5"))
        outbox.add(session, message(b"6"))
        with session.begin_nested() as savepoint:
            outbox.add(session, message(b"7"))
            savepoint.rollback()
        with once(session, "g", "orders/M1"):
            outbox.add(session, message(b"8"))
    assert [bytes(row.body) for row in rows(engine)] == [b"1", b"2", b"1", b"2", b"5", b"6", b"8"]


def test_one_of_two_that_take_over_such_a_message_is_the_first(engine: Engine) -> None:
    with pytest.raises(RefusedByState):
        guarded(engine, executing(UNSEEN[1]))
    handled: list[int] = []

    def handle(session: Session, _: Any) -> None:
        handled.append(1)
        insert(session, len(handled))

    listener = once_listener(sessionmaker(engine), "g", handle)
    rivals = [threading.Thread(target=listener, args=(the_message("M1"),)) for _ in range(4)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    assert effects(engine) == [len(handled)]


def deadlock(engine: Engine, session: Session) -> None:
    """Let the session's transaction lose a deadlock, and swallow the error as careless code does."""
    with engine.connect() as other:
        other.execute(text("UPDATE effects SET number = number WHERE number = 101"))
        other.execute(text("INSERT INTO effects VALUES (201), (202), (203), (204)"))
        session.execute(text("UPDATE effects SET number = number WHERE number = 104"))
        waiting = threading.Thread(
            target=lambda: other.execute(text("UPDATE effects SET number = number WHERE number = 104"))
        )
        waiting.start()
        wait_for_waiting(engine, 1)
        with pytest.raises(OperationalError) as raised:
            session.execute(text("UPDATE effects SET number = number WHERE number = 101"))
        assert says(raised.value, ROLLED_BACK)
        waiting.join()
        other.rollback()


def test_a_deadlock_that_is_swallowed_is_noticed(engine: Engine, barrier: Barrier) -> None:
    """The server has begun another transaction, whose commit would hold the later half only."""
    with sessionmaker(engine).begin() as session:
        for number in (101, 102, 103, 104):
            insert(session, number)
    lose = partial(deadlock, engine)
    end, why = in_transaction(barrier, lose, inserting(1))
    assert end == "ROLLBACK"
    assert "deadlock" in why
    with pytest.raises(RefusedByState, match="deadlock"):
        guarded(engine, lose, inserting(2))
    assert effects(engine) == [101, 102, 103, 104]


def test_a_deadlock_that_leaves_the_block_says_what_to_do(engine: Engine, barrier: Barrier) -> None:
    fails = executing("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'")
    end, why = in_transaction(barrier, fails)
    assert end == "ROLLBACK"
    assert "repeat it" in why
    with pytest.raises(OperationalError, match=r"repeat it(?s:.*)Deadlock found"):
        guarded(engine, fails)


@pytest.mark.parametrize("by", ["session", "connection"])
def test_a_session_may_be_ended_inside_the_guards_block(engine: Engine, by: str) -> None:
    """Also inside two blocks; both messages are done then."""
    with sessionmaker(engine)() as session, once(session, "g", "orders/M1"), once(session, "g", "orders/M2"):
        insert(session, 1)
        session.commit() if by == "session" else session.connection().commit()
    assert effects(engine) == [1]
    for identity in ("orders/M1", "orders/M2"):
        with sessionmaker(engine).begin() as session, once(session, "g", identity) as is_first:
            assert not is_first


def test_an_asynchronous_session_may_be_ended_inside_the_guards_block(engine: Engine, async_url: URL) -> None:
    sessions, first = async_sessionmaker(create_async_engine(async_url, poolclass=NullPool)), list[bool]()

    async def run() -> None:
        async with sessions() as session, async_once(session, "g", "orders/M1") as is_first:
            first.append(is_first)
            await session.commit()

    for _ in range(2):
        asyncio.run(run())
    assert first == [True, False]


def test_the_asynchronous_blocks_notice_the_same(engine: Engine, async_url: URL) -> None:
    other = create_async_engine(async_url, poolclass=NullPool)
    sessions = async_sessionmaker(other)
    producer = HalfProducing()

    async def commit(barrier: Barrier) -> None:
        async with barrier.async_transaction(producer, half()) as session:
            await session.execute(text("INSERT INTO effects VALUES (1)"))
            await session.execute(text("TRUNCATE effects"))

    async def roll_back() -> None:
        async with sessions.begin() as session, async_once(session, "g", "orders/M1"):
            await session.execute(text("EXECUTE IMMEDIATE 'ROLLBACK'"))
            await session.execute(text("INSERT INTO effects VALUES (2)"))

    with pytest.raises(RefusedByState, match="before the block"):
        asyncio.run(commit(Barrier(sessionmaker(engine), sessions)))
    with pytest.raises(RefusedByState, match="ended inside its block"):
        asyncio.run(roll_back())
    assert (effects(engine), producer.ends) == ([], ["ROLLBACK"])


def test_the_fence_gives_the_session_its_own_lock_timeout_back(engine: Engine) -> None:
    patient = create_engine(
        engine.url, connect_args={"init_command": "SET SESSION innodb_lock_wait_timeout = 33"}, pool_size=1
    )
    assert Barrier(sessionmaker(patient)).outcome("M1") is Outcome.ROLLED_BACK
    with patient.connect() as connection:
        assert connection.execute(text("SELECT @@innodb_lock_wait_timeout")).scalar_one() == 33
    patient.dispose()


MAKERS: dict[str, Callable[[Engine], object]] = {
    "tidewheel_barrier": lambda engine: Barrier(sessionmaker(engine))._refuse_unfit_database(),
    "tidewheel_outbox": lambda engine: add(engine, message(b"x")),
    "tidewheel_consumed": lambda engine: once_listener(sessionmaker(engine), "g", lambda *_: 0)(
        the_message("M1")
    ),
}


LAX = "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
SHORT = {"tidewheel_outbox": "DROP INDEX tidewheel_outbox_turn, ", "tidewheel_consumed": "DROP PRIMARY KEY, "}
"""MyISAM has shorter keys."""
LEAVING = "tidewheel_outbox", "tidewheel_consumed"
"""Tables into which a refused call would have inserted."""


@pytest.mark.parametrize("table", MAKERS)
@pytest.mark.parametrize("change", ["ENGINE=MyISAM", LAX])
def test_a_table_without_transactions_or_with_a_lax_collation_is_refused(
    engine: Engine, table: str, change: str
) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(f"ALTER TABLE {table} {SHORT.get(table, '') if change != LAX else ''}{change}")
        )
    with pytest.raises(ConfigurationError, match=f"(?s){table}.*ALTER TABLE"):
        MAKERS[table](engine)
    if change != LAX and table in LEAVING:
        with engine.connect() as connection:
            count = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
        assert count == 0, "a row that cannot be rolled back"


def test_a_relay_refuses_a_table_without_transactions(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("ALTER TABLE tidewheel_outbox DROP INDEX tidewheel_outbox_turn, ENGINE=MyISAM")
        )
    with pytest.raises(ConfigurationError, match="ENGINE=InnoDB"):
        Relay(engine, Producing())


@pytest.mark.parametrize("charset", ["utf8", "latin1"])
def test_a_relay_refuses_a_connection_that_loses_letters(engine: Engine, charset: str) -> None:
    """The server would hand it a turtle as "?": it would not find the key again, and send another tag."""
    lossy = create_engine(engine.url.update_query_dict({"charset": charset}))
    with pytest.raises(ConfigurationError, match="charset=utf8mb4"):
        Relay(lossy, Producing())
    lossy.dispose()


def test_a_large_message_comes_whole(engine: Engine) -> None:
    large = b"\xff" * (4 * 1024 * 1024)
    with sessionmaker(engine).begin() as session:
        outbox.add(session, NewMessage("orders", large, properties={"a": "ü" * 8_000}, group="🐢" * 15))
    producer = Producing()
    with Relay(engine, producer) as sending:
        assert sending.run_once() == Round(1, 0)
    [sent] = producer.sent
    assert (sent.body, sent.properties["a"], sent.message_group) == (large, "ü" * 8_000, "🐢" * 15)


def test_a_relay_does_not_hold_up_who_adds(engine: Engine) -> None:
    add(engine, message(b"1", "a"))
    hasty = create_engine(
        engine.url, connect_args={"init_command": "SET SESSION innodb_lock_wait_timeout = 1"}
    )
    producer = Producing()

    def add_more(_: object) -> None:
        producer.inside = lambda _: None
        add(hasty, message(b"2", "a"), message(b"3", "b"), message(b"4"))

    producer.inside = add_more
    with Relay(engine, producer) as sending:
        assert sending.run_once() == Round(1, 0)
        assert sending.run_once() == Round(3, 0)
    hasty.dispose()


def test_marks_that_a_deadlock_undid_are_made_again(engine: Engine) -> None:
    add(engine, *(message(b"%d" % number) for number in range(3)))
    failures = [1213, 1205]

    def fail(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: object) -> tuple[str, Any]:
        if statement.startswith("UPDATE tidewheel_outbox SET sent_ms") and failures:
            return "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = %s", (failures.pop(),)
        return statement, parameters

    event.listen(engine, "before_cursor_execute", fail, retval=True)
    producer = Producing()
    with Relay(engine, producer) as sending:
        assert sending.run_once() == Round(3, 0)
        assert sending.run_once() == Round(0, 0)
    assert failures == []
    assert len(producer.sent) == 3


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_forget_waits_for_no_open_transaction(engine: Engine, barrier: Barrier, level: Any) -> None:
    """A row of the guard's is the first of its index while its transaction is open."""
    impatient = create_engine(
        engine.url,
        connect_args={"init_command": "SET SESSION innodb_lock_wait_timeout = 1"},
        isolation_level=level,
    )
    guarded(engine)
    for number in range(20):
        assert barrier.outcome(f"M{number}") is Outcome.ROLLED_BACK
    ends_ms = idempotence.wall_clock_ms() + 1
    later = Barrier(sessionmaker(engine), clock_ms=lambda: ends_ms + 5_000)
    later_ids = HalfProducing()
    later_ids.ids = ["M05"]
    with later.transaction(later_ids, half()):
        assert Barrier(sessionmaker(impatient)).forget(ends_ms) == 20
    with sessionmaker(engine).begin() as session, once(session, "g", "orders/M2"):
        assert idempotence.forget(impatient, ends_ms) == 1
    with engine.connect() as connection:
        assert list(connection.execute(select(barrier_table.c.message_id)).scalars()) == ["M05"]
    impatient.dispose()


@pytest.mark.parametrize("version", ["10.5.29-MariaDB", "5.5.5-10.3.1-MariaDB-log", "8.0.0", "5.7.44-log"])
def test_a_server_that_cannot_skip_a_lock_is_refused(version: str) -> None:
    with pytest.raises(UnknownChoice, match=f"SKIP LOCKED.*{version}"):
        refuse_server_that_waits(Telling(version))
    for newer in ("10.6.0-MariaDB", "5.5.5-10.11.19-MariaDB-0+deb12u1", "8.0.1", "8.4.2-log", "9.1.0"):
        refuse_server_that_waits(Telling(newer))


class Telling:
    """A connection to a server of some version."""

    def __init__(self, version: str) -> None:
        self.scalar_one = lambda: version

    def execute(self, _: object) -> Telling:
        return self


def test_a_row_keeps_its_order_by_a_key_of_any_length(engine: Engine) -> None:
    for key in ("🐢" * 640, "🐢" * 4_000):
        with sessionmaker(engine).begin() as session:
            outbox.add(session, message(b"1"), key)
            outbox.add(session, message(b"2"), key)
    order_keys = [row.order_key for row in rows(engine)]
    assert order_keys[0] == order_keys[1] == "🐢" * 640
    assert order_keys[2] == order_keys[3]
