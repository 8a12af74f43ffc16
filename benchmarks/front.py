"""What the protocol port costs: calls by h2load straight to gRPC, through the port, and through it with TLS.

    .venv/bin/python benchmarks/front.py calls [--calls 20000] [--rounds 2] [--loops asyncio uvloop]
    .venv/bin/python benchmarks/front.py connections [--count 2000] [--seconds 60]

* calls: SendMessage of one message of 256 B by 16 connections of 8 streams, and by a single one outstanding;
  ReceiveMessage of 32 by 16 connections; calls a second, latency, and the server's processor time for a call.
  `straight` dials the port on which gRPC listens behind the front, in the same process.
* connections: so many clients, each with an open Telemetry stream and a long poll, idle for so long: memory
  for each, and processor time.

h2load is Debian's nghttp2-client. Everything is one machine and the store is flushed for every answer
(`--flush async` takes that out); it is ratios that count.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from front_connections import measure_connections
from front_load import Load, h2load, receive_body, send_body
from front_server import Served, processor_seconds

CONNECTIONS, STREAMS = 16, 8
LOOPS: Final = ("asyncio", "uvloop")
SERVER: Final = Path(__file__).with_name("front_server.py")


class Way(NamedTuple):
    """How the calls reach the server."""

    name: str
    address: str
    is_tls: bool = False


def main() -> None:
    """Run the part that is asked for, and print its figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = arguments.add_subparsers(dest="command", required=True)
    calls = commands.add_parser("calls")
    calls.add_argument("--calls", type=int, default=20_000)
    calls.add_argument("--rounds", type=int, default=2)
    calls.add_argument("--loops", nargs="*", default=list(LOOPS))
    calls.add_argument("--flush", default="sync")
    connections = commands.add_parser("connections")
    connections.add_argument("--count", type=int, default=2_000)
    connections.add_argument("--seconds", type=float, default=60.0)
    given = arguments.parse_args()
    if given.command == "calls":
        if shutil.which("h2load") is None:
            sys.exit("h2load is missing. Install Debian's nghttp2-client.")
        figures = {loop: of_loop(loop, given) for loop in given.loops}
    else:
        with serving("asyncio", "sync") as served:
            figures = measure_connections(served, given.count, given.seconds)
    print(json.dumps(figures, indent=1))


def of_loop(loop: str, given: argparse.Namespace) -> dict[str, Any]:
    """All ways with one event loop, each in turn, `rounds` times; the best of each counts."""
    found: dict[str, Any] = {}
    with serving(loop, given.flush) as served:
        ways = [
            Way("straight", served.behind_plaintext),
            Way("through the port", served.listen),
            Way("straight, TLS", served.behind_tls, is_tls=True),
            Way("through the port, TLS", served.listen, is_tls=True),
        ]
        for _ in range(given.rounds):
            for way in ways:
                for name, load in loads(given.calls).items():
                    keep_best(found.setdefault(way.name, {}), name, measured(served, way, load))
    return found


def loads(calls: int) -> dict[str, Load]:
    """What is measured; receives find what the sends before them have left."""
    return {
        "send": Load("SendMessage", send_body("bench"), calls, CONNECTIONS, STREAMS),
        "send, one outstanding": Load("SendMessage", send_body("bench"), calls // 20, 1, 1),
        "receive 32": Load("ReceiveMessage", receive_body("bench"), calls // 64, CONNECTIONS, 1),
    }


def measured(served: Served, way: Way, load: Load) -> dict[str, Any]:
    """One run of h2load, and what it cost the server."""
    before_s = processor_seconds(served.process)
    ran = h2load(way.address, load, is_tls=way.is_tls)
    spent_s = processor_seconds(served.process) - before_s
    return ran | {"server_us_per_call": round(spent_s / load.calls * 1e6)}


def keep_best(found: dict[str, Any], name: str, ran: dict[str, Any]) -> None:
    """Keep the faster of two runs."""
    if name not in found or ran["calls_per_second"] > found[name]["calls_per_second"]:
        found[name] = ran


@contextmanager
def serving(loop: str, flush: str) -> Iterator[Served]:
    """Run a broker with an event loop, on a store that goes when it does."""
    with tempfile.TemporaryDirectory(prefix="tidewheel-bench-front-") as folder:
        ready = Path(folder) / "ready"
        command = [sys.executable, str(SERVER), loop, str(Path(folder) / "store"), str(ready), flush]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            yield Served.when_ready(process.pid, ready)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
