"""Clients of one group with different filters: `test_filters[python-widened]`, the rows of `plays_filters`.

Python's are always played; the others where their programs are built, as in `test_scenarios`. Prints the
figures of each row as JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.clients.libraries import LIBRARIES, PYTHON, require, spare_make_test
from tests.clients.play import until
from tests.clients.plays_filters import BLUE, FILTERS, RED, Pair, outlive
from tests.clients.process_client import ProcessClient

NO_PUSH = {"rust"}
SILENT = {
    "go": "the client 5.1.4 connects again when it says its settings, every 5 minutes",
    "rust": "the settings of rocketmq 5.0.0 of crates.io name no subscriptions",
}
RECONNECT_SECONDS = 90
"""Within which a client connects again; Python's waits for its next look at routes."""


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


def test_a_client_that_does_not_receive_keeps_its_filter_after_a_restart(
    library: str, launching: Callable[[str], ProcessClient], own_broker: Any
) -> None:
    """The one that works on what it has got says what it subscribes to when it connects again."""
    spare_make_test()
    if library in SILENT:
        pytest.skip(SILENT[library])
    pair = Pair(lambda: launching(own_broker.listen), own_broker)
    try:
        pair.read(0, RED)
        pair.read(1, BLUE)
        pair.send(RED, BLUE)
        pair.drain()
        pair.stop(1)
        own_broker.kill()
        own_broker.start()
        began_s = time.monotonic()
        until(lambda: [one["clients"] for one in pair.group()["filters"]] == [1, 1], RECONNECT_SECONDS)
        print(json.dumps({"client": library, "row": "busy", "seconds": round(time.monotonic() - began_s, 1)}))
        pair.end()
    finally:
        pair.close()
        for client in pair.clients:
            client.stop()


def test_a_filter_whose_client_never_comes_back_is_forgotten(
    library: str,
    launching: Callable[[str], ProcessClient],
    serving: Callable[..., Generator[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits for it is done, its message group goes on, and the log says so."""
    spare_make_test()
    monkeypatch.setenv("TEST_LIMITS", json.dumps({"FILTER_IDLE_MS": 2_000, "FILTER_CHECK_MS": 100}))
    with closing(serving(tmp_path / "store", program="tests.clients.hurried_broker")) as started:
        broker = next(started)
        pair = Pair(lambda: launching(broker.listen), broker)
        try:
            pair.play.create_topic("FIFO")
            pair.ask(pair.clients[1], BLUE).receive()
            pair.clients.pop().kill()
            pair.read(0, RED)
            pair.send(RED, message_groups=3)
            print(json.dumps({"client": library, "row": "forgotten"} | pair.end()))
            assert [one["expression"] for one in pair.group()["filters"]] == ["red"]
            until(lambda: "has forgotten its filter" in (tmp_path / "store.log").read_text())
        finally:
            pair.close()
            for client in pair.clients:
                client.stop()
