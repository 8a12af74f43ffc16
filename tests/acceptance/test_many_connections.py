"""Thousands of connections from one address: those that fit stay and are served, the others are told why."""

from __future__ import annotations

import asyncio
import json
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from services.front.answers import TOO_MANY_SENTENCE
from services.front.port import FAREWELLS_MAX
from tests.endurance.conftest import OK, BrokerProcess, Client
from tests.http2_client import PREFACE, REQUEST, request, settings

FIT, COME, AT_ONCE, SECONDS = 1_000, 5_000, 50, 60
assert AT_ONCE <= FAREWELLS_MAX, "of more at once some are not told"
PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"are you "
PONG = bytes([0, 0, 8, 6, 1, 0, 0, 0, 0]) + b"are you "
NOTHING = tuple((name, "/no.Such/Method" if name == ":path" else value) for name, value in REQUEST)
CALL = request(1, fields=NOTHING, ends=True)
"""A call that is told that nothing is served under its name."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that lets an address have a thousand connections; this process may open as many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    one = BrokerProcess(
        tmp_path / "store", "--segment-bytes", str(1 << 24), "--connections-per-address", str(FIT)
    )
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


async def opened(broker: BrokerProcess) -> Streams:
    """A connection that speaks HTTP/2."""
    host, _, port = broker.listen.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
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
