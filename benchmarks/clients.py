"""Processor time of the Python clients and of the broker for each message. Prints JSON.

    .venv/bin/python benchmarks/clients.py [--count 4000] [--rounds 5] [--folder DIR]

`tidewheel.Client` and `tidewheel.AsyncClient` (HTTP), and the official client (`rocketmq-python-client`,
gRPC), each in a separate process, run each row in turn against one broker (`--flush async`), in `--rounds`
rounds; a figure is the median of the rounds. Messages have 256 bytes.

    send             sequential sends
    send_at_once     16 calls in flight: in 16 threads, or 16 coroutines
    send_many        100 in a request; the official client has no such call
    receive          sequential receives of 32, with an acknowledgement for each message
    lone             500 sequential sends, p50 and p99, in ms

`client_us` and `broker_us` are the processor time of each process, user and system, for each message.

`polls`: 1,000 long polls of ten AsyncClients (each opens 100 connections), and one message for each: the
processor time of broker and client for opening, answering and closing one, the memory of one in the broker,
in bytes, and the latency of a lone send (bytes on a socket) without and with the open polls. `over_http.py`
measures polls that are bytes on a socket.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from parts.http_calls import LONE, Server, measure_polls
from parts.percentiles import figures
from parts.serving import ROOT, serving

KINDS = ("client", "async", "official")
WORKS = ("send", "send_at_once", "send_many", "receive")
LACKING = {("official", "send_many")}
PROCESS = Path(__file__).with_name("parts") / "clients" / "process.py"


class Process:
    """A client's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def do(self, *work: str) -> dict[str, Any]:
        """Send the process a work and its arguments; return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(work) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the client ended: {self._process.args!r}"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def process(kind: str, facts: dict[str, Any], home: Path) -> Iterator[Process]:
    """Run a client's process until the block ends."""
    command = [sys.executable, str(PROCESS), kind, facts["http"], facts["listen"]]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(home)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe) as running:
        try:
            yield Process(running)
        finally:
            running.kill()


def one_round(
    server: Server, clients: dict[str, Process], number: int, count: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Measure each row once with each client."""
    rows: dict[str, dict[str, dict[str, float]]] = {kind: {} for kind in clients}
    for work in WORKS:
        for kind, client in clients.items():
            if (kind, work) not in LACKING:
                topic = f"of-{kind}-{number}"
                if work == "receive" and kind == "official":
                    client.do("subscribe", topic)
                before_us = server.busy_us()
                client_us = client.do(work, topic, str(count))["us"]
                broker_us = server.busy_us() - before_us
                rows[kind][work] = {"client_us": client_us / count, "broker_us": broker_us / count}
    for kind, client in clients.items():
        took = figures(client.do("lone", f"lone-{kind}", str(LONE))["took"])
        rows[kind]["lone"] = {name: took[name] for name in ("p50_ms", "p99_ms")}
    return rows


def middles(rounds: Sequence[dict[str, dict[str, dict[str, float]]]]) -> dict[str, Any]:
    """Return the median of each figure."""
    return {
        kind: {
            work: {
                name: round(statistics.median(one[kind][work][name] for one in rounds), 2) for name in named
            }
            for work, named in works.items()
        }
        for kind, works in rounds[0].items()
    }


def polls(facts: dict[str, Any], home: Path) -> dict[str, float]:
    """Measure open polls of AsyncClients."""
    spent: dict[str, float] = {}

    async def opened(topics: Sequence[str]) -> None:
        spent.update(await asyncio.to_thread(client.do, "polls", *topics))

    with process("async", facts, home) as client:
        client.do("send", "lone", "1")
        found = asyncio.run(measure_polls(facts, opened))
    return found | {"client_us_each": round(spent["us"] / found["count"])}


def main() -> None:
    """Measure, and print the figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--count", type=int, default=4_000, help="messages of a row")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--folder", type=Path, help="where to write; else a temporary folder")
    chosen = arguments.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="tidewheel-bench-") as folder:
        home = Path(folder)
        with serving(home / "store", "--flush", "async") as facts, ExitStack() as stack:
            clients = {kind: stack.enter_context(process(kind, facts, home)) for kind in KINDS}
            server = Server(facts["process"])
            one_round(server, clients, 0, chosen.count // 4)  # warms all
            rounds = [one_round(server, clients, 1 + n, chosen.count) for n in range(chosen.rounds)]
        with serving(home / "polls", "--flush", "async") as facts:
            of_polls = polls(facts, home)
    beside = {
        "cores": os.cpu_count(),
        "load_before": before,
        "load_after": os.getloadavg()[0],
        "python": platform.python_version(),
    }
    print(json.dumps({**middles(rounds), "polls": of_polls, "beside": beside}, indent=2))


if __name__ == "__main__":
    main()
