"""Clients of one group with different filters: `test_filters[python-widened]`, the rows of `plays_filters`.

Python's are always played; the others where their programs are built, as in `test_scenarios`. Prints the
figures of each row as JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.libraries import LIBRARIES, PYTHON, require
from tests.clients.plays_filters import FILTERS, Pair, outlive
from tests.clients.process_client import ProcessClient

NO_PUSH = {"rust"}


@pytest.fixture(scope="session", params=["python", *(name for name in LIBRARIES)])
def library(request: pytest.FixtureRequest) -> str:
    """The name of an official client that is built."""
    if request.param != "python":
        require(LIBRARIES[request.param])
    return str(request.param)


@pytest.fixture(scope="session")
def launching(library: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ProcessClient]:
    """Start a client, given an address."""
    home = {"HOME": str(tmp_path_factory.mktemp(library))}
    program = PYTHON if library == "python" else LIBRARIES[library]
    return lambda listen: ProcessClient(program, listen, {**os.environ, **home})


@pytest.fixture(scope="session")
def standing(launching: Callable[[str], ProcessClient], broker: Any) -> Iterator[Pair]:
    """Two clients of the session's broker."""
    pair = Pair(lambda: launching(broker.listen), broker)
    yield pair
    for client in pair.clients:
        client.stop()


@pytest.mark.parametrize("row", FILTERS)
def test_filters(row: str, library: str, standing: Pair, broker: Any) -> None:
    if row == "push" and library in NO_PUSH:
        pytest.skip(f"the client of {library} has no push consumer")
    standing.use(broker)
    try:
        print(json.dumps({"client": library, "row": row} | FILTERS[row](standing)))
    finally:
        standing.close()


def test_filters_outlive_kill_9(
    library: str, launching: Callable[[str], ProcessClient], own_broker: Any
) -> None:
    def kill() -> None:
        own_broker.kill()
        own_broker.start()

    pair = Pair(lambda: launching(own_broker.listen), own_broker)
    try:
        print(json.dumps({"client": library, "row": "restart"} | outlive(pair, kill)))
    finally:
        pair.close()
        for client in pair.clients:
            client.stop()
