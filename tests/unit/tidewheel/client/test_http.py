"""Both shells over real sockets, whose server cuts, is silent, or is something else."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tidewheel import AsyncClient, Client
from tidewheel.client import exchange, http
from tidewheel.client.exchange import Fault
from tidewheel.errors import (
    AnswerLate,
    AnswerLost,
    BrokerUnreachable,
    Busy,
    ConfigurationError,
    LibraryMissing,
    TidewheelError,
)

RECEIPT = (
    b'{"message_id": "A", "queue_offset": "0", "physical_offset": "0", "recall_handle": "", '
    b'"verdict": null, "replaced_offset": null}'
)
CUT, SILENT, THEN_CUT = b"cut", b"silent", b"then cut"

Scripted = Callable[..., "Server"]


def http_answer(body: bytes, status: str = "201 Created") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


class Server:
    """Answers each request as scripted, the last way for good."""

    def __init__(self, *script: bytes) -> None:
        self.asked: list[bytes] = []
        self._script = script
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.cut = threading.Event()
        self._open: list[socket.socket] = [self._listening]
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._listening.accept()
                self._open.append(peer)
                self._converse(peer)

    def _converse(self, peer: socket.socket) -> None:
        while request := self._request(peer):
            step = self._script[min(len(self.asked), len(self._script) - 1)]
            self.asked.append(request)
            if step == SILENT:
                continue
            if step == CUT:
                peer.close()
                return
            peer.sendall(step.removesuffix(THEN_CUT))
            if step.endswith(THEN_CUT):
                peer.close()
                self.cut.set()
                return

    def _request(self, peer: socket.socket) -> bytes:
        said = b""
        while True:
            head, found, body = said.partition(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if found and len(body) >= (int(lengths[0].split(b":")[1]) if lengths else 0):
                return body
            piece = peer.recv(65_536)
            if not piece:
                return b""
            said += piece


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    servers: list[Server] = []

    def start(*script: bytes) -> Server:
        servers.append(Server(*script))
        return servers[-1]

    yield start
    for one in servers:
        one.close()


def with_client(url: str, operation: str, is_async: bool, **options: Any) -> Any:
    """Do something with a client of either kind."""

    def called(client: Any) -> Any:
        if operation == "send":
            return client.send("t", "x")
        return client.timer("t", "k").cancel()

    async def awaited() -> Any:
        async with AsyncClient(url, **options) as client:
            return await called(client)

    if is_async:
        return asyncio.run(awaited())
    with Client(url, **options) as client:
        return called(client)


both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@both
def test_a_send_whose_answer_was_cut_off_is_repeated_as_the_same_message(
    scripted: Scripted, is_async: bool
) -> None:
    server = scripted(CUT, http_answer(RECEIPT))
    assert with_client(server.url, "send", is_async).id == "A"
    assert len(server.asked) == 2
    assert server.asked[0] == server.asked[1]


@both
def test_a_verb_whose_answer_was_cut_off_is_not_repeated(scripted: Scripted, is_async: bool) -> None:
    server = scripted(CUT)
    with pytest.raises(AnswerLost, match="may have been carried out") as lost:
        with_client(server.url, "cancel", is_async)
    assert len(server.asked) == 1
    assert lost.value.__context__ is None


VERDICT = b'{"verdict": "CANCELLED", "message_id": "A", "ended_ms": "1", "ended_offset": "1", "due_ms": "1"}'


def test_an_idle_connection_that_a_proxy_has_cut_is_not_used(scripted: Scripted) -> None:
    server = scripted(http_answer(VERDICT, "200 OK") + THEN_CUT)
    with Client(server.url) as client:
        for _ in range(3):  # a verb is not repeated, so each must meet an open connection
            assert client.timer("t", "k").cancel()
            assert server.cut.wait(60)
            server.cut.clear()
    assert len(server.asked) == 3


@both
def test_a_silent_server_is_given_up_after_the_time(scripted: Scripted, is_async: bool) -> None:
    server = scripted(SILENT)
    with pytest.raises(AnswerLate, match="did not answer within") as late:
        with_client(server.url, "send", is_async, timeout=0.2)
    assert len(server.asked) == 1
    assert late.value.__context__ is None


def test_a_call_for_which_no_connection_is_free_was_not_sent(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(exchange, "PAUSES_S", (0.01,))
    server = scripted(SILENT)

    def wait(client: Client) -> None:
        with suppress(TidewheelError):
            client.receive("t", "g", wait="5s")

    with Client(server.url, timeout=0.5) as client:
        waiting = threading.Thread(target=wait, args=[client])
        waiting.start()
        while not server.asked:
            waiting.join(0.01)
        with pytest.raises(Busy, match="was not sent to") as caught:
            client.send("t", "x")
        assert "all 1 connections of this client were in use" in str(caught.value)
        assert len(server.asked) == 1
        server.close()
        waiting.join()


def test_tasks_wait_for_a_connection_in_order_and_no_longer_than_their_time(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(exchange, "PAUSES_S", ())
    server = scripted(SILENT)

    async def scenario() -> None:
        async with AsyncClient(server.url, timeout=0.5) as client:
            waiting = asyncio.ensure_future(client.receive("t", "g", wait="5s"))
            while not server.asked:
                await asyncio.sleep(0.01)
            with pytest.raises(Busy, match="all 1 connections of this client were in use"):
                await client.send("t", "x")
            waiting.cancel()
            with pytest.raises(AnswerLate):  # not Busy: the one that was cancelled has left its room
                await client.send("t", "x")

    asyncio.run(scenario())
    assert len(server.asked) == 2


@both
def test_something_else_that_answers_is_told(scripted: Scripted, is_async: bool) -> None:
    server = scripted(http_answer(b"<html>welcome</html>", "200 OK"))
    with pytest.raises(BrokerUnreachable, match="no Tidewheel HTTP interface: it said 200 '<html>welcome"):
        with_client(server.url, "send", is_async)
    server = scripted(b"SSH-2.0-OpenSSH_9\r\n\r\n")
    with pytest.raises(AnswerLost):
        with_client(server.url, "cancel", is_async)


@both
def test_an_answer_is_bounded(scripted: Scripted, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_BYTES_MAX", 100)
    server = scripted(http_answer(b" " * 101))
    with pytest.raises(AnswerLost, match="more than 100 bytes"):
        with_client(server.url, "cancel", is_async)


@both
def test_of_several_addresses_one_that_answers_is_found(scripted: Scripted, is_async: bool) -> None:
    server = scripted(http_answer(RECEIPT))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
    assert with_client(f"{nobody},{server.url}", "send", is_async).id == "A"


@both
@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5s", None, True])
def test_a_time_that_no_call_can_take_is_refused_at_once(is_async: bool, timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"timeout is .*: give seconds"):
        (AsyncClient if is_async else Client)("a:1", timeout=timeout)


@pytest.mark.parametrize("namespace", ["a%b", None, 7])
@both
def test_a_namespace_that_reaches_into_another_is_refused(is_async: bool, namespace: Any) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        (AsyncClient if is_async else Client)("a:1", namespace=namespace)


def test_an_address_that_the_library_refuses_was_never_asked() -> None:
    httpx = http.library()
    failure = http.failure_of(httpx, httpx.InvalidURL("no"), "http://here", 0.0)
    unsupported = http.failure_of(httpx, httpx.UnsupportedProtocol("no"), "http://here", 0.0)
    assert failure.fault is unsupported.fault is Fault.UNTAKEN


def test_a_folder_with_the_name_of_a_library_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_such_httpx").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(http, "LIBRARIES", ("no_such_httpx", "httpx"))
    assert http.library().__name__ == "httpx"


def test_without_a_library_the_command_that_installs_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LIBRARIES", ("no_such_httpx",))
    with pytest.raises(LibraryMissing, match="pip install httpx"):
        Client("a:1")
