"""Transactions of ours on an owner's engine are transactions on any, and leave its connections as they were.

An owner is another user of the same engine: what it was told is written is there, at the level that it chose.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from tidewheel import outbox
from tidewheel.barrier import Barrier, Outcome
from tidewheel.outbox import Counts, Relay
from tidewheel.own_transactions import own_transaction

from .test_outbox import Producing, add, message, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Engine

DRIVER_COMMITS: dict[str, dict[str, Any]] = {
    "sqlite": {"isolation_level": None},
    "postgresql": {"autocommit": True},
    "mariadb": {"autocommit": True},
}
SERIALIZABLE = {
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "mariadb": "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
}
LEVEL = {"postgresql": "SHOW transaction_isolation", "mariadb": "SELECT @@tx_isolation"}


@pytest.fixture
def engine(database: Engine) -> Engine:
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE orders (order_id INTEGER PRIMARY KEY)"))
    Barrier(sessionmaker(database)).create_table()
    outbox.create_table(database)
    return database


@pytest.fixture(params=["driver", "engine", "option", "listener"])
def committing(engine: Engine, server: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine of one connection that commits each statement, by SQLAlchemy's setting or the driver's."""
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 0}
    if request.param == "driver":
        options["connect_args"] = DRIVER_COMMITS[server]
    elif request.param == "engine":
        options["isolation_level"] = "AUTOCOMMIT"
    made = create_engine(engine.url, **options)
    if request.param == "listener":
        event.listen(made, "connect", lambda connection, _: commit_each(server, connection))
    if request.param == "option":
        made = made.execution_options(isolation_level="AUTOCOMMIT")
    yield made
    made.dispose()


def commit_each(server: str, connection: Any) -> None:
    if server == "sqlite":
        connection.isolation_level = None
    elif server == "postgresql":
        connection.autocommit = True
    else:
        connection.autocommit(True)


def use_relay(engine: Engine) -> None:
    with Relay(engine, Producing()) as relay:
        relay.run_once()


def fail(engine: Engine) -> None:
    with suppress(DBAPIError), own_transaction(engine) as connection:
        connection.execute(text("INSERT INTO orders VALUES (7)"))
        connection.execute(text("SELECT no_such_column FROM orders"))


USES: dict[str, Callable[[Engine], object]] = {
    "relay": use_relay,
    "parked": outbox.parked,
    "counts": outbox.counts,
    "replay": lambda engine: outbox.replay(engine, [1]),
    "check-back": lambda engine: Barrier(sessionmaker(engine)).outcome("M1"),
    "failed": fail,
}


def test_what_an_owner_writes_is_there_where_each_statement_commits(
    engine: Engine, committing: Engine
) -> None:
    for number, use in enumerate(USES):
        USES[use](committing)
        with committing.connect() as connection:
            connection.execute(text(f"INSERT INTO orders VALUES ({number})"))
        with engine.connect() as connection:
            found = connection.execute(text("SELECT order_id FROM orders ORDER BY order_id"))
            assert list(found.scalars()) == list(range(number + 1)), use


def test_an_owner_keeps_the_level_of_its_pool(engine: Engine, server: str) -> None:
    if server == "sqlite":
        pytest.skip("SQLite has one level")
    one = create_engine(engine.url, pool_size=1, max_overflow=0)
    event.listen(one, "connect", lambda connection, _: run(connection, SERIALIZABLE[server]))
    for use in USES:
        USES[use](one)
        with one.connect() as connection:
            assert connection.execute(text(LEVEL[server])).scalar_one().lower() == "serializable", use
    one.dispose()


def run(connection: Any, statement: str) -> None:
    connection.cursor().execute(statement)
    connection.commit()


def test_ours_do_not_see_what_may_be_rolled_back(engine: Engine, server: str, tmp_path: Path) -> None:
    """Also where the engine reads uncommitted rows: on SQLite by a shared cache."""
    url: Any = engine.url
    if server == "sqlite":
        url = f"sqlite:///file:{tmp_path}/dirty.db?cache=shared&uri=true"
    dirty = create_engine(url, isolation_level="READ UNCOMMITTED")
    barrier = Barrier(sessionmaker(dirty))
    barrier.create_table()
    with dirty.connect() as kept:
        kept.execute(text("INSERT INTO tidewheel_barrier VALUES ('M1', 'COMMITTED', 1)"))
        assert barrier.outcome("M1") is Outcome.UNKNOWN
        kept.rollback()
        with dirty.connect() as connection:
            if server == "sqlite":
                assert connection.execute(text("PRAGMA read_uncommitted")).scalar_one() == 1
    dirty.dispose()


def test_a_row_that_is_brought_back_is_not_lost_where_each_statement_commits(
    engine: Engine, committing: Engine
) -> None:
    """The process dies between its old row and its new one."""
    add(engine, message(b"1", "a"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE tidewheel_outbox SET retry_ms = -5"))

    def die(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT"):
            raise KeyboardInterrupt

    event.listen(committing, "before_cursor_execute", die)
    with pytest.raises(KeyboardInterrupt):
        outbox.replay(committing, [row.id for row in rows(engine)])
    event.remove(committing, "before_cursor_execute", die)
    assert outbox.counts(engine) == Counts(0, 1, None)
    assert outbox.replay(committing, [row.id for row in rows(engine)]) == 1
    assert outbox.counts(engine).waiting == 1


def test_a_claim_is_made_as_a_whole_where_each_statement_commits(engine: Engine, committing: Engine) -> None:
    """Another relay looks for rows between the look of one and its claim, or before its send."""
    add(engine, *(message(b"%d" % number) for number in range(4)))
    first, second, others = Producing(), Producing(), [1]
    options: dict[str, Any] = {"connect_args": {"timeout": 0}} if engine.dialect.name == "sqlite" else {}
    other = create_engine(engine.url, isolation_level="AUTOCOMMIT", **options)

    def rival(*_: object) -> None:
        with suppress(DBAPIError), Relay(other, second) as relay:  # SQLite: the first one writes
            relay.run_once()

    def at_claim(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE tidewheel_outbox SET claimed_by") and " IN " in statement and others:
            others.pop()
            rival()

    event.listen(committing, "before_cursor_execute", at_claim)
    first.inside = rival
    with Relay(committing, first, batch=4, senders=1) as relay:
        relay.run_once()
    rival()
    other.dispose()
    assert sorted(first.bodies + second.bodies) == [b"%d" % number for number in range(4)]


def test_a_listener_may_read_when_ours_begin(engine: Engine, server: str) -> None:
    """As for row level security; what PostgreSQL reads first settles the level."""
    heard = create_engine(engine.url)
    event.listen(heard, "begin", lambda connection: connection.exec_driver_sql("SELECT 1").all())
    with own_transaction(heard) as connection:
        if server != "sqlite":
            assert connection.execute(text(LEVEL[server])).scalar_one()
        connection.execute(text("INSERT INTO orders VALUES (1)"))
    heard.dispose()


def test_a_connection_that_is_lost_is_an_error_of_sqlalchemys(engine: Engine, server: str) -> None:
    """A check-back is then unknown, and the next one asks by another connection."""
    ends = {
        "postgresql": "SELECT pg_terminate_backend({})",
        "mariadb": "KILL {}",
    }
    ids = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}
    if server == "sqlite":
        pytest.skip("SQLite has no connection that is lost")
    one = create_engine(engine.url, pool_size=1)
    with one.connect() as connection:
        number = connection.execute(text(ids[server])).scalar_one()
    with engine.connect() as connection:
        connection.execute(text(ends[server].format(number)))
    barrier = Barrier(sessionmaker(one))
    assert [barrier.outcome("M1") for _ in range(2)] == [Outcome.UNKNOWN, Outcome.ROLLED_BACK]
    one.dispose()
