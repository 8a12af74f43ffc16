"""HTTP and gRPC: the broker's processor time for each message, a lone send, open long polls. Prints JSON.

    .venv/bin/python benchmarks/over_http.py [--count 20000] [--rounds 3] [--folder DIR]

One broker (`--flush async`) serves each row over both ports in turn, in `--rounds` rounds; a figure is the
median of the rounds. Messages have 256 bytes. 16 calls are open at once: over HTTP on a connection each,
over gRPC on one channel. `us` is the processor time of the broker's process, user and system, for each
message. The clients have low overhead (`parts/grpc_client.py` gives the reason); of answers over HTTP only
the receipt handles are read.

`polls`: 1,000 long polls, each on a separate topic, and one message for each: the broker's processor time
for opening, answering and closing one, the memory of one while it waits, in bytes, and the latency of a lone
send without and with the open polls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from parts.grpc_client import acknowledge, call, receive_request, sent
from parts.http_calls import BODY, Connection, Server, connected, lone_ms, measure_polls
from parts.serving import serving

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service

AT_ONCE, BATCH, LEASED = 16, 100, 32
Work = Callable[[], Awaitable[int]]
"""One call; returns its number of messages, 0 when there are no more."""


def sends_over_http(one: Connection, topic: str, batch: int) -> Work:
    """Return a send of `batch` messages."""
    message = {"topic": topic, "body": BODY}

    async def work() -> int:
        await one.post("/api/messages", message if batch == 1 else {"messages": [message] * batch})
        return batch

    return work


def sends_over_grpc(channel: grpc.aio.Channel, topic: str, batch: int, first: int) -> Work:
    """Return a send of `batch` messages; their ids count from `first`."""
    send, numbers = call(channel, "SendMessage"), iter(range(first, 1 << 60))

    async def work() -> int:
        messages = [sent(topic, next(numbers)) for _ in range(batch)]
        answer = await send(service.SendMessageRequest(messages=messages))
        assert answer.status.code == wire.Code.OK, answer.status
        return batch

    return work


def receives_over_http(one: Connection, topic: str) -> Work:
    """Return a receive and an acknowledgement of its messages."""

    async def work() -> int:
        got = await one.post("/api/groups/stopwatch/receive", {"topic": topic, "count": LEASED})
        handles = [part.partition(b'"')[0].decode() for part in got.split(b'"receipt_handle":"')[1:]]
        if handles:
            await one.post("/api/groups/stopwatch/ack", {"receipt_handles": handles})
        return len(handles)

    return work


def receives_over_grpc(channel: grpc.aio.Channel, topic: str) -> Work:
    """Return the same over gRPC."""
    receive, ack, asked = call(channel, "ReceiveMessage", "unary_stream"), call(channel, "AckMessage"), None

    async def work() -> int:
        nonlocal asked
        asked = asked or receive_request(topic)
        asked.long_polling_timeout.seconds = 0
        got = [one.message async for one in receive(asked) if one.HasField("message")]
        if got:
            await acknowledge(ack, topic, got)
        return len(got)

    return work


async def us_each(server: Server, works: list[Work], count: int | None = None) -> float:
    """Run works concurrently for `count` messages or until there are none; return `us` of one message."""
    done = 0

    async def go(work: Work) -> None:
        nonlocal done
        while count is None or done < count:
            some = await work()
            done += some
            if not some:
                return

    before = server.busy_us()
    await asyncio.gather(*map(go, works))
    assert done, "no message came"
    return (server.busy_us() - before) / done


async def one_round(facts: dict[str, Any], number: int, count: int) -> dict[str, dict[str, float]]:
    """Measure every row once over both ports."""
    server, port = Server(facts["process"]), int(facts["http"].rpartition(":")[2])
    rows: dict[str, dict[str, float]] = {"http": {}, "grpc": {}}
    connections = await connected(port, AT_ONCE)
    first = number * 1_000_000_000
    async with grpc.aio.insecure_channel(facts["listen"]) as channel:
        for batch in (1, BATCH):
            topic, name = f"sent-{batch}-{number}", f"send_{batch}_us"
            http = [sends_over_http(one, f"{topic}-http", batch) for one in connections]
            wires = [
                sends_over_grpc(channel, f"{topic}-grpc", batch, first + (batch * AT_ONCE + one) * 10_000_000)
                for one in range(AT_ONCE)
            ]
            rows["http"][name] = await us_each(server, http, count)
            rows["grpc"][name] = await us_each(server, wires, count)
        topic = f"sent-1-{number}"
        rows["http"]["lone_send_p50_ms"] = (await lone_ms(sends_over_http(connections[0], topic, 1)))[
            "p50_ms"
        ]
        rows["grpc"]["lone_send_p50_ms"] = (
            await lone_ms(sends_over_grpc(channel, topic, 1, first + 900_000_000))
        )["p50_ms"]
        name = f"receive_and_acknowledge_{LEASED}_us"
        http = [receives_over_http(one, f"{topic}-http") for one in connections]
        wires = [receives_over_grpc(channel, f"{topic}-grpc") for _ in range(AT_ONCE)]
        rows["http"][name] = await us_each(server, http)
        rows["grpc"][name] = await us_each(server, wires)
    for one in connections:
        one.close()
    return rows


async def raw_polls(facts: dict[str, Any], topics: Sequence[str]) -> None:
    """Receive one message of each topic, all polls open at once."""
    connections = await connected(int(facts["http"].rpartition(":")[2]), len(topics))
    receives = [
        one.post("/api/groups/stopwatch/receive", {"topic": topic, "wait": "20s"})
        for one, topic in zip(connections, topics, strict=True)
    ]
    got = await asyncio.gather(*receives)
    assert all(b'"receipt_handle"' in one for one in got), "a poll got nothing"
    for one in connections:
        one.close()


def main() -> None:
    """Measure, and print the figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--count", type=int, default=20_000, help="messages of a row")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--folder", type=Path, help="where to write; else a temporary folder")
    chosen = arguments.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="tidewheel-bench-") as folder:
        with serving(Path(folder) / "store", "--flush", "async") as facts:
            asyncio.run(one_round(facts, 0, chosen.count // 4))  # warms both
            rounds = [asyncio.run(one_round(facts, 1 + n, chosen.count)) for n in range(chosen.rounds)]
        with serving(Path(folder) / "polls", "--flush", "async") as facts:
            of_polls = asyncio.run(measure_polls(facts, partial(raw_polls, facts)))
    middles = {
        port: {
            name: round(statistics.median(one[port][name] for one in rounds), 2) for name in rounds[0][port]
        }
        for port in rounds[0]
    }
    beside = {"cores": os.cpu_count(), "load_before": before, "load_after": os.getloadavg()[0]}
    print(json.dumps({**middles, "polls": of_polls, "beside": beside}, indent=2))


if __name__ == "__main__":
    main()
