"""A real PostgreSQL server where the machine has one; the tests that need it are skipped elsewhere."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from sqlalchemy import Engine, MetaData, create_engine

from tests.postgresql import running_postgresql

with patch.dict(os.environ, HOME=tempfile.mkdtemp(prefix="tidewheel-client-logs-")):
    import rocketmq  # noqa: F401 # opens its log under the HOME of its first import

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An empty database of either kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path') / 'test.db'}"
    else:
        url = request.getfixturevalue("postgresql_url")
    engine = create_engine(url)
    left = MetaData()
    left.reflect(engine)
    left.drop_all(engine)
    yield engine
    engine.dispose()
