"""Cost of attacks on the protocol port to well-behaved clients: a table of attack, memory, p99, answer.

    .venv/bin/python benchmarks/front_attacks.py [--seconds 3] [--connections 4] [--attacks NAME ...]

Each attack of `tests/attacks/http2.py` runs for `--seconds` over `--connections` connections of a separate
process, which reconnects as soon as the server has closed them. Before and during the attack one client
sends (a message of 256 B, flushed later) and one sends heartbeats, each a call every 5 ms. Further cases:

* `connections`: 5,000 connections at once, which send a preface and SETTINGS and nothing more;
* `tls_reconnects`: 2,000 TLS clients that connect, close, and all reconnect;
* `silent`: 1,000 connections that send the first byte of a preface, and nothing more;
* `ordinary_calls`: no attack, but a constant stream of calls, each of which is answered, as a baseline.

JSON on stdout: attack -> growth of the broker's memory (the peak during the attack, and the rest after it),
p50 and p99 of the two clients before and during, the answers to the attackers; a table on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import ssl
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from tests.attacks.http2 import (
    ACK,
    ATTACKS,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    SERVICE,
    SETTINGS,
    WINDOW_UPDATE,
    Attacker,
    Frames,
    call_of,
    frame,
)
from tests.endurance.conftest import BrokerProcess

EVERY_SECONDS: Final = 0.005
ATTACK_BYTES: Final = 4_000_000
CONNECTIONS, TLS_CLIENTS = 5_000, 2_000
ORDINARY: Final = "ordinary_calls"
CROWD: Final = ("connections", "tls_reconnects", "silent")


class Caller:
    """A client that makes sequential calls, and records the duration of each in seconds."""

    def __init__(self, address: tuple[str, int], name: str, request: bytes) -> None:
        self._address, self._block = address, call_of(SERVICE + name)
        self._message = b"\0" + len(request).to_bytes(4, "big") + request
        self.took: list[float] = []

    async def run(self) -> None:
        """Call until cancelled."""
        reader, writer = await asyncio.open_connection(*self._address)
        windows = struct.pack(">HI", INITIAL_WINDOW_SIZE, 1 << 30)
        writer.write(PREFACE + frame(SETTINGS, 0, 0, windows))
        writer.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30)))
        for stream_id in range(1, 2**31, 2):
            began = time.perf_counter()
            head = frame(HEADERS, END_HEADERS, stream_id, self._block)
            writer.write(head + frame(DATA, END_STREAM, stream_id, self._message))
            await self._answer(reader, writer, stream_id)
            self.took.append(time.perf_counter() - began)
            await asyncio.sleep(max(0.0, EVERY_SECONDS - self.took[-1]))

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream_id: int
    ) -> None:
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, told_id = struct.unpack_from(">BBI", head, 3)
            if kind == SETTINGS and not flags & ACK:
                writer.write(frame(SETTINGS, ACK, 0, b""))
            elif kind == PING and not flags & ACK:
                writer.write(frame(PING, ACK, 0, payload))
            elif told_id == stream_id and flags & END_STREAM:
                return


def callers(address: tuple[str, int]) -> dict[str, Caller]:
    """Return a client that sends messages, and a client that sends heartbeats."""
    properties = wire.SystemProperties(message_id="m")
    message = wire.Message(topic=wire.Resource(name="t"), body=bytes(256), system_properties=properties)
    send = service.SendMessageRequest(messages=[message]).SerializeToString()
    beat = service.HeartbeatRequest().SerializeToString()
    return {"send": Caller(address, "SendMessage", send), "heartbeat": Caller(address, "Heartbeat", beat)}


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def percentiles(took: list[float]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    ordered = sorted(took)
    return {
        f"p{part}_ms": round(ordered[len(ordered) * part // 100] * 1000, 2) for part in (50, 99) if ordered
    }


async def measure(
    process: int, address: tuple[str, int], attack: Callable[[Pipe], None], seconds: float
) -> dict[str, Any]:
    """Measure the two clients before an attack and during the attack."""
    both = callers(address)
    tasks = [asyncio.ensure_future(one.run()) for one in both.values()]
    await asyncio.sleep(0.5)
    for one in both.values():
        one.took.clear()
    await asyncio.sleep(seconds)
    found: dict[str, Any] = {"before": {name: percentiles(one.took) for name, one in both.items()}}
    before_bytes = most_bytes = resident_bytes(process)
    for one in both.values():
        one.took.clear()
    ours, theirs = multiprocessing.Pipe()
    attacking = multiprocessing.Process(target=attack, args=(theirs,), daemon=True)
    attacking.start()
    while not ours.poll():
        await asyncio.sleep(0.02)
        most_bytes = max(most_bytes, resident_bytes(process))
        assert not any(one.done() for one in tasks), [one.exception() for one in tasks if one.done()]
    found["during"] = {name: percentiles(one.took) | {"calls": len(one.took)} for name, one in both.items()}
    found |= ours.recv()
    attacking.join(10)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    found["growth_mib"] = round((most_bytes - before_bytes) / 2**20, 1)
    found["stays_mib"] = round((resident_bytes(process) - before_bytes) / 2**20, 1)
    return found


def attack(pipe: Pipe, address: tuple[str, int], name: str, connections: int, seconds: float) -> None:
    """Attack over `connections` repeatedly for `seconds`; send counts and server answers to the pipe."""
    said = list(said_by(name))
    told, count, sent_bytes = Counter[str](), 0, 0
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        several = [Attacker(address, ATTACK_BYTES, left) for _ in range(connections)]
        for one in several:
            one.attack(iter(said))
        for one in several:
            one.hear(0.0)
            told.update(one.told)
            sent_bytes += one.sent_bytes
            one.close()
        count += connections
    pipe.send(
        {"connections": count, "sent_mb": round(sent_bytes / 1e6, 1), "told": dict(told.most_common(6))}
    )


def said_by(name: str) -> Iterator[bytes]:
    """Yield the first megabytes of an attack, in chunks of whole frames."""
    waiting, size = b"", 0
    for one in islice(ordinary_calls() if name == ORDINARY else ATTACKS[name](), 400_000):
        waiting += one
        if len(waiting) >= 60_000:
            yield waiting
            size, waiting = size + len(waiting), b""
        if size >= ATTACK_BYTES:
            return
    yield waiting


def ordinary_calls() -> Frames:
    """Yield ordinary calls indefinitely."""
    block = call_of(SERVICE + "QueryRoute")
    for stream in range(1, 2**31, 2):
        yield frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, bytes(5))


def crowd(pipe: Pipe, address: tuple[str, int], name: str, seconds: float) -> None:
    """Run one of `CROWDS`, which opens thousands of connections at once; send its figures to the pipe."""
    pipe.send(asyncio.run(CROWDS[name](address, seconds)))


async def connections(address: tuple[str, int], seconds: float) -> dict[str, Any]:
    """Open thousands of connections, exchange SETTINGS, and keep them open."""
    began = time.monotonic()
    streams = await asyncio.gather(*(greeted(address) for _ in range(CONNECTIONS)))
    took = time.monotonic() - began
    await asyncio.sleep(seconds)
    for _, writer in streams:
        writer.transport.abort()
    return {
        "connections": CONNECTIONS,
        "all_greeted_after_s": round(took, 2),
        "told": {"SETTINGS": CONNECTIONS},
    }


async def greeted(address: tuple[str, int], **how: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection on which the server has sent a frame header."""
    reader, writer = await asyncio.open_connection(*address, **how)
    writer.write(PREFACE + frame(SETTINGS, 0, 0, b""))
    await reader.readexactly(9)
    return reader, writer


async def tls_reconnects(address: tuple[str, int], seconds: float) -> dict[str, Any]:
    """Connect thousands of TLS clients at once, two times."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    told, took = Counter[str](), []

    async def once() -> None:
        try:
            _, writer = await greeted(address, ssl=context, ssl_handshake_timeout=60)
        except (OSError, asyncio.IncompleteReadError) as error:
            told[type(error).__name__] += 1
        else:
            told["greeted"] += 1
            writer.transport.abort()

    for _ in range(2):
        began = time.monotonic()
        await asyncio.gather(*(once() for _ in range(TLS_CLIENTS)))
        took.append(round(time.monotonic() - began, 2))
    return {"connections": 2 * TLS_CLIENTS, "rounds_s": took, "told": dict(told)}


async def silent(address: tuple[str, int], seconds: float) -> dict[str, Any]:
    """Open a thousand connections and send one byte on each."""
    streams = [await asyncio.open_connection(*address) for _ in range(1_000)]
    for _, writer in streams:
        writer.write(b"P")
    await asyncio.sleep(seconds)
    for _, writer in streams:
        writer.transport.abort()
    return {"connections": len(streams), "told": {}}


EVERY: Final = (ORDINARY, *ATTACKS, *CROWD)
CROWDS: Final = {one.__name__: one for one in (connections, tls_reconnects, silent)}


def main() -> None:
    """Measure the chosen attacks, and print the figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=3.0)
    arguments.add_argument("--connections", type=int, default=4)
    arguments.add_argument("--attacks", nargs="*", choices=EVERY, default=EVERY)
    given = arguments.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in given.attacks:
            options = ("--flush", "async", "--connections-per-address", "8000")
            broker = BrokerProcess(Path(folder, name), "--segment-bytes", str(1 << 24), *options)
            broker.start()
            try:
                figures[name] = one_attack(broker, name, given)
            finally:
                broker.stop()
            print(row(name, figures[name]), file=sys.stderr, flush=True)
    print(json.dumps(figures, indent=1))


def one_attack(broker: BrokerProcess, name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of an attack on a broker."""
    assert broker.process is not None
    host, _, port = broker.listen.rpartition(":")
    address = (host, int(port))

    def come(pipe: Pipe) -> None:
        os.nice(5)
        if name in CROWDS:
            crowd(pipe, address, name, given.seconds)
        else:
            attack(pipe, address, name, given.connections, given.seconds)

    return asyncio.run(measure(broker.process.pid, address, come, given.seconds))


def row(name: str, figures: dict[str, Any]) -> str:
    """Return a row of the table."""
    p99 = [
        f"{figures['before'][one].get('p99_ms')} -> {figures['during'][one].get('p99_ms')}"
        for one in ("send", "heartbeat")
    ]
    told = ", ".join(f"{what} x {count}" for what, count in figures["told"].items())
    return f"| {name} | {figures['growth_mib']} | {' | '.join(p99)} | {figures['connections']} | {told} |"


if __name__ == "__main__":
    main()
