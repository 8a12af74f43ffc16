"""Every scenario of `scenarios`, played by every official client: `test_scenario[python-FIFO order]`.

Node's are played by `make test-clients`, which installs npm's client; `make test` plays Python's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.node_client import NodeClient
from tests.clients.official import OfficialClient
from tests.clients.play import Play
from tests.clients.python_client import PythonClient
from tests.clients.scenarios import CANNOT, SCENARIOS


@pytest.fixture(scope="session")
def python_client(broker: Any) -> Iterator[OfficialClient]:
    client = PythonClient(broker.listen)
    yield client
    client.stop()


@pytest.fixture(scope="session")
def node_client(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfficialClient]:
    if not os.environ.get("TIDEWHEEL_NPM_CI"):
        pytest.skip("npm's client is played by make test-clients")
    client = NodeClient(broker.listen, {**os.environ, "HOME": str(tmp_path_factory.mktemp("node"))})
    yield client
    client.stop()


@pytest.fixture(params=["python", "node"])
def client(request: pytest.FixtureRequest) -> Iterator[OfficialClient]:
    """An official client; what a scenario starts with it is shut down after it."""
    client: OfficialClient = request.getfixturevalue(f"{request.param}_client")
    yield client
    client.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, client: OfficialClient, broker: Any) -> None:
    if reason := CANNOT.get(client.name, {}).get(name):
        pytest.skip(reason)
    SCENARIOS[name](Play(client, broker))


def test_what_a_client_cannot_do_is_a_scenario() -> None:
    assert {name for reasons in CANNOT.values() for name in reasons} <= SCENARIOS.keys()
