"""The protocol port on real sockets: two servers behind it that say which of them they are and repeat."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from commitlog.limits import STRANGER_BYTES_PER_SECOND, STRANGER_FREE_BYTES
from services.front.admission import IDLE, SILENT, STRANGER, TOO_MANY, Limits
from services.front.answers import PLAINTEXT_FAREWELL, farewell
from services.front.first_bytes import Protocol
from services.front.front import FAREWELLS_MAX, PLAINTEXT, Behind, Front, Outgoing, Peers
from services.front.grpc_refusal import SETTINGS
from services.front.pacing import PIECE_BYTES, Pace
from services.front.piping import Incoming

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CALL = bytes.fromhex("000001 01 05 00000001 88")
HELLO = b"\x16\x03\x01\x00\x05hello"
SCENARIO_SECONDS = 20
HTTP = "http://127.0.0.1:8088"

Played = Callable[["Port"], Awaitable[None]]


class Port:
    """A front with its two servers, whom it has refused, and whose connections these saw."""

    def __init__(self) -> None:
        self.refused: list[tuple[str, str]] = []
        self.seen: list[str] = []
        self.peers = Peers()
        self.port = 0
        self.lets_in = True
        self.heard_bytes = 0
        self.front: Front

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, said: bytes) -> bytes:
        """Say something and hang up; returns what came back until then."""
        reader, writer = await self.connect()
        writer.write(said)
        told = await reader.readexactly(1 + len(said))
        writer.close()
        return told

    def serve(self, name: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            port = writer.get_extra_info("peername")[1]
            peer = f"ipv4:127.0.0.1:{port}"
            self.seen.append(self.peers.host_of(peer))
            if self.lets_in:
                self.peers.welcome(peer)
            writer.write(name)
            while data := await reader.read(65_536):
                self.heard_bytes += len(data)
                writer.write(data)
                await writer.drain()
            writer.close()

        return repeat


@asynccontextmanager
async def a_port(
    limits: Limits, *, has_plaintext: bool = True, pace: Pace | None = None
) -> AsyncIterator[Port]:
    one = Port()
    plain = await asyncio.start_server(one.serve(b"p"), "127.0.0.1", 0)
    tls = await asyncio.start_server(one.serve(b"t"), "127.0.0.1", 0)
    ports = [server.sockets[0].getsockname()[1] for server in (plain, tls)]
    behind = Behind(ports[0] if has_plaintext else None, ports[1])
    listening = socket.create_server(("127.0.0.1", 0))
    one.port = listening.getsockname()[1]
    one.front = Front(
        behind, limits, HTTP, one.peers, lambda why, host: one.refused.append((why, host)), pace
    )
    await one.front.start(listening)
    try:
        yield one
    finally:
        await one.front.stop()
        plain.close()
        tls.close()


def play(
    scenario: Played, limits: Limits | None = None, *, has_plaintext: bool = True, pace: Pace | None = None
) -> None:
    async def whole() -> None:
        port = a_port(limits or Limits(), has_plaintext=has_plaintext, pace=pace)
        async with asyncio.timeout(SCENARIO_SECONDS), port as one:
            await scenario(one)

    asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_plaintext_and_tls_each_reach_their_server() -> None:
    async def scenario(port: Port) -> None:
        assert await port.ask(PREFACE) == b"p" + PREFACE
        assert await port.ask(HELLO) == b"t" + HELLO
        assert port.seen == ["127.0.0.1", "127.0.0.1"]
        await until(lambda: not port.peers.hosts and port.front.connection_count == 0)
        assert port.refused == [("TLS: the client hangs up in the handshake", "127.0.0.1")]

    play(scenario)


def test_where_plaintext_is_off_a_call_is_told_so_and_never_reaches_grpc() -> None:
    async def scenario(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(PREFACE)
        assert (
            await reader.readexactly(len(SETTINGS)) == SETTINGS
        )  # who greets nobody is not called by anybody
        writer.write(CALL)
        told = await reader.read()
        assert told == farewell(Protocol.HTTP2, PREFACE + CALL, PLAINTEXT_FAREWELL)
        assert b"TLS only" in told
        writer.close()
        assert await port.ask(HELLO) == b"t" + HELLO
        assert port.refused[0] == (PLAINTEXT, "127.0.0.1")
        assert len(port.seen) == 1
        await until(lambda: port.front.connection_count == 0)

    play(scenario, has_plaintext=False)


def test_many_plaintext_callers_at_once_are_let_go_and_none_gets_in() -> None:
    async def scenario(port: Port) -> None:
        several = [await port.connect() for _ in range(2 * FAREWELLS_MAX)]
        for _, writer in several:
            writer.write(PREFACE)
        await until(lambda: len(port.refused) == 2 * FAREWELLS_MAX)
        for _, writer in several:
            writer.close()
        await until(lambda: port.front.connection_count == 0)
        assert not port.seen

    play(scenario, has_plaintext=False)


def test_a_preface_that_comes_byte_by_byte_is_a_preface() -> None:
    async def scenario(port: Port) -> None:
        reader, writer = await port.connect()
        for place in range(len(PREFACE)):
            writer.write(PREFACE[place : place + 1])
            await asyncio.sleep(0)
        assert await reader.readexactly(1 + len(PREFACE)) == b"p" + PREFACE
        writer.close()

    play(scenario)


def test_many_megabytes_come_through_as_they_are() -> None:
    async def scenario(port: Port) -> None:
        sent = PREFACE + bytes(range(256)) * 65_536
        reader, writer = await port.connect()
        writer.write(sent)
        assert await reader.readexactly(1 + len(sent)) == b"p" + sent
        writer.close()

    play(scenario)


def test_who_is_not_let_in_says_little_and_all_of_it_once_it_is() -> None:
    most = STRANGER_FREE_BYTES + 4 * PIECE_BYTES

    async def scenario(port: Port) -> None:
        port.lets_in = False
        said = PREFACE + bytes(range(256)) * 4_000
        reader, writer = await port.connect()
        writer.write(said)
        await until(lambda: port.heard_bytes >= STRANGER_FREE_BYTES)
        (stranger,) = port.peers.strangers
        peer = f"ipv4:127.0.0.1:{stranger}"
        await until(lambda: port.peers.strangers[stranger]._holds == 1)
        told = await reader.readexactly(1 + port.heard_bytes)
        assert port.heard_bytes <= most
        assert port.peers.is_stranger(peer)
        port.peers.welcome(peer)
        assert not port.peers.is_stranger(peer)
        told += await reader.readexactly(1 + len(said) - len(told))
        assert told == b"p" + said
        writer.close()
        await until(lambda: port.front.connection_count == 0)

    play(scenario, pace=Pace(lambda: 0.0, burst_bytes=3 * PIECE_BYTES, bytes_per_second=1))


def test_strangers_share_one_bucket_have_their_first_bytes_free_and_are_hung_up_on_in_time() -> None:
    async def scenario(port: Port) -> None:
        port.lets_in = False
        greedy = [await port.connect() for _ in range(3)]
        for _, writer in greedy:
            writer.write(PREFACE + bytes(1_000_000))
        await until(lambda: len(port.seen) == 3)
        assert await port.ask(PREFACE + bytes(1_000)) == b"p" + PREFACE + bytes(1_000)
        await until(lambda: port.front.connection_count == 0)
        assert port.refused == [(STRANGER, "127.0.0.1")] * 3
        assert port.heard_bytes <= 4 * STRANGER_FREE_BYTES + 2 * PIECE_BYTES
        for _, writer in greedy:
            writer.close()

    strangers = Pace(lambda: 0.0, burst_bytes=PIECE_BYTES, bytes_per_second=1)
    play(scenario, Limits(stranger_seconds=0.5), pace=strangers)


def test_an_address_has_so_many_strangers_at_once_and_those_who_were_let_in_do_not_count() -> None:
    async def scenario(port: Port) -> None:
        known = [await port.connect() for _ in range(3)]
        for reader, writer in known:
            writer.write(PREFACE)
            await reader.readexactly(1 + len(PREFACE))
        port.lets_in = False
        strangers = [await port.connect() for _ in range(2)]
        for reader, writer in strangers:
            writer.write(PREFACE)
            await reader.readexactly(1 + len(PREFACE))
        reader, writer = await port.connect()
        writer.write(PREFACE + CALL)
        assert await reader.read() == farewell(Protocol.HTTP2, PREFACE + CALL)
        assert port.refused == [(TOO_MANY, "127.0.0.1")]
        strangers[0][1].close()
        await until(lambda: port.peers.stranger_counts["127.0.0.1"] == 1)
        assert await port.ask(PREFACE) == b"p" + PREFACE
        for _, other in (*known, *strangers, (reader, writer)):
            other.close()
        await until(lambda: not port.peers.stranger_counts)

    play(scenario, Limits(strangers_per_address=2), pace=Pace(lambda: 0.0))


def test_a_probe_of_health_stays_connected_though_it_is_never_let_in() -> None:
    clock = [0.0]

    async def scenario(port: Port) -> None:
        port.lets_in = False
        reader, writer = await port.connect()
        writer.write(PREFACE)
        await reader.readexactly(1 + len(PREFACE))
        for _ in range(200):
            clock[0] += 1
            writer.write(bytes(STRANGER_BYTES_PER_SECOND))
            await reader.readexactly(STRANGER_BYTES_PER_SECOND)
        assert port.heard_bytes > 4 * STRANGER_FREE_BYTES
        assert [one.is_greedy for one in port.peers.strangers.values()] == [False]
        assert port.refused == []
        writer.close()

    play(
        scenario,
        Limits(stranger_seconds=0.01),
        pace=Pace(lambda: clock[0], burst_bytes=1, bytes_per_second=1),
    )


def test_who_is_let_in_in_time_stays() -> None:
    async def scenario(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(PREFACE)
        await reader.readexactly(1 + len(PREFACE))
        await asyncio.sleep(0.05)
        writer.write(b"more")
        assert await reader.readexactly(4) == b"more"
        assert port.refused == []
        writer.close()

    play(scenario, Limits(stranger_seconds=0.02), pace=Pace(lambda: 0.0))


def test_http1_is_answered_and_refused() -> None:
    async def scenario(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"http://127.0.0.1:8088" in await reader.read()
        assert port.refused == [("HTTP/1", "127.0.0.1")]
        writer.close()

    play(scenario)


def test_who_says_nothing_is_sent_away() -> None:
    async def scenario(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(b"PR")
        assert await reader.read() == b""
        assert port.refused == [(SILENT, "127.0.0.1")]
        writer.close()

    play(scenario, Limits(hello_seconds=0.05))


def test_who_falls_silent_is_sent_away() -> None:
    async def scenario(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(PREFACE)
        assert await reader.read() == b"p" + PREFACE
        assert port.refused == [(IDLE, "127.0.0.1")]
        writer.close()

    play(scenario, Limits(idle_seconds=0.1))


def test_one_connection_too_many_is_sent_away_and_the_others_notice_nothing() -> None:
    async def scenario(port: Port) -> None:
        first = [await port.connect() for _ in range(2)]
        for reader, writer in first:
            writer.write(PREFACE)
            await reader.readexactly(1 + len(PREFACE))
        reader, writer = await port.connect()
        writer.write(PREFACE)
        assert await reader.readexactly(len(SETTINGS)) == SETTINGS
        writer.write(CALL)
        assert await reader.read() == farewell(Protocol.HTTP2, PREFACE + CALL)
        assert port.refused == [(TOO_MANY, "127.0.0.1")]
        for reader, writer in first:
            writer.write(b"more")
            assert await reader.readexactly(4) == b"more"
            writer.close()
        await until(lambda: port.front.connection_count == 0)
        assert await port.ask(PREFACE) == b"p" + PREFACE

    play(scenario, Limits(connections_per_address=2))


def test_one_too_many_that_says_nothing_is_not_heard_for_long_and_no_crowd_of_them_is() -> None:
    async def scenario(port: Port) -> None:
        _, stays = await port.connect()
        await until(lambda: port.front.connection_count == 1)
        silent = [await port.connect() for _ in range(FAREWELLS_MAX)]
        await until(lambda: len(port.refused) == FAREWELLS_MAX)
        reader, _ = await port.connect()
        assert await ended(reader)
        for reader, _ in silent:
            assert await ended(reader)
        stays.close()

    play(scenario, Limits(connections_per_address=1))


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_where_the_server_behind_hangs_up_the_client_is_told() -> None:
    async def scenario(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(PREFACE)
        await reader.readexactly(1 + len(PREFACE))
        writer.write_eof()
        assert await reader.read() == b""
        await until(lambda: not port.peers.hosts)

    play(scenario)


def test_a_server_behind_that_speaks_first_is_heard_by_every_client() -> None:
    """gRPC sends its settings at once: they may come before the two connections have been made one."""

    async def scenario(port: Port) -> None:
        for _ in range(20):
            told = await asyncio.gather(*(port.ask(PREFACE) for _ in range(50)))
            assert told == [b"p" + PREFACE] * 50

    play(scenario)


def test_the_two_connections_are_one_as_soon_as_the_second_is_made() -> None:
    async def scenario(port: Port) -> None:
        loop, joined = asyncio.get_running_loop(), []

        class Watched(Outgoing):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                joined.append(self.other)

        client = Incoming(lambda _: None, lambda *_: None, lambda _: None)
        server = await asyncio.start_server(port.serve(b"p"), "127.0.0.1", 0)
        behind = server.sockets[0].getsockname()
        await loop.create_connection(lambda: client, *behind)
        await loop.create_connection(lambda: Watched(port.peers, client), *behind)
        assert joined == [client]
        client.transport.close()
        server.close()

    play(scenario)
