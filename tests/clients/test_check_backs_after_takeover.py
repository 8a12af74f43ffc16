"""Check-backs after nodes have gone: a producer is asked again after one refresh of its routes.

Python's library asks for routes 10 s after its start and each 30 s from then on, and opens another Telemetry
stream only for an address that no route has named yet (`services.rpc.wire.endpoints`). So each row begins
right after a refresh, lets nodes go, and counts how many refreshes it takes until a half is asked about that
was sent afterwards. Java's library dials again by itself within seconds; of that the seconds alone are told.

Prints JSON: seconds from the last takeover until a half was ended that waits since before it, and which
nothing was sent after; and from a half that is sent then to its end.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest
from rocketmq.v5.client.connection import RpcClient

from tests.clients.libraries import LIBRARIES, require, spare_make_test
from tests.clients.official import OfficialClient, Refused
from tests.clients.process_client import ProcessClient
from tests.clients.python_client import PythonClient
from tests.clients.test_failover import ONE_ADDRESS, Node, leader_of
from tests.command import tidewheel
from tests.postgresql import running_postgresql

TOPIC: Final = "TRANSACTION"
REFRESH_SECONDS: Final = 45.0
ASKED_SECONDS: Final = 240.0
"""How long to wait for a check-back before the row fails: longer than any was seen to take."""
SEND_SECONDS: Final = 30.0
AT_A_TICK: Final = ("go",)
"""Libraries (Go 5.1.4) that open an ended stream with their settings only, each 5 minutes."""
OTHERS: Final = [name for name in LIBRARIES if name not in (*ONE_ADDRESS, *AT_A_TICK)]


class QuickNode(Node):
    """A node that asks about a half at once."""

    def __init__(self, folder: Path, name: str, cluster: str) -> None:
        super().__init__(folder, name, cluster)
        self.options = (*self.options, "--check-immunity-ms", "500", "--check-interval-ms", "1000")


class Refreshes:
    """Counts the routes that Python's library was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        ask = RpcClient.query_topic_route_async

        def counted(client: Any, *arguments: Any, **named: Any) -> Any:
            answer = ask(client, *arguments, **named)
            answer.add_done_callback(self._told)
            return answer

        monkeypatch.setattr(RpcClient, "query_topic_route_async", counted)

    def _told(self, answer: Any) -> None:
        with suppress(Exception):
            answer.result()
            self.count += 1

    def begin(self) -> None:
        """Count from now on."""
        self.count = 0

    def wait(self) -> None:
        """Return after the next one."""
        before = self.count
        until(lambda: self.count > before, REFRESH_SECONDS)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with running_postgresql(syncs=True) as url:
        yield url.replace("postgresql+psycopg", "postgresql")


@pytest.fixture
def nodes(tmp_path: Path, database: str, request: pytest.FixtureRequest) -> Iterator[list[Node]]:
    log = "checks_" + request.node.callspec.id.replace("-", "_")
    url = f"{database}&log={log}"
    assert tidewheel("cluster", "create", url, "--segment-bytes", 8 << 20).returncode == 0
    both: list[Node] = [QuickNode(tmp_path, name, url) for name in "ab"]
    for node in both:
        node.start()
    leader = leader_of(both)
    body = json.dumps({"name": TOPIC, "message_type": TOPIC}).encode()
    asked = Request(f"http://{leader.http}/api/topics", body, {"Content-Type": "application/json"})
    urlopen(asked).close()
    yield both
    for node in both:
        node.stop()
    for node in both:
        assert "Traceback" not in node.log(), node.log()[-5_000:]


def until(is_so: Callable[[], bool], seconds: float) -> float:
    """Wait until something is so; return how many seconds that took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds, "waited in vain"
        time.sleep(0.02)
    return time.monotonic() - began


def has_followed(node: Node) -> bool:
    """Whether a node follows the one that leads now."""
    with suppress(OSError), urlopen(f"http://{node.http}/api/cluster", timeout=2) as answer:
        return bool(json.load(answer)["role"] == "following")
    return False


def goes(node: Node, other: Node) -> None:
    """Kill a node; afterwards the other one leads."""
    node.kill()
    assert leader_of([other]) is other


def comes_back(node: Node) -> None:
    node.start()
    until(lambda: has_followed(node), SEND_SECONDS)


def led_by(nodes: list[Node], wanted: Node) -> None:
    """Have `wanted` lead."""
    leader = leader_of(nodes)
    if leader is not wanted:
        # The leader may not have read yet that the other node is there.
        until(lambda: tidewheel("cluster", "move", "--http", leader.http).returncode == 0, SEND_SECONDS)
        assert leader_of([wanted]) is wanted


def leader_goes(first: Node, second: Node) -> None:
    goes(first, second)


def leader_goes_twice(first: Node, second: Node) -> None:
    goes(first, second)
    comes_back(first)
    goes(second, first)


def leader_goes_three_times(first: Node, second: Node) -> None:
    leader_goes_twice(first, second)
    comes_back(second)
    goes(first, second)


def leader_goes_and_comes_back(first: Node, second: Node) -> None:
    goes(first, second)
    comes_back(first)
    led_by([first, second], first)


def first_node_goes_as_a_follower(first: Node, second: Node) -> None:
    led_by([first, second], second)
    first.kill()


def second_node_goes_as_a_follower(first: Node, second: Node) -> None:
    """With one of these two goes the node that has the client's stream."""
    led_by([first, second], first)
    second.kill()


ROWS: Final = [
    leader_goes,
    leader_goes_twice,
    leader_goes_three_times,
    leader_goes_and_comes_back,
    first_node_goes_as_a_follower,
    second_node_goes_as_a_follower,
]


def send_half(client: OfficialClient, body: str, answer: str) -> None:
    """Send a half that only a check-back ends, if the answer is an end."""
    client.answer_checks(body, answer)
    ends = time.monotonic() + SEND_SECONDS
    while True:
        try:
            return client.send_half(TOPIC, body)
        except Refused:
            assert time.monotonic() < ends
            time.sleep(0.1)


def play(client: OfficialClient, nodes: list[Node], row: Callable[[], None]) -> dict[str, float]:
    """Let nodes go while a half waits; return how many seconds later it, and one sent then, were ended."""
    send_half(client, "held", "unknown")
    row()
    client.answer_checks("held", "commit")
    leader, took = leader_of(nodes), {}
    took["held_seconds"] = round(until(lambda: not open_halves(leader), ASKED_SECONDS), 1)
    send_half(client, "after", "commit")
    took["after_seconds"] = round(until(lambda: not open_halves(leader), ASKED_SECONDS), 1)
    return took


def open_halves(node: Node) -> list[Any]:
    with urlopen(f"http://{node.http}/api/transactions?state=OPEN") as answer:
        return list(json.load(answer)["transactions"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_a_producer_is_asked_again_after_one_refresh_of_its_routes(
    nodes: list[Node], row: Callable[[Node, Node], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if row is not leader_goes_twice:
        spare_make_test()
    refreshes = Refreshes(monkeypatch)
    first, second = sorted(nodes, key=lambda node: node.listen)  # Python dials them in this order
    led_by(nodes, first)
    client = PythonClient(f"{first.listen};{second.listen}")
    try:
        send_half(client, "before", "commit")
        refreshes.wait()
        refreshes.wait()
        took = play(client, nodes, lambda: row(first, second) or refreshes.begin())
        print(json.dumps({"client": "python", "row": row.__name__, **took, "refreshes": refreshes.count}))
        assert refreshes.count <= 1
    finally:
        client.stop()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
@pytest.mark.parametrize("name", OTHERS)
def test_a_producer_that_dials_by_itself_is_asked_again(
    nodes: list[Node], name: str, row: Callable[[Node, Node], None], tmp_path: Path
) -> None:
    if row is not leader_goes_twice:
        spare_make_test()
    library = LIBRARIES[name]
    require(library)
    first, second = sorted(nodes, key=lambda node: node.listen)
    led_by(nodes, first)
    client = ProcessClient(library, f"{first.listen};{second.listen}", {**os.environ, "HOME": str(tmp_path)})
    try:
        send_half(client, "before", "commit")
        until(lambda: not open_halves(leader_of(nodes)), ASKED_SECONDS)
        took = play(client, nodes, lambda: row(first, second))
        print(json.dumps({"client": name, "row": row.__name__, **took}))
    finally:
        client.stop()
