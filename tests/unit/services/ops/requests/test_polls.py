"""Long polls on real sockets: a caller that hangs up, one that reads nothing, and what was leased for it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from commitlog.records.message import Message
from services.ops.http_server import HttpLimits, HttpServer

Desk = Any
AtDesk = Callable[..., None]
SECONDS = 60


@asynccontextmanager
async def served(desk: Desk, bounds: HttpLimits | None = None) -> AsyncIterator[int]:
    """Serve the desk's HTTP interface on a port."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(desk.app, None, bounds)
    task = asyncio.create_task(server.serve([listening]))
    try:
        async with asyncio.timeout(SECONDS):
            yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def asked(port: int, path: str, body: object, window_bytes: int = 1 << 16) -> asyncio.StreamWriter:
    """Send a request, and read nothing of its answer."""
    said = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    near = socket.socket()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
    near.connect(("127.0.0.1", port))
    _, writer = await asyncio.open_connection(sock=near, limit=window_bytes)
    writer.write(f"{head}Content-Length: {len(said)}\r\n\r\n".encode() + said)
    return writer


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def waiting(desk: Desk, topic: str = "t") -> int:
    """How many receives wait for something in a topic."""
    lines = desk.live.receivers._long_polls._waiting.get(topic, {})
    return sum(map(len, lines.values()))


def in_flight(desk: Desk, topic: str = "t") -> int:
    """How many messages of a topic are leased to g."""
    leased = desk.live.core.groups.leased_counts()
    return int(leased.get((topic, "g"), 0))


RECEIVE = {"topic": "t", "wait": "20s"}


def test_a_caller_that_hangs_up_frees_its_long_poll(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        async with served(desk) as port:
            writer = await asked(port, "/api/groups/g/receive", RECEIVE)
            await until(lambda: waiting(desk) == 1)
            writer.close()
            await until(lambda: waiting(desk) == 0)
            await desk.live.send(Message(topic="t", body=b"x", message_id="A"))
            got = await desk.http.post("/api/groups/g/receive", json={"topic": "t"})
            assert [(one["message_id"], one["attempt"]) for one in got.json()["messages"]] == [("A", 1)]

    at_desk(scenario)


def test_what_is_leased_while_its_caller_hangs_up_is_given_back(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        given_back = 0
        async with served(desk) as port:
            for number in range(20):
                await desk.http.post("/api/topics", json={"name": f"t{number}", "queue_count": 1})
                topic = {"topic": f"t{number}"}
                writer = await asked(port, "/api/groups/g/receive", topic | {"wait": "20s"})
                await until(lambda topic=topic: waiting(desk, topic["topic"]) == 1)
                writer.transport.abort()
                for _ in range(number // 2):
                    await asyncio.sleep(0)
                await desk.live.send(Message(topic=topic["topic"], body=b"x", message_id=f"A{number}"))
                await until(lambda: not desk.app.state.polls.open_count)
                await until(lambda: not desk.live.receivers.unread_bytes)
                got = (await desk.http.post("/api/groups/g/receive", json=topic)).json()["messages"]
                assert got or in_flight(desk, topic["topic"]), "the message is neither leased nor there"
                assert all(one["attempt"] == 1 for one in got)
                given_back += len(got)
        assert given_back

    at_desk(scenario)


def test_who_reads_nothing_is_hung_up_on_and_its_leases_are_free(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        for number in range(2):
            body = b"x" * (4 << 20)
            await desk.live.send(Message(topic="t", body=body, message_id=f"A{number}"))
        async with served(desk, HttpLimits(unread_ms_max=100)) as port:
            writer = await asked(port, "/api/groups/g/receive", RECEIVE, window_bytes=4_096)
            writer.transport.pause_reading()
            await until(lambda: desk.live.receivers.unread_bytes)
            assert in_flight(desk)
            await until(lambda: not in_flight(desk))
            assert desk.live.receivers.unread_bytes == 0
            writer.close()

    at_desk(scenario)


def test_a_caller_that_hangs_up_frees_its_wait_for_arrivals(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        async with served(desk) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /api/topics/t/arrivals?wait_ms=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: waiting(desk) == 1)
            writer.close()
            await until(lambda: waiting(desk) == 0)

    at_desk(scenario)


def test_a_scrape_counts_the_open_polls_by_kind(at_desk: AtDesk) -> None:
    async def counted(desk: Desk) -> dict[str, float]:
        text = (await desk.http.get("/metrics")).text
        return {
            kind: float(n) for kind, n in re.findall(r'^mq_http_polls\{.*kind="(\w+)".*\} (\S+)$', text, re.M)
        }

    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        none = {"receive": 0, "check_back": 0, "arrivals": 0}
        assert await counted(desk) == none
        async with served(desk) as port:
            receives = [await asked(port, "/api/groups/g/receive", RECEIVE) for _ in range(2)]
            check_back = await asked(port, "/api/transactions/check-backs", {"topics": ["t"]})
            _, arrivals = await asyncio.open_connection("127.0.0.1", port)
            arrivals.write(b"GET /api/topics/t/arrivals?wait_ms=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: desk.app.state.polls.open_count == 4)
            assert await counted(desk) == {"receive": 2, "check_back": 1, "arrivals": 1}
            for writer in (*receives, check_back, arrivals):
                writer.close()
            await until(lambda: not desk.app.state.polls.open_count)
            assert await counted(desk) == none

    at_desk(scenario)
