"""A leader that should not lead asks the others for one that may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from services.cluster.fitness import CLOCK_OFF, PATH, SECRET, fit_node, has_room, told_by
from sharedlog.holdings import Holding
from tests.kafka_cluster import free_ports
from tests.memory_disk import MemoryDisk

SECRETS = ("first", "second")


@contextmanager
def node_that_says(answer: Any, status: int = 200) -> Iterator[str]:
    """Serve what a node says of its fitness to who knows `SECRETS[0]`; give its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path == PATH and self.headers.get(SECRET) == SECRETS[0]
            self.send_response(status if is_known else 401)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def held(url: str, secret: str = SECRETS[0]) -> Holding:
    return Holding(7, 700, url, secret)


FIT = {"role": "following", "unfit": ""}


def test_the_first_that_follows_and_is_fit_is_named() -> None:
    off, copying = FIT | {"unfit": CLOCK_OFF}, FIT | {"role": "copying"}
    with (
        node_that_says(off) as first,
        node_that_says(copying) as second,
        node_that_says(FIT) as third,
    ):
        holdings = {"a": Holding(0), "b": held(first), "c": held(second), "d": held(third)}
        assert fit_node(holdings, besides="a") == "d"
        assert fit_node(holdings, besides="d") == ""


def test_who_does_not_answer_or_not_so_is_not_named() -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    with (
        node_that_says(b"<html>") as garbled,
        node_that_says(FIT, 503) as away,
        node_that_says(FIT) as good,
    ):
        for url, secret in (
            (nobody, SECRETS[0]), (garbled, SECRETS[0]), (away, SECRETS[0]), (good, SECRETS[1])
        ):  # fmt: skip
            assert told_by(held(url, secret)) == {}
            assert fit_node({"b": held(url, secret)}, besides="a") == ""
        assert told_by(held(good)) == FIT


@pytest.mark.parametrize(
    ("free_bytes", "total_bytes", "is_enough"),
    [(1 << 24, 1 << 26, True), ((1 << 24) - 1, 1 << 26, False), (1 << 24, 1 << 40, False)],
)
def test_room_is_two_segments_and_a_share_of_the_disk(
    free_bytes: int, total_bytes: int, is_enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk()
    monkeypatch.setattr(disk, "usage", lambda: (free_bytes, total_bytes))
    assert has_room(disk, 1 << 23) is is_enough
