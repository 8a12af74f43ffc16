"""The protocol port on real sockets: what one says first decides how it is served, or why it must go."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest

from commitlog import limits
from services.front import connection as connections
from services.front import port as ports
from services.front.admission import IDLE, SILENT, TOO_MANY, UNAUTHENTICATED, Limits
from services.front.answers import PLAINTEXT_SENTENCE, TOO_MANY_SENTENCE
from services.front.certificates import ensure_own_files, make_grpc_context_source
from services.front.connection import DEAD, Connection, ServerState
from services.front.grpc_calls import CallReceived, CallStarted, Method
from services.front.grpc_wire import frame_message
from services.front.port import LEFT, NO_HTTP2, PLAINTEXT, REFUSALS_MAX, SLOW, Port
from services.process.event_loop import new_event_loop
from tests.http2_client import (
    ACK,
    GOAWAY,
    PING,
    PREFACE,
    REQUEST,
    SETTINGS,
    Frame,
    data,
    fields_of,
    frame,
    frames,
    request,
    settings,
)

SCENARIO_SECONDS = 60
HTTP = "http://127.0.0.1:8088"
HOST = "127.0.0.1"
HELLO = PREFACE + settings() + frame(SETTINGS, ACK, 0)
ECHO = tuple((name, "/s/Echo" if name == ":path" else value) for name, value in REQUEST)
METHOD = Method("echo", takes_stream=False)
MESSAGE = b"\0\0\0\0\x05hello"


class Echo:
    """Repeats what it is asked, and lets in whom it is told to; what is kept is answered later."""

    def __init__(self) -> None:
        self.lets_in = self.answers = True
        self.kept: list[tuple[Connection, int]] = []
        self.messages: list[bytes] = []

    def method_of(self, path: str) -> Method | None:
        return METHOD if path == "/s/Echo" else None

    def call_received(self, connection: Connection, call: CallReceived) -> None:
        connection.is_authenticated |= self.lets_in
        if self.answers:
            connection.reply(call.stream_id, call.message)
        else:
            self.kept.append((connection, call.stream_id))
            self.messages.append(call.message)

    def call_started(self, connection: Connection, call: CallStarted) -> None:
        raise AssertionError("nothing here takes a stream")


class Stage:
    """A port, whom it has refused, and clients."""

    def __init__(
        self, limits: Limits, files: Path | None, *, has_plaintext: bool, requires_authentication: bool
    ) -> None:
        self.refused: list[tuple[str, str]] = []
        self.echo = Echo()
        self.shared = ServerState(self.echo)
        tls = make_grpc_context_source(ensure_own_files(files, [HOST]))
        self.port = Port(
            self.shared,
            limits,
            HTTP,
            self._refuse,
            tls,
            has_plaintext=has_plaintext,
            requires_authentication=requires_authentication,
        )
        self.listening = socket.create_server((HOST, 0))
        self.number = self.listening.getsockname()[1]

    def _refuse(self, why: str, host: str, detail: str) -> None:
        self.refused.append((why, host))

    async def connect(self, **how: ssl.SSLContext) -> Client:
        return Client(*await asyncio.open_connection(HOST, self.number, **how))

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.005)


class Client:
    """A client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.stream_id = -1

    def say(self, said: bytes) -> None:
        self.writer.write(said)

    def ask(self) -> None:
        self.stream_id += 2
        self.say(request(self.stream_id, fields=ECHO) + data(self.stream_id, MESSAGE, ends=True))

    async def frame(self) -> Frame:
        head = await self.reader.readexactly(9)
        payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        return frames(head + payload)[0]

    async def greeted(self) -> None:
        self.say(HELLO)
        assert (await self.frame()).kind == SETTINGS

    async def is_served(self) -> bool:
        self.ask()
        while True:
            one = await self.frame()
            if one.stream_id == self.stream_id and one.payload == MESSAGE:
                return True

    async def answers_questions(self) -> None:
        while True:
            if (one := await self.frame()).kind == PING and not one.flags & ACK:
                self.say(frame(PING, ACK, 0, one.payload))

    async def rest(self) -> bytes:
        with suppress(ConnectionError, ssl.SSLError):
            return await self.reader.read()
        return b""

    def close(self) -> None:
        self.writer.close()


Scenario = Callable[[Stage], Awaitable[None]]
Play = Callable[..., None]


@pytest.fixture(params=["uvloop", "asyncio"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    @asynccontextmanager
    async def staged(
        limits: Limits, *, has_plaintext: bool, requires_authentication: bool
    ) -> AsyncIterator[Stage]:
        stage = Stage(
            limits, tmp_path, has_plaintext=has_plaintext, requires_authentication=requires_authentication
        )
        stage.port.start(stage.listening)
        try:
            yield stage
        finally:
            await stage.port.shut_down(0.0)
            assert not stage.shared.connections

    def play(
        scenario: Scenario, limits: Limits | None = None, *, plaintext: bool = True, asks: bool = False
    ) -> None:
        async def whole() -> None:
            made = staged(limits or Limits(), has_plaintext=plaintext, requires_authentication=asks)
            async with asyncio.timeout(SCENARIO_SECONDS), made as stage:
                await scenario(stage)

        with asyncio.Runner(loop_factory=new_event_loop if request.param == "uvloop" else None) as runner:
            runner.run(whole())

    return play


def trusting(*protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


def hello() -> bytes:
    """The first words of a handshake."""
    out = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        trusting("h2").wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


def test_plaintext_and_tls_are_served_by_one_port(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        plain, sealed = await stage.connect(), await stage.connect(ssl=trusting("h2"))
        for client in (plain, sealed):
            await client.greeted()
            assert await client.is_served()
        assert sorted(one.is_encrypted for one in stage.shared.connections) == [False, True]
        assert {one.host for one in stage.shared.connections} == {HOST}
        plain.close()
        sealed.close()
        await stage.until(lambda: stage.port.connection_count == 0)
        assert stage.refused == []

    play(scenario)


def test_a_preface_that_comes_byte_by_byte_is_a_preface(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.connect()
        for place in range(len(HELLO)):
            client.say(HELLO[place : place + 1])
            await asyncio.sleep(0.001)
        assert await client.is_served()
        client.close()

    play(scenario)


def test_clients_are_reached_once_one_of_them_answers(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        assert not await stage.port.has_reachable_client(0.0), "there is no client"
        silent, client = await stage.connect(), await stage.connect()
        for one in (silent, client):
            await one.greeted()
        # What a client says of its own accord is no answer: that it is heard does not show that it hears.
        silent.ask()
        assert not await stage.port.has_reachable_client(0.2)
        answering = asyncio.create_task(client.answers_questions())
        assert await stage.port.has_reachable_client(SCENARIO_SECONDS)
        answering.cancel()
        client.close()
        silent.close()

    play(scenario)


def test_where_plaintext_is_off_a_call_is_told_so(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.connect()
        await client.greeted()
        client.ask()
        said = frames(await client.rest())
        refusal = next(one for one in said if one.stream_id == 1)
        assert fields_of(refusal.payload)["grpc-status"] == "16"
        assert said[-1].kind == GOAWAY
        assert said[-1].payload[8:].decode() == PLAINTEXT_SENTENCE
        assert stage.refused == [(PLAINTEXT, HOST)]
        sealed = await stage.connect(ssl=trusting("h2"))
        await sealed.greeted()
        assert await sealed.is_served()
        sealed.close()

    play(scenario, plaintext=False)


def test_http1_and_remoting_are_answered_in_their_words(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.connect()
        client.say(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert HTTP.encode() in await client.rest()
        old = await stage.connect()
        old.say(bytes((0, 0, 0, 20, 0, 0, 0, 16)) + b'{"opaque": 77}  ')
        assert b'"opaque": 77' in await old.rest()
        assert stage.refused == [("HTTP/1", HOST), ("RocketMQ 4 remoting", HOST)]
        await stage.until(lambda: stage.port.connection_count == 0)

    play(scenario)


@pytest.mark.parametrize(
    "said", [b"", b"PR", b"\x16\x03\x01"], ids=["nothing", "half a preface", "half a hello"]
)
def test_who_does_not_say_what_it_speaks_is_sent_away_in_time(play: Play, said: bytes) -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.connect()
        client.say(said)
        assert await client.rest() == b""
        assert stage.refused == [(SILENT, HOST)]

    play(scenario, Limits(hello_seconds=0.05))


@pytest.mark.parametrize(
    "said", [b"", b"PR", b"\x16\x03\x01"], ids=["nothing", "half a preface", "half a hello"]
)
def test_who_hangs_up_before_it_has_said_that_is_let_go_at_once(play: Play, said: bytes) -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.connect()
        client.say(said)
        client.writer.write_eof()
        assert await client.rest() == b""
        await stage.until(lambda: stage.port.connection_count == 0)
        assert stage.refused == []

    play(scenario, Limits(hello_seconds=60))


def test_who_offers_no_http2_behind_tls_is_told_so(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
            await stage.connect(ssl=trusting("http/1.1"))
        silent = await stage.connect(ssl=trusting())
        assert silent.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        await stage.until(lambda: stage.refused == [(NO_HTTP2, HOST)] * 2)
        silent.close()
        await stage.until(lambda: stage.port.connection_count == 0)

    play(scenario)


def test_who_is_slow_to_shake_hands_keeps_nobody_from_it(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HANDSHAKES_MAX", 1)
    monkeypatch.setattr(limits, "HANDSHAKE_SLOT_MS_MAX", 50)
    monkeypatch.setattr(limits, "HANDSHAKE_MS_MAX", 1_000_000)

    async def scenario(stage: Stage) -> None:
        slow = await stage.connect()
        out = ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            trusting("h2").wrap_bio(ssl.MemoryBIO(), out).do_handshake()
        slow.say(out.read())
        await slow.reader.readexactly(1)
        quick = await stage.connect(ssl=trusting("h2"))
        await quick.greeted()
        assert await quick.is_served()
        assert stage.port.connection_count == 2
        for client in (slow, quick):
            client.writer.transport.abort()

    play(scenario)


def test_a_handshake_that_fails_is_listed_by_its_cause(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        broken = await stage.connect()
        broken.say(b"\x16\x03\x01\x00\x05hello")
        await broken.rest()
        leaving = await stage.connect()
        leaving.say(hello())
        await leaving.reader.readexactly(1)
        leaving.writer.transport.abort()
        await stage.until(lambda: len(stage.refused) == 2)
        assert stage.refused[0][0].startswith("TLS: ")
        assert stage.refused[1] == (LEFT, HOST)
        await stage.until(lambda: stage.port.connection_count == 0)

    play(scenario)


def test_a_handshake_that_takes_too_long_is_listed_as_such(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_MS_MAX", 50)

    async def scenario(stage: Stage) -> None:
        slow = await stage.connect()
        slow.say(hello())
        await slow.rest()
        assert stage.refused == [(SLOW, HOST)]
        await stage.until(lambda: stage.port.connection_count == 0)

    play(scenario)


def test_what_is_no_http2_behind_its_preface_ends_that_connection_alone(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        well, broken = await stage.connect(), await stage.connect()
        await well.greeted()
        broken.say(PREFACE + b"\x16\x03\x01\x00\x05hello" * 8)
        assert frames(await broken.rest())[-1].kind == GOAWAY
        assert await well.is_served()
        assert stage.refused == [("HTTP/2: frame size error", HOST)]
        well.close()

    play(scenario)


def test_one_connection_too_many_is_told_why_and_the_others_notice_nothing(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        first = [await stage.connect() for _ in range(2)]
        for client in first:
            await client.greeted()
        late = await stage.connect()
        await late.greeted()
        late.ask()
        said = frames(await late.rest())
        assert said[-1].payload[8:].decode() == TOO_MANY_SENTENCE
        assert fields_of(next(one for one in said if one.stream_id == 1).payload)["grpc-status"] == "8"
        assert stage.refused == [(TOO_MANY, HOST)]
        for client in first:
            assert await client.is_served()
            client.close()
        await stage.until(lambda: stage.port.connection_count == 0)
        again = await stage.connect()
        await again.greeted()
        assert await again.is_served()
        again.close()

    play(scenario, Limits(connections_per_address=2))


def test_the_client_of_grpc_shows_why_it_must_go_and_does_not_try_again(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        async with grpc.aio.insecure_channel(f"{HOST}:{stage.number}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/s/Echo")(b"", timeout=10)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refused.value.details() == TOO_MANY_SENTENCE
        assert stage.refused == [(TOO_MANY, HOST)]

    play(scenario, Limits(connections_per_address=0))


def test_no_crowd_of_those_that_are_too_many_is_heard_out(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.front.port.REFUSAL_SECONDS", 0.2)

    async def scenario(stage: Stage) -> None:
        stays = await stage.connect()
        await stage.until(lambda: stage.port.connection_count == 1)
        crowd = [await stage.connect() for _ in range(REFUSALS_MAX + 20)]
        await stage.until(lambda: len(stage.refused) == REFUSALS_MAX + 20)
        for client in crowd:
            assert await client.rest() == b""
        stays.close()

    play(scenario, Limits(connections_per_address=1))


def test_an_address_has_so_many_strangers_and_who_was_let_in_is_none(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        known = [await stage.connect() for _ in range(3)]
        for client in known:
            await client.greeted()
            assert await client.is_served()
        await asyncio.sleep(0.1)
        stage.echo.lets_in = False
        strangers = [await stage.connect() for _ in range(2)]
        for client in strangers:
            await client.greeted()
            assert await client.is_served()
        late = await stage.connect()
        await late.greeted()
        late.ask()
        assert TOO_MANY_SENTENCE.encode() in await late.rest()
        assert stage.refused == [(TOO_MANY, HOST)]
        for client in (*known, *strangers):
            client.close()
        await stage.until(lambda: not stage.port.connection_count and not stage.port._unauthenticated_count)

    play(scenario, Limits(strangers_per_address=2, stranger_seconds=0.05), asks=True)


def test_a_stranger_that_holds_calls_open_is_hung_up_on_and_a_probe_stays(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        stage.echo.lets_in = stage.echo.answers = False
        probe, holding = await stage.connect(), await stage.connect()
        for client in (probe, holding):
            await client.greeted()
        holding.ask()
        await holding.rest()
        assert stage.refused == [(UNAUTHENTICATED, HOST)]
        stage.echo.answers = True
        assert await probe.is_served()
        probe.close()

    play(scenario, Limits(stranger_seconds=0.1), asks=True)


def test_who_falls_silent_is_sent_away(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.connect()
        await client.greeted()
        await client.rest()
        assert stage.refused == [(IDLE, HOST)]

    play(scenario, Limits(idle_seconds=1))


def test_a_client_that_is_dead_is_found_by_a_ping(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PING_SECONDS", "PONG_SECONDS"):
        monkeypatch.setattr(connections, name, 0.05)
    monkeypatch.setattr(ports, "CHECK_SECONDS", 0.05)

    async def scenario(stage: Stage) -> None:
        client = await stage.connect()
        await client.greeted()
        said = frames(await client.rest())
        assert PING in [one.kind for one in said]
        assert stage.refused == [(DEAD, HOST)]

    play(scenario)


def test_a_client_that_reads_nothing_holds_up_nobody_and_what_waits_is_not_in_the_transport(
    play: Play,
) -> None:
    async def scenario(stage: Stage) -> None:
        stage.echo.answers = False
        slow, quick = await stage.connect(), await stage.connect()
        slow.say(PREFACE + settings(window=2**31 - 1) + frame(8, 0, 0, (2**30).to_bytes(4, "big")))
        slow.ask()
        await stage.until(lambda: bool(stage.echo.kept))
        connection, stream_id = stage.echo.kept.pop()
        slow.writer.transport.pause_reading()
        connection.reply(stream_id, bytes(50_000_000))
        await stage.until(lambda: connection.calls.http2.is_full)
        assert connection.transport.get_write_buffer_size() < 1_000_000
        stage.echo.answers = True
        await quick.greeted()
        assert await quick.is_served()
        slow.writer.transport.resume_reading()
        await slow.reader.readexactly(50_000_000)
        slow.close()
        quick.close()

    play(scenario)


def test_who_reads_nothing_and_asks_on_is_hung_up_on_before_refusals_pile_up(play: Play) -> None:
    """Refusals have no window, but a call is open until its refusal is said; who has too many is stopped."""

    async def scenario(stage: Stage) -> None:
        client = await stage.connect()
        client.say(HELLO)
        await stage.until(lambda: bool(stage.shared.connections))
        (connection,) = stage.shared.connections
        client.writer.transport.pause_reading()
        there = connection.transport.get_extra_info("socket")
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)  # else it takes megabytes
        nothing = tuple((name, "/" + "n" * 190 if name == ":path" else value) for name, value in REQUEST)
        stream_id = 1
        while not stage.refused:
            for _ in range(30):
                client.say(request(stream_id, fields=nothing, ends=True))
                stream_id += 2
            await asyncio.sleep(0)
            assert connection.transport.get_write_buffer_size() < 1_000_000
        assert stage.refused == [("HTTP/2: enhance your calm", HOST)]
        client.writer.transport.abort()

    play(scenario)


def test_who_says_much_at_once_holds_up_nobody(play: Play) -> None:
    """Its call is complete only after many turns; one that comes meanwhile is served in its first."""

    async def scenario(stage: Stage) -> None:
        stage.echo.answers = False
        busy, quick = await stage.connect(), await stage.connect()
        for client in (busy, quick):
            await client.greeted()
        message = frame_message(bytes(59_995))
        pieces = b"".join(data(1, message[at : at + 20]) for at in range(0, len(message), 20))
        busy.say(request(1, fields=ECHO) + pieces + data(1, b"", ends=True))
        quick.ask()
        await stage.until(lambda: len(stage.echo.kept) == 2)
        assert stage.echo.messages == [MESSAGE[5:], message[5:]]
        busy.close()
        quick.close()

    play(scenario)


def test_of_answers_that_nobody_reads_the_most_go_when_all_are_too_many(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNREAD_BYTES_MAX", 1_000_000)

    async def scenario(stage: Stage) -> None:
        stage.echo.answers = False
        sizes = (300_000, 500_000, 400_000)
        clients = []
        for size in sizes:
            client = await stage.connect()
            client.say(PREFACE + settings(window=0) + frame(SETTINGS, ACK, 0))
            client.ask()
            await stage.until(lambda: bool(stage.echo.kept))
            connection, stream_id = stage.echo.kept.pop()
            connection.reply(stream_id, bytes(size))
            clients.append((client, connection))
            await stage.until(
                lambda one=connection: one.calls.http2.waiting_bytes or one.calls.http2.is_closed
            )
        said = frames(await clients[1][0].rest())
        assert said[-1].kind == GOAWAY
        assert stage.refused == [("HTTP/2: enhance your calm", HOST)]
        clients[1][0].close()
        await stage.until(lambda: len(stage.shared.connections) == 2)
        assert stage.shared.unread.waiting_bytes == 300_005 + 400_005
        for client, _ in clients:
            client.close()
        await stage.until(lambda: not stage.shared.connections)
        assert stage.shared.unread.waiting_bytes == 0

    play(scenario)


def test_a_port_that_leaves_lets_calls_end(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        stage.echo.answers = False
        client = await stage.connect()
        await client.greeted()
        client.ask()
        await stage.until(lambda: bool(stage.echo.kept))
        leaving = asyncio.ensure_future(stage.port.shut_down(10.0))
        while (one := await client.frame()).kind != PING:
            pass
        client.say(frame(PING, ACK, 0, one.payload))
        with pytest.raises(ConnectionRefusedError):
            await stage.connect()
        connection, stream_id = stage.echo.kept.pop()
        connection.reply(stream_id, b"late")
        said = await client.rest()
        assert b"late" in said
        await leaving
        assert stage.refused == []

    play(scenario)
