"""What a node does with a request whose leader keeps the connection and says nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import aclosing, asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from structlog.testing import capture_logs

from commitlog import limits
from commitlog.errors import StoreError
from services.auth.refusals import Refusals
from services.auth.rights import Kind, Rule, Verb
from services.auth.tokens import ID_BYTES, SECRET_BYTES, text_of
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.cluster.copies import transfer
from services.cluster.forwarding import http_calls as http_forwarding
from services.cluster.forwarding.http_calls import Chunks, ClusterHttp
from services.cluster.identity import Member
from services.cluster.peers import SECRET
from services.ops.gate import Demands
from services.ops.requests import request as ops_request
from services.ops.requests.bodies import Bodies
from tests.memory_disk import MemoryDisk


class Leader:
    """A leader's HTTP: it answers, or takes the request and stands still."""

    def __init__(self, name: str, *, is_paused: bool) -> None:
        self.asked, self.goes_on = Event(), Event()
        if not is_paused:
            self.goes_on.set()
        leader = self

        self.targets: list[str] = []
        self.fields: list[tuple[str, str]] = []
        """What the last request said."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                leader.targets.append(self.path)
                leader.fields = [(name.lower(), value) for name, value in self.headers.items()]
                leader.asked.set()
                leader.goes_on.wait()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(name.encode())

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        Thread(target=self.server.serve_forever, daemon=True).start()
        self.member = Member(name, "127.0.0.1:1", f"http://127.0.0.1:{self.server.server_port}")

    def end(self) -> None:
        self.goes_on.set()
        self.server.shutdown()
        self.server.server_close()


class LeaderReachability:
    """Nobody complains."""

    def record_answer(self, now_ms: int) -> None:
        pass

    def record_failure(self, epoch: int, began_ms: int, now_ms: int) -> None:
        raise AssertionError("every leader takes connections")


class Node:
    """A node that follows one leader and then another."""

    def __init__(self, first: Leader, second: Leader) -> None:
        self.election, self.epoch = SimpleNamespace(reachability=LeaderReachability()), 1
        self._leaders, self._moved = {1: first, 2: second}, {1: asyncio.Event(), 2: asyncio.Event()}

    async def wait_for_leader(self, seconds: float) -> tuple[int, Member]:
        return self.epoch, self._leaders[self.epoch].member

    async def wait_for_other_epoch(self, epoch: int) -> None:
        await self._moved[epoch].wait()

    def move(self) -> None:
        self.epoch = 2
        self._moved[1].set()


class Caller:
    """Who asks: a whole body, and later perhaps that it has hung up."""

    def __init__(self) -> None:
        self.hung_up, self._is_read = asyncio.Event(), False

    async def receive(self) -> dict[str, Any]:
        if self._is_read:
            await self.hung_up.wait()
            return {"type": "http.disconnect"}
        self._is_read = True
        return {"type": "http.request", "body": b"{}", "more_body": False}


@asynccontextmanager
async def asked(
    method: str, patience: pytest.MonkeyPatch, *, answers_late: bool = False
) -> AsyncIterator[Response]:
    """Give the answer to a request whose first leader stood still until another led."""
    first, second = Leader("first", is_paused=True), Leader("second", is_paused=False)
    node: Any = Node(first, second)
    demands = Demands()
    nothing: Any = None
    app = ClusterHttp(node, Path(), demands, Refusals(lambda: 0), *[nothing] * 4)
    scope = {"type": "http", "method": method, "path": "/api/x", "query_string": b"", "headers": []}

    receive = Caller().receive

    try:
        patience.setattr(http_forwarding, "FORMER_LEADER_SECONDS", 60.0 if answers_late else 0.0)
        answering = asyncio.create_task(app._forward_request(Request(scope, receive)))
        assert await asyncio.to_thread(first.asked.wait, 10), answering
        node.move()
        if answers_late:
            first.goes_on.set()
        yield await answering
        assert first.goes_on.is_set() is answers_late
    finally:
        first.end()
        second.end()


def test_what_changes_nothing_is_asked_of_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with asked("GET", monkeypatch) as answer:
            assert (answer.status_code, answer.body) == (200, b"second")

    asyncio.run(play())


def test_what_may_have_been_done_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with asked("POST", monkeypatch) as answer:
            assert answer.status_code == 503
            assert b"See whether it was done" in bytes(answer.body)

    asyncio.run(play())


def test_a_leader_that_has_just_let_another_lead_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with asked("POST", monkeypatch, answers_late=True) as answer:
            assert (answer.status_code, answer.body) == (200, b"first")

    asyncio.run(play())


def test_a_caller_that_hangs_up_ends_its_request_at_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_FORWARDED_MAX", 1)

    async def play() -> None:
        leader, nothing = Leader("first", is_paused=True), None
        node: Any = Node(leader, leader)
        app = ClusterHttp(node, Path(), Demands(), Refusals(lambda: 0), *[nothing] * 4)
        path = "/api/groups/g/receive"
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
        caller, ended = Caller(), Event()
        ending = http_forwarding.send_request

        def called(*given: Any) -> Response:
            try:
                return ending(*given)
            finally:
                ended.set()

        monkeypatch.setattr(http_forwarding, "send_request", called)
        answering = asyncio.create_task(app._forward_request(Request(scope, caller.receive)))
        assert await asyncio.to_thread(leader.asked.wait, 10), answering
        refused = await app._forward_request(Request(scope, Caller().receive))
        assert refused.status_code == 503
        assert b"as many as may" in bytes(refused.body)
        caller.hung_up.set()
        assert (await answering).status_code == 499
        assert await asyncio.to_thread(ended.wait, 10), "its thread waits for the leader all the same"
        assert not leader.goes_on.is_set()
        leader.goes_on.set()
        assert (await app._forward_request(Request(scope, Caller().receive))).status_code == 200
        leader.end()

    asyncio.run(play())


def test_a_node_judges_its_own_answers_by_the_users_of_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms, nothing = 1_763_700_000_000, None
    core = Broker.open(MemoryDisk(), BrokerSettings(segment_bytes=64 * 1024), now_ms)
    core.access.add_user("orders", "sealed", False, now_ms)
    text = text_of(bytes(ID_BYTES + SECRET_BYTES))
    core.access.add_token("orders", text, 1_000, now_ms)
    actions = SimpleNamespace(replica=None, clocks=SimpleNamespace(wall=lambda: now_ms))
    node: Any = SimpleNamespace(actions=actions)
    app = ClusterHttp(node, Path(), Demands("the-token-of-the-administrator"), Refusals(int), *[nothing] * 4)
    monkeypatch.setattr(http_forwarding, "status_of", lambda node: {})
    app.metrics = SimpleNamespace(view=dict, progress=AsyncMock(return_value={}))  # type: ignore[assignment]  # two of its methods

    async def asked(token: str) -> tuple[int, str]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            answer = await http.get("/api/cluster", headers={"Authorization": f"Bearer {token}"})
            return answer.status_code, str(answer.json().get("code"))

    async def play() -> None:
        nonlocal now_ms
        assert await asked("the-token-of-the-administrator") == (200, "None")
        assert (await asked(text))[0] == 503, "a node without a copy knows no users"
        actions.replica = SimpleNamespace(core=core)
        assert await asked(text) == (403, "TW-182")
        both = [Rule("orders", kind, "*", Verb.ADMIN) for kind in Kind]
        core.access.set_rules(both, now_ms)
        assert await asked(text) == (200, "None")
        now_ms += 1_000
        assert await asked(text) == (401, "TW-181")

    asyncio.run(play())


@asynccontextmanager
async def following() -> AsyncIterator[tuple[Leader, httpx.AsyncClient]]:
    """Give a leader, and a client of a node that follows it."""
    leader, nothing = Leader("leader", is_paused=False), None
    node: Any = Node(leader, leader)
    demands = Demands("the-token-of-the-administrator")
    app = ClusterHttp(node, Path(), demands, Refusals(lambda: 0), *[nothing] * 4)
    try:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost:8088"
        ) as http:
            yield leader, http
    finally:
        leader.end()


@pytest.mark.parametrize(
    "target",
    [
        "/api/topics/shop%25carts",
        "/api/groups/shop%2541",
        "/api/schedules/caf%C3%A9%20%F0%9F%98%80",
        "/api/schedules/a%3Fb%23c",
        "/api/topics/a%2Fb",
        "/api/topics/x%0D%0AA:b",
        "/api/timers/one?topic=shop%25carts&key=a%26b%23%2B+c",
    ],
)
def test_a_name_that_is_encoded_reaches_the_leader_as_it_was_written(target: str) -> None:
    async def play() -> None:
        async with following() as (leader, http):
            assert (await http.get(target)).status_code == 200
            assert leader.targets == [target]

    asyncio.run(play())


def test_fields_that_come_twice_reach_the_leader_twice_and_it_judges_them() -> None:
    async def play() -> None:
        async with following() as (leader, http):
            twice = [
                ("Authorization", "Bearer one"),
                ("Authorization", "Bearer two"),
                ("Idempotency-Key", "k"),
            ]
            await http.post("/api/messages", headers=twice, json={})
            given = [value for name, value in leader.fields if name == "authorization"]
            assert given == ["Bearer one", "Bearer two"]
            assert ("idempotency-key", "k") in leader.fields
            assert ("content-length", "2") in leader.fields
            assert len(dict(leader.fields)) == len(leader.fields) - 1, "another field comes twice"

    asyncio.run(play())


def test_a_foreign_page_is_refused_by_the_node_that_it_asks_and_its_own_page_is_not() -> None:
    async def play() -> None:
        async with following() as (leader, http):
            for foreign in (
                {"Host": "evil.example"},
                {"Origin": "http://evil.example"},
                {"Sec-Fetch-Site": "cross-site"},
            ):
                refused = await http.get("/api/topics", headers=foreign)
                assert refused.status_code == 403, foreign
                assert refused.json()["code"] in ("TW-230", "TW-231")
            assert not leader.targets
            own = {"Origin": "http://localhost:8088", "Sec-Fetch-Site": "same-origin"}
            assert (await http.get("/api/topics", headers=own)).status_code == 200
            assert not {"origin", "sec-fetch-site"} & dict(leader.fields).keys(), "the leader is another host"

    asyncio.run(play())


def test_of_a_position_nothing_is_read_before_its_secret_is_right() -> None:
    class LeaderTerm:
        told: Any = None

        def is_followed_by(self, secret: str) -> bool:
            return secret == "right"

        def record_position(self, *told: Any) -> None:
            self.told = told

    nothing: Any = None
    node: Any = LeaderTerm()
    app = ClusterHttp(node, Path(), Demands(), Refusals(lambda: 0), *[nothing] * 4)
    read: list[bytes] = []

    async def receive() -> dict[str, Any]:
        read.append(b'{"node": "b", "end_offset": 7, "unfit": ""}')
        return {"type": "http.request", "body": read[-1], "more_body": False}

    async def ask(secret: str) -> int:
        headers = [(SECRET.encode(), secret.encode("latin-1"))]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
        return (await app._record_position(Request(scope, receive))).status_code

    async def play() -> None:
        for wrong in ("", "wrong", "\u00e9"):
            assert await ask(wrong) == 401
        assert not read
        assert await ask("right") == 200
        assert node.told == ("b", 7, "")

    asyncio.run(play())


@pytest.mark.parametrize("bound", ["of one", "of all"])
def test_a_body_that_is_to_go_on_is_bounded(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    demands = Demands(bodies=Bodies(bytes_max=10 if bound == "of all" else 1_000))
    app = ClusterHttp(nothing, Path(), demands, Refusals(lambda: 0), *[nothing] * 4)
    if bound == "of one":
        monkeypatch.setattr(limits, "HTTP_BODY_BYTES_MAX", 10)
        monkeypatch.setattr(ops_request, "_DISCARDED_BYTES_MAX", 100)
    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/api/x", "query_string": b"", "headers": headers}
    statuses = []

    async def receive() -> dict[str, Any]:
        assert not statuses, "more is read of what is refused"
        return {"type": "http.request", "body": b"six by", "more_body": True}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    asyncio.run(app(scope, receive, send))
    assert statuses[0] == (413 if bound == "of one" else 503)
    assert not demands.bodies.held_bytes


def test_a_copy_whose_taker_hangs_up_is_closed_once_no_thread_reads_it() -> None:
    came, goes_on, ended = Event(), Event(), Event()

    def read() -> Generator[bytes]:
        try:
            yield b"first"
            came.set()
            goes_on.wait(30)
            yield b"second"
        finally:
            ended.set()

    async def run() -> None:
        async with aclosing(Chunks(read())) as chunks:
            assert await chunks.next() == b"first"
            waiting = asyncio.create_task(chunks.next())
            assert await asyncio.to_thread(came.wait, 30)
            waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled()
            assert not ended.is_set()
            asyncio.get_running_loop().call_later(0, goes_on.set)
        assert ended.is_set()

    asyncio.run(run())


def test_a_copy_that_is_not_begun_and_one_that_is_read_to_its_end_are_closed() -> None:
    async def run() -> None:
        async with aclosing(Chunks(chunk for chunk in [b"one"])):
            pass
        async with aclosing(Chunks(chunk for chunk in [b"one"])) as chunks:
            assert [await chunks.next(), await chunks.next()] == [b"one", None]

    asyncio.run(run())


def giving(root: Path) -> ClusterHttp:
    """A node with this store."""
    node: Any = SimpleNamespace(own_copy=SimpleNamespace(secret="s"))
    nothing: Any = None
    return ClusterHttp(node, root, Demands(), Refusals(lambda: 0), *[nothing] * 4)


def given(root: Path) -> tuple[int, bytes]:
    """What a node with this store answers to who asks for its copy."""
    return asyncio.run(copy_of(giving(root)))


async def copy_of(app: ClusterHttp) -> tuple[int, bytes]:
    headers = [(SECRET.encode(), b"s")]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/cluster/copy",
        "query_string": b"",
        "headers": headers,
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:])


def test_two_nodes_get_a_copy_at_once_and_a_third_one_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, begun = Event(), list[Path]()

    def stream(root: Path) -> Generator[bytes]:
        begun.append(root)
        goes_on.wait(5)
        yield b"whole"

    async def run() -> list[tuple[int, bytes]]:
        app = giving(tmp_path)
        async with asyncio.TaskGroup() as group:
            first = [group.create_task(copy_of(app)) for _ in range(2)]
            while len(begun) < 2:
                await asyncio.sleep(0)
            third = await copy_of(app)
            goes_on.set()
        return [*(task.result() for task in first), third, await copy_of(app)]

    monkeypatch.setattr(transfer, "stream_copy", stream)
    *first, (status, said), last = asyncio.run(run())
    assert [*first, last] == [(200, b"whole")] * 3
    assert (status, b"2 nodes are getting a copy already" in said) == (503, True)


def test_a_node_whose_disk_gives_nothing_says_so(tmp_path: Path) -> None:
    status, said = given(tmp_path / "gone")
    assert status == 503
    assert b"TW-257" in said
    assert b"It cannot be read" in said


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), StoreError("it is cut")])
def test_a_copy_whose_disk_fails_on_the_way_ends_there_with_a_word_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def stream(_: Path) -> Generator[bytes]:
        yield b"first"
        raise error

    monkeypatch.setattr(transfer, "stream_copy", stream)
    with capture_logs() as logged:
        assert given(tmp_path) == (200, b"first")
    assert [one["event"] for one in logged] == ["a copy was not given to its end"]
