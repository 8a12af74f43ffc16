"""What serves the protocol port costs: calls by h2load through the port, straight, with TLS; other fronts.

    .venv/bin/python benchmarks/front.py calls [--calls 3000] [--rounds 3] [--loops asyncio uvloop]
                                               [--fronts grpcio nghttp2 ...]
    .venv/bin/python benchmarks/front.py connections [--count 2000] [--seconds 60] [--front grpcio]

* calls: Heartbeat (no store behind it) and SendMessage of one message of 256 B, each by 16 connections of 8
  streams; SendMessage by a single one outstanding; ReceiveMessage of 32 by 16 connections. Calls a second,
  latency, and the server's processor time for a call, its children's as well. `straight` dials the port on
  which the front listens behind ours, in the same process. The fronts are those of `front_kinds.py`, each
  serving the same broker; those whose packages are missing are left out, and named: `pip install --group
  fronts` has them all. Under ten minutes; JSON on stdout, a table on stderr.
* connections: so many clients, each with an open Telemetry stream and a long poll, idle for so long: memory
  for each, and processor time.

h2load is Debian's nghttp2-client. Everything is one machine and the store is flushed for every answer
(`--flush async` takes that out); it is ratios that count, and processor time is steadier than rates.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import Final

from front_compare import compare, started, table
from front_connections import measure_connections
from front_kinds import KINDS

LOOPS: Final = ("asyncio", "uvloop")


def main() -> None:
    """Run the part that is asked for, and print its figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = arguments.add_subparsers(dest="command", required=True)
    calls = commands.add_parser("calls")
    calls.add_argument("--calls", type=int, default=3_000)
    calls.add_argument("--rounds", type=int, default=3)
    calls.add_argument("--loops", nargs="*", default=list(LOOPS))
    calls.add_argument("--fronts", nargs="*", choices=KINDS, default=list(KINDS))
    calls.add_argument("--flush", default="sync")
    connections = commands.add_parser("connections")
    connections.add_argument("--count", type=int, default=2_000)
    connections.add_argument("--front", choices=KINDS, default="grpcio")
    connections.add_argument("--seconds", type=float, default=60.0)
    given = arguments.parse_args()
    if given.command == "calls":
        if shutil.which("h2load") is None:
            sys.exit("h2load is missing. Install Debian's nghttp2-client.")
        figures = compare(given)
        print(table(figures), file=sys.stderr)
    else:
        with started(given.front, "asyncio", "sync") as served:
            figures = measure_connections(served(), given.count, given.seconds)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
