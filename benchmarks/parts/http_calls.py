"""Calls over HTTP by a client with low overhead, and the processor time and memory of a broker's process.

A request is bytes on a persistent socket; of an answer only the status and the length are parsed.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from parts.percentiles import figures

BODY: Final = "x" * 256
LONE: Final = 500
POLLS: Final = 1_000
SCRAPE_SECONDS: Final = 0.5
"""Interval between scrapes of the metrics of 1,000 topics, which cost processor time, too."""


class Server:
    """A broker's process, measured by /proc."""

    def __init__(self, process: int) -> None:
        self._proc = Path(f"/proc/{process}")

    def busy_us(self) -> float:
        """Return the processor time so far, in microseconds."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e6

    def resident_bytes(self) -> int:
        """Return the resident memory."""
        return int((self._proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Connection:
    """A persistent connection to the HTTP interface."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def post(self, path: str, body: object) -> bytes:
        """Post JSON; return the answer's body."""
        return await self._call("POST", path, body)

    async def put(self, path: str, body: object) -> bytes:
        """Put JSON; return the answer's body."""
        return await self._call("PUT", path, body)

    async def _call(self, method: str, path: str, body: object) -> bytes:
        said = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(said)}\r\n\r\n".encode() + said)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        got = await self._reader.readexactly(length)
        assert answer.startswith(b"http/1.1 20"), got
        return got

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def connected(port: int, count: int) -> list[Connection]:
    """Return `count` connections."""
    pairs = [await asyncio.open_connection("127.0.0.1", port, limit=1 << 24) for _ in range(count)]
    return [Connection(reader, writer) for reader, writer in pairs]


async def lone_ms(work: Callable[[], Awaitable[object]]) -> dict[str, float]:
    """Return figures of `LONE` sequential calls, in ms."""
    took = []
    for _ in range(LONE):
        began = time.perf_counter()
        await work()
        took.append((time.perf_counter() - began) * 1e3)
    return figures(took)


async def measure_polls(
    facts: dict[str, Any], opened: Callable[[Sequence[str]], Awaitable[object]]
) -> dict[str, float]:
    """Open POLLS long polls, each on a separate topic, and answer each with a message.

    `opened(topics)` waits on topics and ends when all are answered.
    """
    server, port = Server(facts["process"]), int(facts["http"].rpartition(":")[2])
    [sender] = await connected(port, 1)
    topics = [f"poll-{number}" for number in range(POLLS)]
    for topic in topics:
        await sender.post("/api/topics", {"name": topic, "queue_count": 1})

    async def send() -> None:
        await sender.post("/api/messages", {"topic": "lone", "body": BODY})

    alone = await lone_ms(send)
    before_us, before_bytes = server.busy_us(), server.resident_bytes()
    waiting = asyncio.ensure_future(opened(topics))
    while await open_polls(port) < POLLS:
        assert not waiting.done(), "the polls ended before all were open"
        await asyncio.sleep(SCRAPE_SECONDS)
    open_us, held_bytes = server.busy_us(), server.resident_bytes() - before_bytes
    beside = await lone_ms(send)
    answering_us = server.busy_us()
    await sender.post("/api/messages", {"messages": [{"topic": topic, "body": BODY} for topic in topics]})
    await waiting
    sender.close()
    busy_us = open_us - before_us + server.busy_us() - answering_us
    return {
        "count": POLLS,
        "us_each": round(busy_us / POLLS),
        "bytes_each": round(held_bytes / POLLS),
        "lone_send_p50_ms": alone["p50_ms"],
        "lone_send_beside_p50_ms": beside["p50_ms"],
        "lone_send_p99_ms": alone["p99_ms"],
        "lone_send_beside_p99_ms": beside["p99_ms"],
    }


async def open_polls(port: int) -> int:
    """Return the number of waiting receives, from the metrics."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    found = [one for one in text.splitlines() if one.startswith("mq_http_polls{") and '"receive"' in one]
    return int(float(found[0].split()[-1])) if found else 0
