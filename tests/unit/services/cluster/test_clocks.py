"""A leader whose clock is off asks the others for one whose clock is good."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

from services.cluster.clocks import PATH, SECRET, node_with_a_good_clock, told_by
from sharedlog.holdings import Holding
from tests.kafka_cluster import free_ports

SECRETS = ("first", "second")


@contextmanager
def node_that_says(answer: Any, status: int = 200) -> Iterator[str]:
    """Serve what a node says of its clock to who knows `SECRETS[0]`; give its URL."""

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


GOOD = {"role": "following", "clock_is_off": False}


def test_the_first_that_follows_by_a_good_clock_is_named() -> None:
    off, copying = GOOD | {"clock_is_off": True}, GOOD | {"role": "copying"}
    with (
        node_that_says(off) as first,
        node_that_says(copying) as second,
        node_that_says(GOOD) as third,
    ):
        holdings = {"a": Holding(0), "b": held(first), "c": held(second), "d": held(third)}
        assert node_with_a_good_clock(holdings, besides="a") == "d"
        assert node_with_a_good_clock(holdings, besides="d") == ""


def test_who_does_not_answer_or_not_so_is_not_named() -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    with (
        node_that_says(b"<html>") as garbled,
        node_that_says(GOOD, 503) as away,
        node_that_says(GOOD) as good,
    ):
        for url, secret in (
            (nobody, SECRETS[0]), (garbled, SECRETS[0]), (away, SECRETS[0]), (good, SECRETS[1])
        ):  # fmt: skip
            assert told_by(url, secret) == {}
            assert node_with_a_good_clock({"b": held(url, secret)}, besides="a") == ""
        assert told_by(good, SECRETS[0]) == GOOD
