"""Thousands of connections from one address: those that fit stay and are served, the others are told why.

All at once, and with TLS, as they come when a broker was away: they are served and take little.
"""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from services.front.answers import TOO_MANY_SENTENCE
from services.front.port import REFUSALS_MAX
from tests.endurance.conftest import OK, BrokerProcess, Client
from tests.http2_client import PREFACE, REQUEST, request, settings

FIT, COME, AT_ONCE, SECONDS = 1_000, 5_000, 50, 60
SEALED, EACH_BYTES_MAX, SEALED_BYTES_MAX = 500, 32 * 1024, 256 * 1024
assert AT_ONCE <= REFUSALS_MAX, "of more at once some are not told"
PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"are you "
PONG = bytes([0, 0, 8, 6, 1, 0, 0, 0, 0]) + b"are you "
NOTHING = tuple((name, "/no.Such/Method" if name == ":path" else value) for name, value in REQUEST)
CALL = request(1, fields=NOTHING, ends=True)
"""A call that is told that nothing is served under its name."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A broker that lets an address have so many connections; this process may open as many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    many = ("--connections-per-address", str(getattr(request, "param", FIT)))
    one = BrokerProcess(tmp_path / "store", "--segment-bytes", str(1 << 24), *many)
    one.start()
    yield one
    assert one.stop() == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_first_thousand_are_served_and_the_rest_are_told_why(broker: BrokerProcess) -> None:
    asyncio.run(asyncio.wait_for(crowded(broker), 4 * SECONDS))


async def crowded(broker: BrokerProcess) -> None:
    """A client, a thousand less one that stay, five thousand that come; all that stay are served."""
    async with Client(broker.listen) as client:
        assert await client.send("t", "before", b"x") == OK
        stay = [await opened(broker) for _ in range(FIT - 1)]
        await asyncio.gather(*(is_served(one) for one in stay))
        told = Counter[bool]()
        for place in range(0, COME - FIT, AT_ONCE):
            told.update(await asyncio.gather(*(is_told(broker) for _ in range(AT_ONCE))))
            if place % (AT_ONCE * 10) == 0:
                assert await client.send("t", f"during {place}", b"x") == OK
        assert told == Counter({True: COME - FIT})
        await asyncio.gather(*(is_served(one) for one in stay))
        assert await client.send("t", "after", b"x") == OK
        assert refused(broker) == {"too many connections": COME - FIT}
        stay.pop()[1].close()
        await asyncio.gather(is_served(await room(broker)))
        for _, writer in stay:
            writer.transport.abort()


@pytest.mark.parametrize("broker", [2 * COME], indirect=True)
def test_five_thousand_that_come_at_once_are_served(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with Client(broker.listen) as client:
            assert await client.send("t", "before", b"x") == OK
            before = resident_bytes(broker)
            all_of_them = await asyncio.gather(*(opened(broker) for _ in range(COME)))
            assert await client.send("t", "during", b"x") == OK
            await asyncio.gather(*(is_served(one) for one in all_of_them))
            assert resident_bytes(broker) - before < COME * EACH_BYTES_MAX
            for _, writer in all_of_them:
                writer.transport.abort()
            assert await client.send("t", "after", b"x") == OK
            assert refused(broker) == {}

    asyncio.run(asyncio.wait_for(scenario(), 4 * SECONDS))


def test_clients_of_tls_that_all_come_again_at_once_are_served(broker: BrokerProcess) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])

    async def scenario() -> None:
        async with Client(broker.listen) as client:
            assert await client.send("t", "before", b"x") == OK
            before = resident_bytes(broker)
            for number in range(2):
                with_tls = [opened(broker, ssl=context, ssl_handshake_timeout=SECONDS) for _ in range(SEALED)]
                all_of_them = await asyncio.gather(*with_tls)
                assert await client.send("t", f"during {number}", b"x") == OK
                await asyncio.gather(*(is_served(one) for one in all_of_them))
                for _, writer in all_of_them:
                    writer.transport.abort()
            assert resident_bytes(broker) - before < SEALED * SEALED_BYTES_MAX

    asyncio.run(asyncio.wait_for(scenario(), 4 * SECONDS))


def resident_bytes(broker: BrokerProcess) -> int:
    assert broker.process is not None
    pages = Path(f"/proc/{broker.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


async def opened(broker: BrokerProcess, **how: Any) -> Streams:
    """A connection that speaks HTTP/2."""
    host, _, port = broker.listen.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), **how)
    writer.write(PREFACE + settings())
    return reader, writer


async def is_served(one: Streams) -> None:
    """Its ping is answered."""
    reader, writer = one
    writer.write(PING)
    await asyncio.wait_for(reader.readuntil(PONG), SECONDS)


async def is_told(broker: BrokerProcess) -> bool:
    """It is told why it cannot stay: the answer to its first call, and a GOAWAY."""
    reader, writer = await opened(broker)
    writer.write(CALL)
    said = await asyncio.wait_for(reader.read(), SECONDS)
    writer.close()
    return b"grpc-status\x018" in said and said.endswith(TOO_MANY_SENTENCE.encode())


async def room(broker: BrokerProcess) -> Streams:
    """A connection, as soon as one that stayed has left."""
    while True:
        reader, writer = await opened(broker)
        writer.write(CALL)
        await reader.readuntil(b"grpc-status")
        if (await reader.readexactly(2)) != b"\x018":  # too many
            return reader, writer
        writer.close()


def refused(broker: BrokerProcess) -> dict[str, int]:
    """Who was sent away, by reason."""
    with urlopen(f"http://{broker.http}/api/refused") as answer:
        return dict(json.load(answer)["counts"])
