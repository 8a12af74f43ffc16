"""Cost of the protocol port: calls by h2load, with and without TLS; idle clients.

    .venv/bin/python benchmarks/front.py calls [--calls 3000] [--rounds 3] [--loops asyncio uvloop]
    .venv/bin/python benchmarks/front.py connections [--count 2000] [--seconds 60]

* calls: Heartbeat (which uses no store) and SendMessage of one message of 256 B, each by 16 connections of 8
  streams; SendMessage with a single call outstanding; ReceiveMessage of 32 by 16 connections. Figures are
  calls per second, latency, and the server's processor time for a call. The brokers of all loops run at
  once, each on a separate store, and are called in turn, so that other work affects all of them; the best of
  each figure counts. The run takes a few minutes; JSON on stdout, a table on stderr.
* connections: `--count` clients, each with an open Telemetry stream and a long poll, idle for `--seconds`:
  memory for each, and processor time.

h2load is in Debian's nghttp2-client. Everything runs on one machine, and the store is flushed for every
answer (`--flush async` excludes the flush); only ratios are comparable, and processor time varies less than
rates.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import ExitStack
from typing import Any, Final

from parts.front.connections import measure_connections
from parts.front.load import Load, h2load, loads
from parts.front.server import Served, started

LOOPS: Final = ("asyncio", "uvloop")
WAYS: Final = {"plaintext": False, "TLS": True}
COLUMNS: Final = {
    "heartbeat/s": ("heartbeat", "calls_per_second"),
    "us a heartbeat": ("heartbeat", "server_us_per_call"),
    "send/s": ("send", "calls_per_second"),
    "us a send": ("send", "server_us_per_call"),
    "one: ms": ("send, one outstanding", "mean_ms"),
    "receive 32/s": ("receive 32", "calls_per_second"),
    "us a receive": ("receive 32", "server_us_per_call"),
}
"""Load and figure of each column of the table; `us` is microseconds of the server's processor time."""


def main() -> None:
    """Run the chosen command, and print its figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--flush", default="sync")
    commands = arguments.add_subparsers(dest="command", required=True)
    calls = commands.add_parser("calls")
    calls.add_argument("--calls", type=int, default=3_000)
    calls.add_argument("--rounds", type=int, default=3)
    calls.add_argument("--loops", nargs="*", choices=LOOPS, default=list(LOOPS))
    connections = commands.add_parser("connections")
    connections.add_argument("--count", type=int, default=2_000)
    connections.add_argument("--seconds", type=float, default=60.0)
    given = arguments.parse_args()
    if given.command == "calls":
        if shutil.which("h2load") is None:
            sys.exit("h2load is missing. Install Debian's nghttp2-client.")
        figures = measure_calls(given)
        print(table(figures), file=sys.stderr)
    else:
        with started("uvloop", given.flush) as served:
            figures = measure_connections(served, given.count, given.seconds)
    print(json.dumps(figures, indent=1))


def measure_calls(given: argparse.Namespace) -> dict[str, Any]:
    """Measure each loop with and without TLS, in turn, `rounds` times."""
    figures: dict[str, Any] = {loop: {way: {} for way in WAYS} for loop in given.loops}
    with ExitStack() as stack:
        brokers = {loop: stack.enter_context(started(loop, given.flush)) for loop in given.loops}
        for turn in range(given.rounds):
            for loop, served in brokers.items():
                for way, is_tls in WAYS.items():
                    print(f"round {turn + 1}: {loop}, {way}", file=sys.stderr)
                    for name, load in loads(f"bench-{way}-{turn}", given.calls).items():
                        keep_best(figures[loop][way], name, measured(served, load, is_tls=is_tls))
    return figures


def measured(served: Served, load: Load, *, is_tls: bool) -> dict[str, Any]:
    """Run h2load once; return its figures and the server's processor time for a call."""
    if load.before:
        h2load(served.listen, load.before, is_tls=is_tls)
    before_s = served.processor_seconds()
    ran = h2load(served.listen, load, is_tls=is_tls)
    spent_s = served.processor_seconds() - before_s
    data_bytes = ran.pop("data_bytes")
    assert data_bytes >= load.calls * load.answer_bytes_min, "not all answers held 32 messages"
    return ran | {"server_us_per_call": round(spent_s / load.calls * 1e6)}


def keep_best(found: dict[str, Any], name: str, ran: dict[str, Any]) -> None:
    """Keep the better of each figure of two runs."""
    kept = found.setdefault(name, ran)
    for figure, value in ran.items():
        better = max if figure.endswith("_per_second") else min
        kept[figure] = better(kept[figure], value)


def table(figures: dict[str, Any]) -> str:
    """Return the figures as a table in Markdown."""
    rows = [["loop", "way", *COLUMNS], ["---"] * (2 + len(COLUMNS))]
    rows += [
        [loop, way, *(f"{found[load][figure]:,}" for load, figure in COLUMNS.values())]
        for loop, ways in figures.items()
        for way, found in ways.items()
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    main()
