"""`tidewheel doctor client` as its users meet it: a broker that serves, and what can lie between."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.command import tidewheel
from tests.served import serve

SECONDS = 60


class Served(NamedTuple):
    """A broker that tells clients an address at which nobody listens."""

    listen: str
    http: str
    store: Path
    told: str


def free_port() -> int:
    """A port of which nobody knows."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("doctor")
    told = f"127.0.0.1:{free_port()}"
    served = serve(folder, "--advertise", told)
    yield Served(served.listen, served.http, folder / "store", told)
    served.stop()


def examine(endpoint: str, *options: str, code: int) -> dict[str, Any]:
    """The findings by step."""
    done = tidewheel("doctor", "client", endpoint, "--json", *options)
    assert done.returncode == code, done.stdout + done.stderr
    return {one["step"]: one for one in json.loads(done.stdout)}


def test_a_broker_is_fine_up_to_what_it_tells_its_clients(served: Served) -> None:
    certificate = str(served.store / "tls" / "certificate.pem")
    found = examine(served.listen, "--topic", "orders", "--ca", certificate, code=1)
    verdicts = {step: one["verdict"] for step, one in found.items()}
    assert verdicts == {
        "name": "ok", "port": "ok", "plaintext": "ok", "TLS": "ok", "certificate": "ok", "gRPC": "ok",
        "endpoint": "WRONG", "topic": "ok",
    }  # fmt: skip
    assert served.told in found["endpoint"]["seen"]
    assert "--advertise" in found["endpoint"]["advice"]


def test_a_certificate_that_nobody_vouches_for_is_something_to_look_at(served: Served) -> None:
    found = examine(served.listen, code=0)
    assert found["certificate"]["verdict"] == "look"
    assert "--ca" in found["certificate"]["advice"]
    assert "topic" not in found


def test_the_port_of_the_commands_is_told_from_that_of_the_clients(served: Served) -> None:
    found = examine(served.http, code=1)
    assert "HTTP/1" in found["plaintext"]["seen"]
    assert list(found) == ["name", "port", "plaintext"]


def test_a_port_at_which_nobody_listens_ends_the_examination() -> None:
    assert examine(f"127.0.0.1:{free_port()}", code=1)["port"]["advice"].startswith("Start the broker")


def test_a_name_that_means_nothing_ends_the_examination() -> None:
    assert list(examine("nowhere.invalid:8081", code=1)) == ["name"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["here"], "it must be HOST:PORT"),
        (["127.0.0.1:1", "--ca", "nowhere.pem"], "nowhere.pem is no file"),
    ],
)
def test_a_mistake_is_a_sentence(arguments: list[str], sentence: str) -> None:
    done = tidewheel("doctor", "client", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
