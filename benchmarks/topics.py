"""Cost of many topics: of starts, stops, memory, pauses, and each message. Prints JSON.

    .venv/bin/python benchmarks/topics.py [--topics 10000] [--queues 8] [--rounds 40] [--folder DIR]

`process`: a store of `--topics` topics, with a message in each of their queues. `tidewheel serve` starts on
it, then again after a stop and after kill -9, both under load (16 connections that send to all topics in
turn, over HTTP): seconds and processor time until it is ready, and seconds of a stop. Memory is the anonymous
memory above that of a broker with one topic, for each queue.

`core`: live brokers over real disks in one process, with 1, 250, 2,000 and `--topics` topics, measured in
turn; a figure is the minimum over the rounds, processor microseconds per message, flushes included, and its
ratio to that with one topic. Each call uses the next topic. Rounds are short and many, so that each broker
has undisturbed samples.

    send_1, send_16    sends with 64 in flight, and groups of 16 concurrent sends to one topic
    receive            a send, a receive of one message and its acknowledgement, 64 in flight; the group has
                       received from every topic before
    delayed            timers due in 200 ms: set, due, delivered

A lone call needs a flush, whose cost is the disk's; therefore 64 calls are in flight.

`checkpoint`: the longest time for which a checkpoint of the largest of these brokers holds the loop without a
pause, in ms: its start, and the slices in which rows are taken.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from parts.http_calls import Connection, Server, connected

from commitlog.disk.real_disk import RealDisk
from commitlog.layout import SNAPSHOTS
from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import EVERYTHING
from services.broker.spine.settings import BrokerSettings
from services.live.flushing import ROWS_PER_TURN
from services.live.live_broker import LiveBroker
from services.process import memory

ROOT = Path(__file__).parents[1]
SIZES = (1, 250, 2_000)
BODY = b"x" * 256
GROUP = "carts"
CALLS, RECEIVED, UNDER_WAY = 2_000, 1_000, 64
REST_SECONDS = 0.01
"""Pause between samples, and between polls of the pending timers."""
START_SECONDS = 300


def main() -> None:
    """Measure the chosen parts, and print the figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--topics", type=int, default=10_000)
    arguments.add_argument("--queues", type=int, default=8)
    arguments.add_argument("--rounds", type=int, default=40)
    arguments.add_argument("--folder", type=Path, help="where stores are made; default: the system's")
    arguments.add_argument("--only", choices=("process", "core"))
    arguments.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.fill is not None:
        asyncio.run(filled(given.fill, given.topics, given.queues))
        return
    told: dict[str, Any] = {"topics": given.topics, "queues": given.topics * given.queues}
    with tempfile.TemporaryDirectory(prefix="tidewheel-bench-", dir=given.folder) as folder:
        if given.only != "core":
            told["process"] = processes(Path(folder), given)
        if given.only != "process":
            told |= asyncio.run(cores(Path(folder), given))
    told["beside"] = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": sys.version.split()[0]}
    print(json.dumps(told, indent=2))


# Stores.


def named(number: int) -> str:
    """Return the name of a topic."""
    return f"topic-{number:06d}"


def now_ms() -> int:
    """Return wall time in milliseconds."""
    return time.time_ns() // 1_000_000


def opened(folder: Path, queues: int, writer: ThreadPoolExecutor) -> LiveBroker:
    """Open a live broker on a store in this process."""
    settings = BrokerSettings(segment_bytes=1 << 26, queue_count=queues)
    loop = asyncio.get_running_loop()
    return LiveBroker(RealDisk(folder), settings, now_ms, loop.call_later, writer)


async def fill(live: LiveBroker, topics: int, queues: int) -> None:
    """Create the topics, and send a message to each queue."""
    for number in range(topics):
        live.core.topics.create(named(number), MessageType.MIXED, queues, live.now_ms())
        if number % 1_000 == 999:
            await live.call(live.core.topics.create, "mark", MessageType.MIXED, 1)
    ids = count()
    for number in range(topics):
        await asyncio.gather(*(live.send(message(number, next(ids))) for _ in range(queues)))


def message(topic: int, number: int, **given: Any) -> Message:
    """Return a message of 256 bytes to a topic."""
    return Message(topic=named(topic), body=BODY, message_id=f"{number:032d}", **given)


async def filled(folder: Path, topics: int, queues: int) -> None:
    """Build a store, and close it."""
    with ThreadPoolExecutor(4) as writer:
        live = opened(folder, queues, writer)
        await fill(live, topics, queues)
        await live.close()


# Processes.


def processes(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Measure starts, stops and memory of a broker's process."""
    one, many = folder / "one", folder / "many"
    for store, topics in ((one, 1), (many, given.topics)):
        command = [sys.executable, __file__, "--fill", str(store), "--topics", str(topics)]
        subprocess.run([*command, "--queues", str(given.queues)], check=True, cwd=ROOT, env=environment())
    least = started(one)
    stopped(least["process"])
    told: dict[str, Any] = {"files_of_queues": sum(1 for path in many.glob("consumequeue/*/*/*"))}
    first = started(many)
    queue_count = given.topics * given.queues
    told["start_clean"] = shown(first)
    memory = (anonymous(first) - least["anonymous"]) / queue_count
    told["bytes_a_queue"] = round(memory)
    told["sent_before_stop"], told["stop_under_load"] = loaded(first, given.topics, signal.SIGTERM)
    second = started(many)
    told["start_after_stop_under_load"] = shown(second)
    told["sent_before_kill"], _ = loaded(second, given.topics, signal.SIGKILL)
    third = started(many)
    told["start_after_kill_under_load"] = shown(third)
    told["stop_idle"] = stopped(third["process"])
    return told


def environment() -> dict[str, str]:
    """Return the environment of a process that runs these sources."""
    return os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}"}


def started(store: Path) -> dict[str, Any]:
    """Start a broker; return its process, addresses, and the wall and processor time of the start."""
    ready = store.with_suffix(".ready")
    ready.unlink(missing_ok=True)
    where = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready))
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "services.cli.main", "serve", "--store", str(store), *where],
        cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    while not ready.exists():
        assert process.poll() is None, "the broker did not start"
        assert time.monotonic() - began < START_SECONDS, "the broker did not start in time"
        time.sleep(0.01)
    took, busy_us = time.monotonic() - began, Server(process.pid).busy_us()
    told = {**json.loads(ready.read_text()), "process": process, "seconds": took, "busy_s": busy_us / 1e6}
    return told | {"anonymous": anonymous(told)}


def anonymous(one: dict[str, Any]) -> int:
    """Return the anonymous memory of a process in bytes."""
    rollup = Path(f"/proc/{one['process'].pid}/smaps_rollup").read_text()
    return 1024 * next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous:"))


def shown(one: dict[str, Any]) -> dict[str, float]:
    """Return the rounded wall and processor time of a start."""
    return {"seconds": round(one["seconds"], 2), "processor_s": round(one["busy_s"], 2)}


def stopped(process: subprocess.Popen[bytes], sent: signal.Signals = signal.SIGTERM) -> float:
    """Send a signal to a process; return the seconds until it ended."""
    began = time.monotonic()
    process.send_signal(sent)
    process.wait()
    return round(time.monotonic() - began, 2)


def loaded(one: dict[str, Any], topics: int, sent: signal.Signals) -> tuple[int, float]:
    """Send until all topics have a message; end the broker under this load; return (sent, seconds)."""

    async def send() -> tuple[int, float]:
        connections = await connected(int(one["http"].rpartition(":")[2]), 16)
        numbers, done, reached = count(), [0], asyncio.Event()

        async def keep_sending(connection: Connection) -> None:
            with suppress(asyncio.IncompleteReadError, ConnectionError, AssertionError):
                while True:
                    topic = next(numbers) % topics
                    await connection.post("/api/messages", {"topic": named(topic), "body": "x" * 256})
                    done[0] += 1
                    if done[0] >= topics:
                        reached.set()

        sending = [asyncio.ensure_future(keep_sending(one)) for one in connections]
        await reached.wait()
        seconds = await asyncio.to_thread(stopped, one["process"], sent)
        await asyncio.gather(*sending)
        return done[0], seconds

    return asyncio.run(send())


# Cores.


class Bench:
    """A live broker with `topics` topics."""

    def __init__(self, live: LiveBroker, topics: int) -> None:
        self.live, self.topics = live, topics
        self._turn, self._ids = count(), count(1 << 40)

    def next_topic(self) -> int:
        """Return the next topic in turn, in steps that do not follow the order of names."""
        return next(self._turn) * 7_919 % self.topics

    async def send_1(self) -> int:
        """Send single messages, 64 in flight; return the number sent."""

        async def some() -> None:
            for _ in range(CALLS // UNDER_WAY):
                await self.live.send(message(self.next_topic(), next(self._ids)))

        await asyncio.gather(*(some() for _ in range(UNDER_WAY)))
        return CALLS // UNDER_WAY * UNDER_WAY

    async def send_16(self) -> int:
        """Send groups of 16 concurrent messages to one topic each; return the number sent."""
        for _ in range(CALLS // 16):
            topic = self.next_topic()
            await asyncio.gather(*(self.live.send(message(topic, next(self._ids))) for _ in range(16)))
        return CALLS

    async def receive(self, messages: int = RECEIVED) -> int:
        """Send, receive and acknowledge single messages, 64 in flight; return the number received."""
        live, received = self.live, 0
        places = iter([self.next_topic() for _ in range(messages)])

        async def some() -> None:
            nonlocal received
            for place in places:
                await live.send(message(place, next(self._ids)))
                found = await live.receivers.receive(
                    GROUP, named(place), EVERYTHING, 1, 60_000, "c", False, 0
                )
                for one in found:
                    await live.call(live.core.receiving.ack, GROUP, named(place), one.receipt_handle)
                received += len(found)

        await asyncio.gather(*(some() for _ in range(UNDER_WAY)))
        assert received == messages, "every receive has a message that was sent before it"
        return received

    async def delayed(self) -> int:
        """Set timers due at one time in 200 ms; return their number when all are delivered and durable."""
        core = self.live.core
        due_ms = self.live.now_ms() + 200
        sends = (message(self.next_topic(), next(self._ids), delivery_ms=due_ms) for _ in range(CALLS))
        await asyncio.gather(*(self.live.send(one) for one in sends))
        while core.timers.pending_count or not core.is_quiet:
            await asyncio.sleep(REST_SECONDS)
        return CALLS


ROWS: dict[str, Callable[[Bench], Awaitable[int]]] = {
    "send_1": Bench.send_1,
    "send_16": Bench.send_16,
    "receive": Bench.receive,
    "delayed": Bench.delayed,
}


async def cores(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Measure the cost of a message with few and many topics, and a checkpoint."""
    memory.keep_little()
    sizes = sorted({*SIZES, given.topics})
    with ThreadPoolExecutor(4) as writer:
        benches = []
        for topics in sizes:
            live = opened(folder / f"core-{topics}", given.queues, writer)
            await fill(live, topics, given.queues)
            benches.append(Bench(live, topics))
            await benches[-1].receive(topics)
        gc.collect()
        best: dict[str, dict[int, float]] = {name: {} for name in ROWS}
        for _ in range(given.rounds):
            for name, row in ROWS.items():
                for bench in benches:
                    began = time.process_time()
                    done = await row(bench)
                    took = (time.process_time() - began) / done * 1e6
                    best[name][bench.topics] = min(took, best[name].get(bench.topics, took))
                    await asyncio.sleep(REST_SECONDS)
        told = {"core": {name: ratios(of) for name, of in best.items()}, "checkpoint": held(benches[-1])}
        for bench in benches:
            await bench.live.close()
    return told


def ratios(of: dict[int, float]) -> dict[str, dict[str, float]]:
    """Return each figure with its ratio to that with one topic."""
    return {
        str(topics): {"us": round(took, 1), "ratio": round(took / of[1], 2)} for topics, took in of.items()
    }


def held(bench: Bench) -> dict[str, float]:
    """Return the times for which a checkpoint holds the loop, in ms, with its write time and size."""
    core, slices = bench.live.core, []
    began = time.perf_counter()
    checkpoint = core.checkpoint(bench.live.now_ms())
    start_ms = (time.perf_counter() - began) * 1e3
    is_done = False
    while not is_done:
        began = time.perf_counter()
        is_done = checkpoint.take(ROWS_PER_TURN)
        slices.append((time.perf_counter() - began) * 1e3)
    began = time.perf_counter()
    checkpoint.write(bench.live._disk)
    written_s = time.perf_counter() - began
    core.complete_checkpoint(checkpoint)
    disk = bench.live._disk
    size = sum(disk.size(f"{SNAPSHOTS}/{name}") for name in disk.list(SNAPSHOTS)) / 2**20
    return {
        "begin_ms": round(start_ms, 1),
        "longest_slice_ms": round(max(slices), 1),
        "slices": len(slices),
        "write_s": round(written_s, 2),
        "snapshots_mib": round(size, 1),
    }


if __name__ == "__main__":
    main()
