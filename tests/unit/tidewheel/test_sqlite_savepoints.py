"""Savepoints of SQLite on engines that commit each statement: ours refuse them, others keep their rows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session

from tidewheel import idempotence, outbox
from tidewheel.client.values import NewMessage
from tidewheel.errors import ConfigurationError
from tidewheel.idempotence import once

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Engine

BY_DRIVER = [
    {"isolation_level": None},
    pytest.param(
        {"autocommit": True},
        marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has it from Python 3.12 on"),
    ),
]


@pytest.fixture(params=BY_DRIVER)
def committing(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", connect_args=request.param)
    idempotence.create_table(made)
    outbox.create_table(made)
    yield made
    made.dispose()


def add(session: Session) -> None:
    outbox.add(session, NewMessage("orders", "x"))


def guard(session: Session) -> None:
    with once(session, "g", "orders/M1"):
        pass


@pytest.mark.parametrize("use", [add, guard])
def test_a_savepoint_of_an_engine_that_commits_each_statement_is_no_transaction(
    committing: Engine, use: Any
) -> None:
    with Session(committing) as session, session.begin_nested(), session.begin_nested():
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            use(session)
        session.rollback()
    event.listen(committing, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    event.listen(committing, "commit", lambda connection: connection.exec_driver_sql("COMMIT"))
    with Session(committing) as session, session.begin(), session.begin_nested():
        use(session)
    with committing.connect() as connection:
        there = "SELECT (SELECT count(*) FROM tidewheel_consumed) + (SELECT count(*) FROM tidewheel_outbox)"
        assert connection.execute(text(there)).scalar_one() == 1


def test_what_is_written_in_such_a_savepoint_stays(committing: Engine) -> None:
    with Session(committing) as session, session.begin(), session.begin_nested():
        session.execute(text("INSERT INTO tidewheel_consumed VALUES ('g', 'orders/M1', 1)"))
    with committing.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM tidewheel_consumed")).scalar_one() == 1
