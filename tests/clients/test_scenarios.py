"""Every scenario of `scenarios`, played by every official client: `test_scenario[python-FIFO order]`.

Python's is always played; the others where their programs are built, see `libraries`: `make test-clients`
builds them, and plays all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.libraries import LIBRARIES, require
from tests.clients.official import OfficialClient
from tests.clients.play import Play
from tests.clients.process_client import ProcessClient
from tests.clients.python_client import PythonClient
from tests.clients.scenarios import CANNOT, SCENARIOS


@pytest.fixture(scope="session", params=["python", *LIBRARIES])
def started(
    request: pytest.FixtureRequest, broker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OfficialClient]:
    """An official client that plays all its scenarios."""
    client: PythonClient | ProcessClient
    if request.param == "python":
        client = PythonClient(broker.listen)
    else:
        library = LIBRARIES[request.param]
        require(library)
        home = {"HOME": str(tmp_path_factory.mktemp(library.name))}
        client = ProcessClient(library, broker.listen, {**os.environ, **home})
    yield client
    client.stop()


@pytest.fixture
def client(started: OfficialClient) -> Iterator[OfficialClient]:
    """An official client; what a scenario starts with it is shut down after it."""
    yield started
    started.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, client: OfficialClient, broker: Any) -> None:
    if reason := CANNOT.get(client.name, {}).get(name):
        pytest.skip(reason)
    SCENARIOS[name](Play(client, broker))


def test_what_a_client_cannot_do_is_a_scenario() -> None:
    assert {name for reasons in CANNOT.values() for name in reasons} <= SCENARIOS.keys()
