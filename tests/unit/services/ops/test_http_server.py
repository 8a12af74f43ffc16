"""The HTTP port as an attacker who never ends what it begins finds it: real sockets, short times."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from services.auth.refusals import Refusals
from services.front.certificates import ensure_own_files, make_https_context
from services.ops.gate import Demands, Gate
from services.ops.http_server import HttpLimits, HttpServer
from services.ops.requests.bodies import Bodies
from services.ops.requests.request import body_of
from services.ops.requests.statuses import refuse
from tidewheel.errors import TidewheelError

SECONDS = 60
HEAD = (
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """An HTTP port, and how to dial it."""

    def __init__(self, number: int, bodies: Bodies) -> None:
        self.number, self.bodies = number, bodies

    async def dial(self, said: bytes = b"", tls: ssl.SSLContext | None = None) -> Streams:
        name = "localhost" if tls else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.number, ssl=tls, server_hostname=name
        )
        writer.write(said)
        return reader, writer


@asynccontextmanager
async def serving(
    bounds: HttpLimits, bodies: Bodies, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Port]:
    async def echo(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await body_of(request))

    app = Starlette(
        routes=[Route("/echo", echo, methods=["GET", "POST"])], exception_handlers={TidewheelError: refuse}
    )
    nobody: Any = None
    app.add_middleware(Gate, demands=Demands(bodies=bodies), refusals=Refusals(lambda: 0), authority=nobody)
    listening = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(app, tls, bounds)
    task = asyncio.create_task(server.serve([listening]))
    try:
        yield Port(listening.getsockname()[1], bodies)
    finally:
        server.should_exit = True
        await task


def play(
    scenario: Callable[[Port], Awaitable[None]],
    bounds: HttpLimits | None = None,
    bodies: Bodies | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    async def whole() -> None:
        async with asyncio.timeout(SECONDS), serving(bounds or HttpLimits(), bodies or Bodies(), tls) as port:
            await scenario(port)

    asyncio.run(whole())


@pytest.mark.parametrize("said", [b"", b"G", b"GET /echo HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_who_does_not_end_a_request_head_is_hung_up_on(said: bytes) -> None:
    async def scenario(port: Port) -> None:
        reader, writer = await port.dial(said)
        assert await reader.read() == b""
        writer.close()

    play(scenario, HttpLimits(head_ms_max=50))


async def ended(reader: asyncio.StreamReader) -> None:
    """Returns when the other side has hung up, in whichever way."""
    with suppress(ConnectionError):
        while await reader.read(1):
            pass


def test_who_dribbles_behind_an_answer_is_hung_up_on() -> None:
    async def scenario(port: Port) -> None:
        reader, writer = await port.dial(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        hung_up = asyncio.ensure_future(ended(reader))
        while not hung_up.done():
            writer.write(b"X")
            await asyncio.wait([hung_up], timeout=0.01)

    play(scenario, HttpLimits(head_ms_max=50))


def test_a_body_that_never_ends_is_answered_and_its_memory_given_back() -> None:
    async def scenario(port: Port) -> None:
        reader, writer = await port.dial(HEAD % 100_000 + b"{" * 1_000)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"TW-233" in answer
        assert port.bodies.held_bytes == 0
        writer.close()

    play(scenario, HttpLimits(head_ms_max=50), Bodies(ms_max=50))


def test_a_client_that_sends_all_of_a_body_first_reads_that_it_was_too_large() -> None:
    def posted(number: int) -> tuple[int, bytes]:
        calling = http.client.HTTPConnection("127.0.0.1", number)
        calling.request("POST", "/echo", bytes(7 << 20), {"content-type": "application/json"})
        answer = calling.getresponse()
        return answer.status, answer.read()

    async def scenario(port: Port) -> None:
        status, said = await asyncio.to_thread(posted, port.number)
        assert status == 413
        assert b"TW-235" in said
        assert port.bodies.held_bytes == 0

    play(scenario)


def test_unfinished_bodies_hold_so_many_bytes_together_and_the_next_is_told_to_come_later() -> None:
    bytes_max = 10_000

    async def scenario(port: Port) -> None:
        stay = [await port.dial(HEAD % 100_000 + b"{" * 2_000) for _ in range(5)]
        while port.bodies.held_bytes < bytes_max:
            await asyncio.sleep(0.005)
        reader, writer = await port.dial(HEAD % 5 + b"{}   ")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"TW-234" in await reader.readuntil(b"}")
        assert port.bodies.held_bytes == bytes_max
        for _, other in (*stay, (reader, writer)):
            other.close()
        while port.bodies.held_bytes:
            await asyncio.sleep(0.005)
        reader, writer = await port.dial(HEAD % 5 + b"{}   ")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    play(scenario, bodies=Bodies(bytes_max=bytes_max))


def test_who_hangs_up_in_the_middle_of_a_body_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(port: Port) -> None:
        _, writer = await port.dial(HEAD % 100_000 + b"{" * 1_000)
        while not port.bodies.held_bytes:
            await asyncio.sleep(0.005)
        writer.transport.abort()
        while port.bodies.held_bytes:
            await asyncio.sleep(0.005)

    play(scenario)
    assert caplog.text == ""


def test_connections_beyond_the_bound_are_refused_and_leave_no_trace() -> None:
    async def scenario(port: Port) -> None:
        stay = [await port.dial() for _ in range(3)]
        served = await asyncio.gather(*(answered(*streams) for streams in stay))
        assert all(served)
        reader, writer = await port.dial()
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
        stay[0][1].close()
        while not await answered(*await port.dial()):
            await asyncio.sleep(0.005)
        for _, other in stay:
            other.close()

    play(scenario, HttpLimits(connections_per_address_max=3))


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


def test_over_tls_the_broker_shows_its_certificate_and_plaintext_gets_nothing(tmp_path: Path) -> None:
    files = ensure_own_files(tmp_path / "tls", [])

    async def scenario(port: Port) -> None:
        trusting = ssl.create_default_context(cafile=str(files.certificate))
        reader, writer = await port.dial(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n", trusting)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"x-content-type-options: nosniff" in head.lower()
        writer.close()
        reader, writer = await port.dial(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in await reader.read()
        writer.close()

    play(scenario, tls=make_https_context(files))


def test_a_certificate_that_changes_is_shown_at_the_next_handshake(tmp_path: Path) -> None:
    files = ensure_own_files(tmp_path / "tls", [])
    context = make_https_context(files)

    async def scenario(port: Port) -> None:
        before = files.certificate.read_bytes()
        for path in (files.certificate, files.key):
            path.unlink()
        ensure_own_files(tmp_path / "tls", [])
        assert files.certificate.read_bytes() != before
        trusting = ssl.create_default_context(cafile=str(files.certificate))
        for _ in range(2):
            reader, writer = await port.dial(tls=trusting)
            assert await answered(reader, writer)
            writer.close()

    play(scenario, tls=context)


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_request_that_a_stop_cuts_off_is_answered_with_a_code(is_begun: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if is_begun:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        asked.set()
        await asyncio.Event().wait()

    async def scenario() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = HttpServer(app)
            server.config.timeout_graceful_shutdown = 0
            serve = asyncio.create_task(server.serve([listening]))
            reader, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asked.wait()
            server.should_exit = True
            said = await reader.read()
            await serve
            writer.close()
            return said

    asked = asyncio.Event()
    said = asyncio.run(asyncio.wait_for(scenario(), SECONDS))
    if is_begun:
        assert b"half" in said
        assert not said.endswith(b"0\r\n\r\n"), "what was cut off does not look whole"
        return
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["code"] == "TW-171", "whether it was done is not known"
    assert "The broker stops" in json.loads(body)["message"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            b"GET /echo HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 300_000 + b"\r\n\r\n",
            "its head is too long",
        ),
        (b"\x16\x03\x01\x00\x05hello\r\n\r\n", "illegal request line"),
        (b"GET /echo HTTP/1.1\r\n\r\n", "Missing mandatory Host: header"),
        (HEAD[:-4] % 5 + b"\r\nContent-Length: 6\r\n\r\nabcde", "conflicting Content-Length headers"),
    ],
)
def test_what_is_no_request_is_told_why(said: bytes, reason: str) -> None:
    async def scenario(port: Port) -> None:
        reader, writer = await port.dial(said)
        answer = b""
        with suppress(ConnectionError):  # it hangs up on what was not read
            while piece := await reader.read(65_536):
                answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        told = json.loads(body)
        assert (told["code"], reason in told["message"]) == ("TW-130", True), told
        writer.close()

    play(scenario)


def test_an_offer_to_speak_otherwise_is_declined_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(port: Port) -> None:
        fields = b"Connection: Upgrade\r\nUpgrade: websocket\r\nConnection: close\r\n"
        reader, writer = await port.dial(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n" + fields + b"\r\n")
        assert b" 200 OK" in await reader.readline()
        writer.close()

    play(scenario)
    assert "pip install" not in caplog.text
