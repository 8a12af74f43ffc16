"""Real servers of PostgreSQL and MariaDB where the machine has them; elsewhere their tests are skipped.

A MariaDB is reached by its own URL and by one of MySQL, which is another dialect of SQLAlchemy.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from sqlalchemy import URL, Engine, MetaData, create_engine

from tests.mariadb import MariadbServer, running_mariadb
from tests.postgresql import running_postgresql

with patch.dict(os.environ, HOME=tempfile.mkdtemp(prefix="tidewheel-client-logs-")):
    import rocketmq  # noqa: F401 # opens its log under the HOME of its first import

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--isolation-histories", type=int, default=1, help="of each cell of the table of isolation levels"
    )


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


ASYNC_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "mariadb": "mariadb+asyncmy",
    "mysql": "mysql+asyncmy",
}


@pytest.fixture
def async_url(database: Engine) -> URL:
    """The database's URL for an asynchronous engine. Skips the test where its driver is missing."""
    pytest.importorskip("greenlet")
    driver = ASYNC_DRIVERS[database.dialect.name]
    pytest.importorskip(driver.partition("+")[2])
    return database.url.set(drivername=driver)


@pytest.fixture
def server(database: Engine) -> str:
    """The name of the SQL that the database takes."""
    return database.dialect.name.replace("mysql", "mariadb")


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    with running_mariadb() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "mysql"])
def database(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path') / 'test.db'}"
    elif request.param == "postgresql":
        url = request.getfixturevalue("postgresql_url")
    else:
        url = request.getfixturevalue("mariadb").url.replace("mysql", request.param, 1)
    engine = create_engine(url)
    left = MetaData()
    left.reflect(engine)
    left.drop_all(engine)
    yield engine
    engine.dispose()
