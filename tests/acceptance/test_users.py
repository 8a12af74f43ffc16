"""Users over HTTP as an operator makes them, with real processes: alone, killed, and in a cluster."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.command import tidewheel
from tests.endurance.conftest import BrokerProcess
from tests.postgresql import running_postgresql

SECONDS = 30


class Operator:
    """An administrator at the command line of a broker."""

    def __init__(self, broker: BrokerProcess, token: Path) -> None:
        self.broker, self.token = broker, token

    def run(self, *words: object) -> str:
        """Run a command, which must succeed; return what it prints."""
        told = {"TIDEWHEEL_HTTP": self.broker.http, "TIDEWHEEL_HTTP_TOKEN": str(self.token)}
        done = tidewheel(*words, environment=told)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def user(self, name: str) -> tuple[str, str]:
        """Add a user that sends to and receives from topic t; return a token of it, and the token's id."""
        self.run("auth", "user", "add", name)
        self.run("auth", "acl", "allow", name, "send", "receive", "--topic", "t", "--group", "g")
        made = json.loads(self.run("auth", "token", "add", name, "--json"))
        return made["token"], made["id"]


def call(broker: BrokerProcess, token: str, path: str, body: object = None) -> tuple[int, Any]:
    """Call a broker by a token; return the status and what is said."""
    calling = http.client.HTTPConnection(broker.http, timeout=SECONDS)
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    try:
        calling.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
        answer = calling.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        calling.close()


def send(broker: BrokerProcess, token: str) -> tuple[int, Any]:
    return call(broker, token, "/api/messages", {"topic": "t", "body": "x"})


def polls(operator: Operator) -> int:
    """How many receives are open."""
    calling = http.client.HTTPConnection(operator.broker.http, timeout=SECONDS)
    calling.request(
        "GET", "/metrics", headers={"authorization": f"Bearer {operator.token.read_text().strip()}"}
    )
    scraped = calling.getresponse().read().decode()
    calling.close()
    [line] = [one for one in scraped.splitlines() if "http_polls{" in one and 'kind="receive"' in one]
    return int(float(line.split()[-1]))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    token = tmp_path / "token"
    one = BrokerProcess(
        tmp_path / "store", "--segment-bytes", str(8 << 20), "--auth", "--http-token", str(token)
    )
    one.start()
    yield Operator(one, token)
    assert one.process is not None
    if one.process.poll() is None:
        assert one.stop() == 0, one.log()[-3_000:]


def test_tokens_and_their_ends_outlive_a_broker_that_is_killed(operator: Operator) -> None:
    broker = operator.broker
    kept, _ = operator.user("orders")
    gone, token_id = operator.user("carts")
    assert send(broker, kept)[0] == send(broker, gone)[0] == 201
    operator.run("auth", "token", "revoke", token_id)
    broker.kill()
    assert kept.encode() not in b"".join(
        one.read_bytes() for one in broker.store.rglob("*") if one.is_file()
    ), "a store holds a token"
    broker.start()
    assert send(broker, kept)[0] == 201
    status, said = send(broker, gone)
    assert (status, said["code"]) == (401, "TW-181")
    status, said = call(broker, kept, "/api/auth/users")
    assert (status, said["code"]) == (403, "TW-182")
    assert "tidewheel auth acl allow orders admin --topic '*' --group '*'" in said["message"]
    assert kept not in broker.log()


@pytest.mark.parametrize("how", ["revoke", "remove"])
def test_open_polls_of_a_revoked_token_end_and_those_of_others_go_on(operator: Operator, how: str) -> None:
    mine, token_id = operator.user("orders")
    others, _ = operator.user("carts")
    with ThreadPoolExecutor(8) as callers:
        body = {"topic": "t", "wait": "20s"}
        path = "/api/groups/g/receive"
        ended = [callers.submit(call, operator.broker, mine, path, body) for _ in range(4)]
        going_on = callers.submit(call, operator.broker, others, path, body)
        until(lambda: polls(operator) == 5)
        verb = ("token", "revoke", token_id) if how == "revoke" else ("user", "remove", "orders")
        operator.run("auth", *verb)
        for one in ended:
            status, said = one.result()
            assert (status, said["code"]) == (401, "TW-181")
            assert "was revoked" in said["message"]
        assert send(operator.broker, others)[0] == 201
        status, said = going_on.result()
        assert (status, len(said["messages"])) == (200, 1)


def test_headers_that_are_too_long_are_refused_and_the_broker_goes_on(operator: Operator) -> None:
    token, _ = operator.user("orders")
    host, _, port = operator.broker.http.rpartition(":")
    for size in (1_000, 60_000, 1 << 20):
        with socket.create_connection((host, int(port)), timeout=SECONDS) as calling:
            head = (
                f"GET /api/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {'x' * size}\r\n\r\n"
            )
            try:
                calling.sendall(head.encode())
                answer = calling.recv(1 << 16)
            except ConnectionError:  # it has read enough
                continue
            assert answer[9:12] in (b"401", b"400", b"431"), answer[:200]
    assert send(operator.broker, token)[0] == 201


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Operator]]:
    token, key = tmp_path / "token", tmp_path / "key"
    with running_postgresql(syncs=True) as found:
        url = f"{found.replace('postgresql+psycopg', 'postgresql')}&log={tmp_path.name}"
        assert tidewheel("cluster", "create", url, "--segment-bytes", 8 << 20).returncode == 0
        asks = ("--auth", "--auth-key", str(key), "--http-token", str(token))
        both = [
            BrokerProcess(tmp_path / name, "--cluster", url, "--node", name, *asks) for name in ("a", "b")
        ]
        for node in both:
            node.start()
        yield [Operator(node, token) for node in both]
        for node in both:
            assert node.process is not None
            if node.process.poll() is None:
                assert node.stop() == 0, node.log()[-3_000:]


def test_all_nodes_know_a_token_and_one_that_follows_adds_no_right(nodes: list[Operator]) -> None:
    def role(one: Operator) -> Any:
        return call(one.broker, one.token.read_text().strip(), "/api/cluster")[1].get("role")

    until(lambda: {role(one) for one in nodes} == {"leading", "following"})
    leader, follower = sorted(nodes, key=role, reverse=True)
    token, token_id = follower.user("orders")
    for one in nodes:
        until(lambda one=one: call(one.broker, token, "/api/cluster")[0] == 403)  # type: ignore[misc]  # of a lambda with a default
        assert send(one.broker, token)[0] == 201
        for path in ("/api/auth/users", "/metrics", "/api/groups"):
            assert call(one.broker, token, path)[0] == 403, path
        status, said = call(one.broker, token, "/api/cluster/move", {})
        assert (status, said["code"]) == (403, "TW-182")
    with ThreadPoolExecutor(1) as callers:
        body = {"topic": "none-comes", "wait": "20s"}
        leader.run("auth", "acl", "allow", "orders", "receive", "--topic", "none-comes")
        poll = callers.submit(call, follower.broker, token, "/api/groups/g/receive", body)
        until(lambda: polls(leader) == 1)
        leader.run("auth", "token", "revoke", token_id)
        status, said = poll.result()
        assert (status, said["code"]) == (401, "TW-181"), "through a node that follows"
    leader.broker.kill()
    until(lambda: role(follower) == "leading")
    assert send(follower.broker, token)[0] == 401
    again = json.loads(follower.run("auth", "token", "add", "orders", "--json"))["token"]
    assert send(follower.broker, again)[0] == 201
